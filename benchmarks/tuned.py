"""The final runs of the tuned recipes on CIFAR-10 and what stands beside them.

    python -m benchmarks.tuned jobs GROUP [GROUP ...] --data DIR --output DIR > jobs.txt
    python -m benchmarks.campaign jobs.txt --output DIR/logs
    python -m benchmarks.tuned keep --output DIR [--results docs/results/tuned/runs]
    python -m benchmarks.tuned_page

    final     the three tuned recipes
    paper     the paper's very networks with the training of the tuned recipes
    resnets   ResNet-20 and -32 with the tuned training, and with the optimiser, rate and decay
              that were searched for them
    ablation  the tuned hamiltonian network, one ingredient removed at a time, a third of the epochs
    sizes     networks of 50,000 to 1,000,000 weights, a third of the epochs, one seed

A run trains on all 50,000 images and is tested once, at its end. `jobs` lists first seeds first;
`--set` changes settings of all that is listed. `train`, which the list calls, goes on where a run
stopped; `keep` copies finished runs without weights and without paths of a machine.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch

import pdecnn
from benchmarks.campaign import JOBS_AT_A_TIME
from benchmarks.search import RESNET_RECIPE, RESNETS, Row, Settings, make_resnet, read_rows
from pdecnn.files import write_atomically, write_json
from pdecnn.learning import Trainer, evaluate_network
from pdecnn.learning.metrics import AUTO, resolve_precision
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network
from pdecnn.networks.registry import TUNED_NETWORKS, model_config
from pdecnn.runs.config import RunConfig, parse_assignment
from pdecnn.runs.preparation import describe_environment, read_splits, resolve_device
from pdecnn.runs.queue import CONDITIONS
from pdecnn.runs.recipes import recipe
from pdecnn.runs.runs import CONFIG, ENVIRONMENT, METRICS, SUMMARY, TIMING
from pdecnn.runs.training import with_precision

KEPT = (CONFIG, ENVIRONMENT, METRICS, SUMMARY, TIMING, CONDITIONS)
SEARCH = Path("docs/results/search.csv")
RESULTS = Path("docs/results/tuned/runs")
DYNAMICS = tuple(TUNED_NETWORKS)
HAMILTONIAN = "hamiltonian_cifar10_tuned"
SHORTER = 3
"""What epochs of the ablation and of other sizes are divided by."""
SIZES = (60_000, 100_000, 170_000, 270_000, 400_000, 550_000, 750_000, 950_000)
DEPTHS = (8, 14, 20, 26, 32, 38, 44, 56)
WIDTHS_BY = 8


class Variant(NamedTuple):
    """What is trained: a recipe, or a ResNet with that of `RESNET_RECIPE`, with some settings."""

    base: str
    settings: Settings
    seeds: int = 3

    @property
    def depth(self) -> int | None:
        """Of a ResNet; None for one of our networks."""
        return int(self.base.removeprefix("resnet")) if self.base.startswith("resnet") else None

    def config(self) -> RunConfig:
        """The whole config, for seed 0."""
        return recipe(RESNET_RECIPE if self.depth else self.base).with_settings(self.settings)


# ------------------------------------------------------------------ what there is to train


def final() -> dict[str, Variant]:
    """Names are those of the models that are published."""
    return {name: Variant(name, {}) for name in map(_tuned, DYNAMICS)}


def paper() -> dict[str, Variant]:
    """Where the tuned network is the paper's there is nothing to train."""
    found = {}
    for dynamics in DYNAMICS:
        own, name = model_config(f"{dynamics}_cifar10"), _tuned(dynamics)
        if own != model_config(name):
            found[f"{dynamics}_paper"] = Variant(name, _network_settings(own))
    return found


def resnets() -> dict[str, Variant]:
    """With the tuned training; with their own where there was a search for it."""
    found = {name: Variant(name, {}) for name in RESNETS}
    for name in RESNETS:
        best = best_trial(name)
        if best is not None:
            found[f"{name}_searched"] = Variant(name, best.trial.settings)
    return found


def ablation() -> dict[str, Variant]:
    """Each ingredient that the tuned recipe has, removed."""
    config = recipe(HAMILTONIAN)
    training, rate = config.training, config.training.learning_rates[0]
    removed: dict[str, Settings] = {
        "nothing": {},
        "architecture": _network_settings(model_config("hamiltonian_cifar10")),
        "all_images": {"data.validation_fraction": 0.2},
        "schedule": {
            "training.schedule": "piecewise",
            "training.warmup": 0.0,
            "training.learning_rates": [rate, rate / 5, rate / 25],
        },
        "crop": {"data.padding": 1 / 16, "data.padding_mode": "zero"},
        "alternating_flip": {"data.flip": True},
        "cutout": {"data.cutout": 0},
        "mixup": {"training.mixup": None},
        "cutmix": {"training.cutmix": None},
        "trivial_augment": {"data.trivial_augment": False},
        "label_smoothing": {"training.label_smoothing": 0.0},
        "weight_decay": {"training.weight_decay": 0.0, "training.decay_weight": 0.0},
        "smoothness": {"training.smoothness_weight": 0.0},
        "box": {"training.box": "none"},
        "reestimated_statistics": {"training.batch_norm_statistics": "running"},
    }
    best = best_trial(HAMILTONIAN, "nesterov")
    if training.optimizer == "muon" and best is not None:
        keys = ("optimizer", "learning_rates", "weight_decay", "decay_weight")
        chosen = {f"training.{key}": best.trial.settings[f"training.{key}"] for key in keys}
        removed["muon"] = chosen
    epochs = {"training.epochs": max(1, training.epochs // SHORTER)}
    variants = {key: Variant(HAMILTONIAN, epochs | values) for key, values in removed.items()}
    whole = variants["nothing"].config()
    return {
        f"without_{key}": variant
        for key, variant in variants.items()
        if key == "nothing" or variant.config() != whole
    }


def sizes() -> dict[str, Variant]:
    """Our networks with other widths, ResNets with other depths."""
    found = {}
    for name in map(_tuned, DYNAMICS):
        config = recipe(name)
        epochs = {"training.epochs": max(1, config.training.epochs // SHORTER)}
        for size in SIZES:
            settings = epochs | {"network.channels": widened(config.network, size)}
            found[f"{name}_{size // 1000}k"] = Variant(name, settings, seeds=1)
    epochs = {"training.epochs": max(1, recipe(RESNET_RECIPE).training.epochs // SHORTER)}
    return found | {f"resnet{n}_short": Variant(f"resnet{n}", epochs, seeds=1) for n in DEPTHS}


GROUPS: dict[str, Callable[[], dict[str, Variant]]] = {
    function.__name__: function for function in (final, paper, resnets, ablation, sizes)
}


def variant_named(name: str) -> Variant:
    """Of any group."""
    for group in GROUPS.values():
        variants = group()
        if name in variants:
            return variants[name]
    raise SystemExit(f"{name}: unknown; `benchmarks.tuned jobs` lists all")


def best_trial(network: str, optimizer: str | None = None) -> Row | None:
    """The best of the longest trials of the search, with any optimiser if none is said."""
    rows = [row for row in read_rows(SEARCH) if row.trial.network == network]
    if optimizer is not None:
        rows = [row for row in rows if row.trial.settings["training.optimizer"] == optimizer]
    return max(rows, key=lambda row: (row.trial.epochs, row.accuracy), default=None)


def widened(network: NetworkConfig, num_weights: int) -> list[int]:
    """All widths scaled alike for about so many weights, which grow with their square."""
    with torch.device("meta"):  # nothing is drawn
        factor = sqrt(num_weights / Network(network).num_weights)
    return [max(1, round(n * factor / WIDTHS_BY)) * WIDTHS_BY for n in network.channels]


def _tuned(dynamics: str) -> str:
    return f"{dynamics}_cifar10_tuned"


def _network_settings(network: NetworkConfig) -> Settings:
    return {f"network.{key}": value for key, value in network.to_dict().items()}


# ------------------------------------------------------------------ one run


def folder_name(name: str, seed: int) -> str:
    """Of a run among others."""
    return f"{name}-seed{seed}"


def train(name: str, seed: int, changes: Settings, data: str, output: Path) -> None:
    """Train to the end, or go on; a run that is finished is left as it is."""
    variant, folder = variant_named(name), output / folder_name(name, seed)
    config = variant.config().with_settings({**changes, "seed": seed, "data.folder": data})
    if variant.depth is None:
        pdecnn.train(config, output=folder, resume=True)
    elif not (folder / SUMMARY).exists():
        train_resnet(variant.depth, config, folder)
    write_json(folder / CONDITIONS, {"runs_at_a_time": int(os.environ.get(JOBS_AT_A_TIME, 1))})
    summary = json.loads((folder / SUMMARY).read_bytes())
    print(f"{folder.name}: {summary['test']['accuracy']:.2%} of the test images", flush=True)


def train_resnet(depth: int, config: RunConfig, folder: Path) -> None:
    """The same training; what is written is what of a run says how and how well."""
    if config.data.validation_fraction:
        raise SystemExit("the last weights of a ResNet are its result: data.validation_fraction=0")
    device = resolve_device("auto")
    config = with_precision(config, resolve_precision(AUTO, device))
    splits, training = read_splits(config.data, config.seed), config.training
    trainer = Trainer(
        make_resnet(depth, config, splits).to(device),
        training,
        train=splits.train,
        validation=splits.validation,
        augmentation=config.data.augmentation(),
        seed=config.seed,
    )
    timing, began = [], monotonic()
    for report in trainer.epochs(poll=_go_on, on_step=_go_on):
        timing.append({"epoch": report.epoch, "seconds": round(monotonic() - began, 4)})
        began = monotonic()
    network, test = trainer.evaluated, splits.test.to(device)
    how: dict[str, Any] = {"batch_size": 1000, "precision": training.precision}
    evaluation = evaluate_network(network, test, **how)
    values = config.to_dict()
    kept = {key: values[key] for key in ("recipe", "seed", "data", "training")}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, kept | {"resnet": depth})
    write_json(folder / ENVIRONMENT, describe_environment(device, config.seed))
    write_atomically(folder / TIMING, "".join(json.dumps(row) + "\n" for row in timing).encode())
    found = {"num_weights": network.num_weights, "epochs": training.epochs}
    write_json(folder / SUMMARY, found | {"test": evaluation.summary()})


def _go_on() -> None:
    pass


# ------------------------------------------------------------------ all of them


def job_lines(groups: Sequence[str], words: Sequence[str]) -> Iterator[str]:
    """What a campaign reads: all first seeds of a group, then all second ones."""
    for group in groups:
        variants = GROUPS[group]()
        for seed in range(3):
            for name, variant in variants.items():
                if seed < variant.seeds:
                    command = ["-m", "benchmarks.tuned", "train", name, "--seed", str(seed)]
                    command = [sys.executable, *command, *words]
                    yield f"{folder_name(name, seed)}: {shlex.join(command)}"


def keep(output: Path, results: Path) -> list[Path]:
    """Copy what a page needs of finished runs."""
    kept = []
    for path in sorted(output.glob(f"*/{SUMMARY}")):
        folder = results / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            if (path.parent / name).exists():
                write_atomically(folder / name, (path.parent / name).read_bytes())
        config = json.loads((folder / CONFIG).read_bytes())
        config["data"]["folder"] = None
        write_json(folder / CONFIG, config)
        environment = json.loads((folder / ENVIRONMENT).read_bytes())
        environment.pop("command", None)
        write_json(folder / ENVIRONMENT, environment)
        kept.append(folder)
    return kept


def main(arguments: Sequence[str] | None = None) -> None:
    """List jobs, train one, or keep what they left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    jobs_parser, train_parser = commands.add_parser("jobs"), commands.add_parser("train")
    jobs_parser.add_argument("groups", nargs="+", choices=GROUPS)
    train_parser.add_argument("name")
    train_parser.add_argument("--seed", type=int, default=0)
    for one in (jobs_parser, train_parser):
        one.add_argument("--data", required=True)
        one.add_argument("--output", type=Path, required=True)
        one.add_argument("--set", action="append", default=[], dest="assignments")
    keep_parser = commands.add_parser("keep")
    keep_parser.add_argument("--output", type=Path, required=True)
    keep_parser.add_argument("--results", type=Path, default=RESULTS)
    found = parser.parse_args(arguments)
    if found.command == "jobs":
        words = ["--data", found.data, "--output", str(found.output)]
        words += [word for text in found.assignments for word in ("--set", text)]
        print("\n".join(job_lines(found.groups, words)))
    elif found.command == "train":
        changes = dict(map(parse_assignment, found.assignments))
        train(found.name, found.seed, changes, str(Path(found.data).absolute()), found.output)
    else:
        for folder in keep(found.output, found.results):
            print(folder)


if __name__ == "__main__":
    main()
