"""Operators on images written out as dense matrices, column by column."""

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from pdecnn.pde import Convolution


def dense_matrix(operator: Callable[[Tensor], Tensor], shape: Sequence[int]) -> Tensor:
    """The matrix of a linear map of features of `shape` = (channels, *size), in float64."""
    units = torch.eye(prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        return operator(units).flatten(1).T.contiguous()


def dense_convolution(convolution: Convolution, size: Sequence[int]) -> Tensor:
    """K as a matrix; the convolution must be float64."""
    return dense_matrix(convolution, (convolution.in_channels, *size))


def jacobian(function: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
    """The Jacobian matrix at one image (channels, *size)."""
    found = torch.autograd.functional.jacobian(
        lambda image: function(image[None])[0].flatten(), features
    )
    return found.reshape(found.shape[0], -1)
