"""How gradients become changes of the weights: momentum, Nesterov's, AdamW, Muon.

Everything stays on the device: a rate may be a tensor, and a step that is not accepted changes
neither weights nor states without anybody having looked.
"""

from abc import ABC, abstractmethod
from math import sqrt
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from pdecnn.learning.training_config import OptimizerConfig

Tensors = list[Tensor] | tuple[Tensor, ...]
State = dict[str, Tensor]
"""What a rule keeps of a weight, by name; a 'velocity' is a change of it, up to a factor."""
Number = float | Tensor
_EPSILON = 1e-8
# Newton-Schulz: a x + b x^3 + c x^5 drives singular values towards 1 quickest (Jordan 2024).
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5


class Step(NamedTuple):
    """The rate of a step, and whether it is taken; None: it is."""

    rate: Number
    accepted: Tensor | None

    def kept(self, share: float, like: Tensor) -> Number:
        """The share of a state that survives the step: all of it where it is not taken."""
        if self.accepted is None:
            return share
        zero = like.new_zeros(())
        return torch.where(self.accepted, zero + share, zero + 1)


class UpdateRule(ABC):
    """x <- (1 - lr weight_decay) x - move, with a move that depends on the rule."""

    def __init__(self, config: OptimizerConfig) -> None:
        self.config = config

    @abstractmethod
    def new_state(self, weight: Tensor) -> State:
        """The state of a weight before its first step."""

    @abstractmethod
    def moves(self, states: list[State], gradients: Tensors, step: Step) -> Tensors:
        """Advance the states; what is to be subtracted from the weights, the rate included."""

    @torch.no_grad()
    def update_(
        self,
        weights: Tensors,
        states: list[State],
        gradients: Tensors,
        rate: Number,
        accepted: Tensor | None = None,
    ) -> None:
        """One step, in place.

        Where `accepted` (0-dim, bool) is false nothing changes; the gradients must be zero then.
        """
        if not weights:
            return
        if accepted is not None:
            rate = torch.where(accepted, rate, gradients[0].new_zeros(()))
        moves = self.moves(states, gradients, Step(rate, accepted))
        if self.config.weight_decay:
            torch._foreach_mul_(weights, 1 - rate * self.config.weight_decay)
        torch._foreach_sub_(weights, moves)


class Momentum(UpdateRule):
    """v <- lr g + m v, move v; outside v <- g + m v, move lr v, or Nesterov's lr (g + m v)."""

    def new_state(self, weight: Tensor) -> State:
        """A velocity of zero."""
        return {"velocity": torch.zeros_like(weight)}

    def moves(self, states: list[State], gradients: Tensors, step: Step) -> Tensors:
        """The velocities, or what the convention makes of them."""
        velocities = list(map(itemgetter("velocity"), states))
        torch._foreach_mul_(velocities, step.kept(self.config.momentum, gradients[0]))
        if self.config.optimizer == "sgd" and self.config.momentum_convention == "rate_inside":
            if isinstance(step.rate, Tensor):
                torch._foreach_add_(velocities, torch._foreach_mul(gradients, step.rate))
            else:
                torch._foreach_add_(velocities, gradients, alpha=step.rate)
            if step.accepted is None:
                return velocities
            return torch._foreach_mul(velocities, step.accepted.to(velocities[0].dtype))
        torch._foreach_add_(velocities, gradients)
        directions: Tensors = velocities
        if self.config.optimizer != "sgd":
            directions = torch._foreach_add(gradients, velocities, alpha=self.config.momentum)
        return torch._foreach_mul(self.directed(directions), step.rate)

    def directed(self, directions: Tensors) -> Tensors:
        """The directions the weights are moved in."""
        return directions


class AdamW(UpdateRule):
    """A move of lr m / (sqrt(s) + 1e-8), m and s the means of g and g^2, corrected at the start."""

    def new_state(self, weight: Tensor) -> State:
        """Means of zero, over no steps."""
        # Named as torch's, which then casts it to no other type when a state dict is loaded.
        step = weight.new_zeros((), dtype=torch.promote_types(weight.dtype, torch.float32))
        zero = torch.zeros_like(weight)
        return {"mean": zero, "square": zero.clone(), "step": step}

    def moves(self, states: list[State], gradients: Tensors, step: Step) -> Tensors:
        """The means over the roots of the squares' means."""
        means, squares, steps = ([state[name] for state in states] for name in _ADAM)
        first, second = self.config.betas
        counts = torch.stack(steps) + (1 if step.accepted is None else step.accepted)
        torch._foreach_copy_(steps, counts.unbind())
        counts = counts.clamp(min=1)  # none yet where no step was accepted
        torch._foreach_mul_(means, step.kept(first, gradients[0]))
        torch._foreach_add_(means, gradients, alpha=1 - first)
        torch._foreach_mul_(squares, step.kept(second, gradients[0]))
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
        sizes = step.rate / (1 - first**counts)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - second**counts).sqrt().unbind())
        torch._foreach_add_(roots, _EPSILON)
        moves = torch._foreach_div(means, roots)
        torch._foreach_mul_(moves, sizes.unbind())
        return moves


_ADAM = ("mean", "square", "step")


class OrthogonalMomentum(Momentum):
    """Nesterov's directions of stencils and matrices, made orthogonal.

    A weight of shape (out, in, ...) is the matrix (out, in ...). Its move has the root mean square
    0.2 lr that AdamW's have, so that one rate serves both (Liu et al. 2025).
    """

    def directed(self, directions: Tensors) -> Tensors:
        """The nearest orthogonal matrices, nearly; those of one shape together."""
        shapes: dict[tuple[int, ...], list[int]] = {}
        for place, direction in enumerate(directions):
            shapes.setdefault(tuple(direction.shape), []).append(place)
        found = list(directions)
        for shape, places in shapes.items():
            matrices = torch.stack([directions[place].flatten(1) for place in places])
            matrices = 0.2 * sqrt(max(matrices.shape[1:])) * orthogonalize(matrices)
            for place, matrix in zip(places, matrices.unbind(), strict=True):
                found[place] = matrix.reshape(shape)
        return found


class Muon(UpdateRule):
    """Orthogonal momentum for stencils and matrices, AdamW for vectors (Jordan 2024)."""

    def __init__(self, config: OptimizerConfig) -> None:
        super().__init__(config)
        self.parts = (AdamW(config), OrthogonalMomentum(config))

    def new_state(self, weight: Tensor) -> State:
        """That of the rule of the weight."""
        return self.parts[weight.dim() > 1].new_state(weight)

    def moves(self, states: list[State], gradients: Tensors, step: Step) -> Tensors:
        """Those of both rules, in the order of the weights."""
        found = list(gradients)
        for kind, rule in enumerate(self.parts):
            places = [k for k, gradient in enumerate(gradients) if (gradient.dim() > 1) == kind]
            if places:
                mine = [states[k] for k in places], [gradients[k] for k in places]
                for place, move in zip(places, rule.moves(*mine, step), strict=True):
                    found[place] = move
        return found


def orthogonalize(matrices: Tensor) -> Tensor:
    """U V^T of each matrix U S V^T, to within some 30 % of its singular values: (n, rows, columns).

    By Newton-Schulz, on a GPU in bfloat16: nothing but products, which wait for nothing.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if tall else matrices
    x = x / (torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) + 1e-30)
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(_NUM_ITERATIONS):
        square = x @ x.mT
        factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, factor, x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


RULES: dict[str, type[UpdateRule]] = {
    "sgd": Momentum,
    "nesterov": Momentum,
    "adamw": AdamW,
    "muon": Muon,
}
