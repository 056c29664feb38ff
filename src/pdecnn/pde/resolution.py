"""Coarsening and refining that can be undone: pixels become channels, and channels pixels again.

A permutation of numbers, or the Haar transform. Nothing is lost and nothing is added, so that
features on all levels together need the memory of one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pdecnn.errors import unknown_name
from pdecnn.pde.grid import Extent, Grid

RESOLUTIONS = ("space_to_depth", "haar")
# The rotation by 45 degrees as three shears: x += a y, y -= b x, x += a y.
_OUTER, _INNER = 2**0.5 - 1, 0.5**0.5


def space_to_depth(features: Tensor, factor: int) -> Tensor:
    """The pixels of each cell of `factor` an axis as channels of one pixel: a permutation.

    Of a channel the cell's pixels follow each other, in the order of memory; pixels that fill no
    cell are dropped.
    """
    if factor == 1:
        return features
    for axis, n in enumerate(features.shape[2:], start=2):
        features = features.narrow(axis, 0, n - n % factor)
    batch, channels, *size = features.shape
    cells = [part for n in size for part in (n // factor, factor)]
    last = 2 + 2 * len(size)
    axes = (0, 1, *range(3, last, 2), *range(2, last, 2))
    split = features.reshape(batch, channels, *cells).permute(axes)
    return split.reshape(batch, channels * factor ** len(size), *(n // factor for n in size))


def depth_to_space(features: Tensor, factor: int) -> Tensor:
    """The inverse of `space_to_depth`."""
    if factor == 1:
        return features
    batch, channels, *size = features.shape
    dimension = len(size)
    cells = features.reshape(batch, -1, *(factor,) * dimension, *size)
    pairs = [axis for k in range(dimension) for axis in (2 + dimension + k, 2 + k)]
    spread = cells.permute(0, 1, *pairs)
    return spread.reshape(batch, channels // factor**dimension, *(n * factor for n in size))


@dataclass(frozen=True, slots=True)
class Resolution:
    """A change of resolution: `levels` times half as many pixels an axis, negative: twice.

    With every level there are 2^d times as many channels. 'haar' has the sums and differences of
    the pixels of a cell, orthonormal. On a grid it is a rotation by shears that are rounded, hence
    a bijection of the grid as a step of a wave is.
    """

    levels: int
    kind: str = "space_to_depth"

    def __post_init__(self) -> None:
        if self.kind not in RESOLUTIONS:
            raise unknown_name("change of resolution", self.kind, RESOLUTIONS)

    def apply(self, features: Tensor, grid: Grid | None = None) -> Tensor:
        """The features on the other level."""
        change = self._coarsen if self.levels > 0 else self._refine
        for _ in range(abs(self.levels)):
            features = change(features, grid)
        return features

    def undo(self, features: Tensor, grid: Grid | None = None) -> Tensor:
        """The features from which `apply` made these."""
        return Resolution(-self.levels, self.kind).apply(features, grid)

    def _coarsen(self, features: Tensor, grid: Grid | None) -> Tensor:
        cells = space_to_depth(features, 2)
        return _haar(cells, grid) if self.kind == "haar" else cells

    def _refine(self, features: Tensor, grid: Grid | None) -> Tensor:
        cells = _haar(features, grid, back=True) if self.kind == "haar" else features
        return depth_to_space(cells, 2)


def _haar(cells: Tensor, grid: Grid | None, *, back: bool = False) -> Tensor:
    """(a + b)/sqrt(2) and (a - b)/sqrt(2) along each axis of the cells, or back.

    Raises where a number left the range in which that is exact on the grid.
    """
    dimension = cells.dim() - 2
    extent = None if grid is None else Extent(grid, (cells,))
    values = cells.reshape(cells.shape[0], -1, *(2,) * dimension, *cells.shape[2:])
    axes = range(2, 2 + dimension)
    for axis in reversed(axes) if back else axes:
        first, second = values.unbind(axis)
        # Back is the same with opposite signs: the last shear is undone first.
        sign = -1.0 if back else 1.0
        second = -second if back else second
        first = _sheared(first, second, sign * _OUTER, extent)
        second = _sheared(second, first, -sign * _INNER, extent)
        first = _sheared(first, second, sign * _OUTER, extent)
        values = torch.stack([first, second if back else -second], axis)
    found = values.reshape(cells.shape)
    return found if extent is None else extent.checked((found,))[0]


def _sheared(target: Tensor, source: Tensor, factor: float, extent: Extent | None) -> Tensor:
    increment = factor * source
    if extent is None:
        return target + increment
    changed = target + extent.grid.round(increment)
    extent.watch(changed)
    return changed
