"""Packed volumes: the same numbers, the same K and K^T, the same gradient of K."""

import pytest
import torch
from torch.nn import functional

from pdecnn.fast.acceleration import fast_layout
from pdecnn.fast.packing import (
    pack,
    pack_adjoints,
    pack_stencils,
    pixels_as_one,
    unpack,
    unpack_stencils,
)


def met_by(features, channels):
    """The numbers that a packed stencil meets at each pixel: (..., 3, 3, numbers)."""
    rows = functional.pad(features.movedim(1, -1), (0, 0, 1, 1, 1, 1, 1, 1))
    before, after = rows[..., :-2, -channels:], rows[..., 2:, :channels]
    rows = torch.cat([before, rows[..., 1:-1, :], after], -1)
    return rows.unfold(1, 3, 1).unfold(2, 3, 1).movedim(-3, -1)


@pytest.mark.parametrize(("channels", "pixels"), [(4, 4), (4, 2), (8, 2), (16, 1)])
def test_a_packed_stencil_is_the_same_operator(channels, pixels):
    size = (2, 3, 8)
    generator = torch.Generator().manual_seed(pixels)
    x = fast_layout(torch.randn(2, channels, *size, generator=generator, dtype=torch.float64))
    stencil = torch.randn(1, channels, 3, 3, 3, channels, generator=generator, dtype=torch.float64)
    stencil.requires_grad_()
    packed = pack_stencils(stencil, pixels)
    k = stencil[0].movedim(-1, 1)
    assert pack(x, pixels).data_ptr() == x.data_ptr()
    assert torch.equal(unpack(pack(x, pixels), pixels), x)
    expected = fast_layout(functional.conv3d(x, k, padding=1))
    found = torch.einsum("bzyxrsn,orsn->bozyx", met_by(pack(x, pixels), channels), packed[0])
    torch.testing.assert_close(found, pack(expected, pixels))
    back = pack_adjoints(stencil, pixels)[0]
    expected = fast_layout(functional.conv_transpose3d(x, k, padding=1))
    found = torch.einsum("bzyxrsn,orsn->bozyx", met_by(pack(x, pixels), channels), back)
    torch.testing.assert_close(found, pack(expected, pixels))
    gradient = torch.randn(packed.shape, generator=generator, dtype=torch.float64)
    (expected,) = torch.autograd.grad(packed, stencil, gradient)
    torch.testing.assert_close(unpack_stencils(gradient, stencil.shape[1:]), expected)


def test_how_many_pixels_are_taken_as_one():
    found = {
        (channels, width): pixels_as_one(channels, (5, 5, width))
        for channels in (4, 8, 12, 16, 32)
        for width in (64, 6, 5)
    }
    packed = {key: pixels for key, pixels in found.items() if pixels > 1}
    assert packed == {(4, 64): 4, (4, 6): 2, (8, 64): 2, (8, 6): 2}
    assert pixels_as_one(8, (64, 64)) == 1  # images have kernels that were measured
