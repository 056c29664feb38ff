"""Memory and time of a block against its number of steps, in every backprop mode."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from pdecnn.data.image_set import ImageSet
from pdecnn.experiments.bench.measurement import Timing, free_memory, time_in_turn
from pdecnn.experiments.bench.memory import activation_bytes, weight_bytes
from pdecnn.experiments.bench.sizes import BenchSizes
from pdecnn.experiments.bench.trainers import make_network, make_steps, random_images
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.registry import DYNAMICS
from pdecnn.pde.backprop import BACKPROP_MODES

# Small, so that a thousand steps stay as bounded as three.
_STEP_SIZE = 0.01
_NUM_BATCHES = 4


def bench_depth(
    sizes: BenchSizes, device: torch.device, say: Callable[[str], None]
) -> dict[str, Any]:
    """One block of growing depth, each of its steps with weights of its own."""
    images = random_images(_NUM_BATCHES * sizes.depth_batch_size, 3, (32, 32))
    rows = []
    for dynamics, depths in (
        ("hamiltonian", sizes.depths),
        ("second_order", (sizes.depths[0], sizes.depths[-1])),  # its memory grows no differently
    ):
        for num_steps in depths:
            say(f"{dynamics}, {num_steps} steps in {len(BACKPROP_MODES)} backprop modes")
            rows += _measure(dynamics, num_steps, images, sizes, device)
            free_memory()
    return {
        "repeats": sizes.num_repeats,
        "channels": sizes.depth_channels,
        "batch_size": sizes.depth_batch_size,
        "image_size": 32,
        "step_size": _STEP_SIZE,
        "share_weights": False,
        "memory": "peak" if device.type == "cuda" else "saved",
        "rows": rows,
    }


def _measure(
    dynamics: str, num_steps: int, images: ImageSet, sizes: BenchSizes, device: torch.device
) -> list[dict[str, Any]]:
    config = NetworkConfig(
        channels=(sizes.depth_channels, sizes.depth_channels),
        num_steps=num_steps,
        step_size=_STEP_SIZE,
        **DYNAMICS[dynamics],
    )
    batch = images.subset(torch.arange(sizes.depth_batch_size)).to(device)
    captures = [False, True] if _captures(num_steps, sizes, device) else [False]
    variants = {
        (mode, capture): make_steps(
            replace(config, backprop=mode),
            images,
            batch_size=sizes.depth_batch_size,
            device=device,
            capture=capture,
        )
        for mode in BACKPROP_MODES
        for capture in captures
    }
    timings = time_in_turn(
        variants,
        device=device,
        num_repeats=sizes.num_repeats,
        repeat_seconds=sizes.repeat_seconds,
    )
    notes = {key: step.finish() for key, step in variants.items() if timings[key] is not None}
    memory = {}
    for mode, capture in variants:
        network = make_network(replace(config, backprop=mode), device)
        # A step that could not be captured as wanted has no compiled network to be measured.
        if not notes.get((mode, capture)):
            memory[mode, capture] = activation_bytes(network, batch, compiled=capture)
    return [
        {
            "dynamics": dynamics,
            "num_steps": num_steps,
            "backprop": mode,
            "captured": capture,
            "activation_bytes": memory.get((mode, capture)),
            "weight_bytes": weight_bytes(network),
            "time": None if timing is None else timing.to_dict(),
            "ratio_to_stored": _ratio(timing, timings["stored", capture]),
            "notes": notes.get((mode, capture), []),
        }
        for (mode, capture), timing in timings.items()
    ]


def _captures(num_steps: int, sizes: BenchSizes, device: torch.device) -> bool:
    return device.type == "cuda" and num_steps in sizes.captured_depths


def _ratio(timing: Timing | None, stored: Timing | None) -> float | None:
    return None if timing is None or stored is None else timing.ratio(stored)
