"""Memory and time of a block against its number of steps: captured and fused too."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from pdecnn.data.image_set import ImageSet
from pdecnn.fast.acceleration import accelerated
from pdecnn.learning.memory import free_memory
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network
from pdecnn.networks.registry import DYNAMICS
from pdecnn.pde.backprop import BACKPROP_MODES
from pdecnn.runs.bench import (
    CAPTURED,
    CPU,
    EAGER,
    GPU,
    NOT_RUN,
    QUICK,
    BenchSizes,
    Say,
    activation_bytes,
    make_network,
    make_steps,
    random_images,
)
from pdecnn.runs.timing import Timing, time_in_turn

TIMED = "hamiltonian"
FUSED = "fused"
"""Blocks by the kernels that a captured step consists of."""
# Small, so that a thousand steps stay as bounded as three.
_STEP_SIZE = 0.01
# So many that no epoch of eager steps ends while they are timed.
_NUM_BATCHES = 16
_ALL = tuple(BACKPROP_MODES)
TIMED_MODES: dict[str, dict[int, tuple[str, ...]]] = {
    GPU.name: dict.fromkeys((3, 10, 30, 100), _ALL) | {300: ("stored", "reversible", "exact")},
    CPU.name: dict.fromkeys((3, 10, 30), _ALL),
    QUICK.name: {2: _ALL, 4: ("stored", "reversible")},
}
"""The backprop modes whose eager training step is timed, for each depth at which it is."""
CAPTURED_MODES: dict[str, dict[int, tuple[str, ...]]] = {
    GPU.name: {3: ("stored", "reversible", "exact")},
    CPU.name: {},
    QUICK.name: {2: ("stored", "reversible")},
}
"""Those timed as one CUDA graph too; each is traced and compiled anew."""


def bench_depth(sizes: BenchSizes, device: torch.device, say: Say) -> dict[str, Any]:
    """One block of growing depth, each of its steps with weights of its own."""
    images = random_images(_NUM_BATCHES * sizes.depth_batch_size, 3, (32, 32))
    batch = images.subset(torch.arange(sizes.depth_batch_size)).to(device)
    memory_rows, rows = [], []
    kernels = (EAGER, FUSED) if device.type == "cuda" else (EAGER,)
    for dynamics, depths in (
        (TIMED, sizes.depths),
        ("second_order", (sizes.depths[0], sizes.depths[-1])),  # its memory grows no differently
    ):
        for num_steps in depths:
            say(f"memory: {dynamics}, {num_steps} steps in {len(BACKPROP_MODES)} backprop modes")
            config = _config(dynamics, num_steps, sizes)
            for variant in kernels:
                found = _measure_memory(config, batch, variant)
                head = {"dynamics": dynamics, "num_steps": num_steps, "variant": variant}
                memory_rows += [head | row for row in found]
                free_memory()
    for num_steps, modes in TIMED_MODES[sizes.name].items():
        config = _config(TIMED, num_steps, sizes)
        variants = {EAGER: modes}
        if device.type == "cuda" and num_steps in CAPTURED_MODES[sizes.name]:
            variants[CAPTURED] = CAPTURED_MODES[sizes.name][num_steps]
        for variant, some in variants.items():
            say(f"time: {TIMED}, {num_steps} steps, {variant}, {', '.join(some)}")
            timed = _measure_time(config, some, variant, images, sizes, device)
            rows += [{"dynamics": TIMED, "num_steps": num_steps, **row} for row in timed]
            free_memory()
    return {
        "repeats": sizes.num_repeats,
        "channels": sizes.depth_channels,
        "batch_size": sizes.depth_batch_size,
        "image_size": 32,
        "step_size": _STEP_SIZE,
        "share_weights": False,
        "memory": "peak" if device.type == "cuda" else "saved",
        "memory_rows": memory_rows,
        "rows": rows,
    }


def _config(dynamics: str, num_steps: int, sizes: BenchSizes) -> NetworkConfig:
    return NetworkConfig(
        channels=(sizes.depth_channels, sizes.depth_channels),
        num_steps=num_steps,
        step_size=_STEP_SIZE,
        **DYNAMICS[dynamics],
    )


def _measure_memory(config: NetworkConfig, batch: ImageSet, variant: str) -> list[dict[str, Any]]:
    rows = []
    for mode in BACKPROP_MODES:
        network = make_network(replace(config, backprop=mode), batch.labels.device)
        rows.append(
            {
                "backprop": mode,
                "activation_bytes": _activation_bytes(network, batch, fused=variant == FUSED),
                "weight_bytes": sum(weight.nbytes for weight in network.parameters()),
            }
        )
    return rows


def _measure_time(
    config: NetworkConfig,
    modes: Sequence[str],
    variant: str,
    images: ImageSet,
    sizes: BenchSizes,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Eager steps one a repeat, since a thousand take seconds; captured ones are short."""
    steps = {
        mode: make_steps(
            replace(config, backprop=mode),
            images,
            batch_size=sizes.depth_batch_size,
            device=device,
            capture=variant == CAPTURED,
        )
        for mode in modes
    }
    timings = time_in_turn(
        steps,
        device=device,
        num_repeats=sizes.num_repeats,
        repeat_seconds=sizes.repeat_seconds if variant == CAPTURED else 0,
        num_warm_ups=1,
    )
    runs = {
        mode: NOT_RUN if timings[mode] is None else step.finish() for mode, step in steps.items()
    }
    return [
        {
            "backprop": mode,
            "variant": variant,
            "time": None if timing is None else timing.to_dict(),
            "ratio_to_stored": (
                _ratio(timing, timings["stored"])
                if runs[mode]["captured"] == runs["stored"]["captured"]
                else None
            ),
        }
        | runs[mode]
        for mode, timing in timings.items()
    ]


def _ratio(timing: Timing | None, stored: Timing | None) -> float | None:
    return None if timing is None or stored is None else timing.ratio(stored)


def _activation_bytes(network: Network, batch: ImageSet, *, fused: bool) -> int | None:
    """With `fused` blocks run by the kernels of a captured step, else operator by operator."""
    # Traced for its fused kernels, but nothing is compiled: that would take no less memory.
    with accelerated(network, "eager") if fused else nullcontext():
        return activation_bytes(network, batch)
