"""What today's recipe and each optimiser cost beside the paper's, and how many kernels a step has.

Part of `python -m benchmarks.speed`.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from pdecnn.data.augmentation import Augmentation
from pdecnn.learning.memory import free_memory
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.registry import model_config
from pdecnn.runs.bench import (
    NOT_RUN,
    BenchSizes,
    Say,
    TrainerSteps,
    make_steps,
    precision_of,
    random_images,
)
from pdecnn.runs.recipes import recipe
from pdecnn.runs.timing import synchronize, time_in_turn

PAPER = "paper"
NETWORK = "hamiltonian_cifar10"


def bench_recipes(sizes: BenchSizes, device: torch.device, say: Say) -> dict[str, Any]:
    """Steps of the paper's recipe, of other optimisers in it, and of the tuned one, in turn."""
    rows: list[dict[str, Any]] = []
    for batch_size in sizes.batch_sizes:
        say(f"recipes of {NETWORK}, {batch_size} images")
        rows += _measure(batch_size, sizes, device)
        free_memory()
    return {
        "repeats": sizes.num_repeats,
        "network": NETWORK,
        "precision": precision_of(device),
        "rows": rows,
    }


def _measure(batch_size: int, sizes: BenchSizes, device: torch.device) -> list[dict[str, Any]]:
    images = random_images(sizes.num_images, 3, (32, 32))
    tuned = recipe(f"{NETWORK}_tuned")
    paper = TrainingConfig()
    trainings = {PAPER: (paper, Augmentation())}
    for name in ("nesterov", "adamw", "muon"):
        trainings[name] = (replace(paper, optimizer=name), Augmentation())
    trainings["tuned"] = (tuned.training, tuned.data.augmentation())
    steps = {
        name: make_steps(
            model_config(NETWORK),
            images,
            batch_size=batch_size,
            device=device,
            capture=True,
            training=training,
            augmentation=augmentation,
        )
        for name, (training, augmentation) in trainings.items()
    }
    timings = time_in_turn(
        steps,
        device=device,
        num_repeats=sizes.num_repeats,
        repeat_seconds=sizes.repeat_seconds,
    )
    beside = timings[PAPER]
    rows = []
    for name, timing in timings.items():
        measured = timing is not None and beside is not None
        rows.append(
            {
                "recipe": name,
                "batch_size": batch_size,
                "time": None if timing is None else timing.to_dict(),
                "ratio_to_paper": timing.ratio(beside) if measured else None,
                "more_seconds": timing.median - beside.median if measured else None,
                "kernels": None if timing is None else count_kernels(steps[name], device),
            }
            | (NOT_RUN if timing is None else steps[name].finish())
        )
    return rows


def count_kernels(steps: TrainerSteps, device: torch.device) -> list[dict[str, Any]] | None:
    """What runs on the GPU in a step: name, how often, microseconds; None on a CPU."""
    if device.type != "cuda":
        return None
    synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        steps()
        synchronize(device)
    number, microseconds = Counter[str](), defaultdict[str, float](float)
    for event in profiled.events():
        if event.device_type == DeviceType.CUDA:
            number[event.name] += 1
            microseconds[event.name] += event.device_time
    return [
        {"name": name, "number": many, "microseconds": microseconds[name]}
        for name, many in number.most_common()
    ]
