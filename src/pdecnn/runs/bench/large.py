"""One training step on a large image and on a large volume: `reversible` against `stored`."""

from collections.abc import Callable
from typing import Any

import torch

from pdecnn.learning.memory import free_memory
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.registry import DYNAMICS
from pdecnn.runs.bench.measurement import time_in_turn
from pdecnn.runs.bench.memory import activation_bytes
from pdecnn.runs.bench.sizes import BenchSizes
from pdecnn.runs.bench.trainers import NOT_RUN, make_network, make_steps, random_images

MODES = ("stored", "reversible")
_NUM_INPUTS = 16  # so many that an epoch rarely ends within a repeat


def bench_large(
    sizes: BenchSizes, device: torch.device, say: Callable[[str], None]
) -> dict[str, Any]:
    """The Hamiltonian network, one input at a time."""
    rows = []
    for dimension, channels, size in ((2, 3, sizes.image_size), (3, 1, sizes.volume_size)):
        for num_steps in sizes.large_steps:
            say(f"{' x '.join([str(size)] * dimension)}, {num_steps} steps a block")
            rows += _measure((size,) * dimension, channels, num_steps, sizes, device)
            free_memory()
    return {
        "repeats": sizes.num_repeats,
        "channels": list(sizes.large_channels),
        "memory": "peak" if device.type == "cuda" else "saved",
        "rows": rows,
    }


def _measure(
    size: tuple[int, ...], channels: int, num_steps: int, sizes: BenchSizes, device: torch.device
) -> list[dict[str, Any]]:
    images = random_images(_NUM_INPUTS, channels, size)
    first = images.subset(torch.arange(1)).to(device)
    memory, variants = {}, {}
    for mode in MODES:
        config = NetworkConfig(
            channels=sizes.large_channels,
            in_channels=channels,
            dimension=len(size),
            num_steps=num_steps,
            backprop=mode,
            **DYNAMICS["hamiltonian"],
        )
        network = make_network(config, device)
        memory[mode] = activation_bytes(network, first)
        variants[mode] = make_steps(config, images, batch_size=1, device=device, capture=False)
    timings = time_in_turn(
        variants,
        device=device,
        num_repeats=sizes.num_repeats,
        repeat_seconds=sizes.repeat_seconds,
    )
    runs = {mode: step.finish() for mode, step in variants.items() if timings[mode] is not None}
    return [
        {
            "size": list(size),
            "num_steps": num_steps,
            "backprop": mode,
            "activation_bytes": memory[mode],
            "time": None if timing is None else timing.to_dict(),
        }
        | runs.get(mode, NOT_RUN)
        for mode, timing in timings.items()
    ]
