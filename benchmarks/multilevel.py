"""Train in levels beside a single one, coarsen what was trained; write docs/results/multilevel.*.

    python -m benchmarks.multilevel --dataset digits
    python -m benchmarks.multilevel --dataset cifar10 --data DIR [--jobs 1] [--epochs 100]
    python -m benchmarks.multilevel --dataset rediscretized --data DIR
    python -m benchmarks.multilevel --dataset smooth --data DIR
    python -m benchmarks.multilevel --dataset published --data DIR

`rediscretized` trains on CIFAR-10 in levels between which the PDE's coefficients are kept instead
of the stencils' entries, and coarsens the results. `smooth` coarsens small networks that were
trained on a quarter of the images, each averaged and interpolated back. `published` trains nothing
but coarsens the CIFAR-10 networks that come with the package.

Runs that are finished are skipped, so that the same command goes on where it stopped; results of
the other data sets stay. `--levels EPOCHS:SIZES:STEPS`, e.g. 60,40:16,32 or 1,1:16,32:1,3, replaces
the recipe's levels and may be repeated to compare several. With `--choose` they are compared by
validation accuracy alone, on seeds that no published figure uses, and nothing is written.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import pdecnn
from benchmarks.multilevel_page import write_multilevel
from pdecnn.data.image_set import ImageSet
from pdecnn.data.published import CIFAR10, read_cifar10
from pdecnn.data.registry import find_dataset
from pdecnn.learning.metrics import Evaluation, evaluate_network
from pdecnn.networks.multilevel import INTERPOLATIONS, coarsen_in_space, refine_in_time
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import average_pool
from pdecnn.runs.config import RunConfig, parse_assignment
from pdecnn.runs.leveling import images_per_second
from pdecnn.runs.paper import PAPER_DYNAMICS
from pdecnn.runs.preparation import describe_environment, read_splits, resolve_device
from pdecnn.runs.queue import CONDITIONS, run_queue
from pdecnn.runs.runs import Run
from pdecnn.runs.training import notes_shown_by

DYNAMICS = "hamiltonian"
DATASETS = ("digits", "cifar10", "rediscretized", "smooth", "published")
FACTOR = 2
FIRST_SEED_TO_CHOOSE = 10
SINGLE = "single"
STEPS = ((8, 0.125), (3, 1.0))
VARIANTS = ("as it is", "rediscretize", "galerkin")
ONE_LEVEL = dict.fromkeys(("training.level_epochs", "training.level_sizes", "training.level_steps"))
Originals = dict[str, tuple[RunConfig, Network]]
SMALL = {  # three minutes a run on two cores
    "network.channels": [16, 32, 48, 48],
    "data.fraction": 0.25,
    "training.epochs": 6,
}
QUICK = {
    "network.channels": [8, 8],
    "data.fraction": 0.2,
    "training.batch_size": 16,
    "training.epochs": 5,
}


def main() -> None:
    """Train, coarsen, measure, write."""
    with notes_shown_by(print):
        measure(parse())


def measure(arguments: argparse.Namespace) -> None:
    """What the data set asks for."""
    queue = partial(run_queue, device=arguments.device)
    timed = partial(queue, num_parallel=arguments.jobs)
    tune = partial(queue, num_parallel=arguments.tuning_jobs)
    folder = arguments.runs / arguments.dataset
    if arguments.dataset == "published":
        originals = published_networks(arguments)
        result = {"coarsened": coarsen_all(originals, arguments, folder, tune)}
        finish(arguments, result)
        return
    smooth = arguments.dataset == "smooth"
    trainings = plan_smooth(arguments, folder) if smooth else plan_trainings(arguments)
    fail_if_any(timed(trainings, folder / "trained"))
    if arguments.choose:
        show_choice(folder / "trained", trainings)
        return
    runs = [describe_run(folder / "trained" / name, config) for name, config in trainings.items()]
    originals = trained_networks(trainings, folder)
    if smooth:  # smooth images to train on, those there are from then on
        data = {"data.folder": str(arguments.data.absolute())}
        originals = {name: (c.with_settings(data), net) for name, (c, net) in originals.items()}
    coarsened = coarsen_all(originals, arguments, folder, tune)
    result = {"runs": runs, "coarsened": coarsened}
    if arguments.dataset == "digits":
        fail_if_any(timed(plan_refinements(arguments), folder / "refined"))
        result["refined"] = refine_all(arguments, folder / "refined")
    finish(arguments, result)


def finish(arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    """Write what was found and where."""
    environment = describe_environment(resolve_device(arguments.device), 0)
    del environment["seed"], environment["command"]
    environment["load_average"] = os.getloadavg()[-1]
    result = {"environment": environment, "quick": arguments.quick, **result}
    for path in write_multilevel(arguments.dataset, result, arguments.output):
        print(f"wrote {path}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", choices=DATASETS, default="digits")
    parser.add_argument("--data", type=Path, help="the folder that holds CIFAR-10")
    parser.add_argument("--output", type=Path, help="docs/results, or multilevel-quick if quick")
    parser.add_argument("--runs", type=Path, help="where runs are kept; OUTPUT/runs if quick")
    parser.add_argument("--quick", action="store_true", help="tiny networks, to see if it runs")
    parser.add_argument("--epochs", type=int, help="instead of the recipe's")
    parser.add_argument(
        "--levels", action="append", metavar="E:W:S", help="epochs:sizes:steps of each level"
    )
    parser.add_argument("--choose", action="store_true", help="compare levels by validation only")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; times suffer")
    parser.add_argument("--tuning-jobs", type=int, default=1, help="epochs after coarsening")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    if arguments.dataset != "digits" and arguments.data is None:
        parser.error(f"--dataset {arguments.dataset} needs --data DIR with CIFAR-10 in it")
    default = Path("multilevel-quick") if arguments.quick else Path("docs/results")
    arguments.output = arguments.output or default
    default = arguments.output / "runs" if arguments.quick else Path("runs/multilevel")
    arguments.runs = (arguments.runs or default).absolute()
    return arguments


def settings_of(arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """What all runs of a seed change in their recipe."""
    settings: dict[str, Any] = {"seed": seed}
    if arguments.quick:
        settings |= QUICK
    if arguments.epochs is not None:
        settings["training.epochs"] = arguments.epochs
    if arguments.data is not None:
        settings["data.folder"] = str(arguments.data.absolute())
    return settings


def plan_trainings(arguments: argparse.Namespace) -> dict[str, RunConfig]:
    """Single-level and multilevel runs by name, seed by seed, so that both meet the same hours."""
    rediscretized = arguments.dataset == "rediscretized"
    dataset = "cifar10" if rediscretized else arguments.dataset
    recipe = pdecnn.recipe(f"{DYNAMICS}_{dataset}_multilevel")
    if rediscretized:
        recipe = recipe.with_settings({"training.level_stencils": "rediscretize"})
    configs = {}
    first = FIRST_SEED_TO_CHOOSE if arguments.choose else 0
    for seed in range(first, first + arguments.seeds):
        base = recipe.with_settings(settings_of(arguments, seed))
        if not rediscretized:
            configs[f"{SINGLE}-seed{seed}"] = base.with_settings(ONE_LEVEL)
        for levels in arguments.levels or [None]:
            config = base if levels is None else base.with_settings(parse_levels(levels))
            configs[f"{level_name(config)}-seed{seed}"] = config
    return configs


def plan_smooth(arguments: argparse.Namespace, folder: Path) -> dict[str, RunConfig]:
    """Small networks of all dynamics on smoothed copies of the images."""
    data = folder / "images"
    write_smoothed(arguments.data, data)
    configs = {}
    for seed in range(arguments.seeds):
        for dynamics in PAPER_DYNAMICS:
            settings = SMALL | settings_of(arguments, seed) | {"data.folder": str(data)}
            config = pdecnn.recipe(f"{dynamics}_cifar10").with_settings(settings)
            configs[f"{dynamics}-seed{seed}"] = config
    return configs


def write_smoothed(data: Path, folder: Path) -> None:
    """CIFAR-10 in its published layout, every image averaged to half the size and back."""
    given = read_cifar10(find_dataset(CIFAR10.name, data))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CIFAR10.names_file).write_text("\n".join(given.train.class_names))
    for part, names in ((given.train, CIFAR10.train_files), (given.test, CIFAR10.test_files)):
        batches = torch.arange(len(part)).tensor_split(len(names))
        for name, batch in zip(names, map(part.subset, batches), strict=True):
            pixels = smoothed(batch.images[:].float()).round().clamp(0, 255).byte()
            records = torch.cat([batch.labels[:, None].byte(), pixels.flatten(1)], 1)
            (folder / name).write_bytes(records.numpy().tobytes())


def smoothed(images: Tensor) -> Tensor:
    """Averaged over cells and interpolated back."""
    coarse = average_pool(images, FACTOR)
    return functional.interpolate(coarse, scale_factor=FACTOR, mode="bilinear")


def show_choice(folder: Path, trainings: dict[str, RunConfig]) -> None:
    """The levels by their best validation accuracies, with time and work."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, config in trainings.items():
        entry = describe_run(folder / name, config)
        found.setdefault(entry["name"], []).append(entry)
    for name, entries in found.items():
        accuracies = [100 * entry["validation_accuracy"] for entry in entries]
        print(
            f"{name}: validation {statistics.mean(accuracies):.2f} % "
            f"({', '.join(f'{accuracy:.2f}' for accuracy in accuracies)}), "
            f"{statistics.mean(entry['seconds'] for entry in entries):.1f} s, "
            f"{statistics.mean(entry['work'] for entry in entries) / 1e12:.3g} TFLOP"
        )


def parse_levels(text: str) -> dict[str, Any]:
    """The settings of '60,40:16,32:1,3', in which the last may be missing and any be none."""
    names = ("level_epochs", "level_sizes", "level_steps")
    values = [part or "none" for part in text.split(":")]
    values += ["none"] * (len(names) - len(values))
    pairs = zip(names, values, strict=True)
    return dict(parse_assignment(f"training.{name}={value}") for name, value in pairs)


def level_name(config: RunConfig) -> str:
    """The levels as a word."""
    training = config.training
    parts = {
        "epochs": training.level_epochs,
        "px": training.level_sizes,
        "steps": training.level_steps,
    }
    words = [
        "_".join(f"{value:g}" for value in values) + word
        for word, values in parts.items()
        if values is not None
    ]
    return "levels-" + "-".join(words)


def plan_refinements(arguments: argparse.Namespace) -> dict[str, RunConfig]:
    """Digits networks to be refined in time afterwards: with small steps, and with the paper's."""
    configs = {}
    for dynamics in PAPER_DYNAMICS:
        for num_steps, step_size in STEPS:
            base = pdecnn.recipe(f"{dynamics}_digits").with_settings(settings_of(arguments, 0))
            network = replace(base.network, num_steps=num_steps, step_size=step_size)
            configs[f"{dynamics}-{num_steps}x{step_size:g}"] = replace(base, network=network)
    return configs


def refine_all(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Test accuracy before and after refining in time by 2, without retraining."""
    device = resolve_device(arguments.device)
    rows = []
    for name, config in plan_refinements(arguments).items():
        network = pdecnn.load(folder / name).to(device)
        test = read_splits(config.data, config.seed).test.to(device)
        row = {
            "dynamics": name.partition("-")[0],
            "num_steps": config.network.num_steps,
            "step_size": config.network.step_size,
            "test_accuracy": evaluate_network(network, test).accuracy,
        }
        for interpolation in INTERPOLATIONS:
            refined = refine_in_time(network, interpolation=interpolation)
            row[interpolation] = evaluate_network(refined, test).accuracy
        rows.append(row)
    return rows


def describe_run(folder: Path, config: RunConfig) -> dict[str, Any]:
    """What a run came to, and its course over epochs, work and time."""
    run = Run(folder)
    summary, metrics = run.summary, run.metrics
    assert summary is not None
    seconds = {entry["epoch"]: entry["seconds"] for entry in run.timing}
    conditions = json.loads((folder / CONDITIONS).read_text())
    training = config.training
    return {
        "name": folder.name.rpartition("-seed")[0],
        "seed": config.seed,
        "recipe": config.recipe,
        "epochs": training.epochs,
        "level_sizes": training.level_sizes,
        "level_steps": training.level_steps,
        "level_epochs": training.level_epochs,
        "level_stencils": training.level_stencils,
        "config": replace(run.config, data=replace(run.config.data, folder=None)).to_dict(),
        "runs_at_a_time": conditions["runs_at_a_time"],
        "num_weights": summary["num_weights"],
        "validation_accuracy": summary["best_validation_accuracy"],
        "test_accuracy": summary["test"]["accuracy"],
        "test_loss": summary["test"]["loss"],
        "seconds": sum(seconds.values()),
        "steady_seconds": steady_seconds(metrics, seconds),
        "work": metrics[-1]["work"],
        "curve": [
            {
                "epoch": entry["epoch"],
                "level": entry["level"],
                "work": entry["work"],
                "seconds": seconds[entry["epoch"]],
                "data_loss": entry["data_loss"],
                "validation_accuracy": entry["validation_accuracy"],
            }
            for entry in metrics
        ],
    }


def steady_seconds(metrics: list[dict[str, Any]], seconds: dict[int, float]) -> float:
    """The time without what the first epoch of a level takes longer than the others: compiling."""
    total = 0.0
    for level in {entry["level"] for entry in metrics}:
        times = [seconds[entry["epoch"]] for entry in metrics if entry["level"] == level]
        typical = statistics.median(times)
        total += sum(times[1:]) + min(times[0], typical)
    return total


def trained_networks(trainings: dict[str, RunConfig], folder: Path) -> Originals:
    """The trained networks by run, but not of levels beside those of a single one."""
    runs = {name: Run(folder / "trained" / name) for name in trainings}
    single = {name: run for name, run in runs.items() if name.startswith(SINGLE)}
    return {
        name.removeprefix(f"{SINGLE}-"): (run.config, pdecnn.load(run.folder))
        for name, run in (single or runs).items()
    }


def published_networks(arguments: argparse.Namespace) -> Originals:
    """The CIFAR-10 networks that come with the package, one of each dynamics."""
    settings = settings_of(arguments, 0)
    settings.pop("network.channels", None)
    return {
        dynamics: (
            pdecnn.recipe(f"{dynamics}_cifar10").with_settings(settings),
            pdecnn.create_model(f"{dynamics}_cifar10", pretrained=True),
        )
        for dynamics in PAPER_DYNAMICS
    }


def coarsen_all(
    originals: Originals, arguments: argparse.Namespace, folder: Path, queue: Any
) -> list[dict[str, Any]]:
    """Every network on images of half the size, before and after one epoch more."""
    device = resolve_device(arguments.device)
    rows, tunings = [], {}
    for name, (config, original) in originals.items():
        precision = config.training.precision
        test = read_splits(config.data, config.seed).test.to(device)
        networks = {"full size": original}
        for variant in VARIANTS:
            network = networks[variant] = coarsened(original, variant)
            start = folder / "networks" / file_name(variant, name)
            network.save_pretrained(start)
            tunings[file_name(variant, name)] = tuning(config, network, start)
        networks = {variant: network.to(device) for variant, network in networks.items()}
        speeds = images_per_second(networks, test, precisions=dict.fromkeys(networks, precision))
        for variant, network in networks.items():
            evaluation = evaluate_network(network, test, precision=precision)
            row = {"network": name, "variant": variant, "test_accuracy": evaluation.accuracy}
            rows.append(row | {"test_loss": evaluation.loss, "images_per_second": speeds[variant]})
        evaluation = evaluate_smoothed(original, test)
        row = {"network": name, "variant": "smoothed", "test_accuracy": evaluation.accuracy}
        rows.append(row | {"test_loss": evaluation.loss})
    fail_if_any(queue(tunings, folder / "tuned"))
    for row in rows:
        if row["variant"] in VARIANTS:
            summary = Run(folder / "tuned" / file_name(row["variant"], row["network"])).summary
            assert summary is not None
            row["tuned_test_accuracy"] = summary["test"]["accuracy"]
    return rows


def evaluate_smoothed(network: Network, test: ImageSet) -> Evaluation:
    """At full size, on images averaged to half the size and interpolated back.

    What a coarsened network approximates: Galerkin's R K P is K on what P R lets through.
    """

    @torch.no_grad()
    def score(poll: Callable[[], None]) -> Tensor:
        del poll
        parts = []
        network.eval()
        for pixels in test.images[:].split(250):
            parts.append(network(smoothed(network.preprocess(pixels))))
        return torch.cat(parts)

    return evaluate_network(network, test, score=score)


def file_name(variant: str, name: str) -> str:
    """A variant of a network as the name of a folder."""
    return f"{variant.replace(' ', '_')}-{name}"


def coarsened(network: Network, variant: str) -> Network:
    """The network for images of half the size; 'as it is' has the old stencils."""
    if variant == "as it is":
        new = Network(network.config, coarsen_in_space(network, FACTOR).preprocessing)
        new.load_state_dict(network.state_dict())
        return new.eval()
    return coarsen_in_space(network, FACTOR, method=variant)


def tuning(config: RunConfig, network: Network, folder: Path) -> RunConfig:
    """One epoch at the recipe's last rate, starting from a coarsened network."""
    config = config.with_settings(ONE_LEVEL)
    training = replace(
        config.training,
        epochs=1,
        schedule="piecewise",
        learning_rates=config.training.learning_rates[-1:],
        phases=(1.0,),
        capture=False,  # compiling takes longer than an epoch
    )
    return replace(
        config,
        network=network.config,
        data=replace(config.data, pooling=network.preprocessing.pooling),
        training=training,
        initial=str(folder),
    )


def fail_if_any(failures: dict[str, str]) -> None:
    """End here if a run failed."""
    if failures:
        sys.exit("\n".join(f"{name} failed: {failure}" for name, failure in failures.items()))


if __name__ == "__main__":
    main()
