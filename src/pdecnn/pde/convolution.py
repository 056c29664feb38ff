"""The linear operator K(theta): a convolution and its exact adjoint (eq. 2)."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import cos, inf, log2, pi, prod, sqrt
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from pdecnn.errors import ConfigError, unknown_name
from pdecnn.settings import check_count, is_count

_CONVOLVE = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_CONVOLVE_TRANSPOSED = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
SPATIAL_AXES = {1: "length", 2: "height, width", 3: "depth, height, width"}
Boundary = Literal["zero", "reflect", "periodic"]
BOUNDARIES: tuple[Boundary, ...] = get_args(Boundary)
SUBJECTS = {1: "signal", 2: "image", 3: "volume"}
"""What a sample of so many dimensions is called."""
UNIT = 2.0**-53
"""u, the unit roundoff of float64."""


class Convolution(nn.Module):
    """K(theta): every output channel is a sum of convolved input channels (eq. 2).

    `convolution(x)` is K x and `convolution.adjoint(y)` is K^T y, from the same weights, so that
    <K x, y> = <x, K^T y> up to rounding. As everywhere in PyTorch the "convolution" is a
    cross-correlation. Features keep their size; outside the image they are zero, or with
    `boundary` 'reflect' mirrored at its edge (half-sample symmetric), with 'periodic' repeated.

    theta -> `stencil`, of shape (out_channels, in_channels, *stencil_size).
    """

    deterministic = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        stencil_size: int | Sequence[int] = 3,
        dimension: int = 2,
        boundary: Boundary = "zero",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_count("in_channels", in_channels)
        self.out_channels = check_count("out_channels", out_channels)
        self.dimension = check_dimension(dimension)
        self.stencil_size = _stencil_size(stencil_size, self.dimension)
        self.padding = tuple(size // 2 for size in self.stencil_size)
        if boundary not in BOUNDARIES:
            raise unknown_name("boundary", boundary, BOUNDARIES)
        self.boundary = boundary
        shape = (self.out_channels, self.in_channels, *self.stencil_size)
        self.stencil = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw theta ~ N(0, 2/(k^d c_out)), clamped at two standard deviations."""
        deviation = sqrt(2 * self.in_channels / self.stencil.numel())
        with torch.no_grad():
            self.stencil.normal_(0, deviation).clamp_(-2 * deviation, 2 * deviation)

    def forward(self, features: Tensor, *, factor: Tensor | None = None) -> Tensor:
        """K features, times a factor: a stencil costs less to scale than features."""
        stencil = self.stencil if factor is None else factor * self.stencil
        if self.boundary == "zero":  # in one call
            if self.dimension == 3:
                features, stencil = _thin_volumes_in_order(features, stencil)
            return _CONVOLVE[self.dimension](features, stencil, padding=self.padding)
        return self._convolve(features, stencil)

    def adjoint(
        self, features: Tensor, *, negative: bool = False, factor: Tensor | None = None
    ) -> Tensor:
        """K^T features or -K^T features, times a factor."""
        stencil = self.stencil if factor is None else factor * self.stencil
        stencil = -stencil if negative else stencil
        if self.boundary == "zero":
            if self.dimension == 3:
                features, stencil = _thin_volumes_in_order(features, stencil)
            return _CONVOLVE_TRANSPOSED[self.dimension](features, stencil, padding=self.padding)
        return self._convolve_transposed(features, stencil)

    @torch.no_grad()
    def norm_bound(self, size: Sequence[int], *, any_size: bool = False) -> float:
        """An upper bound of |K|, the largest singular value of K on images of `size`.

        With `any_size` of images however large: between N frequencies an axis the symbol, a
        trigonometric polynomial of the stencil's radius r, exceeds what it is there by at most
        1/cos(pi r/N) (Ehlich & Zeller 1964).

        K is a compression of the circular convolution on any grid of at least
        size + stencil radius points, whose norm is the largest singular value of its
        (out_channels x in_channels) symbol A over the frequencies. With a periodic boundary it is
        that of the image's own grid; with a reflecting one that of the extended image, in which a
        pixel stands at most 2^d times, so that it is up to 2^(d/2) times as long: of the image
        with its rim, or with all of its mirror image where the rim is wider than half of it.
        Computed on the CPU in float64, so that it is the same on every device, with room for
        rounding: errors of at most
        100 u log2(N) sqrt(N) |theta| for an FFT of N points (Higham 2002, Theorem 24.2: about 8),
        and of 20 (m + n) u |A|_F^2 for A A^H, its product and its eigenvalues, u = 2^-53.
        """
        self._check_size(size)
        sizes = zip(size, self.padding, strict=True)
        if self.boundary == "zero":
            grid = [max(n + radius, 2 * radius + 1) for n, radius in sizes]
        elif self.boundary == "reflect":
            grid = [
                n + 2 * radius if n >= 2 * radius else _repeated(2 * n, radius)
                for n, radius in sizes
            ]
        else:
            grid = [_repeated(n, radius) for n, radius in sizes]
        axes = tuple(range(2, 2 + self.dimension))
        stencil = self.stencil.detach().cpu().double()
        symbol = torch.fft.rfftn(stencil, s=grid, dim=axes)
        matrices = symbol.flatten(2).permute(2, 0, 1).contiguous()  # (frequency, out, in)
        if self.out_channels > self.in_channels:
            matrices = matrices.mT.contiguous()
        gram = matrices @ matrices.mH
        squares = float(gram.diagonal(dim1=1, dim2=2).real.sum(1).amax())  # |A|_F^2
        room = 20 * (self.in_channels + self.out_channels) * UNIT * squares
        largest = max(0.0, float(torch.linalg.eigvalsh(gram).amax())) + room
        points = prod(grid)
        error = 100 * UNIT * log2(2 * points) * sqrt(points) * float(stencil.norm())
        growth = 2 ** (self.dimension / 2) if self.boundary == "reflect" else 1.0
        if any_size:
            growth *= prod(
                1 / cos(pi * radius / n) if n > 2 * radius else inf
                for n, radius in zip(grid, self.padding, strict=True)
            )
        return growth * (sqrt(largest) + error) * (1 + 8 * UNIT)

    @torch.no_grad()
    def norm_estimate(self, size: Sequence[int], *, num_iterations: int = 100) -> float:
        """An estimate of |K| from below, by power iteration on K^T K in float64.

        Costs two convolutions an iteration and is never above |K| (but for rounding). The
        starting image is fixed, so that equal weights give equal estimates.
        """
        self._check_size(size)
        num_iterations = check_count("num_iterations", num_iterations)
        stencil = self.stencil.detach().double()
        generator = torch.Generator().manual_seed(0)
        shape = (1, self.in_channels, *size)
        image = torch.randn(shape, generator=generator, dtype=torch.float64).to(stencil.device)
        estimate = 0.0
        for _ in range(num_iterations):
            image = image / image.norm()
            filtered = self._convolve(image, stencil)
            estimate = float(filtered.norm())
            if estimate == 0:
                break
            image = self._convolve_transposed(filtered, stencil)
        return estimate

    def extra_repr(self) -> str:
        """The arguments that define the operator."""
        return (
            f"{self.in_channels}, {self.out_channels}, stencil_size={self.stencil_size}, "
            f"dimension={self.dimension}"
            + ("" if self.boundary == "zero" else f", boundary={self.boundary}")
        )

    def _convolve(self, features: Tensor, stencil: Tensor) -> Tensor:
        convolve = _CONVOLVE[self.dimension]
        if self.boundary == "zero":
            return convolve(features, stencil, padding=self.padding)
        return convolve(self._extend(features), stencil)

    def _convolve_transposed(self, features: Tensor, stencil: Tensor) -> Tensor:
        convolve = _CONVOLVE_TRANSPOSED[self.dimension]
        if self.boundary == "zero":
            return convolve(features, stencil, padding=self.padding)
        return self._fold(convolve(features, stencil))

    def _extend(self, features: Tensor) -> Tensor:
        """The image with a rim of copies of its pixels."""
        for axis, radius in enumerate(self.padding, start=2):
            size = features.shape[axis]
            if radius > size:
                raise ValueError(
                    f"boundary={self.boundary!r} copies {radius} pixels of an image that has "
                    f"{size}; use larger images or boundary='zero'"
                )
            first = features.narrow(axis, 0, radius)
            last = features.narrow(axis, size - radius, radius)
            before, after = (
                (last, first)
                if self.boundary == "periodic"
                else (first.flip(axis), last.flip(axis))
            )
            features = torch.cat([before, features, after], axis) if radius else features
        return features

    def _fold(self, features: Tensor) -> Tensor:
        """The adjoint of `_extend`: what came to a copy is added to its pixel."""
        for axis, radius in enumerate(self.padding, start=2):
            if radius == 0:
                continue
            size = features.shape[axis] - 2 * radius
            before = features.narrow(axis, 0, radius)
            after = features.narrow(axis, size + radius, radius)
            first, last = (
                (after, before)
                if self.boundary == "periodic"
                else (before.flip(axis), after.flip(axis))
            )
            features = features.narrow(axis, radius, size).clone()
            features.narrow(axis, 0, radius).add_(first)
            features.narrow(axis, size - radius, radius).add_(last)
        return features

    def _check_size(self, size: Sequence[int]) -> None:
        listed = isinstance(size, Sequence) and len(size) == self.dimension
        if not listed or not all(is_count(n) for n in size):
            raise ValueError(
                f"size must name {self.dimension} positive image sizes, found {size!r}"
            )


def convolution_of(stencil: Tensor, boundary: Boundary) -> Convolution:
    """A convolution of its own with that stencil, which is not trained."""
    out_channels, in_channels, *sizes = stencil.shape
    convolution = Convolution(
        in_channels,
        out_channels,
        stencil_size=sizes,
        dimension=len(sizes),
        boundary=boundary,
        device="meta",
    )
    convolution.stencil = nn.Parameter(stencil.detach(), requires_grad=False)
    return convolution


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Within it nothing is computed in half precision; the meta device has no autocast."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def check_dimension(dimension: int) -> int:
    """Refuse anything but 1 (signals), 2 (images) and 3 (volumes) dimensions."""
    if not is_count(dimension, 1, 3):
        raise ConfigError(f"dimension must be 1, 2 or 3, found {dimension!r}")
    return int(dimension)


def check_features(features: Tensor, channels: int, dimension: int, weight: Tensor) -> None:
    """Refuse features that cannot meet `weight`: wrong shape, device or dtype."""
    if features.dim() != dimension + 2:
        raise ValueError(
            f"features must have axes (batch, channels, {SPATIAL_AXES[dimension]}), found shape "
            f"{tuple(features.shape)}; add or remove axes, or change dimension={dimension}"
        )
    if features.shape[1] != channels:
        raise ValueError(
            f"needs features of {channels} channels, found {features.shape[1]} in shape "
            f"{tuple(features.shape)}"
        )
    if 0 in features.shape[2:]:
        raise ValueError(f"features have no pixels: found shape {tuple(features.shape)}")
    if features.device != weight.device:
        raise ValueError(
            f"features are on {features.device} but the weights on {weight.device}; move one "
            f"with .to(...)"
        )
    if features.dtype == weight.dtype:
        return
    # Autocast converts every floating type but float64.
    convertible = features.is_floating_point() and torch.float64 not in (
        features.dtype,
        weight.dtype,
    )
    converts = convertible and not features.is_meta  # which has no autocast
    if not converts or not torch.is_autocast_enabled(features.device.type):
        raise ValueError(
            f"features are {features.dtype} but the weights {weight.dtype}; convert them with "
            f".to({weight.dtype}){', or compute under torch.autocast' if convertible else ''}"
        )


def _thin_volumes_in_order(features: Tensor, stencil: Tensor) -> tuple[Tensor, Tensor]:
    """Both with channels first in memory, where a volume is thinner than its stencil.

    On a CPU with bfloat16 PyTorch (2.13, oneDNN) gives such a stencil a gradient of numbers that it
    never wrote, if the channels of either lie last.
    """
    if features.is_cpu and (features.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")):
        sizes = zip(features.shape[2:], stencil.shape[2:], strict=True)
        if any(n < length for n, length in sizes):  # copies: of one channel strides may say either
            layout = torch.contiguous_format
            return features.clone(memory_format=layout), stencil.clone(memory_format=layout)
    return features, stencil


def _repeated(period: int, radius: int) -> int:
    """As many periods as hold the stencil."""
    return period * -(-(2 * radius + 1) // period)


def _stencil_size(stencil_size: int | Sequence[int], dimension: int) -> tuple[int, ...]:
    sizes = stencil_size if isinstance(stencil_size, Sequence) else (stencil_size,) * dimension
    if len(sizes) != dimension or not all(is_count(size) and size % 2 for size in sizes):
        raise ConfigError(
            f"stencil_size must be odd and positive in each of {dimension} dimensions, so that "
            f"the stencil has a centre; found {stencil_size!r}"
        )
    return tuple(int(size) for size in sizes)
