"""A block: layers in time, an integrator, and what is kept for the gradient (Sec. 3)."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.errors import ConfigError, unknown_name
from pdecnn.pde.activations import RANDOM_MODULES
from pdecnn.pde.backprop import (
    BACKPROP_MODES,
    REVERSING_MODES,
    Backprop,
    Path,
    Propagator,
    TimeStepping,
)
from pdecnn.pde.convolution import check_features
from pdecnn.pde.grid import Grid, choose_bits
from pdecnn.pde.integrators import (
    AbstractIntegrator,
    AbstractReversibleIntegrator,
    Layers,
    State,
    check_way_back,
    resolve_integrator,
)
from pdecnn.pde.layers import AbstractLayer
from pdecnn.pde.places import new_place
from pdecnn.pde.repeatability import AsNow, refuse_memory, refused_random_numbers, suspects_among
from pdecnn.settings import check_count, check_positive


class Block(nn.Module):
    """Y(T) from Y(0) by `num_steps` time steps of `step_size` (eqs. 3, 8, 10, 11).

    The initial value problem is Y' = F(theta(t), Y), Y(0) = `features` (eq. 5).

    `layers` are in time order, `integrator.layers_per_step` for each step. The layers of a
    single step together with `num_steps` mean that all steps share them: weights constant in
    time. The state is float32 or wider whatever the layers compute in. `grid_bits` keeps it on
    the multiples of 2^-grid_bits in any mode but 'reversible': in 'stored' and 'checkpointed' to
    have the very network that 'exact' computes. `exact_bits` does so in 'exact' alone; unless
    said otherwise they are chosen for the step size (`choose_bits`). `backprop` may be set later;
    the grid follows.

    theta(t_j) -> `layers`, dt -> `step_size`, N -> `num_steps`, T -> `final_time`.
    """

    deterministic = True
    propagator: Propagator = Propagator()
    """How the steps are carried out; another one with the same results may be put in its place."""

    def __init__(
        self,
        layers: Iterable[nn.Module],
        integrator: str | AbstractIntegrator,
        *,
        step_size: float = 1.0,
        num_steps: int | None = None,
        backprop: Backprop = "stored",
        grid_bits: int | None = None,
        exact_bits: int | None = None,
    ) -> None:
        super().__init__()
        self.integrator = resolve_integrator(integrator)
        self.layers = nn.ModuleList(_checked_layers(layers))
        self.step_size = check_positive("step_size", step_size)
        self._num_steps = _checked_num_steps(num_steps, len(self.layers), self.integrator)
        self._grid_bits = grid_bits
        self._exact_bits = None if exact_bits is None else Grid(exact_bits).bits
        self.backprop = backprop
        self._place = new_place(self)
        _check_fit(tuple(self.layers), self.integrator)

    @property
    def backprop(self) -> Backprop:
        """What is kept for the gradient."""
        return self._backprop

    @backprop.setter
    def backprop(self, mode: Backprop) -> None:
        check_backprop(mode, self.integrator)
        _check_use(self._grid_bits, mode, self.integrator)
        bits = self.exact_bits if mode == "exact" else self._grid_bits
        self._grid = None if bits is None else Grid(bits)
        self._backprop = mode

    @property
    def exact_bits(self) -> int:
        """The grid of mode 'exact', whatever the mode is now."""
        given = self._exact_bits if self._grid_bits is None else self._grid_bits
        return choose_bits(self.step_size) if given is None else given

    @property
    def grid(self) -> Grid | None:
        """Where the state is kept, if anywhere."""
        return self._grid

    @property
    def num_steps(self) -> int:
        """N."""
        return self._num_steps

    @property
    def final_time(self) -> float:
        """T = num_steps * step_size."""
        return self.num_steps * self.step_size

    @property
    def step_sizes(self) -> tuple[float, ...]:
        """The size of each step: `step_size`, times what layers have as their own.

        Once around through all components of the state each of their factors is met once: of two
        components, as in waves, their product stands before dt^2.
        """
        root = 1 / max(1, len(self.integrator.components))
        sizes = []
        for layers in self.steps:
            own = [layer.factor for layer in layers if isinstance(layer, AbstractLayer)]
            sizes.append(self.step_size * (prod(own) ** root if root < 1 else prod(own)))
        return tuple(sizes)

    @property
    def steps(self) -> tuple[Layers, ...]:
        """The layers of each step, in time order."""
        width, layers = self.integrator.layers_per_step, tuple(self.layers)
        distinct = tuple(zip(*[iter(layers)] * width, strict=True))
        return distinct * (self._num_steps // len(distinct))

    @property
    def acceleration(self) -> Path:
        """In which way it steps, and why; see `pdecnn.accelerate`."""
        return self.propagator.path(self.stepping())

    def forward(self, features: Tensor) -> Tensor:
        """The features at the final time, in the dtype they came in."""
        return self.propagator.carry(self.stepping(features), features)

    def propagate(self, features: Tensor) -> State:
        """The state at the final time, differentiated as `backprop` says."""
        return self.propagator.propagate(self.stepping(features), features)

    def trajectory(self, features: Tensor) -> list[State]:
        """All num_steps + 1 states, from the initial to the final one."""
        stepping, propagator = self.stepping(features), self.propagator
        states = [propagator.start(stepping, features)]
        for layers in stepping.steps:
            states.append(propagator.advance(stepping, states[-1], [layers]))
        return states

    def reverse(self, state: State) -> Tensor:
        """The features from which `propagate` reaches `state`.

        In mode 'exact' bit for bit (the features rounded to the grid), else up to rounding. The
        integrator must have a step back, and its `finish` must undo its `start`.
        """
        features = self.integrator.finish(self.retrace(state))
        with AsNow(refuse_memory(self.layers, self.integrator)):
            _check_start(self.stepping(), features)
        return features

    def retrace(self, state: State) -> State:
        """The state from which the steps reach `state`: bit for bit in mode 'exact'."""
        integrator = self.integrator
        if not isinstance(integrator, AbstractReversibleIntegrator):
            raise ConfigError(
                f"{integrator.name} steps cannot be undone; reversal needs a hyperbolic block, "
                f"with integrator 'verlet' or 'leapfrog'"
            )
        _check_state(state, integrator)
        norms = refuse_memory(self.layers, integrator)
        stepping = self.stepping()
        if self._grid is not None:
            self._grid.check_state(state)
        suspects = suspects_among(self.layers)
        with refused_random_numbers(suspects, integrator, state[0].device), AsNow(norms):
            if self._grid is not None:
                state = stepping.walk_on_grid(state, stepping.steps, back=True)
            else:
                for layers in reversed(stepping.steps):
                    state = integrator.step_back(layers, state, self.step_size)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._place = new_place(self)  # not that of the block this is a copy of

    def extra_repr(self) -> str:
        """The arguments that define the block, layers aside."""
        return (
            f"integrator={self.integrator.name}, step_size={self.step_size}, "
            f"num_steps={self.num_steps}, backprop={self.backprop}"
        )

    def stepping(self, features: Tensor | None = None) -> TimeStepping:
        """What the steps are, features having been looked at where they come in."""
        steps = self.steps
        first = steps[0][0]
        if features is not None and isinstance(first, AbstractLayer):
            channels = self.integrator.block_channels(first.channels)
            check_features(features, channels, first.dimension, first.convolution.stencil)
        return TimeStepping(
            self.integrator, steps, self.step_size, self._grid, self._backprop, self._place
        )


def copy_in_mode(
    block: Block, *, backprop: Backprop = "stored", grid_bits: int | None = None
) -> Block:
    """The same steps by copies of the layers, in that mode, and on no grid but the one given."""
    return Block(
        deepcopy(block.layers),
        block.integrator,
        step_size=block.step_size,
        num_steps=block.num_steps,
        backprop=backprop,
        grid_bits=grid_bits,
    )


def _checked_layers(layers: Iterable[nn.Module]) -> list[nn.Module]:
    single = isinstance(layers, nn.Module) and not isinstance(layers, nn.ModuleList)
    if single or not isinstance(layers, Iterable):
        raise ConfigError(
            f"layers must be a list of modules, found {type(layers).__name__}; pass [layer] for "
            f"a single one"
        )
    modules = list(layers)
    for module in modules:
        if not isinstance(module, nn.Module):
            raise ConfigError(f"layers must be modules, found {module!r}")
    return modules


def _checked_num_steps(
    num_steps: int | None, num_layers: int, integrator: AbstractIntegrator
) -> int:
    width = integrator.layers_per_step
    if num_layers == 0 or num_layers % width:
        raise ConfigError(
            f"{integrator.name} uses {width} layer(s) a step, so a block needs a positive "
            f"multiple of {width}; found {num_layers} layers"
        )
    if num_steps is None:
        return num_layers // width
    num_steps = check_count("num_steps", num_steps)
    if num_layers not in (width, width * num_steps):
        raise ConfigError(
            f"{num_steps} steps of {integrator.name} need {width * num_steps} layers, or {width} "
            f"shared by all steps; found {num_layers}"
        )
    return num_steps


def check_backprop(backprop: str, integrator: AbstractIntegrator) -> None:
    """Refuse unknown modes, and reversal of what cannot be reversed."""
    if backprop not in BACKPROP_MODES:
        raise unknown_name("backprop mode", backprop, BACKPROP_MODES)
    if backprop in REVERSING_MODES and not integrator.reversible:
        raise ConfigError(
            f"backprop={backprop!r} needs a reversible integrator such as 'verlet' or "
            f"'leapfrog', but {integrator.name} steps cannot be undone; use 'stored' or "
            f"'checkpointed'"
        )
    if backprop == "exact" and not _lists_shears(integrator):
        raise ConfigError(
            f"backprop='exact' rounds what the shears of a step add, but {integrator.name} lists "
            f"none; use 'reversible', 'stored' or 'checkpointed'"
        )


def _lists_shears(integrator: AbstractIntegrator) -> bool:
    return isinstance(integrator, AbstractReversibleIntegrator) and integrator.lists_shears


def _check_use(grid_bits: int | None, backprop: str, integrator: AbstractIntegrator) -> None:
    if grid_bits is not None and (not _lists_shears(integrator) or backprop == "reversible"):
        raise ConfigError(
            f"grid_bits={grid_bits} has no use with backprop={backprop!r} and "
            f"{integrator.name}; it needs a reversible integrator and 'exact', or 'stored' or "
            f"'checkpointed' for comparison"
        )


def _check_state(state: State, integrator: AbstractIntegrator) -> None:
    number = len(integrator.components)
    fits = isinstance(state, tuple) and (len(state) == number if number else len(state) > 0)
    if not fits or not all(isinstance(part, Tensor) for part in state):
        wanted = f"{number} tensors" if number else "a tuple of tensors"
        raise ValueError(
            f"reverse takes the state that propagate returns, {wanted}; found "
            f"{type(state).__name__}"
        )
    kinds = dict.fromkeys((tuple(part.shape), part.dtype) for part in state)
    if len(kinds) > 1:
        found = " and ".join(f"{shape} {dtype}" for shape, dtype in kinds)
        raise ValueError(f"all parts of a state have one shape and dtype; found {found}")


def _check_start(stepping: TimeStepping, features: Tensor) -> None:
    """Refuse features that `start` and `finish` do not give back, being another state's."""
    integrator = stepping.integrator
    again = integrator.finish(integrator.start(features, stepping.steps[0], stepping.step_size))
    tolerance = 100 * torch.finfo(features.dtype).eps
    if again.shape != features.shape or not torch.allclose(
        again, features, rtol=tolerance, atol=tolerance, equal_nan=True
    ):
        raise ConfigError(
            f"reverse needs an integrator whose finish undoes its start, finish(start(x)) = x, "
            f"but {integrator.name} gives something else; make finish return what start was given"
        )


def _check_fit(layers: Sequence[nn.Module], integrator: AbstractIntegrator) -> None:
    check_way_back(integrator)
    parts = [part for layer in layers for part in layer.modules()]
    if integrator.reversible and any(isinstance(part, RANDOM_MODULES) for part in parts):
        raise ConfigError(
            f"dropout in a reversible block ({integrator.name}) is refused: a state computed "
            f"backwards would meet other random numbers; use it outside the blocks"
        )
    refuse_memory(layers, integrator)
    kinds = {
        (layer.channels, layer.dimension) for layer in layers if isinstance(layer, AbstractLayer)
    }
    if len(kinds) > 1:
        raise ConfigError(
            f"all layers of a block must have the same channels and dimension, found {kinds}"
        )
