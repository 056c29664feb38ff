"""How all figures look, and how they become bytes."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# A dark blue and a light orange: told apart by every kind of eye, and in grey by their lightness.
BLUE, ORANGE, GREY, LIGHT_GREY = "#004F8C", "#E8850C", "#8C8C8C", "#C8C8C8"
LIGHT_BLUE = "#5BA3D0"
SMALL, NORMAL = 8, 9
WIDTH = 7.0  # inches: the text width of a journal page

_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.labelsize": NORMAL,
    "figure.titlesize": NORMAL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.2,
    "hatch.linewidth": 0.8,
    "figure.dpi": 200,
    "svg.hashsalt": "pdecnn",
    # A class may be called "$x$": names are words, not formulas.
    "text.parse_math": False,
}


@contextmanager
def journal_style() -> Iterator[None]:
    """Draw inside with our settings, whatever the user's are, and leave theirs as they were."""
    with matplotlib.style.context(["default", _SETTINGS]):
        yield


def render(name: str, figure: Figure) -> dict[str, bytes]:
    """The figure as `name`.png and `name`.svg; equal figures give equal bytes."""
    png, svg = BytesIO(), BytesIO()
    with warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box; the other names are still of use.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        pixels = FigureCanvasAgg(figure)
        pixels.print_png(png, metadata={"Software": None})  # type: ignore[no-untyped-call]
        # The layout is settled; finding it anew would take most of the time.
        figure.set_layout_engine("none")
        vectors = FigureCanvasSVG(figure)
        vectors.print_svg(svg, metadata={"Date": None})  # type: ignore[no-untyped-call]
    return {f"{name}.png": png.getvalue(), f"{name}.svg": svg.getvalue()}


def short_name(name: str, longest: int = 18) -> str:
    """A class name that leaves room for the figure; both ends stay, where names differ."""
    if len(name) <= longest:
        return name
    tail = (longest - 1) // 2
    return name[: longest - 1 - tail] + "…" + name[-tail:]
