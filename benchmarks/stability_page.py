"""Write docs/results/stability.md from the runs that are stored beside it.

    python benchmarks/stability_page.py [--results docs/results]

The runs are those `benchmarks/stability.py` measured, kept without checkpoints and images in
docs/results/stability/runs.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pdecnn.files import write_atomically
from pdecnn.reports.recorded import measured_on
from pdecnn.runs.runs import Run

KINDS = {
    "parabolic_cifar10": "the paper's parabolic",
    "resnet_cifar10": "residual",
    "parabolic_stable_cifar10": "stable parabolic",
    "parabolic_stable_large_cifar10": "stable parabolic, large",
}
SEEDS, RADII, NOISE = 3, (36, 72, 108), ("0.05", "0.1")
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
    measured = next(runs[0] for runs in found.values() if runs)
    missing = [
        f"- {KINDS[kind]} (`{kind}`): {SEEDS - len(runs)} of {SEEDS} seeds"
        for kind, runs in found.items()
        if len(runs) < SEEDS
    ]
    lines = [
        "# What stability buys",
        "",
        "CIFAR-10, all 10,000 test images, in per cent; mean and standard deviation over seeds.",
        "The stable networks never expand a distance",
        "([why](../explanation/certificate.md)) and train on all 50,000 images for 250 epochs with",
        "margins; the others by the paper's recipe. Written by `benchmarks/stability_page.py` from",
        "`docs/results/stability/runs`.",
        "",
        *table(
            found,
            {
                "clean": lambda run: run["clean"],
                **{f"noise {s}": (lambda run, s=s: run["noise"][s]) for s in NOISE},
                "attacked, 36/255": lambda run: run["attacked"]["worst"][0],
                "attacked, 72/255": lambda run: run["attacked"]["worst"][1],
                **{
                    f"certified, {radius}/255": (lambda run, k=k: certified(run, k))
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
                f"five starts, {radius}/255": (lambda run, k=k: run["restarted"]["worst"][k])
                for k, radius in enumerate(RADII[:2])
            },
        ),
        "",
        "**What it costs.** " + cost(found["parabolic_stable_cifar10"], found["parabolic_cifar10"]),
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
    for path in sorted(folder.glob(f"{kind}-seed*/robustness.json")):
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


def cost(stable: list[dict[str, Any]], paper: list[dict[str, Any]]) -> str:
    """What is lost on clean images."""
    clean = 100 * fmean(run["clean"] for run in stable)
    text = f"A stable network of this size gets {clean:.1f} % of clean images right"
    if paper:
        lost = 100 * fmean(run["clean"] for run in paper) - clean
        return text + f", {lost:.1f} points fewer than the paper's parabolic network."
    return text + (
        "; the paper's parabolic network 89.9 % ([Table 1](paper.md)). That is the price of "
        "margins that no perturbation of the radius can cross."
    )


if __name__ == "__main__":
    main()
