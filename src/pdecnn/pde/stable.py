"""Stable by construction: step sizes and operators that follow the norm of their weights.

Theorem 1: without normalisation and with slopes of sigma in [0, L] a parabolic step
Y - dt K^T sigma(K Y + b) never expands a distance if dt <= 2/(L |K|^2). Here dt is that bound. In
training |K| is estimated by power iteration, differentiably; in evaluation it is an upper bound,
so that the theorem holds for what is evaluated, exported and certified.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from typing import cast

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from pdecnn.errors import ConfigError
from pdecnn.pde.activations import IDENTITY, RELU, Activation
from pdecnn.pde.convolution import Boundary, Convolution, convolution_of, without_autocast
from pdecnn.pde.grid import is_followed
from pdecnn.pde.layers import AbstractLayer
from pdecnn.pde.normalization import ChannelBias, Normalization
from pdecnn.pde.places import at_place, new_place

HOMOGENEOUS = (RELU, IDENTITY)
"""Activations with sigma(c y) = c sigma(y) for c > 0."""
_NOISE = 0.02
"""The deviation with which a stencil starts from an orthonormal matrix at its centre."""
_START_ITERATIONS = 10
_TINY = 1e-15


_bounds_are_known = False


@contextmanager
def known_bounds(module: nn.Module) -> Iterator[None]:
    """Within it code that is compiled for evaluation does not look at the weights by itself.

    It could be no CUDA graph if it did. `FollowsWeights.refresh` makes the bounds follow.
    """
    global _bounds_are_known
    for part in following(module) if not module.training else ():
        part.refresh()
    before, _bounds_are_known = _bounds_are_known, True
    try:
        yield
    finally:
        _bounds_are_known = before


def looks_at_weights(module: nn.Module) -> bool:
    """Whether code that is compiled of it would look at the weights by itself."""
    return not _bounds_are_known and any(not part.training for part in following(module))


class OperatorNorm(nn.Module):
    """|K| of a convolution on images of at most `size`, following its weights.

    With `any_size` the bound holds for larger images too.

    In training |K v| for a kept unit vector v, differentiable in the weights: `advance_` takes it
    one power iteration further, once an update of the weights and outside of forward passes, so
    that every pass between two updates meets the same number. In evaluation the upper bound of
    `Convolution.norm_bound`, rounded up: computed when the weights are other ones than the last
    time, noticed when the mode is set and wherever a weight was written to.

    v -> `vector`, part of checkpoints.
    """

    deterministic = True

    def __init__(self, channels: int, size: Sequence[int], *, any_size: bool = False) -> None:
        super().__init__()
        self.size, self.any_size = tuple(size), any_size
        generator = torch.Generator().manual_seed(0)
        vector = torch.randn((1, channels, *self.size), generator=generator)
        self.register_buffer("vector", vector / vector.norm())
        self.register_buffer("bound", torch.zeros(()), persistent=False)
        self._seen: tuple[Tensor, int] | None = None
        self._values: Tensor | None = None
        self._filled: Tensor | None = None
        self._number = 0.0
        self._place = new_place(self)
        self.vector: Tensor
        self.bound: Tensor

    def forward(self, convolution: Convolution) -> Tensor:
        """|K|, a number in the dtype of the weights."""
        if self.training:
            with without_autocast(self.vector.device):
                return _length(convolution(self.vector))
        if is_followed():
            with temporarily_clear_interpreter_stack():
                self._look(_with_plain_stencil(convolution))
        elif not torch.compiler.is_compiling():
            self._look(convolution)
        elif not (_bounds_are_known or torch.compiler.is_exporting()):
            bound: Tensor = _bound(self._place, convolution.stencil.detach(), convolution.boundary)
            return bound
        elif self._values is None:
            raise RuntimeError(
                "the bound of a stable step is not known yet: run the network once, in "
                "evaluation mode, before it is exported"
            )
        return self.bound

    def _look(self, convolution: Convolution) -> None:
        """Have the bound of the weights as they are, where they were written to.

        In the very buffer that is there now: it is another where a step is computed again.
        """
        stencil, seen = convolution.stencil, self._seen
        known = seen is not None and seen[0] is stencil and seen[1] == stencil._version
        if not known or self._filled is not self.bound:
            self.refresh(convolution)

    @torch.no_grad()
    def refresh(self, convolution: Convolution) -> None:
        """Compute the upper bound where the weights have changed, however they were changed."""
        stencil = convolution.stencil
        if stencil.is_meta:
            return
        values = stencil.detach()
        known = self._values
        alike = known is not None and (known.dtype, known.device) == (values.dtype, values.device)
        if known is None or not alike or not torch.equal(known, values):
            # A number of float32 at most, so that float64 computes with the very same.
            eps = max(torch.finfo(kind).eps for kind in (self.bound.dtype, torch.float32))
            bound = convolution.norm_bound(self.size, any_size=self.any_size)
            self._number = float(torch.tensor(bound * (1 + 8 * eps) + _TINY))
            self._values, self._filled = values.clone(), None
            if self.bound.is_meta:  # no file holds it: weights were put in the place of meta ones
                self.bound = torch.zeros_like(self.bound, device=values.device)
        if self._filled is not self.bound:
            self._filled = self.bound.fill_(self._number)
        self._seen = (stencil, stencil._version)

    def start(self, convolution: Convolution) -> None:
        """Some power iterations at once, so that the first step of a training is no guess."""
        if not self.vector.is_meta:
            for _ in range(_START_ITERATIONS):
                self.advance_(convolution)

    @torch.no_grad()
    def advance_(self, convolution: Convolution, accepted: Tensor | None = None) -> None:
        """One power iteration on K^T K, unless not `accepted`."""
        with without_autocast(self.vector.device):
            image = convolution.adjoint(convolution(self.vector))
            length = _length(image)
            found = torch.where(length > _TINY, image / length, self.vector)
            if accepted is not None:
                found = torch.where(accepted, found, self.vector)
            self.vector.copy_(found)

    def train(self, mode: bool = True) -> "OperatorNorm":
        """As every module; weights may have changed since by means that leave no trace."""
        self._seen = None
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "OperatorNorm":
        """As every module; another type rounds weights and bound, each in its own way."""
        self._seen = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._place = new_place(self)

    def extra_repr(self) -> str:
        """The images for which the bound holds."""
        return f"size={self.size}"

    def __deepcopy__(self, memo: dict[int, object]) -> "OperatorNorm":
        copy = OperatorNorm(self.vector.shape[1], self.size, any_size=self.any_size)
        copy.to(self.vector.device, self.vector.dtype).train(self.training)
        copy.vector.copy_(self.vector)
        memo[id(self)] = copy
        return copy


def _with_plain_stencil(convolution: Convolution) -> Convolution:
    """The convolution itself or, where torch.func wraps its weights, one of what they are."""
    functorch = torch._C._functorch
    stencil: Tensor = convolution.stencil
    if not functorch.is_functorch_wrapped_tensor(stencil):
        return convolution
    while functorch.is_functorch_wrapped_tensor(stencil):
        if functorch.is_batchedtensor(stencil):
            raise ConfigError(
                "vmap over the weights of a stable network in evaluation mode is not available: "
                "each of them needs a bound of its own; call the networks one after the other"
            )
        stencil = functorch.get_unwrapped(stencil)
    return convolution_of(stencil, convolution.boundary)


# An operator, since the compiler would look at the weights but once and keep what it saw.
@torch.library.custom_op("pdecnn::norm_bound", mutates_args=())
def _bound(place: str, stencil: Tensor, boundary: str) -> Tensor:
    norm: OperatorNorm = at_place(place)
    # An operator of torch takes text, not one of a few words.
    norm.refresh(convolution_of(stencil, cast(Boundary, boundary)))
    return norm.bound.clone()


@_bound.register_fake
def _(place: str, stencil: Tensor, boundary: str) -> Tensor:
    del place, boundary
    return stencil.new_empty(())


class FollowsWeights(nn.Module, ABC):
    """Indicates numbers that follow the weights: see `follow_weights_`."""

    @abstractmethod
    def follow_(self, accepted: Tensor | None = None) -> None:
        """What is due after an update of the weights; nothing where it was not `accepted`."""

    @abstractmethod
    def refresh(self) -> None:
        """What evaluation needs of the weights as they are now."""


class StableLayer(AbstractLayer, FollowsWeights):
    """F(Y) = -dt K^T sigma(K Y + b), dt = 2/(L |K|^2): Euler steps of 1 never expand distances.

    The layer of convex potential flows (Meunier et al. 2022), here from Theorem 1. `size` is the
    largest image for which dt is stable, unless it is for `any_size`. Scaling K and b changes
    nothing where sigma is homogeneous; then `follow_` keeps the length of theta, the root of the
    sum of its squares, at that of an orthonormal matrix, so that a learning rate is relative to
    it. Not |K|, at which a stencil that responds to little else than one image would be short, and
    changed the more.

    K starts as an orthonormal matrix at the centre of the stencil with a little noise.
    """

    name = "stable"
    deterministic = True
    symmetric = True

    def __init__(
        self,
        channels: int,
        *,
        size: Sequence[int],
        hidden_channels: int | None = None,
        stencil_size: int | Sequence[int] = 3,
        dimension: int = 2,
        boundary: Boundary = "zero",
        activation: str | Activation | Callable[[Tensor], Tensor] = "relu",
        normalization: Normalization = "bias",
        any_size: bool = False,
    ) -> None:
        if normalization not in ("none", "bias"):
            raise ConfigError(
                f"stable steps need layers without normalisation, 'none' or 'bias': Theorem 1 "
                f"has none; found {normalization!r}"
            )
        super().__init__(
            channels,
            hidden_channels=hidden_channels,
            stencil_size=stencil_size,
            dimension=dimension,
            boundary=boundary,
            activation=activation,
            normalization=normalization,
        )
        slopes = self.activation.slope_range
        if slopes is None or slopes[0] < 0 or slopes[1] <= 0:
            raise ConfigError(
                f"stable steps need an activation whose slopes are known not to be negative "
                f"(Theorem 1), such as 'relu'; {self.activation.name} declares {slopes}"
            )
        self.slope = float(slopes[1])
        start_orthonormal_(self.convolution.stencil)
        # Mirrored at its edge or repeated a smaller image may be enlarged more than a larger one.
        any_size = any_size or boundary != "zero"
        self.norm = OperatorNorm(self.channels, size, any_size=any_size)
        self.norm.start(self.convolution)

    @property
    def step(self) -> Tensor:
        """dt = 2/(L |K|^2), in training by the estimate of |K|, else by its upper bound."""
        norm: Tensor = self.norm(self.convolution)
        return 2 / (self.slope * norm * norm)

    @property
    def factor(self) -> float:
        """dt as a number."""
        return float(self.step.detach())

    def forward(self, features: Tensor) -> Tensor:
        """F(features)."""
        convolution = self.convolution
        activated = self.activation(self.pre_activation(features))
        # dt scales the stencil, which is smaller than the features.
        return convolution.adjoint(activated, negative=True, factor=self.step)

    def follow_(self, accepted: Tensor | None = None) -> None:
        """Take the power iteration one step further and theta back to its length."""
        self.norm.advance_(self.convolution, accepted)
        if self.activation not in HOMOGENEOUS:
            return
        stencil = self.convolution.stencil
        with torch.no_grad():
            factor = sqrt(min(self.channels, self.hidden_channels)) / _length(stencil)
            if accepted is not None:
                factor = torch.where(accepted, factor, 1.0)
            stencil.mul_(factor)
            if isinstance(self.normalization, ChannelBias):
                self.normalization.bias.mul_(factor)

    def refresh(self) -> None:
        """The bound of |K| as the weights are now."""
        self.norm.refresh(self.convolution)


class BoundedConvolution(FollowsWeights):
    """K/|K|: a convolution that never expands a distance.

    A matrix, `stencil_size` 1, starts with orthonormal rows, or columns where it widens, and
    `follow_` keeps it near to that by Newton-Schulz iterations, so that it loses next to nothing.
    """

    deterministic = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        size: Sequence[int],
        stencil_size: int = 3,
        dimension: int = 2,
    ) -> None:
        super().__init__()
        self.convolution = Convolution(
            in_channels, out_channels, stencil_size=stencil_size, dimension=dimension
        )
        pixel = stencil_size == 1
        start_orthonormal_(self.convolution.stencil, noise=0.0 if pixel else _NOISE)
        self.norm = OperatorNorm(in_channels, (1,) * dimension if pixel else size)
        self.norm.start(self.convolution)

    def forward(self, features: Tensor) -> Tensor:
        """K features/|K|."""
        filtered: Tensor = self.convolution(features, factor=1 / self.norm(self.convolution))
        return filtered

    def follow_(self, accepted: Tensor | None = None) -> None:
        """Back to an orthonormal matrix, where K is one; the power iteration one step further."""
        stencil = self.convolution.stencil
        if stencil.shape[2:].numel() == 1:
            with torch.no_grad():
                found = orthonormalized(stencil.flatten(1)).view_as(stencil)
                stencil.copy_(found if accepted is None else torch.where(accepted, found, stencil))
        self.norm.advance_(self.convolution, accepted)

    def refresh(self) -> None:
        """The bound of |K| as the weights are now."""
        self.norm.refresh(self.convolution)


def _length(image: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(image)
    return length.clamp(min=_TINY)


def orthonormalized(matrix: Tensor, *, num_iterations: int = 2) -> Tensor:
    """The matrix nearer to orthonormal rows or columns: W <- (3 W - W W^T W)/2.

    It squares the distance of singular values from 1 where all are below sqrt(3). That they are
    is certain where G = W W^T is within 1 of the identity, as it is after a small update of an
    orthonormal matrix; another W is divided by |G|^(1/2) first, which is at least its norm.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    gram = wide @ wide.T
    far = torch.linalg.matrix_norm(gram - torch.eye(len(gram)).to(gram)) > 1
    wide = wide / torch.where(far, torch.linalg.matrix_norm(gram).sqrt(), 1.0)
    for _ in range(num_iterations):
        wide = (3 * wide - (wide @ wide.T) @ wide) / 2
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


@torch.no_grad()
def start_orthonormal_(stencil: Tensor, *, noise: float = _NOISE) -> None:
    """An orthonormal matrix at the centre, and noise on all points."""
    if stencil.is_meta:
        return
    matrix = nn.init.orthogonal_(torch.empty_like(stencil.flatten(2)[..., 0]))
    stencil.normal_(0, noise)
    stencil.flatten(2)[..., stencil.shape[2:].numel() // 2] += matrix


def following(module: nn.Module) -> Iterator[FollowsWeights]:
    """The parts of a module that follow their weights."""
    return (part for part in module.modules() if isinstance(part, FollowsWeights))


def follow_weights_(module: nn.Module, accepted: Tensor | None = None) -> None:
    """To be called once after each update of the weights; `ProjectedSGD` and the trainer do."""
    for part in following(module):
        part.follow_(accepted)
