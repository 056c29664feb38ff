"""Batch norm over a batch that several processes hold parts of."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

Sum = Callable[[Tensor], None]
"""Replaces a tensor, in place, by its sum over all processes."""


class _SumOverProcesses(torch.autograd.Function):
    """y = sum_r x_r on each process r; the gradient of x_r is the sum of theirs of y."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, sum_: Sum) -> Tensor:
        ctx.sum_ = sum_
        total = values.clone()
        sum_(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return sum_over_processes(gradients[0].contiguous(), ctx.sum_), None


def sum_over_processes(values: Tensor, sum_: Sum) -> Tensor:
    """The sum of the processes' values, differentiable any number of times."""
    total: Tensor = _SumOverProcesses.apply(values, sum_)  # type: ignore[no-untyped-call]
    return total


class SynchronizedBatchNorm(_BatchNorm):
    """Batch norm with the mean and the variance of all processes' examples.

    mean = S_1 / n and variance = S_2 / n - mean^2, where n, S_1 and S_2 are the number, the sum
    and the sum of squares over all processes: one message forward, one backward. The sums are
    taken in float64, so that the difference loses nothing that the features had. In evaluation
    mode it is batch norm as usual. `sum_` adds up over the processes.
    """

    deterministic = True

    def __init__(self, norm: _BatchNorm, sum_: Sum) -> None:
        super().__init__(
            norm.num_features, eps=norm.eps, momentum=norm.momentum, affine=norm.affine
        )
        # The very tensors of the other norm: whoever holds them need not know.
        self._parameters, self._buffers = norm._parameters, norm._buffers
        self.train(norm.training)
        self.sum_ = sum_

    def _check_input_dim(self, features: Tensor) -> None:
        del features  # any number of spatial axes

    def forward(self, features: Tensor) -> Tensor:
        """N(features) of features (batch, channels, *spatial), in their dtype."""
        if not self.training:
            return functional.batch_norm(
                features, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        wide = features.to(torch.promote_types(features.dtype, torch.float32))
        axes = [axis for axis in range(features.dim()) if axis != 1]
        sums = torch.stack([part.sum(axes, dtype=torch.float64) for part in (wide, wide.square())])
        count = sums.new_full((1,), features.numel() // features.shape[1])
        sums = sum_over_processes(torch.cat([sums.flatten(), count]), self.sum_)
        count = sums[-1].detach()
        mean, square = (sums[:-1] / count).view(2, -1)
        variance = (square - mean.square()).clamp(min=0)
        self._remember(mean.detach(), variance.detach() * (count / (count - 1)))
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        shift = -mean * scale
        if self.bias is not None:
            shift = shift + self.bias
        shape = (-1, *(1,) * (features.dim() - 2))
        scale, shift = scale.to(wide.dtype).view(shape), shift.to(wide.dtype).view(shape)
        normalized: Tensor = wide * scale + shift
        return normalized.to(features.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics, in place, as batch norm does."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), self.momentum)


def synchronize_batch_norms_(module: nn.Module, sum_: Sum) -> None:
    """Replace every batch norm within the module by a synchronised one with its tensors."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm) and not isinstance(child, SynchronizedBatchNorm):
                setattr(parent, name, SynchronizedBatchNorm(child, sum_))
