"""Digits and images on one thread of a CPU, beside plain torch that does the same."""

from dataclasses import replace
from functools import partial
from time import process_time
from typing import Any

import torch
from torch import nn

from benchmarks.plain_training import PlainTraining, mirror_and_crop
from pdecnn.data.image_set import ImageSet
from pdecnn.fast.acceleration import fast_layout
from pdecnn.learning.trainer import Trainer
from pdecnn.runs.bench import PAPER_DYNAMICS, QUICK, BenchSizes, Say, TrainerSteps, random_images
from pdecnn.runs.config import RunConfig
from pdecnn.runs.plain_twin import PlainNetwork, copy_weights_
from pdecnn.runs.preparation import cpu_threads, make_network, read_splits
from pdecnn.runs.recipes import recipe
from pdecnn.runs.timing import Call, time_in_turn

NUM_IMAGES = 320  # so many that an epoch rarely ends within a repeat
_RATE = 1e-3  # at which no network diverges on noise
_REPEATS, _REPEAT_SECONDS = 101, 0.02  # more and shorter than elsewhere: a ratio near 1 is sought


def bench_digits(sizes: BenchSizes, device: torch.device, say: Say) -> dict[str, Any]:
    """Both steps of each network in turn, and both ways of one image through it."""
    del device
    rows, forward_rows = [], []
    for dynamics in PAPER_DYNAMICS:
        say(f"{dynamics}_digits against plain torch")
        name = {"network": f"{dynamics}_digits"}
        trainer, twin = make_digits_pair(dynamics)
        rows.append(name | _steps(trainer, twin, sizes))
        ours, plain = make_forwards(trainer, twin)
        forward_rows.append(name | _beside_plain(ours, plain, sizes))
    config = recipe(f"{PAPER_DYNAMICS[0]}_digits")
    return _part(config, rows) | {"forward_rows": forward_rows}


def bench_images(sizes: BenchSizes, device: torch.device, say: Say) -> dict[str, Any]:
    """Both steps of the network for images, in each precision that the CPU has."""
    del device
    config, rows = recipe("hamiltonian_images"), []
    for precision in precisions():
        say(f"{config.recipe} in {precision} against plain torch")
        row = _steps(*make_images_pair(config, precision), sizes)
        rows.append({"network": config.recipe, "precision": precision} | row)
    return {"size": config.data.size} | _part(config, rows)


def precisions() -> list[str]:
    """bfloat16 where the processor computes in it; elsewhere torch emulates it."""
    has_bfloat16 = torch.cpu._is_avx512_bf16_supported()
    return ["float32", "bfloat16"] if has_bfloat16 else ["float32"]


def _part(config: RunConfig, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "repeats": rows[0]["time"]["repeats"],
        "batch_size": config.training.batch_size,
        "threads": 1,
        "rows": rows,
    }


def _steps(trainer: Trainer, twin: PlainTraining, sizes: BenchSizes) -> dict[str, Any]:
    steps = TrainerSteps(trainer)
    row = _beside_plain(steps, twin, sizes)
    steps.finish()
    return row


def _beside_plain(ours: Call, plain: Call, sizes: BenchSizes) -> dict[str, Any]:
    """Processor time on one thread: the time it takes, less what other programs take away."""
    with cpu_threads(1):
        timings = time_in_turn(
            {"pdecnn": ours, "plain": plain},
            device=torch.device("cpu"),
            num_repeats=5 if sizes is QUICK else _REPEATS,
            repeat_seconds=0.0 if sizes is QUICK else _REPEAT_SECONDS,
            clock=process_time,
        )
    mine, other = timings["pdecnn"], timings["plain"]
    assert mine is not None
    assert other is not None
    return {"time": mine.to_dict(), "plain_time": other.to_dict(), "ratio": mine.ratio(other)}


def make_forwards(trainer: Trainer, twin: PlainTraining) -> tuple[Call, Call]:
    """One image to scores without a gradient, by our network and by its twin."""
    image = fast_layout(trainer.network.preprocess(trainer.train.images[:1]))

    @torch.no_grad()
    def forward(network: nn.Module) -> object:
        return network(image)

    return partial(forward, trainer.network), partial(forward, twin.network)


def make_digits_pair(dynamics: str) -> tuple[Trainer, PlainTraining]:
    """A trainer as the recipe makes it, and its twin with the same weights, data and rate."""
    config = recipe(f"{dynamics}_digits")
    splits = read_splits(config.data, config.seed)
    return make_pair(
        config, splits.train, splits.validation, precision="float32", layout=torch.contiguous_format
    )


def make_images_pair(config: RunConfig, precision: str) -> tuple[Trainer, PlainTraining]:
    """The same for random images of the recipe's size, at a rate for noise."""
    size = config.data.size
    assert isinstance(size, int)
    classes = config.network.num_classes
    images = random_images(NUM_IMAGES, 3, (size, size), num_classes=classes)
    training = replace(config.training, learning_rates=(_RATE,), phases=(1,))
    config = replace(config, training=training)
    few = images.subset(torch.arange(1))
    return make_pair(config, images, few, precision=precision, layout=torch.channels_last)


def make_pair(
    config: RunConfig,
    train: ImageSet,
    validation: ImageSet | None,
    *,
    precision: str,
    layout: torch.memory_format,
) -> tuple[Trainer, PlainTraining]:
    """A trainer of a recipe on these images, and a twin that does the same."""
    network = make_network(config, train)
    augmentation = config.data.augmentation()
    trainer = Trainer(
        network,
        replace(config.training, precision=precision),
        train=train,
        validation=validation,
        augmentation=augmentation,
        seed=config.seed,
    )
    twin = PlainNetwork(
        config.recipe.partition("_images")[0].partition("_digits")[0],
        config.network.channels,
        in_channels=config.network.in_channels,
        num_classes=config.network.num_classes,
    )
    copy_weights_(twin, network)
    size = config.training.batch_size
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(train), generator=generator)
    batches = order[: len(train) // size * size].view(-1, size)
    padding = augmentation.padding_pixels(train.size[0])
    plain = PlainTraining(
        twin,
        trainer.train.images[:],
        trainer.train.labels,
        batches,
        learning_rate=config.training.learning_rates[0],
        half=precision == "bfloat16",
        layout=layout,
        augment=partial(mirror_and_crop, padding=padding) if augmentation.flip else None,
    )
    return trainer, plain
