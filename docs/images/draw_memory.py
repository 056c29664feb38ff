"""The README's figure of memory against depth, from docs/results/speed.json.

python docs/images/draw_memory.py
"""

import json
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from pdecnn.reports.style import BLUE, LIGHT_GREY, ORANGE, journal_style

HERE = Path(__file__).parent
DYNAMICS, VARIANT = "hamiltonian", "eager"
CURVES = {
    "stored": ("stored", ORANGE, "o", "-"),
    "exact": ("run backwards", BLUE, "D", "--"),
}
LARGE = 12  # it stands beside another picture, at half the width of a page


def main() -> None:
    """Draw it."""
    rows = json.loads((HERE.parent / "results" / "speed.json").read_text())
    rows = rows["parts"]["depth"]["memory_rows"]
    with journal_style():
        figure = Figure(figsize=(5.2, 4.4), layout="constrained")
        axes = figure.subplots()
        for mode, (name, colour, marker, line) in CURVES.items():
            chosen = {"dynamics": DYNAMICS, "variant": VARIANT, "backprop": mode}
            points = {
                row["num_steps"]: row["activation_bytes"] / 1e6
                for row in rows
                if chosen.items() <= row.items()
            }
            depths, megabytes = list(points), list(points.values())
            axes.plot(depths, megabytes, color=colour, marker=marker, markersize=7, ls=line, lw=2)
            place = {"stored": (-12, 0), "exact": (-4, 12)}[mode]
            axes.annotate(
                f"{name}: {megabytes[-1]:,.0f} MB",
                (depths[-1], megabytes[-1]),
                xytext=place,
                textcoords="offset points",
                ha="right",
                va="center" if mode == "stored" else "bottom",
                size=LARGE,
                weight="bold",
                color=colour,
            )
        axes.set(xscale="log", yscale="log", xlim=(2.4, 1500), ylim=(60, 120_000))
        axes.set_xticks(depths, [f"{depth:,}" for depth in depths])
        axes.set_yticks([100, 1000, 10_000, 100_000])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.tick_params(labelsize=LARGE - 1)
        axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.5)
        axes.set_xlabel("time steps of a hamiltonian block", size=LARGE)
        axes.set_title("Activation memory of a training step (MB)", loc="left", size=LARGE)
        figure.savefig(HERE / "memory.png", dpi=130)


if __name__ == "__main__":
    main()
