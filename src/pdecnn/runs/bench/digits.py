"""The digits networks on a CPU: our training step against plain torch doing the same."""

from collections.abc import Callable
from time import process_time
from typing import Any

import torch

from pdecnn.data.augmentation import Augmentation
from pdecnn.learning.trainer import Trainer
from pdecnn.runs.bench.measurement import Timing, time_in_turn
from pdecnn.runs.bench.plain_steps import PlainTraining
from pdecnn.runs.bench.plain_twin import PlainNetwork, copy_weights_
from pdecnn.runs.bench.sizes import BenchSizes
from pdecnn.runs.bench.steps import DYNAMICS
from pdecnn.runs.bench.trainers import TrainerSteps
from pdecnn.runs.environment import cpu_threads
from pdecnn.runs.preparation import make_network, read_splits
from pdecnn.runs.recipes import recipe

_CPU = torch.device("cpu")


def bench_digits(
    sizes: BenchSizes, device: torch.device, say: Callable[[str], None]
) -> dict[str, Any]:
    """Both steps of each network in turn, always on the CPU with the recipe's threads."""
    del device
    rows = []
    for dynamics in DYNAMICS:
        say(f"{dynamics}_digits against plain torch")
        timings = time_digits(
            dynamics,
            num_repeats=sizes.digits_repeats,
            repeat_seconds=sizes.digits_repeat_seconds,
        )
        ours, plain = timings["pdecnn"], timings["plain"]
        rows.append(
            {
                "network": f"{dynamics}_digits",
                "time": ours.to_dict(),
                "plain_time": plain.to_dict(),
                "ratio": ours.ratio(plain),
            }
        )
    training = recipe(f"{DYNAMICS[0]}_digits").training
    return {
        "repeats": sizes.digits_repeats,
        "batch_size": training.batch_size,
        "threads": training.num_threads,
        "rows": rows,
    }


def time_digits(dynamics: str, *, num_repeats: int, repeat_seconds: float) -> dict[str, Timing]:
    """Processor time of our step, 'pdecnn', and of its plain twin, 'plain'.

    On one thread that is the time it takes, less what other programs take away meanwhile.
    """
    trainer, twin = make_digits_pair(dynamics)
    steps = TrainerSteps(trainer)
    with cpu_threads(trainer.config.num_threads):
        timings = time_in_turn(
            {"pdecnn": steps, "plain": twin},
            device=_CPU,
            num_repeats=num_repeats,
            repeat_seconds=repeat_seconds,
            clock=process_time,
        )
    steps.finish()
    return {name: timing for name, timing in timings.items() if timing is not None}


def make_digits_pair(dynamics: str) -> tuple[Trainer, PlainTraining]:
    """A trainer as the recipe makes it, and its twin with the same weights, data and rate."""
    config = recipe(f"{dynamics}_digits")
    splits = read_splits(config.data, config.seed)
    network = make_network(config, splits.train)
    trainer = Trainer(
        network,
        config.training,
        train=splits.train,
        validation=splits.validation,
        augmentation=Augmentation(flip=config.data.flip, padding=config.data.padding),
        seed=config.seed,
    )
    twin = PlainNetwork(dynamics, config.network.channels, in_channels=1)
    copy_weights_(twin, network)
    train, size = trainer.train, config.training.batch_size
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(train), generator=generator)
    batches = order[: len(train) // size * size].view(-1, size)
    rate = config.training.learning_rates[0]
    return trainer, PlainTraining(twin, train.images[:], train.labels, batches, learning_rate=rate)
