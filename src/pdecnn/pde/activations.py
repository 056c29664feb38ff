"""Activations sigma with what the theory needs of them: slope range and antiderivative."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from pdecnn.errors import ConfigError, unknown_name
from pdecnn.settings import is_finite_number

RANDOM_MODULES = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Activation:
    """A function applied to every number, sigma in eqs. 1 and 7."""

    name: str
    """How configs refer to it."""
    function: Callable[[Tensor], Tensor]
    """sigma itself: elementwise, deterministic and without weights."""
    slope_range: tuple[float, float] | None = None
    """Smallest and largest slope; None: unknown, so nothing is guaranteed (Theorem 1)."""
    antiderivative: Callable[[Tensor], Tensor] | None = None
    """Phi with Phi' = sigma and Phi(0) = 0; None: unknown, so no energy is defined."""

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise ConfigError(
                f"an activation must be a function of a tensor, found {self.function!r}"
            )
        if isinstance(self.function, nn.Module):
            self._check_module(self.function)
        if self.slope_range is not None and not _is_slope_range(self.slope_range):
            raise ConfigError(
                f"slope_range must be (smallest, largest), found {self.slope_range!r}"
            )
        if self.antiderivative is not None and not callable(self.antiderivative):
            raise ConfigError(
                f"antiderivative must be a function of a tensor or None, found "
                f"{self.antiderivative!r}"
            )

    def __call__(self, values: Tensor) -> Tensor:
        """sigma(values)."""
        return self.function(values)

    def __deepcopy__(self, memo: object) -> "Activation":
        # Without state: copied layers share it, and compiled code for one serves the others.
        return self

    def _check_module(self, module: nn.Module) -> None:
        if any(True for _ in chain(module.parameters(), module.buffers())):
            raise ConfigError(
                f"activation {self.name!r} has weights of its own, which no layer would train; "
                f"pass a function without weights"
            )
        if any(isinstance(part, RANDOM_MODULES) for part in module.modules()):
            raise ConfigError(
                f"activation {self.name!r} is random: a state computed again would differ; pass a "
                f"deterministic function"
            )


def _is_slope_range(slopes: object) -> bool:
    if not isinstance(slopes, tuple | list) or len(slopes) != 2:
        return False
    return all(map(is_finite_number, slopes)) and slopes[0] <= slopes[1]


def _identity(values: Tensor) -> Tensor:
    return values


def _half_square(values: Tensor) -> Tensor:
    return values.square() / 2


def _half_square_of_positive_part(values: Tensor) -> Tensor:
    return values.clamp(min=0).square() / 2


def _log_cosh(values: Tensor) -> Tensor:
    # log cosh x = |x| + log((1 + exp(-2|x|))/2) does not overflow.
    magnitude = values.abs()
    return magnitude + torch.log1p(torch.expm1(-2 * magnitude) / 2)


RELU = Activation(
    name="relu",
    function=torch.relu,
    slope_range=(0.0, 1.0),
    antiderivative=_half_square_of_positive_part,
)
TANH = Activation(
    name="tanh", function=torch.tanh, slope_range=(0.0, 1.0), antiderivative=_log_cosh
)
IDENTITY = Activation(
    name="identity",
    function=_identity,
    slope_range=(1.0, 1.0),
    antiderivative=_half_square,
)

BUILT_IN = (RELU, TANH, IDENTITY)
_ACTIVATIONS = {activation.name: activation for activation in BUILT_IN}


def register_activation(activation: Activation) -> Activation:
    """Make an activation known by its name, so that configs can hold it."""
    if not isinstance(activation, Activation):
        raise ConfigError(
            f"register_activation takes an Activation, found {activation!r}; pass "
            f"pdecnn.Activation(name=..., function=...)"
        )
    if activation.name in _ACTIVATIONS:
        raise ConfigError(f"an activation named {activation.name!r} is registered already")
    _ACTIVATIONS[activation.name] = activation
    return activation


def list_activations() -> list[str]:
    """The names of all registered activations."""
    return sorted(_ACTIVATIONS)


def resolve_activation(activation: str | Activation | Callable[[Tensor], Tensor]) -> Activation:
    """The activation of that name, or any callable as an activation of unknown slopes."""
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        if activation not in _ACTIVATIONS:
            raise unknown_name("activation", activation, _ACTIVATIONS)
        return _ACTIVATIONS[activation]
    name = getattr(activation, "__name__", type(activation).__name__)
    return Activation(name=name, function=activation)
