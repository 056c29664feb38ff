"""Time stepping: forward Euler (eq. 8), Runge-Kutta 4, Verlet (eq. 10) and leapfrog (eq. 11).

A state is a tuple of tensors of one shape. A reversible method has a step back. Most change one
component at a time by an amount that depends on others, `state[target] += increment(sources)`:
such a *shear* is undone exactly by subtracting the same increment, whatever the layer is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import isabstract
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pdecnn.errors import ConfigError
from pdecnn.pde.facts import (
    EULER_RULE,
    HEAT,
    RUNGE_KUTTA_4_RULE,
    WAVE_RULE,
    Component,
    Equation,
    StabilityRule,
)
from pdecnn.pde.layers import AbstractLayer
from pdecnn.plugins import Registry
from pdecnn.settings import check_count

State = tuple[Tensor, ...]
Layers = Sequence[nn.Module]
Weights = dict[str, Tensor]
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_HALF = (torch.bfloat16, torch.float16)
Integrator = TypeVar("Integrator", bound="AbstractIntegrator")
Potential = Callable[[Tensor], Tensor]
"""Phi of a layer, one number for each example."""


class AbstractIntegrator(ABC):
    """How a block advances in time, with its facts declared for tests, diagnostics and pages."""

    name: str
    """How configs refer to it."""
    order: int
    """The error of the features at a fixed time falls like step_size^order."""
    title: str = "this method"
    """What it is called in a sentence."""
    layers_per_step: int = 1
    """How many layers one step uses."""
    reversible: bool = False
    """Whether `step_back` exists."""
    components: tuple[Component, ...] = (Component("Y", "features Y"),)
    """What a state consists of; empty: not declared."""
    features_symbol: str = "Y"
    """What the features are called."""
    equations: tuple[Equation, ...] = HEAT
    """The differential equation that a step discretises, one for each of its layers; of another
    number: not known."""
    stability: StabilityRule | None = None
    """When a step is stable; counts for the class that declares it, not for those below."""
    conserves_energy: bool = False
    """Whether `energy` stays the same, up to small swings, with weights constant in time; counts
    for the class that declares it."""

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

    def energy(self, potentials: Sequence[Potential], state: State) -> Tensor | None:
        """The energy of each example where every F is minus the gradient of its potential.

        Phi(Y) for Y' = F(Y), which never rises below the step bound. None: none is known.
        """
        heat = self.equations == HEAT and len(potentials) == 1
        return potentials[0](state[self.place("Y")]) if heat else None

    def place(self, symbol: str) -> int:
        """Where an unknown stands in a state."""
        return [part.symbol for part in self.components].index(symbol)


class AbstractOneComponentIntegrator(AbstractIntegrator):
    """Indicates that the state is the features and nothing else: Y' = F(Y)."""

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
    title = "forward Euler"
    order = 1
    stability = EULER_RULE

    def step(self, layers: Layers, state: State, step_size: float) -> State:
        """Y + dt F(Y)."""
        (features,) = state
        return (torch.add(features, evaluate(layers[0], features), alpha=step_size),)


@dataclass(frozen=True)
class RungeKutta4(AbstractOneComponentIntegrator):
    """The classical fourth-order Runge-Kutta method; the weights are constant within a step."""

    name = "runge_kutta_4"
    title = "Runge-Kutta"
    order = 4
    stability = RUNGE_KUTTA_4_RULE

    def step(self, layers: Layers, state: State, step_size: float) -> State:
        """Y + dt/6 (k1 + 2 k2 + 2 k3 + k4)."""
        (features,) = state
        slope1 = evaluate(layers[0], features)
        slope2 = evaluate(layers[0], features + step_size / 2 * slope1)
        slope3 = evaluate(layers[0], features + step_size / 2 * slope2)
        slope4 = evaluate(layers[0], features + step_size * slope3)
        return (features + step_size / 6 * (slope1 + 2 * slope2 + 2 * slope3 + slope4),)


class Shear(NamedTuple):
    """state[target] += sign * dt * F(state[source]), with F the identity where layer is None.

    Of several sources F is a function of all of them; without a layer it is their sum.
    """

    target: int
    source: int | tuple[int, ...]
    layer: nn.Module | None
    sign: float

    def sources(self, components: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What F is applied to."""
        places = self.source if isinstance(self.source, tuple) else (self.source,)
        return tuple([components[place] for place in places])

    def rate(self, *sources: Tensor, weights: Weights | None = None) -> Tensor:
        """F(sources); `weights` stand in for the layer's own."""
        if self.layer is None:
            return sum(sources[1:], sources[0])
        return evaluate(self.layer, *sources, weights=weights)

    def increment(
        self, *sources: Tensor, step_size: float, weights: Weights | None = None
    ) -> Tensor:
        """What the shear adds to its target."""
        return self.sign * step_size * self.rate(*sources, weights=weights)


class AbstractReversibleIntegrator(AbstractIntegrator):
    """Indicates that a step can be undone.

    Either `shears` lists what a step adds, in order, or `step` and `step_back` are methods of the
    class's own. Mode 'exact' needs shears, whose increments it rounds.
    """

    reversible = True
    components: tuple[Component, ...] = ()
    equations: tuple[Equation, ...] = ()

    def shears(self, layers: Layers) -> tuple[Shear, ...] | None:
        """The shears of one step, in order; None: the step is of another kind."""
        del layers
        return None

    @property
    def lists_shears(self) -> bool:
        """Whether a step is a sequence of shears."""
        return type(self).shears is not AbstractReversibleIntegrator.shears

    @property
    def has_way_back(self) -> bool:
        """Whether it lists shears, or has both a step and a step back of its own."""
        base, own = AbstractReversibleIntegrator, type(self)
        return self.lists_shears or (
            own.step is not base.step and own.step_back is not base.step_back
        )

    def step(self, layers: Layers, state: State, step_size: float) -> State:
        """Apply every shear."""
        components = list(state)
        for shear in self.shears(layers) or ():
            target, source, layer, sign = shear
            if layer is None or isinstance(source, tuple):
                rate = shear.rate(*shear.sources(components))
            else:  # the same without a detour
                rate = evaluate(layer, components[source])
            components[target] = torch.add(components[target], rate, alpha=sign * step_size)
        return tuple(components)

    def step_back(self, layers: Layers, state: State, step_size: float) -> State:
        """Undo `step`: the same increments subtracted in the opposite order."""
        components = list(state)
        for shear in reversed(self.shears(layers) or ()):
            rate = shear.rate(*shear.sources(components))
            components[shear.target] = torch.add(
                components[shear.target], rate, alpha=-shear.sign * step_size
            )
        return tuple(components)


@dataclass(frozen=True)
class Verlet(AbstractReversibleIntegrator):
    """Y += dt F_1(Z), then Z -= dt F_2(Y) (eq. 10): the Hamiltonian network.

    The features are the channel halves (Y, Z), `features` and `auxiliary`. This is symplectic
    Euler: first order, reversible; below its step bound a linear block stays bounded.
    """

    name = "verlet"
    title = "Verlet"
    order = 1
    layers_per_step = 2
    # Y is computed first from Z of the step before, so it stands half a step before it.
    components = (
        Component("Y", "features Y, first half", offset=-0.5),
        Component("Z", "features Z, second half"),
    )
    features_symbol = "(Y, Z)"
    equations = (Equation("Y", "Z"), Equation("Z", "Y", sign=-1))
    stability = WAVE_RULE
    conserves_energy = True

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
        if features.shape[1] % 2:
            self.layer_channels(features.shape[1])  # which refuses it
        # Own, dense memory for each half: recomputation must meet the layout the forward pass
        # had, or another kernel with other rounding might run.
        layout = torch.contiguous_format if features.is_contiguous() else layout_of(features)
        first, second = features.chunk(2, dim=1)
        return first.contiguous(memory_format=layout), second.contiguous(memory_format=layout)

    def shears(self, layers: Layers) -> tuple[Shear, ...]:
        """Eq. 10 as printed; the paper's continuous system has the opposite sign of time."""
        return Shear(0, 1, layers[0], 1), Shear(1, 0, layers[1], -1)

    def finish(self, state: State) -> Tensor:
        """The halves side by side."""
        return torch.cat(state, dim=1)

    def energy(self, potentials: Sequence[Potential], state: State) -> Tensor:
        """Phi_1(Z) + Phi_2(Y)."""
        return potentials[0](state[1]) + potentials[1](state[0])


@dataclass(frozen=True)
class Leapfrog(AbstractReversibleIntegrator):
    """v_{j+1/2} = v_{j-1/2} + dt F(Y_j), then Y_{j+1} = Y_j + dt v_{j+1/2} (eq. 11).

    The position/velocity form of Y_{j+1} = 2 Y_j - Y_{j-1} + dt^2 F(Y_j): the same numbers with
    less rounding, reversible from (Y_N, v_{N-1/2}). The paper starts with Y_{-1} = Y_0, that is
    v_{-1/2} = 0, which makes it first order; `second_order_start` takes
    v_{-1/2} = -dt/2 F(Y_0), which makes it second order.
    """

    second_order_start: bool = False
    title = "leapfrog"
    components = (
        Component("Y", "features Y"),
        Component("v", "velocity v of the features", offset=-0.5),
    )
    equations = (Equation("Y", "Y", order=2),)
    stability = WAVE_RULE
    conserves_energy = True

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

    def energy(self, potentials: Sequence[Potential], state: State) -> Tensor:
        """|v|^2/2 + Phi(Y)."""
        position, velocity = state
        return velocity.square().flatten(1).sum(1) / 2 + potentials[0](position)


INTEGRATORS: tuple[AbstractIntegrator, ...] = (
    ForwardEuler(),
    RungeKutta4(),
    Verlet(),
    Leapfrog(),
    Leapfrog(second_order_start=True),
)
_REGISTRY = Registry("integrator", {known.name: known for known in INTEGRATORS})


def register_integrator(cls: type[Integrator]) -> type[Integrator]:
    """Make an integrator known by its `name`, so that configs can hold it; a decorator.

    It is made as `cls()`.
    """
    if not isinstance(cls, type) or not issubclass(cls, AbstractIntegrator) or isabstract(cls):
        raise ConfigError(
            f"register_integrator takes a class below AbstractIntegrator with start, step and "
            f"finish, found {cls!r}"
        )
    try:
        made = cls()
    except TypeError as error:
        raise ConfigError(
            f"register_integrator makes {cls.__name__}(), but it needs arguments ({error}); give "
            f"them defaults"
        ) from error
    check_way_back(made)
    check_count(f"layers_per_step of {cls.__name__}", made.layers_per_step)
    _REGISTRY.add(getattr(made, "name", None), made, cls)
    return cls


def resolve_integrator(integrator: str | AbstractIntegrator) -> AbstractIntegrator:
    """The integrator of that name, or the object itself."""
    if isinstance(integrator, AbstractIntegrator):
        return integrator
    if isinstance(integrator, type) and issubclass(integrator, AbstractIntegrator):
        raise ConfigError(
            f"integrator is the class {integrator.__name__}; pass {integrator.__name__}()"
        )
    return _REGISTRY[integrator]


def check_way_back(integrator: AbstractIntegrator) -> None:
    """Refuse a reversible integrator that does not say how a step is undone."""
    if isinstance(integrator, AbstractReversibleIntegrator) and not integrator.has_way_back:
        name = type(integrator).__name__
        raise ConfigError(
            f"{getattr(integrator, 'name', name)} must list its shears or define both step and "
            f"step_back, since {name} is a reversible integrator"
        )


def layout_of(features: Tensor) -> torch.memory_format:
    """Channels last in memory, if they are, else first."""
    last = _CHANNELS_LAST.get(features.dim(), torch.contiguous_format)
    is_last = not features.is_contiguous() and features.is_contiguous(memory_format=last)
    return last if is_last else torch.contiguous_format


def evaluate(layer: nn.Module, *features: Tensor, weights: Weights | None = None) -> Tensor:
    """F(features) in the state's dtype, with half-precision layers met by casts.

    `weights` stand in for the layer's own; they are all of them, each by each of its names.
    """
    wide = features[0].dtype
    if isinstance(layer, AbstractLayer):
        stencil = None if weights is None else weights.get("convolution.stencil")
        dtype = (layer.convolution.stencil if stencil is None else stencil).dtype
    else:  # half precision if its weights have it
        parameters = layer.parameters() if weights is None else iter(weights.values())
        dtype = next(parameters, features[0]).dtype
        dtype = dtype if dtype in _HALF else wide
    inputs = features if dtype == wide else tuple([part.to(dtype) for part in features])
    outputs: Tensor = (
        layer(*inputs)
        if weights is None
        else functional_call(layer, weights, inputs, tie_weights=False)
    )
    if outputs.shape != features[0].shape:
        raise ValueError(
            f"a layer must keep the shape of its input, but {type(layer).__name__} made "
            f"{tuple(outputs.shape)} of {tuple(features[0].shape)}"
        )
    return outputs if outputs.dtype == wide else outputs.to(wide)
