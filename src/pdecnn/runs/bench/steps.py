"""Whole training steps of the CIFAR-10 networks beside plain torch and ResNets."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pdecnn.data.image_set import ImageSet
from pdecnn.learning.memory import free_memory
from pdecnn.learning.work import Work, count_work
from pdecnn.networks.registry import model_config
from pdecnn.runs.bench.measurement import Timing, time_in_turn
from pdecnn.runs.bench.plain_steps import NUM_BATCHES, PlainStep
from pdecnn.runs.bench.plain_twin import PlainNetwork, copy_weights_
from pdecnn.runs.bench.resnets import CifarResNet
from pdecnn.runs.bench.roofline import Ceilings, Roofline
from pdecnn.runs.bench.sizes import BenchSizes
from pdecnn.runs.bench.trainers import (
    CAPTURED,
    EAGER,
    NOT_RUN,
    TrainerSteps,
    make_network,
    make_steps,
    precision_of,
    random_images,
)

DYNAMICS = ("parabolic", "second_order", "hamiltonian")
RESNET_DEPTHS = (20, 32)
PLAIN = "plain"


def bench_steps(
    sizes: BenchSizes, device: torch.device, say: Callable[[str], None]
) -> dict[str, Any]:
    """Time every variant at every batch size, all of a batch size in turn."""
    half = precision_of(device) == "bfloat16"
    ceilings = Ceilings(sizes, device, torch.bfloat16 if half else torch.float32)
    images = random_images(sizes.num_images, 3, (32, 32))
    rows: list[dict[str, Any]] = []
    for batch_size in sizes.batch_sizes:
        say("copy bandwidth and matrix rate")
        ceilings.measure()
        say(f"training steps of {batch_size} images")
        rows += _measure(batch_size, images, sizes, device)
        free_memory()
    say("copy bandwidth and matrix rate")
    ceilings.measure()
    return {
        "repeats": sizes.num_repeats,
        "precision": precision_of(device),
        "roofline": ceilings.to_dict(),
        "rows": [row | _against_roofline(row, ceilings.roofline()) for row in rows],
    }


def _measure(
    batch_size: int, images: ImageSet, sizes: BenchSizes, device: torch.device
) -> list[dict[str, Any]]:
    ours: dict[tuple[str, str], TrainerSteps] = {}
    plain: dict[tuple[str, str], PlainStep] = {}
    works: dict[str, Work] = {}
    batches = _fixed_batches(batch_size, device)
    half = precision_of(device) == "bfloat16"
    for dynamics in DYNAMICS:
        name = f"{dynamics}_cifar10"
        config = model_config(name)
        for variant in (CAPTURED, EAGER) if device.type == "cuda" else (EAGER,):
            ours[name, variant] = make_steps(
                config, images, batch_size=batch_size, device=device, capture=variant == CAPTURED
            )
        twin = PlainNetwork(dynamics, config.channels).to(device)
        copy_weights_(twin, make_network(config, device))
        plain[name, PLAIN] = PlainStep(twin, batches, half=half, layout=plain_layout(device))
    for depth in RESNET_DEPTHS:
        resnet = CifarResNet(depth).to(device)
        plain[f"ResNet-{depth}", PLAIN] = PlainStep(
            resnet, batches, half=half, layout=plain_layout(device)
        )
    for (name, _), step in plain.items():
        works[name] = count_work(step)
    timings = time_in_turn(
        {**ours, **plain},
        device=device,
        num_repeats=sizes.num_repeats,
        repeat_seconds=sizes.repeat_seconds,
    )
    runs = {key: step.finish() for key, step in ours.items() if timings[key] is not None}
    return [
        _row(*key, batch_size, timing, works[key[0]]) | runs.get(key, NOT_RUN)
        for key, timing in sorted(timings.items(), key=lambda item: list(works).index(item[0][0]))
    ]


def plain_layout(device: torch.device) -> torch.memory_format:
    """Of plain networks and their batches: what convolutions are fastest in, as ours are."""
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


def _fixed_batches(batch_size: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(batch_size, 3, 32, 32, generator=generator).to(
                device, memory_format=plain_layout(device)
            ),
            torch.randint(0, 10, (batch_size,), generator=generator).to(device),
        )
        for _ in range(NUM_BATCHES)
    ]


def _row(
    network: str, variant: str, batch_size: int, timing: Timing | None, work: Work
) -> dict[str, Any]:
    """The work of a network is that counted on its plain form, whatever the variant."""
    return {
        "network": network,
        "variant": variant,
        "batch_size": batch_size,
        "time": None if timing is None else timing.to_dict(),
        "images_per_second": None if timing is None else batch_size / timing.median,
        "flops": work.flops,
        "minimum_bytes": work.minimum_bytes,
        "moved_bytes": work.moved_bytes if variant == PLAIN else None,
    }


def _against_roofline(row: dict[str, Any], roofline: Roofline) -> dict[str, Any]:
    floor = roofline.floor_seconds(Work(row["flops"], row["minimum_bytes"], 0))
    time = row["time"]
    return {
        "floor_seconds": floor,
        "roofline_fraction": None if time is None else floor / time["median_seconds"],
    }
