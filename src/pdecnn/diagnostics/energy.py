"""The energy along a block: as printed (eq. 12), and what is really conserved."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn

from pdecnn.diagnostics.guarantees import departure
from pdecnn.diagnostics.jacobians import plain_copy
from pdecnn.pde.block import Block
from pdecnn.pde.facts import declared
from pdecnn.pde.integrators import Layers, State, evaluate
from pdecnn.pde.layers import AbstractLayer, SymmetricLayer
from pdecnn.pde.normalization import ChannelAffine, ChannelBias

EnergyOf = Callable[[Layers, State], Tensor | None]
CURVES = ("norms", "raw", "centred", "printed_raw", "printed_centred")
"""The fields of `EnergyCurves`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyCurves:
    """Energies at t_0 ... t_N, each of shape (num_steps + 1, batch), in float64.

    *Raw* is at the states as they are stored. *Centred* takes the components of a hyperbolic
    state at one time, (v_{j-1/2} + v_{j+1/2})/2 for leapfrog and ((Y_j + Y_{j+1})/2, Z_j) for
    Verlet: its energy error falls like dt^2, the raw one's like dt. Centred values at t_N take
    the last step once more.
    """

    norms: Tensor
    """|Y_j|, or |(Y_j, Z_j)| of Hamiltonian blocks: of the features."""
    raw: Tensor | None
    """Without normalisation: |v|^2/2 + sum Phi(K Y) for second order, sum Phi(K_1 Z) +
    sum Phi(K_2 Y) for Hamiltonian, both conserved with weights constant in time; sum Phi(K Y)
    for parabolic, which then never increases below the step bound. None: no energy is known."""
    centred: Tensor | None
    """The same at centred states; None for parabolic blocks too."""
    printed_raw: Tensor | None
    """(|v|^2 + (K Y)^T sigma(K Y))/2 (eq. 12), second order only. In general not conserved."""
    printed_centred: Tensor | None
    """The same at centred states."""


def block_times(block: Block) -> list[float]:
    """t_0 ... t_N; stable steps differ from each other."""
    sizes = block.step_sizes
    if len(set(sizes)) == 1:
        return [sizes[0] * step for step in range(len(sizes) + 1)]
    return list(accumulate(sizes, initial=0.0))


def relative_change(curve: Tensor) -> float:
    """max |E_j - E_0| / |E_0| over times and images; examples that start at 0 are left out."""
    start = curve[:1].abs()
    changes = ((curve - curve[:1]).abs() / start)[:, start[0] != 0]
    return float(changes.max()) if changes.numel() else 0.0


@torch.no_grad()
def energy_curves(block: Block, features: Tensor) -> EnergyCurves:
    """The energies of every example along `Block.trajectory`, in float64 (eq. 12)."""
    plain = plain_copy(block)
    states = plain.trajectory(features.detach().double())
    steps = [*plain.steps, plain.steps[-1]]
    centred = _centred_states(plain, states, steps)
    finish = plain.integrator.finish
    return EnergyCurves(
        norms=torch.stack([finish(state).flatten(1).norm(dim=1) for state in states]),
        raw=_along(_conserved(plain), steps, states),
        centred=_along(_conserved(plain), steps, centred),
        printed_raw=_along(_printed(plain), steps, states),
        printed_centred=_along(_printed(plain), steps, centred),
    )


def potential(layer: nn.Module, features: Tensor) -> Tensor:
    """sum Phi(K Y), of which F_sym is minus the gradient: Phi' = sigma; one for each example.

    With a scale s and a bias b after K it is sum (Phi(s K Y + b) - Phi(b))/s, or sum sigma(b) K Y
    where s = 0. Without normalisation only (`has_potential`).
    """
    assert isinstance(layer, AbstractLayer)
    antiderivative = layer.activation.antiderivative
    assert antiderivative is not None
    filtered = layer.convolution(features)
    norm = layer.normalization
    if not isinstance(norm, ChannelAffine | ChannelBias):
        return layer.factor * _sum(antiderivative(filtered))
    shape = (-1, *(1,) * (filtered.dim() - 2))
    bias = norm.bias.view(shape)
    scale = torch.ones_like(bias) if isinstance(norm, ChannelBias) else norm.scale.view(shape)
    divisor = torch.where(scale == 0, torch.ones_like(scale), scale)
    densities = (antiderivative(scale * filtered + bias) - antiderivative(bias)) / divisor
    total = _sum(torch.where(scale == 0, layer.activation(bias) * filtered, densities))
    return layer.factor * total


def has_potential(layer: nn.Module) -> bool:
    """Whether F is minus the gradient of `potential`: F_sym, no normalisation, Phi known."""
    if not isinstance(layer, AbstractLayer) or declared(type(layer), "symmetric") is not True:
        return False
    plain = type(layer.normalization) in (nn.Identity, ChannelAffine, ChannelBias)
    return plain and departure(layer) is None and layer.activation.antiderivative is not None


def _conserved(block: Block) -> EnergyOf | None:
    if not all(has_potential(layer) for layer in block.layers):
        return None

    def energy(layers: Layers, state: State) -> Tensor | None:
        return block.integrator.energy([partial(potential, layer) for layer in layers], state)

    return energy


def _printed(block: Block) -> EnergyOf | None:
    integrator = block.integrator
    symmetric = all(isinstance(layer, SymmetricLayer) for layer in block.layers)
    symbols = [part.symbol for part in integrator.components]
    second_order = [part.order for part in integrator.equations] == [2]
    if not second_order or symbols != ["Y", "v"] or not symmetric:
        return None

    def printed(layers: Layers, state: State) -> Tensor:
        position, velocity = state
        # (K Y)^T sigma(N(K Y)) = -Y^T F_sym(Y), with any normalisation.
        elastic = -_sum(position * evaluate(layers[0], position))
        return (_sum(velocity.square()) + elastic) / 2

    return printed


def _centred_states(block: Block, states: list[State], steps: list[Layers]) -> list[State] | None:
    """All components at one time: those half a step before the others are averaged."""
    offsets = [part.offset for part in block.integrator.components]
    if -0.5 not in offsets or len(offsets) != len(states[0]):
        return None
    final = block.integrator.step(steps[-1], states[-1], block.step_size)
    return [
        tuple(
            (now + after) / 2 if offset == -0.5 else now
            for offset, now, after in zip(offsets, state, later, strict=True)
        )
        for state, later in zip(states, [*states[1:], final], strict=True)
    ]


def _along(
    energy: EnergyOf | None, steps: list[Layers], states: list[State] | None
) -> Tensor | None:
    if energy is None or states is None:
        return None
    values = [energy(layers, state) for layers, state in zip(steps, states, strict=True)]
    known = [value for value in values if value is not None]
    return torch.stack(known) if len(known) == len(values) else None


def _sum(values: Tensor) -> Tensor:
    """The sum over all but the examples."""
    return values.flatten(1).sum(1)
