"""Write docs/results/tuned.md and its figure from the runs that are stored beside it.

    python -m benchmarks.tuned_page [--results docs/results]

The runs are those of `benchmarks.tuned`, kept without weights in docs/results/tuned/runs, and the
trials of `benchmarks.search` in docs/results/search.csv. What a step costs is measured by
`benchmarks.speed --only recipes`.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

import pdecnn
from benchmarks.provenance import measured_on
from benchmarks.resnets import CifarResNet
from benchmarks.search import RESNETS, Row, read_rows
from benchmarks.speed_page import bench_tables
from benchmarks.tuned import (
    DYNAMICS,
    HAMILTONIAN,
    SIZES,
    ablation,
    best_trial,
    final,
    folder_name,
    paper,
    sizes,
)
from pdecnn.files import write_atomically
from pdecnn.learning.metrics import count_flops
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network
from pdecnn.reports import style
from pdecnn.reports.bench import describe_part, markdown_table
from pdecnn.runs.queue import CONDITIONS
from pdecnn.runs.runs import CONFIG, ENVIRONMENT, SUMMARY, TIMING, Run

NOT_MEASURED = "not measured"
FIGURE = "tuned-sizes"
SEEDS = 3
# The least test accuracy wanted of the tuned recipes, in per cent.
FLOORS = {"parabolic": 93.5, "hamiltonian": 92.6, "second_order": 93.5}
# The residual network with about as many weights.
RIVALS = {"parabolic": "ResNet-32", "hamiltonian": "ResNet-20", "second_order": "ResNet-32"}
_LOOKS = {
    "hamiltonian": (style.BLUE, "o"),
    "parabolic": (style.ORANGE, "s"),
    "second_order": (style.LIGHT_BLUE, "^"),
    "resnet": ("black", "x"),
}


class Found(NamedTuple):
    """What is known of a finished run."""

    accuracy: float
    num_weights: int
    flops: int
    epochs: int
    seconds: float
    at_a_time: int
    environment: dict[str, Any]


def main() -> None:
    """Read the runs, write the page and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    results = parser.parse_args().results
    for name, content in written(results).items():
        write_atomically(results / name, content)


def written(results: Path) -> dict[str, bytes]:
    """The files by name; the figure where there are sizes to draw."""
    folder, trials = results / "tuned" / "runs", read_rows(results / "search.csv")
    measured = {name: read(folder, name, seeds=1) for name in sizes()}
    drawn = {name: runs[0] for name, runs in measured.items() if runs}
    contents = {}
    if drawn:
        with style.journal_style():
            contents = style.render(FIGURE, draw(drawn))
    speed = results / "speed.json"
    cost = _json(speed)["parts"].get("recipes") if speed.exists() else None
    return {"tuned.md": page(folder, trials, drawn, cost).encode(), **contents}


# ------------------------------------------------------------------ what was measured


def read(folder: Path, name: str, seeds: int = SEEDS) -> list[Found]:
    """The finished runs of that name, by seed."""
    paths = [folder / folder_name(name, seed) for seed in range(seeds)]
    return [_read_run(path) for path in paths if (path / SUMMARY).exists()]


def _read_run(path: Path) -> Found:
    config, summary = _json(path / CONFIG), _json(path / SUMMARY)
    lines = (path / TIMING).read_text(encoding="utf-8").splitlines()
    depth = config.get("resnet")
    return Found(
        accuracy=100 * summary["test"]["accuracy"],
        num_weights=summary["num_weights"],
        flops=flops(depth or Run(path).config.network),
        epochs=summary["epochs"],
        seconds=sum(json.loads(line)["seconds"] for line in lines),
        at_a_time=_json(path / CONDITIONS)["runs_at_a_time"],
        environment=_json(path / ENVIRONMENT),
    )


def _json(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_bytes())
    return values


@cache
def flops(kind: NetworkConfig | int) -> int:
    """What the scores of one image take, by a network of ours or a ResNet of that depth."""
    network = CifarResNet(kind) if isinstance(kind, int) else Network(kind)
    images = torch.zeros(1, 3, 32, 32)
    with torch.no_grad():
        return count_flops(lambda: network.eval()(images))


# ------------------------------------------------------------------ the page


def page(
    folder: Path, trials: Sequence[Row], drawn: dict[str, Found], cost: dict[str, Any] | None
) -> str:
    """The whole page."""
    names, papers = final(), paper()
    rows = {
        **{title(name): read(folder, name) for name in names},
        **{f"{title(d)}, the paper's": read(folder, f"{d}_paper") for d in DYNAMICS},
        **{f"ResNet-{n}, our recipe": read(folder, name) for name, n in RESNETS.items()},
        **{
            f"ResNet-{n}, its own search": read(folder, f"{name}_searched")
            for name, n in RESNETS.items()
        },
    }
    for dynamics, name in zip(DYNAMICS, names, strict=True):
        if f"{dynamics}_paper" not in papers:  # the tuned network is the paper's
            rows[f"{title(dynamics)}, the paper's"] = rows[title(name)]
    parts = {key: read(folder, key) for key in ablation()}
    measured = [*(run for runs in (*rows.values(), *parts.values()) for run in runs)]
    measured += drawn.values()
    best = [fmean(run.accuracy for run in found) for name in names if (found := rows[title(name)])]
    lines = [
        f"# The best accuracy for the weights{f': {max(best):.2f} %' if best else ''}",
        "",
        "CIFAR-10, all 10,000 test images, in per cent; mean and standard deviation over seeds.",
        "Each run trains on all 50,000 training images for a fixed number of epochs, and its last",
        "weights are tested once. Settings were chosen on 10,000 of the training images, on which",
        "trials did not train.",
        "Written by `benchmarks/tuned_page.py` from `docs/results/tuned/runs`.",
        "",
        "| network | weights | MFLOP an image | epochs | seeds | test accuracy | seconds a run |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *(_row(name, runs) for name, runs in rows.items() if runs),
        "",
        *_missing(rows),
        "MFLOP: convolutions and matrix products of the scores of one image, a multiplication and",
        "an addition each counting one. Seconds: all epochs of a run, compiling included, on one",
        "card that it shared with others; divided by how many at a time its share of the card.",
        f"{SEEDS} seeds are wanted of each network.",
        "",
        *_shorter(names, rows),
        *_floors(rows),
        *_ablation(parts),
        *_cost(cost),
        *_sizes(drawn),
        *_search(trials),
    ]
    if measured:
        lines += [f"{measured_on(measured[0].environment)}.", ""]
    return "\n".join(lines)


def title(name: str) -> str:
    """As people write it."""
    return name.removesuffix("_cifar10_tuned").replace("_", " ")


def _missing(rows: dict[str, list[Found]]) -> list[str]:
    """What has no row, in one sentence."""
    names = [name for name, runs in rows.items() if not runs]
    return [f"{NOT_MEASURED.capitalize()}: {'; '.join(names)}.", ""] if names else []


def _row(name: str, runs: Sequence[Found]) -> str:
    first = runs[0]
    seconds = ", ".join(f"{run.seconds:.0f}" for run in runs)
    shared = " or ".join(map(str, sorted({run.at_a_time for run in runs})))
    epochs = " or ".join(map(str, sorted({run.epochs for run in runs})))
    return (
        f"| {name} | {first.num_weights:,} | {first.flops / 1e6:.0f} | {epochs} "
        f"| {len(runs)} | {_mean(runs)} | {seconds} ({shared} at a time) |"
    )


def _mean(runs: Sequence[Found]) -> str:
    values = [run.accuracy for run in runs]
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread}"


def _shorter(names: Iterable[str], rows: dict[str, list[Found]]) -> list[str]:
    """Which runs had other epochs than their recipes have."""
    said = []
    for name in names:
        trained = sorted({run.epochs for run in rows[title(name)]})
        wanted = pdecnn.recipe(name).training.epochs
        if trained and trained != [wanted]:
            epochs = " or ".join(map(str, trained))
            said.append(f"- `{name}`: {epochs} epochs; its recipe has {wanted}: {NOT_MEASURED}")
    return [*said, ""] if said else []


def _floors(rows: dict[str, list[Found]]) -> list[str]:
    """Whether what was wanted was reached, one sentence a network."""
    said = []
    for dynamics, floor in FLOORS.items():
        runs = rows[title(dynamics)]
        if runs:
            mean = fmean(run.accuracy for run in runs)
            how = "reached" if mean >= floor else f"missed by {floor - mean:.2f} points"
            said.append(f"- {title(dynamics)}: {floor} wanted, {how}")
        for name, rivals in rows.items():
            if name.startswith(RIVALS[dynamics]) and runs and rivals:
                ahead = fmean(run.accuracy for run in runs) - fmean(r.accuracy for r in rivals)
                said.append(f"- {title(dynamics)} against {name}: {ahead:+.2f} points")
    return [*said, ""] if said else []


def _ablation(parts: dict[str, list[Found]]) -> list[str]:
    whole = parts["without_nothing"]
    lines = ["## What each ingredient gives", ""]
    if not any(parts.values()):
        return [*lines, f"Networks without one of them: {NOT_MEASURED}.", ""]
    lines += [
        f"`{HAMILTONIAN}` with one ingredient removed at a time, a third of the epochs.",
        "",
        "| removed | seeds | test accuracy | difference |",
        "|---|--:|--:|--:|",
    ]
    for key, runs in parts.items():
        name = key.removeprefix("without_").replace("_", " ")
        if key == "without_all_images":
            name = "a fifth of the images, which then choose the epoch"
        difference = ""
        if runs and whole and runs is not whole:
            change = fmean(r.accuracy for r in runs) - fmean(r.accuracy for r in whole)
            difference = f"{change:+.2f}"
        cell = _mean(runs) if runs else NOT_MEASURED
        lines.append(f"| {name} | {len(runs)} | {cell} | {difference} |")
    return [*lines, ""]


def _cost(part: dict[str, Any] | None) -> list[str]:
    lines = ["## What a step costs", ""]
    if part is None:
        return [*lines, f"Captured steps of tuned training: {NOT_MEASURED}.", ""]
    tables = [markdown_table(table) for table in bench_tables("recipes", part)]
    wanted = "At most 1.25 times a step of the paper is wanted, of Muon or 0.3 ms more."
    return [*lines, *tables, wanted, "", describe_part(part), ""]


def _sizes(drawn: dict[str, Found]) -> list[str]:
    lines = ["## Accuracy against weights and arithmetic", ""]
    if not drawn:
        return [*lines, f"The networks of other sizes: {NOT_MEASURED}.", ""]
    epochs = " or ".join(map(str, sorted({run.epochs for run in drawn.values()})))
    lines += [
        f"![Accuracy against weights and against arithmetic]({FIGURE}.png)",
        "",
        f"One seed, {epochs} epochs; ours are the tuned networks with other widths, ResNets have",
        "other depths.",
        "",
        "| network | weights | MFLOP an image | test accuracy | seconds |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, run in drawn.items():
        lines.append(
            f"| {_kind(name).replace('_', ' ')} | {run.num_weights:,} | {run.flops / 1e6:.0f} "
            f"| {run.accuracy:.2f} | {run.seconds:.0f} |"
        )
    missing = [name for name in sizes() if name not in drawn]
    if missing:
        lines += ["", f"{NOT_MEASURED.capitalize()}: {', '.join(missing)}."]
    return [*lines, ""]


def _search(trials: Sequence[Row]) -> list[str]:
    lines = ["## The search", ""]
    if not trials:
        return [*lines, f"Trials: {NOT_MEASURED}.", ""]
    lines += [
        "The best of the longest trials, of one seed each, on the 10,000 images held out; all of",
        "them are in `search.csv`. Seconds are those of trials that shared a card, added up.",
        "",
        "| network | trials | seconds | epochs | validation accuracy | settings |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for network in dict.fromkeys(row.trial.network for row in trials):
        rows = [row for row in trials if row.trial.network == network]
        best = max(rows, key=lambda row: (row.trial.epochs, row.accuracy))
        chosen = best.trial.settings.items()
        settings = ", ".join(f"`{key}={json.dumps(value)}`" for key, value in chosen)
        lines.append(
            f"| {network} | {len(rows)} | {sum(row.seconds for row in rows):.0f} "
            f"| {best.trial.epochs} | {best.accuracy:.2%} | {settings} |"
        )
    return [*lines, "", *_departures()]


def _departures() -> list[str]:
    """In what the recipes are not the trials that they are named beside."""
    said = []
    for name, variant in final().items():
        best, config = best_trial(name), variant.config()
        if best is None:
            continue
        others = [
            f"`{key}`"
            for key, value in best.trial.settings.items()
            if config.with_settings({key: value}) != config
        ]
        if others:
            said.append(
                f"- `{name}` has the network of that trial, but {', '.join(others)} of "
                f"`{HAMILTONIAN}`: no trial had both"
            )
    return [*said, ""] if said else []


# ------------------------------------------------------------------ the figure


def _kind(name: str) -> str:
    return "resnet" if name.startswith("resnet") else name.partition("_cifar10")[0]


def draw(drawn: dict[str, Found]) -> Figure:
    """Two panels with a curve for each kind of network."""
    figure = Figure(figsize=(style.WIDTH, 2.9), layout="constrained")
    by_weights, by_flops = figure.subplots(1, 2, sharey=True)
    for kind, (colour, marker) in _LOOKS.items():
        runs = [run for name, run in drawn.items() if _kind(name) == kind]
        look: dict[str, Any] = {"color": colour, "marker": marker}
        for axes, unit, value in (
            (by_weights, 1e3, "num_weights"),
            (by_flops, 1e6, "flops"),
        ):
            ordered = sorted(runs, key=lambda run, value=value: getattr(run, value))  # type: ignore[misc]
            axes.plot(
                [getattr(run, value) / unit for run in ordered],
                [run.accuracy for run in ordered],
                label=kind.replace("_", " "),
                **look,
            )
    for axes in (by_weights, by_flops):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    by_weights.set_xlim(SIZES[0] / 1.3e3, SIZES[-1] * 1.3 / 1e3)
    by_weights.set_xlabel("thousands of weights")
    by_flops.set_xlabel("MFLOP an image")
    by_weights.set_ylabel("test accuracy (%)")
    handles = by_weights.get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(_LOOKS))
    return figure


if __name__ == "__main__":
    main()
