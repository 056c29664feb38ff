"""Time the fused kernels with other block sizes, beside cuDNN: what the table in
`fast/kernels/symmetric_shear.py` was chosen from.

    python benchmarks/kernel_blocks.py [--seconds 60] [--shapes 125x16x32,1000x32x32]

Needs a CUDA device. A shape is images x channels x side; a line gives the three best blocks of a
kernel (pixels, width, warps, stages) with their microseconds, and those of the table in use.
"""

import argparse
from itertools import product
from time import monotonic

import torch
from torch.nn import functional
from triton.testing import do_bench

from pdecnn.fast.kernels import symmetric_shear as kernels

SHAPES = "125x16x32,125x32x16,125x56x8,1000x32x32,1000x64x16,1000x112x8"
EPSILON = 1e-3


def make_calls(num_images: int, channels: int, side: int) -> dict[str, tuple[str, object]]:
    """By the name shown: the entry of the table that a kernel takes, and a call of it."""

    def features(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        values = torch.randn(num_images, channels, side, side, device="cuda").to(dtype)
        return values.contiguous(memory_format=torch.channels_last)

    x, a, u, gradient, gu = (features() for _ in range(5))
    state, state_gradient = features(torch.float32), features(torch.float32)
    stencil = (torch.randn(channels, 3, 3, channels, device="cuda") / 10).bfloat16()
    stencil = stencil.permute(0, 3, 1, 2)
    scale, bias = torch.rand(channels, device="cuda") + 0.5, torch.randn(channels, device="cuda")
    weights = kernels.Weights(stencil, scale, bias, EPSILON)
    saved = kernels.Activated(a, u)

    def stencil_gradient() -> torch.Tensor:
        parts = torch.empty(kernels.stencil_gradient_shape(x), device="cuda")
        kernels.stencil_gradient_parts(gu, x, a, gradient, 1.0, out=parts)
        return parts.sum(0)

    return {
        "activate": ("activate", lambda: kernels.activate(x, weights, keep=False)),
        "activate, kept": ("activate_kept", lambda: kernels.activate(x, weights, keep=True)),
        "add adjoint": (
            "add_adjoint",
            lambda: kernels.add_adjoint(state, a, stencil, -1.0, copy=True),
        ),
        "add adjoint, following": (
            "add_adjoint",
            lambda: kernels.add_adjoint(state, a, stencil, 1.0, following=(state_gradient, 1.0)),
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
                state, a, state_gradient, gu, stencil, 1.0, copies=(True, True)
            ),
        ),
        "stencil gradient": ("stencil_gradient", stencil_gradient),
        "cuDNN: K x": ("", lambda: functional.conv2d(x, stencil, padding=1)),
        "cuDNN: K^T x": ("", lambda: functional.conv_transpose2d(x, stencil, padding=1)),
        "cuDNN: gradient of K": (
            "",
            lambda: torch.nn.grad.conv2d_weight(x, stencil.shape, gradient, padding=1),
        ),
    }


def candidates(entry: str, padded: int) -> list[kernels.Blocks]:
    """Blocks worth trying: enough registers for the tile, wide enough for the matrix unit."""
    if entry == "stencil_gradient":
        sizes = product((32, 64, 128), (64, 128, 256), (4, 8), (2, 3, 4))
        tile = lambda blocks: padded * blocks.width  # noqa: E731
    else:
        widths = [width for width in (16, 32, 64) if width <= padded][-2:]
        sizes = product((64, 128, 256), widths, (4, 8), (2, 3, 4))
        tile = lambda blocks: padded * blocks.pixels  # noqa: E731
    blocks = (kernels.Blocks(*size) for size in sizes)
    return [block for block in blocks if tile(block) // (32 * block.num_warps) <= 128]


def main() -> None:
    """Time everything within the limit for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="for each shape")
    parser.add_argument("--shapes", default=SHAPES)
    options = parser.parse_args()
    for shape in options.shapes.split(","):
        num_images, channels, side = map(int, shape.split("x"))
        padded = kernels._padded(channels)
        deadline = monotonic() + options.seconds
        for name, (entry, call) in make_calls(num_images, channels, side).items():
            if not entry:
                print(f"{shape} {name}: {1e3 * do_bench(call, return_mode='median'):.1f} us")
                continue
            in_use = kernels._BLOCKS[entry][padded]
            times = {}
            for blocks in [in_use, *candidates(entry, padded)]:
                kernels._BLOCKS[entry][padded] = blocks
                try:
                    call()
                    times[blocks] = do_bench(call, warmup=5, rep=20, return_mode="median")
                except Exception as error:  # too many registers or too much shared memory
                    if "resource" not in str(error).lower():
                        raise
                if monotonic() > deadline:
                    break
            kernels._BLOCKS[entry][padded] = in_use
            best = sorted(times, key=times.__getitem__)[:3]
            shown = ", ".join(f"{tuple(blocks)} {1e3 * times[blocks]:.1f}" for blocks in best)
            print(f"{shape} {name}: {shown}; in use {1e3 * times[in_use]:.1f} us", flush=True)


if __name__ == "__main__":
    main()
