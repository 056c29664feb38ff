"""How much a block multiplies perturbations: the constant M of the stability condition (eq. 6)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from pdecnn.diagnostics.jacobians import double_state, plain_copy, products_at
from pdecnn.errors import ConfigError, unknown_name
from pdecnn.pde.block import Block
from pdecnn.pde.integrators import AbstractReversibleIntegrator, State
from pdecnn.settings import check_count, check_positive

Perturbation = Literal["random", "noise", "worst"]
PERTURBATIONS: tuple[Perturbation, ...] = get_args(Perturbation)
MOST_DEPTHS = 16
"""Deeper blocks are measured at so many depths: to measure all takes time like their square."""
_CONVERGED = 1e-6
Path = Callable[[Tensor, int], list[Tensor]]
"""The values (batch, numbers) after 0, 1, ..., `depth` steps from flat initial values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """|Y_j - Y~_j| / |Y_0 - Y~_0| against the depth j, the largest over the examples (eq. 6)."""

    perturbation: str
    """'random': infinitesimal, in random directions; 'noise': white noise of finite size;
    'worst': the largest singular value of dY_j/dY_0, for each depth by itself."""
    backward: bool
    """Whether time runs backwards, from the final state."""
    depths: tuple[int, ...]
    """Where it was measured: 0, 1, ..., the number of steps; for 'worst' some of many."""
    constants: tuple[float, ...]
    """One for each of `depths`; the first is 1."""
    relative_constants: tuple[float, ...]
    """The same of |Y_j - Y~_j| / |Y_j|: features that shrink leave more of a smaller distance."""

    @property
    def constant(self) -> float:
        """M, the largest over the depths."""
        return max(self.constants)

    @property
    def relative_constant(self) -> float:
        """The largest of `relative_constants`."""
        return max(self.relative_constants)


def measure_growth(
    block: Block,
    features: Tensor,
    *,
    perturbation: Perturbation = "worst",
    backward: bool = False,
    noise_size: float = 0.1,
    num_draws: int = 4,
    num_iterations: int = 30,
    seed: int = 0,
) -> Growth:
    """The growth of perturbations of `features` through the block, in float64 (eq. 6).

    Forwards from features to features; backwards, which needs a hyperbolic block, from the
    whole final state (both components) to the whole earlier states. 'random' and 'noise' take
    the largest of `num_draws`; 'noise' has `noise_size` times the norm of each example; 'worst'
    is a power iteration of at most `num_iterations` products with the Jacobian and its transpose,
    fewer where it gains less than a millionth, an estimate from below. The grid of mode 'exact'
    is left out.
    """
    if perturbation not in PERTURBATIONS:
        raise unknown_name("perturbation", perturbation, PERTURBATIONS)
    check_positive("noise_size", noise_size)
    check_count("num_draws", num_draws)
    check_count("num_iterations", num_iterations)
    plain = plain_copy(block)
    with torch.no_grad():
        path, start = (_backward_path if backward else _forward_path)(plain, features)
        sizes = _lengths(torch.stack(path(start, plain.num_steps)))
    generator = torch.Generator().manual_seed(seed)
    depths = tuple(range(plain.num_steps + 1))
    if perturbation == "worst":
        # All of them, or some in nearly equal distances.
        number = min(plain.num_steps, MOST_DEPTHS)
        depths = tuple(round(place * plain.num_steps / number) for place in range(number + 1))
        first = _unit(_normal_like(start, generator))
        ratios = _worst(path, start, first, depths, num_iterations)
    else:
        along = _derivative if perturbation == "random" else partial(_difference, noise_size)
        draws = (_unit(_normal_like(start, generator)) for _ in range(num_draws))
        found = [along(path, start, draw, plain.num_steps) for draw in draws]
        ratios = torch.stack(found).amax(0)
    # Features that vanish and stay so have no size to compare with.
    shrinkage = torch.nan_to_num(sizes[:1] / sizes[list(depths)], nan=1.0, posinf=inf)
    return Growth(
        perturbation=perturbation,
        backward=backward,
        depths=depths,
        constants=_largest(ratios),
        relative_constants=_largest(ratios * shrinkage),
    )


def _forward_path(block: Block, features: Tensor) -> tuple[Path, Tensor]:
    wide = features.detach().double()

    def path(flat: Tensor, depth: int) -> list[Tensor]:
        integrator, steps = block.integrator, block.steps
        state = integrator.start(flat.view(wide.shape), steps[0], block.step_size)
        found = [integrator.finish(state).flatten(1)]
        for layers in steps[:depth]:
            state = integrator.step(layers, state, block.step_size)
            found.append(integrator.finish(state).flatten(1))
        return found

    return path, wide.flatten(1)


def _backward_path(block: Block, features: Tensor) -> tuple[Path, Tensor]:
    integrator = block.integrator
    if not integrator.reversible:
        raise ConfigError(
            f"{integrator.name} steps cannot be undone, so nothing grows backwards in time; use a "
            f"hyperbolic block or backward=False"
        )
    undone = cast(AbstractReversibleIntegrator, integrator)
    final = double_state(block.propagate(features.detach().double()))

    def joined(state: State) -> Tensor:
        return torch.cat([part.flatten(1) for part in state], dim=1)

    def path(flat: Tensor, depth: int) -> list[Tensor]:
        parts = zip(flat.chunk(len(final), dim=1), final, strict=True)
        state: State = tuple(part.reshape(wanted.shape) for part, wanted in parts)
        found = [flat]
        for layers in list(reversed(block.steps))[:depth]:
            state = undone.step_back(layers, state, block.step_size)
            found.append(joined(state))
        return found

    return path, joined(final)


def _derivative(path: Path, start: Tensor, direction: Tensor, depth: int) -> Tensor:
    """Ratios (depth + 1, batch) of the derivative along a direction."""
    apply, _ = products_at(lambda values: torch.stack(path(values, depth)), start)
    return _lengths(apply(direction))


@torch.no_grad()
def _difference(size: float, path: Path, start: Tensor, direction: Tensor, depth: int) -> Tensor:
    """Ratios (depth + 1, batch) of the distance to the path from a start with noise."""
    length = size * start.norm(dim=1, keepdim=True)
    # Features that vanish have no size of their own.
    length = torch.where(length > 0, length, torch.full_like(length, size))
    apart = torch.stack(path(start + length * direction, depth)) - torch.stack(path(start, depth))
    return _lengths(apart / length)


def _worst(
    path: Path, start: Tensor, first: Tensor, depths: tuple[int, ...], num_iterations: int
) -> Tensor:
    """The largest singular values (depths, batch), by power iteration; 1 at depth 0."""
    ratios = [start.new_ones(len(start))]
    direction = first
    for reached in depths[1:]:
        # What was worst before may be a singular vector still, but no longer the first one: the
        # iteration would never leave it.
        direction = _unit(direction + first)

        def end(values: Tensor, reached: int = reached) -> Tensor:
            return path(values, reached)[-1]

        apply, adjoint = products_at(end, start)
        ratio = start.new_zeros(len(start))
        for _ in range(num_iterations):
            pushed = apply(direction)
            before, ratio = ratio, _lengths(pushed)
            if ratio.amax() - before.amax() <= _CONVERGED * ratio.amax():
                break  # it never falls
            pulled = adjoint(pushed)
            # An example whose perturbation died out goes on with the direction it had.
            alive = pulled.norm(dim=1, keepdim=True) > 0
            direction = torch.where(alive, _unit(pulled), direction)
        ratios.append(ratio)
    return torch.stack(ratios)


def _lengths(values: Tensor) -> Tensor:
    """The norm for each depth and example, or for each example."""
    lengths: Tensor = torch.linalg.vector_norm(values.detach(), dim=-1)
    return lengths


def _largest(ratios: Tensor) -> tuple[float, ...]:
    """The largest over the examples, for each depth; infinite where it is not known."""
    return tuple(inf if value != value else value for value in ratios.amax(1).tolist())


def _unit(values: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(values, dim=1, keepdim=True)
    return values / lengths.clamp(min=torch.finfo(values.dtype).tiny)


def _normal_like(values: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(values.shape, generator=generator, dtype=values.dtype)
    return drawn.to(values.device)
