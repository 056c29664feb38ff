"""Draws architecture.svg: the rooms by what they import, and the walk of a batch beside them.

python docs/images/draw_architecture.py
"""

from html import escape
from pathlib import Path

BLUE, ORANGE, GREY, INK = "#004F8C", "#C86400", "#5F6773", "#1B1F26"
WIDTH, HEIGHT = 960, 640
# Rooms that stand beside each other do not import each other.
ROOMS = [
    [("cli", "the command pdecnn")],
    [("reports", "pages, figures, tables"), ("explorer", "a network in the browser")],
    [("runs", "one run: config, folder, resume, queue")],
    [("learning", "trainer, step, optimizer"), ("diagnostics", "what PDE theory says")],
    [("fast", "compiled steps, fused kernels: how fast, never what")],
    [("networks", "opening, blocks, classifier"), ("data", "images, splits, batches")],
    [("pde", "layer · integrator · backprop")],
    [("files, settings, errors", "used by all")],
]
WALK = [
    ("runs/training.py", "train", "opens the run, makes network and trainer"),
    ("learning/trainer.py", "Trainer.step", "epoch by epoch, batch by batch"),
    ("learning/step.py", "TrainingStep", "images, loss, gradient, update"),
    ("networks/network.py", "Network.forward", "(B, 3, 32, 32) → scores (B, 10)"),
    ("pde/block.py", "Block.forward", "Y(0) → Y(T), the five files of the idea"),
    ("pde/backprop.py", "Propagator", "what is kept for the gradient"),
    ("pde/integrators.py", "step", "Y ← Y + Δt F(Y), or a wave's two halves"),
    (
        "pde/layers.py",
        "SymmetricLayer",
        "F(Y) = \N{MINUS SIGN}Kᵀ \N{GREEK SMALL LETTER SIGMA}(N(K Y))",
    ),
    ("pde/convolution.py", "Convolution", "K and its exact adjoint Kᵀ"),
]


def box(x: float, y: float, width: float, height: float, colour: str, fill: str) -> str:
    """A rounded rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" '
        f'fill="{fill}" stroke="{colour}" stroke-width="1.5"/>'
    )


def text(x: float, y: float, words: str, **attributes: object) -> str:
    """A line of text."""
    extra = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f'<text x="{x:g}" y="{y:g}"{extra}>{escape(words)}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    """A line with a head."""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" '
        f'stroke-width="1.5" marker-end="url(#head)"/>'
    )


def rooms() -> list[str]:
    """The house from the roof down; arrows say who imports whom."""
    left, width, height, gap = 24, 410, 46, 22
    parts = [text(left, 40, "Rooms: each imports only those below it", font_weight="bold")]
    for row, entries in enumerate(ROOMS):
        y = 58 + row * (height + gap)
        each = (width - 14 * (len(entries) - 1)) / len(entries)
        for k, (name, what) in enumerate(entries):
            x = left + k * (each + 14)
            mine = name == "pde"
            parts.append(box(x, y, each, height, BLUE, "#E6F0F8" if mine else "#FFFFFF"))
            parts.append(text(x + 10, y + 19, name, font_weight="bold", fill=BLUE))
            parts.append(text(x + 10, y + 37, what, font_size=12.5))
        if row < len(ROOMS) - 1:
            parts.append(arrow(left + width / 2, y + height, left + width / 2, y + 64, GREY))
    return parts


def walk() -> list[str]:
    """The files a batch passes, in the order of the calls."""
    left, width, height, gap = 480, 456, 44, 18
    parts = [text(left, 40, "A batch on its way, call by call", font_weight="bold")]
    for row, (file, name, what) in enumerate(WALK):
        y = 58 + row * (height + gap)
        idea = file.startswith("pde/")
        colour = ORANGE if idea else GREY
        parts.append(box(left, y, width, height, colour, "#FDF1E3" if idea else "#FFFFFF"))
        parts.append(text(left + 10, y + 18, file, font_weight="bold", fill=colour))
        parts.append(text(left + 190, y + 18, name, font_family="DejaVu Sans Mono, monospace"))
        parts.append(text(left + 10, y + 36, what, font_size=12.5))
        if row < len(WALK) - 1:
            parts.append(arrow(left + 40, y + height, left + 40, y + height + gap - 2, colour))
    return parts


def main() -> None:
    """Write the picture beside this file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="DejaVu Sans, Segoe UI, sans-serif" font-size="14" fill="{INK}">\n'
        "<title>The rooms of pdecnn and the walk of a batch</title>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{GREY}"/></marker></defs>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#F9FAFB"/>\n'
    )
    body = "\n".join([*rooms(), *walk()])
    path = Path(__file__).with_name("architecture.svg")
    path.write_text(f"{head}{body}\n</svg>\n", encoding="utf-8")


if __name__ == "__main__":
    main()
