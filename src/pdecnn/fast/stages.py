"""What stands around the blocks by fused kernels: opening, connectors, classifier (Sec. 5).

As autocast computes it: products of bfloat16 with float32 sums, rounded to bfloat16 before the
batch norm. The outcome is not rounded again, unless asked for, since a block's state is float32.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pdecnn.fast.fused import misfit_of_precision, refuse_second_derivatives
from pdecnn.fast.kernels import stages as kernels
from pdecnn.fast.kernels.symmetric_shear import misfit_of_device
from pdecnn.networks.stages import Classifier, Connector, Opening
from pdecnn.pde.convolution import Convolution, without_autocast
from pdecnn.pde.grid import is_followed
from pdecnn.pde.repeatability import has_foreign_code, replaced_methods

Stage = Opening | Connector | Classifier


def fused_stage(
    stage: Stage, features: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor | None:
    """The stage's outcome, of an opening or connector in that dtype; None where `reason_against`
    names a reason."""
    if reason_against(stage, features) is not None:
        return None
    if isinstance(stage, Classifier):
        return _classify(stage, features)
    norm, stencil = cast(nn.BatchNorm2d, stage.normalization), stage.convolution.stencil
    inputs = (features, stencil, norm.weight, norm.bias)
    plan = _Plan(
        epsilon=norm.eps,
        momentum=float(cast(float, norm.momentum)),
        window=2 if isinstance(stage, Connector) and stage.pool else 1,
        dtype=dtype,
        training=norm.training,
        # Only here: within an autograd function gradients are always off.
        keep=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs),
    )
    outcome: Tensor = _FusedStage.apply(  # type: ignore[no-untyped-call]
        plan, *inputs, norm.running_mean, norm.running_var, norm.num_batches_tracked
    )
    return outcome


def reason_against(stage: Stage, features: Tensor) -> str | None:
    """Why the kernels do not compute what the stage computes of the features, up to rounding."""
    if type(stage) not in (Opening, Connector, Classifier):
        return f"there are no kernels for {type(stage).__name__}"
    reason = _reason_against_features(features)
    if isinstance(stage, Classifier):
        return reason or _reason_against_classifier(stage, features)
    return (
        reason
        or _reason_against_convolution(stage, features)
        or _reason_against_norm(stage, features)
        or _reason_against_size(stage, features)
    )


def _reason_against_features(features: Tensor) -> str | None:
    device = features.device
    found = misfit_of_device(device) or misfit_of_precision(device)
    if found is not None:
        return found
    if is_followed():
        return "torch.func follows every operator"
    if features.dim() != 4:
        return "kernels need images of two dimensions"
    if features.dtype not in (torch.float32, torch.bfloat16):
        return f"features are {features.dtype}"
    return None


def _reason_against_classifier(classifier: Classifier, features: Tensor) -> str | None:
    if replaced_methods(classifier):
        return "a method of the classifier is replaced"
    if classifier.num_classes == 0 or classifier.weight.shape[1] != features.shape[1]:
        return "there are no classes, or other channels than it has weights for"
    plain = all(_is_plain(weight, features) for weight in classifier.parameters())
    return None if plain else "the weights are not float32 on the device of the features"


def _reason_against_convolution(stage: Opening | Connector, features: Tensor) -> str | None:
    convolution = stage.convolution
    if type(convolution) is not Convolution or has_foreign_code(convolution):
        return "the convolution has a hook or is of another kind"
    if convolution.boundary != "zero":
        return f"the boundary is {convolution.boundary}"
    if convolution.stencil_size != ((3, 3) if isinstance(stage, Opening) else (1, 1)):
        return f"the stencil has {convolution.stencil_size} points"
    if not _is_plain(convolution.stencil, features):
        return "the stencil is not float32 on the device of the features"
    # Others are refused by the module itself.
    if features.shape[1] != convolution.in_channels:
        return f"{features.shape[1]} channels meet a stencil for {convolution.in_channels}"
    if not kernels.fits(convolution.stencil):
        return (
            f"{convolution.in_channels} to {convolution.out_channels} channels are too many for "
            f"the kernels"
        )
    return None


def _reason_against_norm(stage: Opening | Connector, features: Tensor) -> str | None:
    norm = stage.normalization
    if type(norm) is not nn.BatchNorm2d or has_foreign_code(norm):
        return "the batch norm has a hook or is of another kind"
    if norm.momentum is None or not norm.eps > 0:
        return "the batch norm has no momentum or no epsilon"
    if norm.num_features != stage.convolution.out_channels:
        return "the batch norm has another number of channels"
    tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    if not all(tensor is not None and _is_plain(tensor, features) for tensor in tensors):
        return "the batch norm lacks weights or statistics in float32 on the features' device"
    if norm.training and features.numel() <= features.shape[1]:
        return "there is one number a channel"
    return None


def _reason_against_size(stage: Opening | Connector, features: Tensor) -> str | None:
    images, _, height, width = features.shape
    channels = max(features.shape[1], stage.convolution.out_channels)
    if not 0 < images * channels * height * width < 2**31:
        return f"features of shape {tuple(features.shape)} are empty or too many"
    if isinstance(stage, Opening):
        needs_gradient = features.requires_grad and torch.is_grad_enabled()
        return "the gradient of the images is asked for" if needs_gradient else None
    return "there is no pixel to pool" if stage.pool and min(height, width) < 2 else None


def _is_plain(tensor: Tensor, features: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device == features.device


@dataclass(frozen=True, slots=True)
class _Plan:
    epsilon: float
    momentum: float
    window: int
    dtype: torch.dtype
    training: bool
    keep: bool

    def stage(self, stencil: Tensor, scale: Tensor, bias: Tensor) -> kernels.Stage:
        return kernels.Stage(stencil.detach().contiguous(), scale, bias, self.epsilon, self.window)


class _FusedStage(torch.autograd.Function):
    """A stage and its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: _Plan,
        features: Tensor,
        stencil: Tensor,
        scale: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_variance: Tensor,
        num_batches: Tensor,
    ) -> Tensor:
        source = features.contiguous(memory_format=torch.channels_last)
        stage = plan.stage(stencil, scale, bias)
        statistics = kernels.Statistics(running_mean, running_variance)
        hidden = None
        if plan.training or plan.keep:
            hidden, parts = kernels.multiply(source, stage.stencil)
        if plan.training:
            running = kernels.Running(statistics, num_batches, plan.momentum)
            statistics = kernels.merge(parts, source, stage.stencil, running)
            # Whoever kept them for a gradient must not meet others unawares.
            for tensor in (running_mean, running_variance, num_batches):
                torch.autograd.graph.increment_version(tensor)
        if plan.keep:
            ctx.plan = plan
            ctx.save_for_backward(source, hidden, stencil, scale, bias, *statistics)
        return kernels.activate(source, stage, statistics, plan.dtype, hidden=hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        plan: _Plan = ctx.plan
        source, hidden, stencil, scale, bias, mean, variance = ctx.saved_tensors
        stage, statistics = plan.stage(stencil, scale, bias), kernels.Statistics(mean, variance)
        if not kernels.is_level(gradient):
            gradient = gradient.contiguous(memory_format=torch.channels_last)
        affine = kernels.affine_gradient(hidden, gradient, stage, statistics)
        stencil_gradient, source_gradient = kernels.stencil_gradient(
            source,
            hidden,
            gradient,
            stage,
            statistics,
            affine,
            of_batch=plan.training,
            back=ctx.needs_input_grad[1],
        )
        every = (None, source_gradient, stencil_gradient, *affine, None, None, None)
        pairs = zip(every, ctx.needs_input_grad, strict=True)
        return tuple(g if wanted else None for g, wanted in pairs)


def _classify(classifier: Classifier, features: Tensor) -> Tensor:
    pooled: Tensor = _PixelMean.apply(features.float())  # type: ignore[no-untyped-call]
    with without_autocast(features.device):
        return functional.linear(pooled, classifier.rows, classifier.bias)


class _PixelMean(torch.autograd.Function):
    """The mean over all pixels. Its gradient, the same at all pixels, is not written for each."""

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        ctx.shape = features.shape
        return features.mean((2, 3))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        shares: Tensor = gradient.contiguous() / (ctx.shape[2] * ctx.shape[3])
        return shares[..., None, None].expand(ctx.shape)
