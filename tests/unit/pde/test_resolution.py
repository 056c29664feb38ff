"""Changes of resolution: nothing is lost, and on a grid not a bit."""

import pytest
import torch

from pdecnn.errors import ConfigError, DivergedError
from pdecnn.pde.grid import Grid
from pdecnn.pde.resolution import RESOLUTIONS, Resolution, depth_to_space, space_to_depth
from tests.dense import dense_matrix

SIZES = {1: (8,), 2: (8, 4), 3: (4, 8, 4)}
every_kind = pytest.mark.parametrize("kind", RESOLUTIONS)
every_dimension = pytest.mark.parametrize("dimension", [1, 2, 3])


def test_pixels_of_a_cell_become_channels():
    image = torch.arange(16.0).view(1, 1, 4, 4)
    cells = space_to_depth(image, 2)
    assert cells[0, :, 0, 0].tolist() == [0, 1, 4, 5]
    assert torch.equal(depth_to_space(cells, 2), image)


@every_kind
@every_dimension
@pytest.mark.parametrize("levels", [1, 2])
def test_up_and_down_again(kind, dimension, levels):
    change = Resolution(levels, kind)
    features = torch.randn(2, 3, *SIZES[dimension], dtype=torch.float64)
    coarse = change.apply(features)
    assert coarse.shape[1] == 3 * 2 ** (dimension * levels)
    assert coarse.shape[2:] == tuple(n >> levels for n in SIZES[dimension])
    assert torch.allclose(change.undo(coarse), features, rtol=0, atol=1e-14)
    assert torch.allclose(Resolution(-levels, kind).apply(coarse), features, rtol=0, atol=1e-14)


@every_kind
@every_dimension
def test_the_matrix_is_orthonormal(kind, dimension):
    shape = (1, *(2,) * dimension)
    matrix = dense_matrix(Resolution(1, kind).apply, shape)
    assert torch.allclose(matrix @ matrix.T, torch.eye(2**dimension).double(), atol=1e-14)


def test_haar_has_sums_and_differences():
    signal = torch.tensor([[[3.0, 1.0]]], dtype=torch.float64)
    found = Resolution(1, "haar").apply(signal).flatten()
    assert torch.allclose(found, torch.tensor([4.0, 2.0]).double() / 2**0.5)


@every_kind
@every_dimension
@pytest.mark.parametrize("levels", [2, -1])
def test_on_a_grid_every_bit_comes_back(kind, dimension, levels):
    grid = Grid(12)
    features = grid.round(torch.randn(2, 2 ** (2 * dimension), *SIZES[dimension]))
    change = Resolution(levels, kind)
    changed = change.apply(features, grid)
    assert torch.equal(changed, grid.round(changed))
    assert torch.equal(change.undo(changed, grid), features)
    assert torch.allclose(changed, change.apply(features), atol=2.0**-9)


@pytest.mark.parametrize("pair", [(4095.0, 1700.0), (4000.0, 4000.0)])
def test_sums_that_leave_the_range_of_the_grid_are_refused(pair):
    """The second pair's sum does, of the first only a + (sqrt(2) - 1) b on the way to it."""
    grid, spread = Grid(12), torch.arange(64) / 4096
    features = torch.stack([number + spread for number in pair], 1).view(1, 1, 128)
    assert float(features.abs().max()) < grid.limit(features.dtype)
    with pytest.raises(DivergedError, match="range of exact reversal"):
        Resolution(1, "haar").apply(features, grid)
    with pytest.raises(DivergedError, match="range of exact reversal"):
        Resolution(-1, "haar").apply(features.view(1, 64, 2).mT.reshape(1, 2, 64), grid)


@pytest.mark.parametrize("kind", RESOLUTIONS)
def test_an_exported_change_of_resolution_takes_any_batch(kind):
    """Haar's was exported for the batch of the example alone, which torch refused."""

    class Change(torch.nn.Module):
        def forward(self, features):
            return Resolution(1, kind).apply(features)

    features = torch.rand(3, 1, 4, 4)
    batch = torch.export.Dim("batch")
    exported = torch.export.export(Change(), (features,), dynamic_shapes=({0: batch},)).module()
    more = torch.rand(5, 1, 4, 4)
    assert torch.equal(exported(more), Change()(more))


def test_unknown_kinds_are_refused():
    with pytest.raises(ConfigError, match="space_to_depth"):
        Resolution(1, "pooling")
