"""Write docs/results/stability.md from the runs that are stored beside it.

    python -m benchmarks.stability_page [--results docs/results]

The runs are those `benchmarks.stability` measured, kept without checkpoints and images in
docs/results/stability/runs.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.provenance import measured_on
from benchmarks.stability import ATTACKED_RADII, NOISE, RADII, ROBUSTNESS
from pdecnn.files import write_atomically
from pdecnn.runs.runs import Run

KINDS = {
    "parabolic_cifar10": "the paper's parabolic",
    "resnet_cifar10": "residual",
    "parabolic_stable_cifar10": "stable parabolic",
    "parabolic_stable_large_cifar10": "stable parabolic, large",
}
SEEDS = 3
NOT_MEASURED = "not measured"
Value = Callable[[dict[str, Any]], float]


def main() -> None:
    """Read the runs, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    results = parser.parse_args().results
    write_atomically(results / "stability.md", page(results / "stability" / "runs").encode())


def page(folder: Path) -> str:
    """The whole page."""
    found = {kind: read(folder, kind) for kind in KINDS}
    epochs = sorted({run["epochs"] for kind in KINDS if "stable" in kind for run in found[kind]})
    measured = next(runs[0] for runs in found.values() if runs)
    missing = [
        f"- {KINDS[kind]} (`{kind}`): {SEEDS - len(runs)} of {SEEDS} seeds"
        for kind, runs in found.items()
        if len(runs) < SEEDS
    ]
    stable = found["parabolic_stable_cifar10"]
    headline = f"{fmean(100 * certified(run, 0) for run in stable):.1f} % certified"
    lines = [
        f"# What stability buys: {headline} within {named(RADII[0])}",
        "",
        "CIFAR-10, all 10,000 test images, in per cent; mean and standard deviation over seeds.",
        "The stable networks never expand a distance",
        "([why](../explanation/certificate.md)) and train on all 50,000 images for",
        f"{' or '.join(map(str, epochs))} epochs with margins; the others by the paper's recipe.",
        "Written by `benchmarks/stability_page.py` from `docs/results/stability/runs`.",
        "",
        *table(
            found,
            {
                "clean": lambda run: run["clean"],
                **{f"noise {s:g}": (lambda run, s=s: run["noise"][f"{s:g}"]) for s in NOISE},
                **{
                    f"attacked, {named(radius)}": (lambda run, k=k: run["attacked"]["worst"][k])
                    for k, radius in enumerate(ATTACKED_RADII)
                },
                **{
                    f"certified, {named(radius)}": (lambda run, k=k: certified(run, k))
                    for k, radius in enumerate(RADII)
                },
            },
        ),
        "",
        "Noise is Gaussian, of that deviation in pixels of [0, 1]. Attacks are APGD in L2 with the",
        "cross entropy, then with the difference of logits ratio on what resists, 100 steps, one",
        "start: truth lies between *attacked* and *certified*. What more starts find, on the first",
        "1,000 images:",
        "",
        *table(
            found,
            {
                f"five starts, {named(radius)}": (lambda run, k=k: run["restarted"]["worst"][k])
                for k, radius in enumerate(ATTACKED_RADII)
            },
        ),
        "",
        *cost(found["parabolic_stable_cifar10"], found["parabolic_cifar10"]),
        "",
        *digits(folder),
        *(["Not measured, for want of time on the device:", "", *missing, ""] if missing else []),
        f"{measured_on(measured['environment'])}.",
        "",
    ]
    return "\n".join(lines)


def digits(folder: Path) -> list[str]:
    """What `pdecnn certify` says of the digits' networks."""
    paths = sorted(folder.glob("parabolic_stable_digits-seed*"))
    found = [json.loads((path / "certificate.json").read_bytes()) for path in paths]
    clean = ", ".join(f"{100 * one['clean_accuracy']:.1f}" for one in found)
    rows = [{row["radius"]: row["certified_accuracy"] for row in one["results"]} for one in found]
    certified = ", ".join(f"{100 * row[0.5]:.1f}" for row in rows)
    seconds = [
        sum(
            json.loads(line)["seconds"] for line in (path / "timing.jsonl").read_text().splitlines()
        )
        for path in paths
    ]
    return [
        f"**Digits** (`parabolic_stable_digits`, seeds 0 to {len(found) - 1}, 360 test images):",
        f"{clean} % right, {certified} % certified within 0.5, trained in {min(seconds):.0f} to",
        f"{max(seconds):.0f} s on one core beside another. Offset and temperature were chosen on a",
        "fifth of the training images, with two seeds; before, offset 0.5 was tried on the test",
        "images too, and had 94.4 and 54.5 %.",
        "",
    ]


def read(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What was measured of the runs of a recipe."""
    runs = []
    for path in sorted(folder.glob(f"{kind}-seed*/{ROBUSTNESS}")):
        found = json.loads(path.read_bytes())
        run = Run(path.parent)
        found["epochs"] = run.config.training.epochs
        runs.append(found)
    return runs


def certified(run: dict[str, Any], place: int) -> float:
    """The certified accuracy at a radius; 0 where the constant is known but proves nothing."""
    return float(run["certified"]["accuracies"][place])


def table(found: dict[str, list[dict[str, Any]]], columns: dict[str, Value]) -> list[str]:
    """A row a kind of network."""
    lines = [
        "| network | weights | seeds | " + " | ".join(columns) + " |",
        "|---|--:|--:|" + "--:|" * len(columns),
    ]
    for kind, runs in found.items():
        weights = f"{runs[0]['num_weights']:,}" if runs else ""
        cells = [cell(runs, value) for value in columns.values()]
        lines.append(f"| {KINDS[kind]} | {weights} | {len(runs)} | {' | '.join(cells)} |")
    return lines


def cell(runs: list[dict[str, Any]], value: Value) -> str:
    """Mean and deviation in per cent."""
    try:
        values = [100 * value(run) for run in runs]
    except KeyError:
        return NOT_MEASURED
    if not values:
        return NOT_MEASURED
    mean = f"{fmean(values):.1f}"
    return f"{mean} ± {stdev(values):.1f}" if len(values) > 1 else mean


def cost(stable: list[dict[str, Any]], paper: list[dict[str, Any]]) -> list[str]:
    """What is lost and won against the paper's network."""
    lost = mean(paper, lambda run: run["clean"]) - mean(stable, lambda run: run["clean"])
    lines = [
        "**What it costs.** On clean images a stable network of this size is right"
        f" {lost:.1f} points less often",
        "than the paper's, and its training takes "
        f"{stable[0]['epochs'] / paper[0]['epochs']:.1f} times the epochs.",
        "**What it buys.** Under attack it keeps",
    ]
    for place, radius in enumerate(ATTACKED_RADII):
        kept, rest = (
            mean(runs, lambda run, k=place: run["attacked"]["worst"][k]) for runs in (stable, paper)
        )
        lines.append(f"{kept:.1f} % at {named(radius)}, where the paper's keeps {rest:.1f} %,")
    return [*lines, "and what is certified no attack can take."]


def mean(runs: list[dict[str, Any]], value: Value) -> float:
    """In per cent, over the runs."""
    return fmean(100 * value(run) for run in runs)


def named(radius: float) -> str:
    """A radius in units of 255."""
    return f"{255 * radius:.0f}/255"


if __name__ == "__main__":
    main()
