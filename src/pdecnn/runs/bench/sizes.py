"""How much is measured: on a GPU, sized down for a CPU, and in seconds for a quick look."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pdecnn.pde.backprop import BACKPROP_MODES


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSizes:
    """Every size of a bench."""

    name: str
    """What the report calls it."""
    num_repeats: int
    """Repeats of every timing."""
    repeat_seconds: float
    """About how long each repeat lasts."""
    copy_bytes: int
    """Of the copied array."""
    matrix_size: int
    """Rows of the multiplied matrices."""
    num_images: int
    """Random 32x32 images of the training set."""
    batch_sizes: tuple[int, ...]
    """Of whole training steps."""
    digits_repeats: int
    """Repeats of the digits steps: more and shorter ones, since a ratio near 1 is sought."""
    digits_repeat_seconds: float
    """About how long each of them lasts."""
    depths: tuple[int, ...]
    """Numbers of time steps of the one block whose memory is measured."""
    timed_modes: Mapping[int, tuple[str, ...]]
    """The backprop modes whose eager training step is timed, for each depth at which it is."""
    captured_modes: Mapping[int, tuple[str, ...]]
    """Those timed as one CUDA graph too; each is traced and compiled anew."""
    depth_channels: int
    """Width of that block."""
    depth_batch_size: int
    """32x32 images at a time."""
    large_channels: tuple[int, ...]
    """Widths of the network for large inputs."""
    large_steps: tuple[int, ...]
    """Numbers of time steps a block of that network."""
    image_size: int
    """Side of a large image."""
    volume_size: int
    """Side of a large volume."""


_ALL = tuple(BACKPROP_MODES)
GPU = BenchSizes(
    name="GPU version",
    num_repeats=5,
    repeat_seconds=0.1,
    copy_bytes=2**31,
    matrix_size=8192,
    num_images=50_000,
    batch_sizes=(125, 1000),
    digits_repeats=61,
    digits_repeat_seconds=0.05,
    depths=(3, 10, 30, 100, 300, 1000),
    timed_modes=dict.fromkeys((3, 10, 30, 100), _ALL) | {300: ("stored", "reversible", "exact")},
    captured_modes={3: ("stored", "reversible", "exact")},
    depth_channels=32,
    depth_batch_size=125,
    large_channels=(32, 64, 112, 112),
    large_steps=(3, 10),
    image_size=2048,
    volume_size=128,
)
CPU = BenchSizes(
    name="CPU version: smaller batches, images and depths",
    num_repeats=5,
    repeat_seconds=0.2,
    copy_bytes=2**27,
    matrix_size=1024,
    num_images=1000,
    batch_sizes=(16,),
    digits_repeats=61,
    digits_repeat_seconds=0.05,
    depths=(3, 10, 30),
    timed_modes=dict.fromkeys((3, 10, 30), _ALL),
    captured_modes={},
    depth_channels=16,
    depth_batch_size=4,
    large_channels=(16, 32, 32),
    large_steps=(3,),
    image_size=256,
    volume_size=32,
)
QUICK = BenchSizes(
    name="Quick version: a look whether it runs, with too little work to conclude from",
    num_repeats=5,
    repeat_seconds=0.01,
    copy_bytes=2**22,
    matrix_size=256,
    num_images=20,
    batch_sizes=(2,),
    digits_repeats=5,
    digits_repeat_seconds=0.0,
    depths=(2, 4),
    timed_modes={2: _ALL, 4: ("stored", "reversible")},
    captured_modes={2: ("stored", "reversible")},
    depth_channels=4,
    depth_batch_size=1,
    large_channels=(4, 4),
    large_steps=(2,),
    image_size=32,
    volume_size=8,
)


def bench_sizes(device: torch.device, *, quick: bool) -> BenchSizes:
    """The sizes that suit the device."""
    if quick:
        return QUICK
    return GPU if device.type == "cuda" else CPU
