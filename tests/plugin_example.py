"""Two integrators and a layer as a user would write them, with their facts declared.

Importing this module registers nothing; `INTEGRATORS` and `LAYERS` are what a plugin would offer.
"""

from cmath import sqrt
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from pdecnn.errors import DivergedError
from pdecnn.pde import AbstractLayer, AbstractReversibleIntegrator
from pdecnn.pde.facts import HEAT, Component, StabilityRule
from pdecnn.pde.integrators import evaluate


def _explicit_growth(z: complex) -> float:
    """The larger root of r^2 - 2 z r - 1."""
    root = sqrt(z * z + 1)
    return max(abs(z + root), abs(z - root))


def _explicit_bound(eigenvalue: complex) -> float:
    """Only oscillations stay bounded, up to dt |lambda| = 1."""
    return 1 / abs(eigenvalue) if eigenvalue.real == 0 else 0.0


@dataclass(frozen=True)
class ExplicitMidpoint(AbstractReversibleIntegrator):
    """Y_{j+1} = Y_{j-1} + 2 dt F(Y_j): second order, reversible, no shears; unstable for heat."""

    name = "explicit_midpoint"
    title = "explicit midpoint"
    order = 2
    components = (
        Component("Y before", "features Y one step before", offset=-1.0),
        Component("Y", "features Y"),
    )
    equations = HEAT
    stability = StabilityRule(_explicit_growth, _explicit_bound)

    def start(self, features, layers, step_size):
        return features - step_size * evaluate(layers[0], features), features

    def step(self, layers, state, step_size):
        before, now = state
        return now, before + 2 * step_size * evaluate(layers[0], now)

    def step_back(self, layers, state, step_size):
        now, after = state
        return after - 2 * step_size * evaluate(layers[0], now), now

    def finish(self, state):
        return state[1]


def _implicit_growth(z: complex) -> float:
    return abs((1 + z / 2) / (1 - z / 2)) if z != 2 else inf


def _implicit_bound(eigenvalue: complex) -> float:
    return inf if eigenvalue.real <= 0 else 0.0


@dataclass(frozen=True)
class ImplicitMidpoint(AbstractReversibleIntegrator):
    """Y_{j+1} = Y_j + dt F((Y_j + Y_{j+1})/2) by fixed-point iteration: second order.

    Contractive at any step size where F is monotone; the iteration converges for dt |F'| < 2.
    """

    name = "implicit_midpoint"
    title = "implicit midpoint"
    order = 2
    components = (Component("Y", "features Y"),)
    equations = HEAT
    stability = StabilityRule(_implicit_growth, _implicit_bound, contractive=inf, linear=inf)
    most_iterations = 200
    exported_iterations = 20

    def start(self, features, layers, step_size):
        return (features,)

    def step(self, layers, state, step_size):
        (before,) = state
        after = before
        if torch.compiler.is_compiling():  # a graph cannot look at numbers
            for _ in range(self.exported_iterations):
                after = before + step_size * evaluate(layers[0], (before + after) / 2)
            return (after,)
        # Layers in half precision round more coarsely than the state: it cannot be met better.
        wide = torch.finfo(before.dtype).eps
        coarse = torch.finfo(next(layers[0].parameters()).dtype).eps
        tolerance = 2 * max(wide, abs(step_size) * coarse)
        for _ in range(self.most_iterations):
            new = before + step_size * evaluate(layers[0], (before + after) / 2)
            change = (new - after).detach().abs().amax()
            if change <= tolerance * new.detach().abs().amax():
                return (new,)
            after = new
        raise DivergedError("the iteration for a step did not converge; take smaller steps")

    def step_back(self, layers, state, step_size):
        return self.step(layers, state, -step_size)

    def finish(self, state):
        return state[0]


class LeakyLayer(AbstractLayer):
    """F(Y) = sigma(N(K Y)) - Y: every feature decays towards what the stencil says."""

    name = "leaky"
    deterministic = True

    def forward(self, features: Tensor) -> Tensor:
        """F(features)."""
        return self.activation(self.pre_activation(features)) - features


INTEGRATORS = (ExplicitMidpoint(), ImplicitMidpoint())
LAYERS = (LeakyLayer,)
