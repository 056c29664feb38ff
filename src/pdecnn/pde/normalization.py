"""Normalisations N: total variation (eq. 9), batch norm, or none, with or without a bias."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pdecnn.errors import unknown_name
from pdecnn.pde.grid import are_transforms_active
from pdecnn.settings import check_count, check_positive

Normalization = Literal["none", "bias", "tv", "batch"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)
_PLAIN_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
BATCH_NORMS = (_BatchNorm,)
"""The kinds of batch norm."""
BATCH_NORM_EPSILON = 1e-4
# Neither sums of its squares nor the cube of its inverse, met in gradients, leave float32's range.
_LARGEST_SQUARED = 2.0**32
_WIDE = (torch.float32, torch.float64)


class ChannelAffine(nn.Module):
    """A scale and a bias for each channel: y -> s y + b, starting as the identity."""

    deterministic = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.scale = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, features: Tensor) -> Tensor:
        """S features + bias, in the features' dtype."""
        ones = (1,) * (features.dim() - 2)
        outputs = features * self.scale.view(-1, *ones) + self.bias.view(-1, *ones)
        return outputs if outputs.dtype == features.dtype else outputs.to(features.dtype)


class ChannelBias(nn.Module):
    """No normalisation, a number b added to each channel: y -> y + b, starting as the identity."""

    deterministic = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, features: Tensor) -> Tensor:
        """features + bias, in the features' dtype."""
        return features + self.bias.to(features.dtype).view(-1, *(1,) * (features.dim() - 2))


class TotalVariationNorm(nn.Module):
    """N_tv(y) = s y / sqrt(A y^2 + epsilon) + b, A the sum over the channels at a pixel (eq. 9).

    The sum of squares is taken in float32 at least, so that half precision neither overflows
    nor loses epsilon, and of smaller numbers where y is too large for it; the result has the
    input's dtype. At y = 0 value and gradient are finite, the slope being s/sqrt(epsilon). Not
    monotone once followed by ReLU and its affine part: a layer with it has no guaranteed step
    bound.
    """

    deterministic = True

    def __init__(self, channels: int, *, epsilon: float = 1e-3, affine: bool = True) -> None:
        super().__init__()
        self.channels = check_count("channels", channels)
        self.epsilon = check_positive("epsilon", epsilon)
        self.affine = ChannelAffine(self.channels) if affine else None

    def forward(self, features: Tensor) -> Tensor:
        """N_tv of features (batch, channels, *spatial)."""
        dtype = features.dtype
        wide = features if dtype in _WIDE else features.float()
        # On a CPU looking at a number costs little; elsewhere it means to wait. The compiler is
        # asked first: its graph stays one of tensors alone, with no question about their device.
        looks = not torch.compiler.is_compiling() and wide.is_cpu and not are_transforms_active()
        squares = (wide * wide).sum(1, keepdim=True) if looks else None
        if squares is not None and float(squares.detach().sum()) <= _LARGEST_SQUARED**2:
            normalized = wide * torch.rsqrt(squares + self.epsilon)
        else:
            # N_tv is the same of c y with c^2 epsilon; c = 1 unless squares could leave the range.
            largest = wide.detach().abs().amax(1, keepdim=True)
            factor = (_LARGEST_SQUARED / largest).clamp(max=1)
            scaled = wide * factor
            squares = (scaled * scaled).sum(1, keepdim=True)
            radicand = torch.addcmul(squares, factor, factor, value=self.epsilon)
            normalized = scaled * torch.rsqrt(radicand)
        affine = self.affine
        if affine is not None:
            normalized = affine(normalized)
        return normalized if normalized.dtype == dtype else normalized.to(dtype)

    def extra_repr(self) -> str:
        """The arguments that define the normalisation."""
        return f"{self.channels}, epsilon={self.epsilon}, affine={self.affine is not None}"


def make_normalization(
    name: str, channels: int, *, dimension: int, epsilon: float, affine: bool | None
) -> nn.Module:
    """The normalisation of that name; `affine=None` means: with weights unless it is none."""
    if name == "tv":
        return TotalVariationNorm(channels, epsilon=epsilon, affine=affine is not False)
    if name == "batch":
        return make_batch_norm(channels, dimension=dimension, affine=affine is not False)
    if name == "bias":
        return ChannelBias(channels)
    if name == "none":
        return ChannelAffine(channels) if affine else nn.Identity()
    raise unknown_name("normalization", name, NORMALIZATIONS)


def make_batch_norm(channels: int, *, dimension: int, affine: bool = True) -> nn.Module:
    """Batch norm with the constants of the authors' code."""
    batch_norm = _PLAIN_BATCH_NORMS[dimension - 1]
    return batch_norm(channels, eps=BATCH_NORM_EPSILON, momentum=0.1, affine=affine)
