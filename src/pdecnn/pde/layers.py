"""The spatial operator F: the general residual layer (eq. 1) and the symmetric one (eq. 7)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from pdecnn.errors import ConfigError
from pdecnn.pde.activations import Activation, resolve_activation
from pdecnn.pde.convolution import Boundary, Convolution, check_dimension
from pdecnn.pde.normalization import Normalization, make_normalization
from pdecnn.plugins import Registry
from pdecnn.settings import check_count, check_positive

Layer = TypeVar("Layer", bound="AbstractLayer")


class AbstractLayer(nn.Module, ABC):
    """A right-hand side F: features -> features of the same shape, made of K, N and sigma.

    A class that declares `deterministic = True` in its own body computes the same of the same
    input and weights; with `symmetric = True` it is F_sym (eq. 7), with False the general F of
    eq. 1. Classes below it inherit neither. A class with a `name` may be registered.
    """

    name: str
    """How configs refer to it."""

    def __init__(
        self,
        channels: int,
        *,
        hidden_channels: int | None = None,
        stencil_size: int | Sequence[int] = 3,
        dimension: int = 2,
        boundary: Boundary = "zero",
        activation: str | Activation | Callable[[Tensor], Tensor] = "relu",
        normalization: Normalization = "tv",
        affine: bool | None = None,
        epsilon: float = 1e-3,
    ) -> None:
        super().__init__()
        self.channels = check_count("channels", channels)
        hidden = self.channels if hidden_channels is None else hidden_channels
        self.hidden_channels = check_count("hidden_channels", hidden)
        self.dimension = check_dimension(dimension)
        self.activation = resolve_activation(activation)
        self.convolution = Convolution(
            self.channels,
            self.hidden_channels,
            stencil_size=stencil_size,
            dimension=dimension,
            boundary=boundary,
        )
        self.normalization_name = normalization
        self.normalization = make_normalization(
            normalization,
            self.hidden_channels,
            dimension=dimension,
            epsilon=check_positive("epsilon", epsilon),
            affine=affine,
        )
        self._add_parts()

    def _add_parts(self) -> None:
        """What a layer has besides K, N and sigma."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.convolution.stencil.dtype

    @property
    def factor(self) -> float:
        """What stands before the layer's last operator, such as a step size of its own."""
        return 1.0

    def pre_activation(self, features: Tensor) -> Tensor:
        """N(K features), what the activation is applied to."""
        normalized: Tensor = self.normalization(self.convolution(features))
        return normalized

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """F(features)."""


class SymmetricLayer(AbstractLayer):
    """F_sym(Y) = -K^T sigma(N(K Y)) (eq. 7).

    Without normalisation and with a non-decreasing sigma its Jacobian -K^T D K is symmetric and
    negative semi-definite: F_sym is monotone (Theorem 1). With sigma = identity, no
    normalisation and K a discrete gradient it is the Laplacian.

    K -> `convolution` (channels -> hidden_channels), N -> `normalization`,
    sigma -> `activation`.
    """

    name = "symmetric"
    deterministic = True
    symmetric = True

    def forward(self, features: Tensor) -> Tensor:
        """F_sym(features)."""
        convolution, sigma = self.convolution, self.activation
        function = sigma.function if type(sigma) is Activation else sigma  # in one call
        activated = function(self.normalization(convolution(features)))
        return convolution.adjoint(activated, negative=True)


class TimedLayer(SymmetricLayer):
    """F(Y) = exp(s) F_sym(Y), s = 0 at the beginning: a step size that is trained.

    exp(s) stands before dt in forward Euler steps; in waves the product of those of a step stands
    before dt^2.

    s -> `log_factor`.
    """

    name = "timed"
    deterministic = True
    symmetric = True

    def _add_parts(self) -> None:
        self.log_factor = nn.Parameter(torch.zeros(1))

    @property
    def factor(self) -> float:
        """exp(s) as a number."""
        return float(self.log_factor.detach().double().exp())

    def forward(self, features: Tensor) -> Tensor:
        """F(features)."""
        return self.log_factor.exp() * super().forward(features)


class ResidualLayer(AbstractLayer):
    """F(Y) = K2 sigma(N(K1 Y)) (eq. 1), the layer of a general residual network.

    Nothing is known of its Jacobian K2 D K1, hence nothing of its stability.

    K1 -> `convolution` (channels -> hidden_channels), K2 -> `output_convolution` (back),
    N -> `normalization`, sigma -> `activation`.
    """

    name = "residual"
    deterministic = True
    symmetric = False

    def _add_parts(self) -> None:
        first = self.convolution
        self.output_convolution = Convolution(
            self.hidden_channels,
            self.channels,
            stencil_size=first.stencil_size,
            dimension=self.dimension,
            boundary=first.boundary,
        )

    def forward(self, features: Tensor) -> Tensor:
        """F(features)."""
        activated = self.activation(self.pre_activation(features))
        filtered: Tensor = self.output_convolution(activated)
        return filtered


LAYERS = (SymmetricLayer, ResidualLayer)
_REGISTRY: Registry[type[AbstractLayer]] = Registry("layer", {cls.name: cls for cls in LAYERS})


def register_layer(cls: type[Layer]) -> type[Layer]:
    """Make a layer known by the `name` of its class, so that configs can hold it; a decorator.

    It is made as `cls(channels, dimension=..., activation=..., normalization=..., epsilon=...)`.
    """
    if not isinstance(cls, type) or not issubclass(cls, AbstractLayer):
        raise ConfigError(f"register_layer takes a subclass of AbstractLayer, found {cls!r}")
    _REGISTRY.add(getattr(cls, "name", None), cls, cls)
    return cls


def resolve_layer(name: str) -> type[AbstractLayer]:
    """The class of the layers of that name."""
    return _REGISTRY[name]
