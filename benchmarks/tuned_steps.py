"""Time captured steps of tuned training beside the paper's: docs/results/tuned-steps.json.

    python -m benchmarks.tuned_steps [--output docs/results/tuned-steps.json]

On the same network, in batches of the paper's recipe and of the tuned one; each optimiser with the
rest of the tuned recipe. Random images; medians of repeats in which all were measured in turn.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.tuned import HAMILTONIAN
from pdecnn.data.image_set import ImageSet
from pdecnn.files import write_json
from pdecnn.learning import Trainer
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.runs.bench import TrainerSteps, make_network, precision_of, random_images
from pdecnn.runs.config import RunConfig
from pdecnn.runs.environment import describe_environment, resolve_device
from pdecnn.runs.recipes import recipe
from pdecnn.runs.timing import time_in_turn

NUM_IMAGES, NUM_REPEATS, REPEAT_SECONDS = 5000, 5, 0.3
PAPER = "paper"
OPTIMIZERS = ("nesterov", "adamw", "muon")


def variants(batch_size: int) -> dict[str, RunConfig]:
    """The paper's training of the tuned network, and tuned training with each optimiser."""
    tuned = recipe(HAMILTONIAN)
    of_paper = recipe(HAMILTONIAN.removesuffix("_tuned"))
    configs = {PAPER: replace(of_paper, network=tuned.network)}
    usual = TrainingConfig()
    for name in OPTIMIZERS:
        training = replace(
            tuned.training,
            optimizer=name,
            betas=usual.betas if name == "nesterov" else tuned.training.betas,
            momentum=usual.momentum if name == "adamw" else tuned.training.momentum,
        )
        configs[name] = replace(tuned, training=training)
    return {
        name: replace(config, training=replace(config.training, batch_size=batch_size))
        for name, config in configs.items()
    }


def steps(config: RunConfig, images: ImageSet, device: torch.device) -> TrainerSteps:
    """Those of a training of a fresh network."""
    trainer = Trainer(
        make_network(config.network, device),
        replace(config.training, precision=precision_of(device)),
        train=images,
        validation=None,
        augmentation=config.data.augmentation(),
        seed=0,
    )
    return TrainerSteps(trainer)


def measure(
    batch_sizes: tuple[int, ...], images: ImageSet, device: torch.device, seconds: float
) -> list[dict[str, Any]]:
    """A row for each training and batch size."""
    rows = []
    for batch_size in batch_sizes:
        calls = {
            name: steps(config, images, device) for name, config in variants(batch_size).items()
        }
        timings = time_in_turn(
            calls, device=device, num_repeats=NUM_REPEATS, repeat_seconds=seconds
        )
        for name, timing in timings.items():
            found, of_paper = calls[name].finish(), timings[PAPER]
            assert timing is not None
            assert of_paper is not None
            rows.append(
                {
                    "training": name,
                    "batch_size": batch_size,
                    "time": timing.to_dict(),
                    "ratio_to_paper": timing.ratio(of_paper),
                    **found,
                }
            )
            print(f"{name}, {batch_size}: {1e3 * timing.median:.2f} ms, {found}", flush=True)
    return rows


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs/results/tuned-steps.json"))
    output = parser.parse_args().output
    device = resolve_device("auto")
    sizes = (TrainingConfig().batch_size, recipe(HAMILTONIAN).training.batch_size)
    images = random_images(NUM_IMAGES, 3, (32, 32))
    rows = measure(tuple(dict.fromkeys(sizes)), images, device, REPEAT_SECONDS)
    environment = describe_environment(device, 0)
    environment.pop("command")
    write_json(output, {"rows": rows, "environment": environment})


if __name__ == "__main__":
    main()
