"""Measure denoisers on the 12 pictures of Set12 beside published ones: docs/results/denoising.md.

    python -m benchmarks.denoising train NAME --data FILE.npz --output DIR [--seed 0]
        [--set KEY=VALUE ...]
    python -m benchmarks.denoising keep RUN... [--results docs/results]
    python -m benchmarks.denoising picture RUN [--output docs/images/denoised.png]
    python -m benchmarks.denoising page [--results docs/results]

FILE.npz is what `pdecnn data pack` makes of a folder with the 400 training photographs of 180 x 180
pixels (Chen and Pock) in `train` and Set12 in `test`. A tenth of the photographs is held out; the
best epoch on them is measured once on Set12, a network for a range of noise once at each level
(levels.json in its run). The page is written from the runs that `keep` copied without checkpoints
into docs/results/denoising/runs.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import pdecnn
from benchmarks.provenance import measured_on
from pdecnn.data.patches import with_test_noise
from pdecnn.files import write_atomically, write_json
from pdecnn.learning.image_quality import psnr
from pdecnn.networks.network import Network, evaluation_mode
from pdecnn.reports.recorded import device_name
from pdecnn.runs.config import parse_assignment
from pdecnn.runs.runs import Run

NOISE = 25.0
_SMALL = {
    "network.num_steps": [1, 4, 1],
    "network.hidden_channels": 32,
    "network.channels": [16, 64, 16, 16],
    "training.learning_rates": [4e-3],
    "training.batch_size": 128,
    "training.epochs": 20,
}
_BLIND = {"data.noise": [5.0, 55.0]}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "hamiltonian": ("hamiltonian_denoising", {}),
    "blind": ("hamiltonian_denoising", _BLIND),
    "parabolic": ("parabolic_denoising", {}),
    "second_order": ("second_order_denoising", {}),
    "stable": ("parabolic_stable_denoising", {}),
    "parabolic_small": ("parabolic_denoising", _SMALL),
    "hamiltonian_small": ("hamiltonian_denoising", _SMALL),
    "blind_small": ("hamiltonian_denoising", _SMALL | _BLIND),
    "blind_parabolic_small": ("parabolic_denoising", _SMALL | _BLIND),
}
TITLES = {
    "hamiltonian": "hamiltonian",
    "blind": "hamiltonian, one network for 5 to 55",
    "parabolic": "parabolic",
    "second_order": "second order",
    "stable": "stable parabolic, no distance grows",
    "parabolic_small": "parabolic, small",
    "hamiltonian_small": "hamiltonian, small",
    "blind_small": "hamiltonian, small, one network for 5 to 55",
    "blind_parabolic_small": "parabolic, small, one network for 5 to 55",
}
# Set12 at noise 15, 25, 50 in dB, as their authors or Zhang et al. (2017) have them.
PUBLISHED = {
    "BM3D": (None, 32.37, 29.97, 26.72),
    "TNRD": (None, 32.50, 30.06, 26.81),
    "DnCNN": (556_000, 32.86, 30.44, 27.18),
}
LEVELS = (15.0, 25.0, 50.0)
BY_LEVEL = "levels.json"


def main() -> None:
    """Train one network, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train")
    train.add_argument("network", choices=NETWORKS)
    train.add_argument("--data", type=Path, required=True)
    train.add_argument("--output", type=Path, required=True)
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--set", action="append", default=[], dest="assignments")
    picture_parser = commands.add_parser("picture")
    picture_parser.add_argument("run", type=Path)
    picture_parser.add_argument("--output", type=Path, default=Path("docs/images/denoised.png"))
    keeping = commands.add_parser("keep")
    keeping.add_argument("runs", type=Path, nargs="+")
    for command in (keeping, commands.add_parser("page")):
        command.add_argument("--results", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    if arguments.command == "keep":
        for run in arguments.runs:
            keep(run, arguments.results / "denoising" / "runs" / run.name)
        return
    if arguments.command == "page":
        folder = arguments.results / "denoising" / "runs"
        write_atomically(arguments.results / "denoising.md", page(folder).encode())
        return
    if arguments.command == "picture":
        draw(pdecnn.load(arguments.run), arguments.output)
        return
    recipe, settings = NETWORKS[arguments.network]
    settings = settings | dict(map(parse_assignment, arguments.assignments))
    settings |= {"seed": arguments.seed, "data.folder": str(arguments.data.absolute())}
    config = pdecnn.recipe(recipe).with_settings(settings)
    folder = arguments.output / f"{arguments.network}-seed{arguments.seed}"
    run = pdecnn.train(config, output=folder, resume=folder.exists())
    if isinstance(config.data.noise, tuple):
        found = {f"{level:g}": pdecnn.evaluate(run, noise=level)["psnr"] for level in LEVELS}
        write_json(folder / BY_LEVEL, found)


def keep(run: Path, folder: Path) -> None:
    """Copy what the page is written from, without places on the machine that trained."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("summary.json", "metrics.jsonl", "timing.jsonl", BY_LEVEL):
        if (run / name).exists():
            write_atomically(folder / name, (run / name).read_bytes())
    config, environment = (
        json.loads((run / name).read_bytes()) for name in ("config.json", "environment.json")
    )
    config["data"]["folder"] = None
    environment.pop("command", None)
    write_json(folder / "config.json", config)
    write_json(folder / "environment.json", environment)


def draw(network: Network, path: Path) -> None:
    """A photograph that no network was trained on: noisy, denoised, clean."""
    # Here: where networks are trained neither need be there.
    import matplotlib.pyplot as plt
    from skimage import data

    clean = torch.from_numpy(data.camera()).float()[None, None] / 255
    noisy = with_test_noise([clean], NOISE)[0]
    with torch.no_grad(), evaluation_mode(network):
        denoised = network(noisy).clamp(0, 1)
    rows, columns = slice(60, 252), slice(150, 342)
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.3), layout="constrained")
    shown = {"noisy": noisy, "denoised": denoised, "clean": clean}
    for axis, (name, image) in zip(axes, shown.items(), strict=True):
        quality = "" if image is clean else f", {psnr(image[0], clean[0]):.1f} dB"
        axis.imshow(image[0, 0, rows, columns].clamp(0, 1), cmap="gray", vmin=0, vmax=1)
        axis.set_title(f"{name}{quality}")
        axis.set_axis_off()
    figure.savefig(path, dpi=100)


def page(folder: Path) -> str:
    """The whole page."""
    runs = {name: read(folder, name) for name in NETWORKS}
    missing = "; ".join(TITLES[name] for name, found in runs.items() if not found)
    best = max(fmean(values) for found in runs.values() if (values := values_at(found, NOISE)))
    lines = [
        f"# Denoising: {best:.2f} dB on Set12 at noise 25",
        "",
        "PSNR in dB on the 12 pictures of Set12, grey, mean over the pictures; for ours mean and",
        "standard deviation over seeds. Trained on the 400 photographs of 180 x 180 pixels that",
        "the others trained on; the best epoch on a tenth of them was measured once on Set12.",
        "Written by `benchmarks/denoising.py` from `docs/results/denoising/runs`.",
        "",
        "| network | weights | seeds | noise 15 | noise 25 | noise 50 | updates | seconds |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, found in runs.items():
        if found:
            cells = [cell(found, level) for level in LEVELS]
            seconds = ", ".join(f"{run['seconds']:.0f}" for run in found)
            lines.append(
                f"| {TITLES[name]} | {found[0]['num_weights']:,} | {len(found)} | "
                f"{' | '.join(cells)} | {found[0]['updates']:,} x {found[0]['batch_size']} | "
                f"{seconds} |"
            )
    for name, (weights, *published) in PUBLISHED.items():
        said = "" if weights is None else f"{weights:,}"
        numbers = " | ".join(f"{value:.2f}" for value in published)
        lines.append(f"| {name}, published | {said} | | {numbers} | | |")
    lines += [
        "",
        "Updates: times the patches of a batch.",
        "Seconds are those of epochs on a card, or a CPU, that others used too. Noise is drawn by",
        "`numpy.random.default_rng(0)`, one draw a picture in the order of names, not clipped.",
        *([f"Not measured, for want of time on the device: {missing}."] if missing else []),
        "",
        *provenance(runs),
        "",
    ]
    return "\n".join(lines)


def provenance(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """When and on what the first run of each network was trained, once where it is the same."""
    first = {name: found[0]["environment"] for name, found in runs.items() if found}
    machines: dict[str, list[str]] = {}
    for name, environment in first.items():
        machines.setdefault(device_name(environment["hardware"]), []).append(name)
    if len(machines) == 1:
        return [f"{measured_on(first[next(iter(first))])}."]
    return [
        f"- {'; '.join(TITLES[name] for name in names)}: {measured_on(first[names[0]])}"
        for names in machines.values()
    ]


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    """What was measured of a network, by seed."""
    found = []
    for path in sorted(folder.glob(f"{name}-seed*")):
        run = Run(path)
        summary = json.loads((path / "summary.json").read_bytes())
        rows = map(json.loads, (path / "timing.jsonl").read_text().splitlines())
        noise = run.config.data.noise
        if isinstance(noise, tuple):
            by_level = json.loads((path / BY_LEVEL).read_bytes())
        else:
            by_level = {f"{noise:g}": summary["test"]["psnr"]}
        found.append(
            {
                "psnr": {float(level): value for level, value in by_level.items()},
                "num_weights": summary["num_weights"],
                "updates": run.metrics[-1]["step"],
                "batch_size": run.config.training.batch_size,
                "seconds": sum(row["seconds"] for row in rows),
                "environment": json.loads((path / "environment.json").read_bytes()),
            }
        )
    return found


def values_at(runs: list[dict[str, Any]], noise: float) -> list[float]:
    """The PSNR of each run that was measured at a level of noise."""
    return [run["psnr"][noise] for run in runs if noise in run["psnr"]]


def cell(runs: list[dict[str, Any]], noise: float) -> str:
    """Mean and deviation at a level of noise."""
    values = values_at(runs, noise)
    if not values:
        return "not measured"
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
