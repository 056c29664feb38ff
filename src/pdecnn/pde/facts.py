"""What a class declares of itself: facts that proofs use, and equations in time (Sec. 3)."""

from typing import Any, NamedTuple

from torch import nn

_DETERMINISTIC_OF_TORCH = {
    nn.ModuleList,
    nn.Identity,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
}


def declared(kind: type, fact: str) -> Any:
    """A fact that the body of the class itself declares; None where it is only inherited.

    A subclass may compute anything, so what was proved of its parent says nothing of it.
    """
    return vars(kind).get(fact)


def is_deterministic(kind: type) -> bool:
    """Whether modules of this very class compute the same of the same input and weights."""
    return kind in _DETERMINISTIC_OF_TORCH or declared(kind, "deterministic") is True


class Component(NamedTuple):
    """A part of a state."""

    symbol: str
    """What it is called in equations: 'Y'."""
    name: str
    """The same in words."""
    offset: float = 0.0
    """Where it stands in time, in steps after t_j: -1/2 for v_{j-1/2}."""


class Equation(NamedTuple):
    """The derivative in time, of that order, of `unknown` is sign * F(argument).

    F is the layer in the same place of a step.
    """

    unknown: str
    argument: str
    order: int = 1
    sign: int = 1


HEAT = (Equation("Y", "Y"),)
"""Y' = F(Y) (eq. 5)."""
