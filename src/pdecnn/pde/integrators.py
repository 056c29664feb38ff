"""Time stepping: forward Euler (eq. 8), Runge-Kutta 4, Verlet (eq. 10) and leapfrog (eq. 11).

A state is a tuple of tensors of one shape. A reversible method changes one component of it at a
time by an amount that depends on another one, `state[target] += increment(state[source])`: such
a *shear* is undone exactly by subtracting the same increment, whatever the layer is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pdecnn.errors import ConfigError, unknown_name
from pdecnn.pde.layers import AbstractLayer

State = tuple[Tensor, ...]
Layers = Sequence[nn.Module]
Rounding = Callable[[Tensor], Tensor]
Watch = Callable[[Tensor], None]


class AbstractIntegrator(ABC):
    """How a block advances in time, with its facts declared so that tests can read them."""

    name: str
    """How configs refer to it."""
    order: int
    """The error of the features at a fixed time falls like step_size^order."""
    layers_per_step: int = 1
    """How many layers one step uses."""
    reversible: bool = False
    """Whether `step_back` exists."""

    def layer_channels(self, channels: int) -> int:
        """The width of a layer in a block of width `channels`."""
        return channels

    def block_channels(self, channels: int) -> int:
        """The width of a block of layers of width `channels`, the inverse of `layer_channels`."""
        return channels

    @abstractmethod
    def start(self, features: Tensor, layers: Layers, step_size: float) -> State:
        """The initial state; `layers` are those of the first step."""

    @abstractmethod
    def step(self, layers: Layers, state: State, step_size: float) -> State:
        """The state one step later; `layers` are those of this step."""

    @abstractmethod
    def finish(self, state: State) -> Tensor:
        """The features of a state."""


class AbstractOneComponentIntegrator(AbstractIntegrator):
    """Indicates that the state is the features and nothing else."""

    def start(self, features: Tensor, layers: Layers, step_size: float) -> State:
        """Y_0 = features."""
        del layers, step_size
        return (features,)

    def finish(self, state: State) -> Tensor:
        """Y_N."""
        return state[0]


@dataclass(frozen=True)
class ForwardEuler(AbstractOneComponentIntegrator):
    """Y_{j+1} = Y_j + dt F(Y_j) (eqs. 3 and 8): first order, not reversible."""

    name = "forward_euler"
    order = 1

    def step(self, layers: Layers, state: State, step_size: float) -> State:
        """Y + dt F(Y)."""
        (features,) = state
        return (torch.add(features, evaluate(layers[0], features), alpha=step_size),)


@dataclass(frozen=True)
class RungeKutta4(AbstractOneComponentIntegrator):
    """The classical fourth-order Runge-Kutta method; the weights are constant within a step."""

    name = "runge_kutta_4"
    order = 4

    def step(self, layers: Layers, state: State, step_size: float) -> State:
        """Y + dt/6 (k1 + 2 k2 + 2 k3 + k4)."""
        (features,) = state
        slope1 = evaluate(layers[0], features)
        slope2 = evaluate(layers[0], features + step_size / 2 * slope1)
        slope3 = evaluate(layers[0], features + step_size / 2 * slope2)
        slope4 = evaluate(layers[0], features + step_size * slope3)
        return (features + step_size / 6 * (slope1 + 2 * slope2 + 2 * slope3 + slope4),)


class Shear(NamedTuple):
    """state[target] += sign * dt * F(state[source]), with F the identity where layer is None."""

    target: int
    source: int
    layer: nn.Module | None
    sign: int

    def rate(self, source: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:
        """F(source); `weights` stand in for the layer's own."""
        return source if self.layer is None else evaluate(self.layer, source, weights)

    def increment(
        self, source: Tensor, step_size: float, weights: dict[str, Tensor] | None = None
    ) -> Tensor:
        """What the shear adds to its target."""
        return self.sign * step_size * self.rate(source, weights)

    def add_to(
        self, target: Tensor, source: Tensor, step_size: float, rounding: Rounding | None
    ) -> Tensor:
        """The target after the shear; a negative step size takes it back."""
        if rounding is None:
            return torch.add(target, self.rate(source), alpha=self.sign * step_size)
        return target + rounding(self.increment(source, step_size))


class AbstractReversibleIntegrator(AbstractIntegrator):
    """Indicates that a step is a sequence of shears, so that it can be undone."""

    reversible = True

    @abstractmethod
    def shears(self, layers: Layers) -> tuple[Shear, ...]:
        """The shears of one step, in order."""

    def step(
        self,
        layers: Layers,
        state: State,
        step_size: float,
        *,
        rounding: Rounding | None = None,
        watch: Watch | None = None,
    ) -> State:
        """Apply every shear, its increment rounded first if asked.

        `watch` is shown each component that has changed.
        """
        return _apply(self.shears(layers), state, step_size, rounding, watch)

    def step_back(
        self,
        layers: Layers,
        state: State,
        step_size: float,
        *,
        rounding: Rounding | None = None,
        watch: Watch | None = None,
    ) -> State:
        """Undo `step`: the same increments subtracted in the opposite order."""
        return _apply(tuple(reversed(self.shears(layers))), state, -step_size, rounding, watch)


def _apply(
    shears: Sequence[Shear],
    state: State,
    step_size: float,
    rounding: Rounding | None,
    watch: Watch | None,
) -> State:
    components = list(state)
    for shear in shears:
        target, source = components[shear.target], components[shear.source]
        components[shear.target] = shear.add_to(target, source, step_size, rounding)
        if watch is not None:
            watch(components[shear.target])
    return tuple(components)


@dataclass(frozen=True)
class Verlet(AbstractReversibleIntegrator):
    """Y += dt F_1(Z), then Z -= dt F_2(Y) (eq. 10): the Hamiltonian network.

    The features are the channel halves (Y, Z), `features` and `auxiliary`. This is symplectic
    Euler: first order, reversible; below its step bound a linear block stays bounded.
    """

    name = "verlet"
    order = 1
    layers_per_step = 2

    def layer_channels(self, channels: int) -> int:
        """Half the channels."""
        if channels % 2:
            raise ConfigError(
                f"a Hamiltonian (Verlet) block splits its channels into halves, so their number "
                f"must be even; found {channels}"
            )
        return channels // 2

    def block_channels(self, channels: int) -> int:
        """Twice the layers' channels."""
        return 2 * channels

    def start(self, features: Tensor, layers: Layers, step_size: float) -> State:
        """The two channel halves."""
        del layers, step_size
        self.layer_channels(features.shape[1])
        # Own, dense memory for each half: recomputation must meet the layout the forward pass
        # had, or another kernel with other rounding might run.
        layout = _memory_format(features)
        first, second = features.chunk(2, dim=1)
        return first.contiguous(memory_format=layout), second.contiguous(memory_format=layout)

    def shears(self, layers: Layers) -> tuple[Shear, ...]:
        """Eq. 10 as printed; the paper's continuous system has the opposite sign of time."""
        return Shear(0, 1, layers[0], 1), Shear(1, 0, layers[1], -1)

    def finish(self, state: State) -> Tensor:
        """The halves side by side."""
        return torch.cat(state, dim=1)


@dataclass(frozen=True)
class Leapfrog(AbstractReversibleIntegrator):
    """v_{j+1/2} = v_{j-1/2} + dt F(Y_j), then Y_{j+1} = Y_j + dt v_{j+1/2} (eq. 11).

    The position/velocity form of Y_{j+1} = 2 Y_j - Y_{j-1} + dt^2 F(Y_j): the same numbers with
    less rounding, reversible from (Y_N, v_{N-1/2}). The paper starts with Y_{-1} = Y_0, that is
    v_{-1/2} = 0, which makes it first order; `second_order_start` takes
    v_{-1/2} = -dt/2 F(Y_0), which makes it second order.
    """

    second_order_start: bool = False

    @property
    def name(self) -> str:  # type: ignore[override]
        """How configs refer to it."""
        return "leapfrog_second_order" if self.second_order_start else "leapfrog"

    @property
    def order(self) -> int:  # type: ignore[override]
        """1 as the paper starts it, 2 with the centred start."""
        return 2 if self.second_order_start else 1

    def start(self, features: Tensor, layers: Layers, step_size: float) -> State:
        """Y_0 and v_{-1/2}."""
        if self.second_order_start:
            return features, -step_size / 2 * evaluate(layers[0], features)
        return features, torch.zeros_like(features)

    def shears(self, layers: Layers) -> tuple[Shear, ...]:
        """Velocity first, then position."""
        return Shear(1, 0, layers[0], 1), Shear(0, 1, None, 1)

    def finish(self, state: State) -> Tensor:
        """The position."""
        return state[0]


INTEGRATORS: tuple[AbstractIntegrator, ...] = (
    ForwardEuler(),
    RungeKutta4(),
    Verlet(),
    Leapfrog(),
    Leapfrog(second_order_start=True),
)


def resolve_integrator(integrator: str | AbstractIntegrator) -> AbstractIntegrator:
    """The integrator of that name, or the object itself."""
    if isinstance(integrator, AbstractIntegrator):
        return integrator
    if isinstance(integrator, type) and issubclass(integrator, AbstractIntegrator):
        raise ConfigError(
            f"integrator is the class {integrator.__name__}; pass {integrator.__name__}()"
        )
    by_name = {known.name: known for known in INTEGRATORS}
    if not isinstance(integrator, str) or integrator not in by_name:
        raise unknown_name("integrator", integrator, by_name)
    return by_name[integrator]


def evaluate(
    layer: nn.Module, features: Tensor, weights: dict[str, Tensor] | None = None
) -> Tensor:
    """F(features) in the state's dtype, with half-precision layers met by casts.

    `weights` stand in for the layer's own; they are all of them, each by each of its names.
    """
    inputs = features.to(_layer_dtype(layer, features, weights))
    outputs: Tensor = (
        layer(inputs)
        if weights is None
        else functional_call(layer, weights, (inputs,), tie_weights=False)
    )
    if outputs.shape != features.shape:
        raise ValueError(
            f"a layer must keep the shape of its input, but {type(layer).__name__} made "
            f"{tuple(outputs.shape)} of {tuple(features.shape)}"
        )
    return outputs.to(features.dtype)


def _layer_dtype(
    layer: nn.Module, features: Tensor, weights: dict[str, Tensor] | None
) -> torch.dtype:
    """What a layer computes in: of one's own modules, half precision if its weights have it."""
    if isinstance(layer, AbstractLayer):
        stencil = None if weights is None else weights.get("convolution.stencil")
        return layer.dtype if stencil is None else stencil.dtype
    weight = next(layer.parameters() if weights is None else iter(weights.values()), None)
    is_half = weight is not None and weight.dtype in (torch.bfloat16, torch.float16)
    return weight.dtype if weight is not None and is_half else features.dtype


def _memory_format(features: Tensor) -> torch.memory_format:
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(features.dim())
    if channels_last is None or features.is_contiguous():
        return torch.contiguous_format
    if features.is_contiguous(memory_format=channels_last):
        return channels_last
    return torch.contiguous_format
