"""Time the fused kernels with other block sizes, beside cuDNN: what the tables in
`fast/kernels/symmetric_shear.py` and `fast/kernels/stages.py` were chosen from.

    python benchmarks/kernel_blocks.py [--seconds 60] [--shapes 125x16x32,8x4x64^3]
        [--stages 125x3x32x32,1000x64x112x16] [--jobs 15]

With more than one job all candidates are compiled first, side by side.

Needs a CUDA device. A shape is images x channels x side, of volumes side^3; that of a stage images
x channels x new channels x side: of an opening from at most 16 channels, else of a connector that
pools where the channels change. A line gives the three best blocks of a kernel (the numbers of its
`Blocks`) with their microseconds, and those of the table in use; for a stage also what its bytes
take at 4.3 TB/s.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from triton.testing import do_bench

from pdecnn.fast.acceleration import fast_layout
from pdecnn.fast.kernels import stages
from pdecnn.fast.kernels import symmetric_shear as kernels
from pdecnn.fast.packing import pack, pack_adjoints, pack_stencils, pixels_as_one, unpack

SHAPES = "125x16x32,125x32x16,125x56x8,1000x32x32,1000x64x16,1000x112x8"
STAGES = ",".join(
    f"{images}x{stage}"
    for images in (125, 1000)
    for stage in ("3x32x32", "32x64x32", "64x112x16", "112x112x8")
)
NUM_STAGES = [1, 2, 3, 4]
EPSILON = 1e-3
BYTES_A_MICROSECOND = 4.3e6


def make_calls(
    num_images: int, channels: int, size: tuple[int, ...]
) -> dict[str, tuple[str, Callable[[], Any]]]:
    """By the name shown: the entry of the table that a kernel takes, and a call of it."""
    pixels = pixels_as_one(channels, size)

    def features(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        values = torch.randn(num_images, channels, *size, device="cuda").to(dtype)
        return pack(fast_layout(values), pixels)

    x, a, u, gradient, gu = (features() for _ in range(5))
    state, state_gradient = features(torch.float32), features(torch.float32)
    taps = (3,) * len(size)
    stencil = (torch.randn(1, channels, *taps, channels, device="cuda") / 10).bfloat16()
    plain, plain_x = stencil[0].movedim(-1, 1), unpack(x, pixels)
    plain_gradient = unpack(gradient, pixels)
    stencil, adjoint = pack_stencils(stencil, pixels)[0], pack_adjoints(stencil, pixels)[0]
    scale, bias = torch.rand(2, len(stencil), device="cuda").add(0.5).unbind()
    weights = kernels.Weights(stencil, adjoint, scale, bias, EPSILON)
    two = len(size) == 2
    convolve = functional.conv2d if two else functional.conv3d
    back = functional.conv_transpose2d if two else functional.conv_transpose3d
    differentiate = torch.nn.grad.conv2d_weight if two else torch.nn.grad.conv3d_weight
    saved = kernels.Activated(a, u)

    def stencil_gradient() -> torch.Tensor:
        parts = torch.empty(kernels.stencil_gradient_shape(x, stencil), device="cuda")
        kernels.stencil_gradient_parts(gu, x, a, gradient, 1.0, out=parts)
        return parts.sum(0)

    return {
        "activate": ("activate", lambda: kernels.activate(x, weights, keep=False)),
        "activate, kept": ("activate_kept", lambda: kernels.activate(x, weights, keep=True)),
        "add adjoint": (
            "add_adjoint",
            lambda: kernels.add_adjoint(state, a, adjoint, -1.0, copy=True),
        ),
        "add adjoint, following": (
            "add_adjoint",
            lambda: kernels.add_adjoint(state, a, adjoint, 1.0, following=(state_gradient, 1.0)),
        ),
        "hidden gradient": (
            "hidden_gradient",
            lambda: kernels.hidden_gradient(gradient, weights, 1.0, saved=saved),
        ),
        "hidden gradient, again": (
            "activate",
            lambda: kernels.hidden_gradient(gradient, weights, 1.0, source=x),
        ),
        "undo": (
            "add_adjoint",
            lambda: kernels.undo_add_adjoint(
                state, a, state_gradient, gu, adjoint, 1.0, copies=(True, True)
            ),
        ),
        "stencil gradient": ("stencil_gradient", stencil_gradient),
        "cuDNN: K x": ("", lambda: convolve(plain_x, plain, padding=1)),
        "cuDNN: K^T x": ("", lambda: back(plain_x, plain, padding=1)),
        "cuDNN: gradient of K": (
            "",
            lambda: differentiate(plain_x, plain.shape, plain_gradient, padding=1),
        ),
    }


def candidates(entry: str, padded: int) -> list[kernels.Blocks]:
    """Blocks worth trying: enough registers for the tile, wide enough for the matrix unit."""
    if entry == "stencil_gradient":
        sizes = product((32, 64, 128), (64, 128, 256), (4, 8), NUM_STAGES)
        tile = lambda blocks: padded * blocks.width  # noqa: E731
    else:
        widths = [width for width in (16, 32, 64) if width <= padded][-2:]
        sizes = product((64, 128, 256), widths, (4, 8), NUM_STAGES)
        tile = lambda blocks: padded * blocks.pixels  # noqa: E731
    blocks = (kernels.Blocks(*size) for size in sizes)
    return [block for block in blocks if tile(block) // (32 * block.num_warps) <= 128]


def make_stage_calls(
    num_images: int, channels: int, new_channels: int, side: int
) -> dict[str, tuple[str, Callable[[], Any]]]:
    """As `make_calls`; the names say how long the bytes take."""

    def features(channels: int, side: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        values = torch.randn(num_images, channels, side, side, device="cuda").to(dtype)
        return values.contiguous(memory_format=torch.channels_last)

    opens = channels <= 16
    size, window = 3 if opens else 1, 1 if opens or channels == new_channels else 2
    stencil = torch.randn(new_channels, channels, size, size, device="cuda") / 10
    scale, bias = torch.rand(2, new_channels, device="cuda").unbind()
    stage = stages.Stage(stencil, scale, bias, EPSILON, window)
    source, gradient = features(channels, side), features(new_channels, side // window)
    hidden, parts = stages.multiply(source, stencil)
    statistics = stages.Statistics(*torch.rand(2, new_channels, device="cuda").unbind())
    count = torch.zeros((), dtype=torch.int64, device="cuda")
    running = stages.Running(statistics, count, 0.1)
    affine = stages.affine_gradient(hidden, gradient, stage, statistics)
    x, u, g = (tensor.nbytes for tensor in (source, hidden, gradient))

    def named(name: str, num_bytes: int) -> str:
        return f"{name} (bytes: {num_bytes / BYTES_A_MICROSECOND:.1f})"

    return {
        named("multiply", x + u): ("multiply", lambda: stages.multiply(source, stencil)),
        named("merge", parts.nbytes): (
            "",
            lambda: stages.merge(parts, source, stencil, running),
        ),
        named("activate", u + g): (
            "activate",
            lambda: stages.activate(source, stage, statistics, torch.float32, hidden=hidden),
        ),
        named("evaluate", x + g): (
            "evaluate",
            lambda: stages.activate(source, stage, statistics, torch.float32),
        ),
        named("affine gradient", u + g): (
            "affine_gradient",
            lambda: stages.affine_gradient(hidden, gradient, stage, statistics),
        ),
        named("stencil gradient", u + g + x + (0 if opens else x)): (
            "stencil_gradient",
            lambda: stages.stencil_gradient(
                source, hidden, gradient, stage, statistics, affine, of_batch=True, back=not opens
            ),
        ),
    }


def stage_candidates(entry: str, padded: int) -> list[stages.Blocks]:
    """Blocks worth trying. Another number of programs does not compile anew."""
    split = entry not in ("activate", "evaluate")
    pipelined = entry in ("multiply", "evaluate", "stencil_gradient")
    numbers = product(
        (16, 32, 64, 128, 256),
        (4, 8),
        (2, 3, 4) if pipelined else (1,),
        (132, 264, 528, 1056) if split else (0,),
    )
    blocks = [stages.Blocks(pixels, programs, *rest) for pixels, *rest, programs in numbers]
    held = [padded * block.pixels // (32 * block.num_warps) for block in blocks]
    return [block for block, numbers in zip(blocks, held, strict=True) if 8 <= numbers <= 64]


class Shape(NamedTuple):
    """What is tried at a shape."""

    name: str
    calls: dict[str, tuple[str, Callable[[], Any]]]
    table: dict[str, dict[int, Any]]
    padded: int
    candidates: Callable[[str, int], list[Any]]


def shapes_of(options: argparse.Namespace) -> Iterator[Shape]:
    """All that the options name."""
    for shape in filter(None, options.shapes.split(",")):
        num_images, channels, side = shape.split("x")
        size = (int(side.removesuffix("^3")),) * (3 if side.endswith("^3") else 2)
        calls = make_calls(int(num_images), int(channels), size)
        padded = kernels._padded(int(channels) * pixels_as_one(int(channels), size))
        table = kernels._BLOCKS if len(size) == 2 else kernels._VOLUME_BLOCKS
        yield Shape(shape, calls, table, padded, candidates)
    for shape in filter(None, options.stages.split(",")):
        num_images, channels, new_channels, side = map(int, shape.split("x"))
        stage_calls = make_stage_calls(num_images, channels, new_channels, side)
        padded = max(
            map(kernels._padded, (9 * channels if channels <= 16 else channels, new_channels))
        )
        yield Shape(shape, stage_calls, stages._BLOCKS, padded, stage_candidates)


def compile_share(options: argparse.Namespace, share: int) -> None:
    """Compile each of so many candidates, from the one at that place on; nothing runs."""
    place = 0
    for _, calls, table, padded, candidates in shapes_of(options):
        for entry, call in calls.values():
            for blocks in candidates(entry, padded) if entry else ():
                place += 1
                if place % options.jobs == share:
                    table[entry][padded] = blocks
                    with kernels.rehearsal(torch.device("cuda")):
                        call()


def time_calls(tried: Shape, seconds: float) -> None:
    """Print the best blocks of each kernel, as many as can be tried in so many seconds."""
    shape, calls, table, padded, candidates = tried
    share = seconds / len(calls)
    for name, (entry, call) in calls.items():
        if not entry:
            print(f"{shape} {name}: {1e3 * do_bench(call, return_mode='median'):.1f} us")
            continue
        deadline, in_use = monotonic() + share, table[entry][padded]
        times = {}
        for blocks in [in_use, *candidates(entry, padded)]:
            table[entry][padded] = blocks
            try:
                call()
                times[blocks] = do_bench(call, warmup=5, rep=20, return_mode="median")
            except Exception as error:  # too many registers or too much shared memory
                if "resource" not in str(error).lower():
                    raise
            if monotonic() > deadline:
                break
        table[entry][padded] = in_use
        best = sorted(times, key=times.__getitem__)[:3]
        shown = ", ".join(f"{tuple(blocks)} {1e3 * times[blocks]:.1f}" for blocks in best)
        print(f"{shape} {name}: {shown}; in use {1e3 * times[in_use]:.1f} us", flush=True)


def main() -> None:
    """Time everything within the limit for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="for each shape")
    parser.add_argument("--shapes", default=SHAPES, help="of blocks; '' for none")
    parser.add_argument("--stages", default=STAGES, help="'' for none")
    parser.add_argument("--num-stages", type=int, nargs="+", default=NUM_STAGES)
    parser.add_argument("--jobs", type=int, default=1, help="that compile")
    parser.add_argument("--share", type=int, help="only compile what is this job's")
    options = parser.parse_args()
    NUM_STAGES[:] = options.num_stages
    if options.share is not None:
        compile_share(options, options.share)
        return
    if options.jobs > 1:
        again = [sys.executable, *sys.argv]
        compilers = [
            subprocess.Popen([*again, "--share", str(share)]) for share in range(options.jobs)
        ]
        for compiler in compilers:
            compiler.wait()
    for shape in shapes_of(options):
        time_calls(shape, options.seconds)


if __name__ == "__main__":
    main()
