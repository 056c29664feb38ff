"""Segment the hippocampus: our networks and a plain 3D U-Net, trained and measured alike.

    python -m benchmarks.hippocampus arrange FOLDER OUTPUT
    pdecnn data pack OUTPUT --output hippocampus.npz
    python -m benchmarks.hippocampus train --data hippocampus.npz --output DIR \\
        [--network RECIPE] [--seeds 0 1 2] [--set KEY=VALUE ...]
    python -m benchmarks.hippocampus unet --data hippocampus.npz --output DIR [--seeds 0 1 2]
    python -m benchmarks.hippocampus memory --data hippocampus.npz --output DIR
    python -m benchmarks.hippocampus page [--results docs/results]

FOLDER has `images` and `labels`, of which `arrange` copies those at the positions 4, 9, 14, ... of
the sorted names, from 0, into `test` and all others into `train`. The rate of the U-Net is that of
three with which the best epoch of a shorter training has the highest validation Dice. The test
volumes are scored once a training, at its end, by the epoch that is best at validation. Each
training writes NAME-seedN.json into DIR; one that is there is not trained again. `memory` trains
nothing: it measures what a step of each network needs, ours in every mode, into memory.json.
`page` writes segmentation.md from the files in docs/results/hippocampus.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any

import torch

from benchmarks.provenance import measured_on
from benchmarks.unet import TrainableUNet
from pdecnn.data.augmentation import stable_seed
from pdecnn.files import write_atomically, write_json
from pdecnn.learning import Trainer
from pdecnn.learning.metrics import resolve_precision
from pdecnn.networks.network import Network
from pdecnn.runs.config import RunConfig, parse_assignment
from pdecnn.runs.preparation import (
    Splits,
    describe_environment,
    make_network,
    make_preprocessing,
    make_run_task,
    read_own,
    resolve_device,
)
from pdecnn.runs.recipes import recipe

RECIPE = "hamiltonian_segmentation_volumes"
UNET = "unet"
WIDTH = 24
RATES = (3e-4, 1e-3, 3e-3)
SHORT = 4
"""By how much shorter the trainings are that choose the rate."""
FIRST_TEST, EVERY = 4, 5
PARTS = {"1": ("anterior", 0.89), "2": ("posterior", 0.86)}
"""What the labels are called, and the median Dice that was wanted."""
TITLES = {RECIPE: f"`{RECIPE}`", UNET: "plain 3D U-Net"}
MODES = ("stored", "checkpointed", "reversible", "exact")


def main(arguments: Sequence[str] | None = None) -> None:
    """Arrange the volumes, or train and write down the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    arranging = commands.add_parser("arrange", help="copy volumes into train and test")
    arranging.add_argument("folder", type=Path)
    arranging.add_argument("output", type=Path)
    for name, about in (
        ("train", "train our networks"),
        (UNET, "train the U-Net"),
        ("memory", "measure what a step needs"),
    ):
        command = commands.add_parser(name, help=about)
        command.add_argument("--data", type=Path, required=True)
        command.add_argument("--output", type=Path, required=True)
        command.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
        command.add_argument("--set", dest="settings", action="append", default=[])
        command.add_argument("--device", default="auto")
        if name == "train":
            command.add_argument("--network", default=RECIPE)
        elif name == UNET:
            command.add_argument("--rate", type=float, help="without it the best of three")
    paging = commands.add_parser("page", help="write the page")
    paging.add_argument("--results", type=Path, default=Path("docs/results"))
    chosen = parser.parse_args(arguments)
    if chosen.command == "page":
        text = page(chosen.results / "hippocampus")
        write_atomically(chosen.results / "segmentation.md", text.encode())
        return
    if chosen.command == "arrange":
        arrange(chosen.folder, chosen.output)
        return
    settings = dict(parse_assignment(text) for text in chosen.settings)
    settings["data.folder"] = str(chosen.data.absolute())
    chosen.output.mkdir(parents=True, exist_ok=True)
    device = resolve_device(chosen.device)
    if chosen.command == "train":
        config = recipe(chosen.network).with_settings(settings)
        for seed in chosen.seeds:
            fit_and_write(config, chosen.network, seed, chosen.output, device)
        return
    config = recipe(RECIPE).with_settings(settings)
    if chosen.command == "memory":
        write_json(chosen.output / "memory.json", measure_memory(config, device))
        return
    rate = chosen.rate or best_rate(config, chosen.output, device)
    for seed in chosen.seeds:
        fit_and_write(with_rate(config, rate), UNET, seed, chosen.output, device)


def arrange(folder: Path, output: Path) -> None:
    """Copy each fifth volume into `test`, with its labels, and the others into `train`."""
    names = sorted(path.name for path in (folder / "images").iterdir())
    for place, name in enumerate(names):
        part = "test" if place % EVERY == FIRST_TEST else "train"
        for kind in ("images", "labels"):
            target = output / part / kind
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / kind / name, target / name)


def with_rate(config: RunConfig, rate: float) -> RunConfig:
    """The config with another learning rate."""
    return replace(config, training=replace(config.training, learning_rates=(rate,)))


def best_rate(config: RunConfig, output: Path, device: torch.device) -> float:
    """That of three whose shorter training is best at validation."""
    epochs = max(1, config.training.epochs // SHORT)
    short = replace(config, training=replace(config.training, epochs=epochs))
    found = {
        rate: fit_and_write(
            with_rate(short, rate), UNET, 0, output, device, name=f"{UNET}-rate{rate:g}"
        )["validation_mean_dice"]
        for rate in RATES
    }
    return max(found, key=lambda rate: float(found[rate]))


def fit_and_write(
    config: RunConfig,
    kind: str,
    seed: int,
    output: Path,
    device: torch.device,
    *,
    name: str | None = None,
) -> dict[str, Any]:
    """Train one network and write its figures; the test volumes only where no `name` is given."""
    path = output / f"{name or kind}-seed{seed}.json"
    if path.exists():
        stored: dict[str, Any] = json.loads(path.read_bytes())
        return stored
    precision = resolve_precision(config.training.precision, device)
    config = replace(config, seed=seed, training=replace(config.training, precision=precision))
    config, splits = read_own(config)
    assert splits is not None
    config = replace(config, network=config.network.with_grid())
    memory = step_memory(config, kind, splits, device)
    begin = monotonic()
    trainer = make_trainer(config, kind, splits, device)
    best = trainer.evaluated
    epochs = []
    for report in trainer.epochs(poll=lambda: None, on_step=lambda: None):
        if trainer.progress.best_epoch == report.epoch:
            best = deepcopy(trainer.evaluated)
        seconds = monotonic() - begin
        epochs.append([report.data_loss, report.accuracy, report.validation_accuracy, seconds])
        figures = " ".join(f"{number:.4g}" for number in epochs[-1])
        print(f"{path.stem}: epoch {report.epoch} {figures}", flush=True)
    found: dict[str, Any] = {
        "network": kind,
        "seed": seed,
        "num_weights": best.num_weights,
        "learning_rate": config.training.learning_rates[0],
        "updates": trainer.progress.step,
        "best_epoch": trainer.progress.best_epoch,
        "validation_mean_dice": trainer.progress.best_accuracy,
        "seconds": monotonic() - begin,
        "captured": trainer.captured,
        "step_memory_bytes": memory,
        "epochs": epochs,
        "config": config.to_dict() | {"data": config.data.to_dict() | {"folder": None}},
        "environment": environment_of(device, seed),
    }
    if name is None:
        test = splits.test.to(device)
        measured = trainer.task.evaluate(
            best,
            test,
            batch_size=1,
            precision=precision,
            poll=lambda: None,
            quick=lambda: None,
        )
        found["test"] = measured.to_dict()
        print(f"{path.stem}: test median Dice {found['test']['median_dice']}", flush=True)
    write_json(path, found)
    return found


def measure_memory(config: RunConfig, device: torch.device) -> dict[str, Any]:
    """What a step of our network needs in every mode, and one of the U-Net."""
    config, splits = read_own(config)
    assert splits is not None
    found: dict[str, Any] = {"environment": environment_of(device, config.seed)}
    for mode in MODES:
        network = replace(config.network, backprop=mode)
        found[mode] = step_memory(replace(config, network=network), RECIPE, splits, device)
    return found | {UNET: step_memory(config, UNET, splits, device)}


def environment_of(device: torch.device, seed: int) -> dict[str, Any]:
    """Hardware and versions, without the places that the command names."""
    environment = describe_environment(device, seed)
    del environment["command"]
    return environment


def make_trainer(config: RunConfig, kind: str, splits: Splits, device: torch.device) -> Trainer:
    """The trainer of a recipe, with its network or the U-Net in its place."""
    network: Network
    if kind == UNET:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stable_seed(config.seed, "weights"))
            network = TrainableUNet(
                WIDTH,
                in_channels=splits.train.channels,
                num_classes=splits.train.num_classes,
                preprocessing=make_preprocessing(config.data, splits.train),
            )
    else:
        network = make_network(config, splits.train)
    return Trainer(
        network.to(device),
        config.training,
        train=splits.train,
        validation=splits.validation,
        augmentation=config.data.augmentation(),
        seed=config.seed,
        task=make_run_task(config),
        patches=config.data.patches(config.network.dimension),
    )


def step_memory(config: RunConfig, kind: str, splits: Splits, device: torch.device) -> int | None:
    """What a step needs beyond what lies there before it, by plain operators; None: no GPU."""
    if device.type != "cuda":
        return None
    plain = replace(config, training=replace(config.training, capture=False))
    trainer = make_trainer(plain, kind, splits, device)
    trainer.begin_epoch()
    trainer.step()  # the optimiser has its state from now on
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    trainer.step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def page(folder: Path) -> str:
    """The whole page, from the files of a folder."""
    found = {kind: read(folder, kind) for kind in TITLES}
    tried = [json.loads(path.read_bytes()) for path in sorted(folder.glob(f"{UNET}-rate*.json"))]
    ours = found[RECIPE]
    measured = [one for runs in found.values() for one in runs]
    memory = json.loads((folder / "memory.json").read_bytes())
    wanted = " and ".join(f"{limit:.2f} {name}" for name, limit in PARTS.values())
    lines = [
        f"# Segmentation: {headline(ours, memory)}",
        "",
        "The hippocampus in 200 MR volumes (Medical Segmentation Decathlon, CC BY-SA 4.0): the 40",
        "at the positions 4, 9, 14, ... of the sorted names are the test, the other 160 are for",
        "training and validation. A plain 3D U-Net of our own stands beside, trained with the same",
        "patches, augmentation and loss. The best epoch at validation was scored once on",
        "the test volumes. Written by `python -m benchmarks.hippocampus` from",
        "`docs/results/hippocampus`.",
        "",
        f"Wanted: {wanted}, the median over the test volumes.",
        "",
        "| network | weights | seed | anterior | posterior | mean Dice | updates | seconds |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind, runs in found.items():
        for one in runs:
            dice = " | ".join(f"{one['test']['median_dice'][label]:.3f}" for label in PARTS)
            lines.append(
                f"| {TITLES[kind]} | {one['num_weights']:,} | {one['seed']} | {dice} | "
                f"{one['test']['mean_dice']:.3f} | {one['updates']:,} | {one['seconds']:.0f} |"
            )
    if not ours:
        lines.append(f"| {TITLES[RECIPE]} | | | not measured | not measured | | | |")
    lines += ["", "Anterior and posterior: the median Dice; seconds: a training with validation,"]
    lines += ["beside others on the same card."]
    if tried:
        rates = ", ".join(
            f"{one['learning_rate']:g}: {one['validation_mean_dice']:.3f}" for one in tried
        )
        lines += [
            "",
            "The U-Net's learning rate is the best of three by the validation Dice of a shorter",
            f"training ({rates}); ours has that of its recipe.",
        ]
    batch_size = measured[0]["config"]["training"]["batch_size"]
    epochs = ", ".join(
        f"{TITLES[kind]} for {runs[0]['config']['training']['epochs']} epochs"
        for kind, runs in found.items()
        if runs
    )
    lines += [
        "",
        f"Trained: {epochs}; the recipe has {recipe(RECIPE).training.epochs}. 3 seeds are wanted.",
        "",
        f"A step with {batch_size} patches needs this much beyond weights and the",
        "optimiser's state, by plain operators:",
        "",
        "| network | mode | MB |",
        "|---|---|--:|",
        *(f"| {TITLES[RECIPE]} | {mode} | {megabytes(memory[mode])} |" for mode in MODES),
        f"| {TITLES[UNET]} | | {megabytes(memory[UNET])} |",
        "",
        f"{measured_on(measured[0]['environment'])}.",
        "",
    ]
    return "\n".join(lines)


def headline(ours: list[dict[str, Any]], memory: dict[str, Any]) -> str:
    """The Dice of our networks; where it was not measured the memory of a step."""
    if not ours:
        least = min(MODES, key=lambda mode: memory[mode])
        return f"a step in {megabytes(memory[least])} MB, of a U-Net in {megabytes(memory[UNET])}"
    means = {label: fmean(one["test"]["median_dice"][label] for one in ours) for label in PARTS}
    return "a median Dice of " + " and ".join(
        f"{means[label]:.3f} {name}" for label, (name, _) in PARTS.items()
    )


def read(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The trainings of a network, by seed."""
    paths = folder.glob(f"{kind}-seed*.json")
    return sorted((json.loads(path.read_bytes()) for path in paths), key=lambda one: one["seed"])


def megabytes(size: int | None) -> str:
    """Of bytes; None: there was no GPU."""
    return "not measured" if size is None else f"{size / 1e6:,.0f}"


if __name__ == "__main__":
    main()
