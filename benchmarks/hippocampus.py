"""Segment the hippocampus: our networks and a plain 3D U-Net, trained and measured alike.

    python -m benchmarks.hippocampus arrange FOLDER OUTPUT
    pdecnn data pack OUTPUT --output hippocampus.npz
    python -m benchmarks.hippocampus train --data hippocampus.npz --output DIR \\
        [--network RECIPE] [--seeds 0 1 2] [--set KEY=VALUE ...]
    python -m benchmarks.hippocampus unet --data hippocampus.npz --output DIR [--seeds 0 1 2]
    python -m benchmarks.hippocampus memory --data hippocampus.npz --output DIR

FOLDER has `images` and `labels`, of which `arrange` copies those at the positions 4, 9, 14, ... of
the sorted names, from 0, into `test` and all others into `train`. The rate of the U-Net is that of
three with which the best epoch of a shorter training has the highest validation Dice. The test
volumes are scored once a training, at its end, by the epoch that is best at validation. Each
training writes NAME-seedN.json into DIR; one that is there is not trained again. `memory` trains
nothing: it measures what a step of each network needs, ours in every mode, into memory.json.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from benchmarks.unet import TrainableUNet
from pdecnn.data.augmentation import stable_seed
from pdecnn.files import write_json
from pdecnn.learning import Trainer
from pdecnn.learning.metrics import resolve_precision
from pdecnn.networks.network import Network
from pdecnn.runs.config import RunConfig, parse_assignment
from pdecnn.runs.environment import describe_environment, resolve_device
from pdecnn.runs.preparation import (
    Splits,
    fit_network,
    make_network,
    make_preprocessing,
    make_run_task,
    read_splits,
)
from pdecnn.runs.recipes import recipe

RECIPE = "hamiltonian_segmentation_volumes"
UNET = "unet"
WIDTH = 24
RATES = (3e-4, 1e-3, 3e-3)
SHORT = 4
"""By how much shorter the trainings are that choose the rate."""
FIRST_TEST, EVERY = 4, 5


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
    chosen = parser.parse_args(arguments)
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
    config = fit_network(config)
    config = replace(config, network=config.network.with_grid())
    splits = read_splits(config.data, seed)
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
    config = fit_network(config)
    splits = read_splits(config.data, config.seed)
    found: dict[str, Any] = {"environment": environment_of(device, config.seed)}
    for mode in ("stored", "checkpointed", "reversible", "exact"):
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


if __name__ == "__main__":
    main()
