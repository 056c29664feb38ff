"""Is a block stable: bounds, spectra and growth of its steps, and the verdict (eq. 6)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pdecnn.diagnostics.growth import PERTURBATIONS, Growth, measure_growth
from pdecnn.diagnostics.guarantees import guaranteed_bound
from pdecnn.diagnostics.inputs import block_inputs
from pdecnn.diagnostics.jacobians import layer_jacobian, plain_copy, system_jacobian
from pdecnn.diagnostics.local_bounds import local_stability
from pdecnn.diagnostics.spectra import (
    DENSE_SIZE,
    Spectrum,
    convolution_norm,
    largest_symmetric_eigenvalue,
    spectrum,
)
from pdecnn.diagnostics.verdict import (
    StepStability,
    Verdict,
    diverged_verdict,
    is_hyperbolic,
    judge,
)
from pdecnn.networks.network import Network
from pdecnn.pde.block import Block
from pdecnn.pde.integrators import AbstractReversibleIntegrator, Layers, Leapfrog, State, Verlet
from pdecnn.pde.layers import AbstractLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockStability:
    """The stability of a block at given features."""

    steps: tuple[StepStability, ...]
    growth: tuple[Growth, ...]
    """Each perturbation forwards, then for hyperbolic blocks backwards."""
    verdict: Verdict


def block_stability(
    block: Block, features: Tensor, *, dense_size: int = DENSE_SIZE, num_iterations: int = 30
) -> BlockStability:
    """Measure a block at `features` and say what can be said of its stability (eq. 6).

    Everything is computed in float64 on a copy in evaluation mode. The spectra are those of the
    first example, growth is the largest over all of them.
    """
    plain = plain_copy(block)
    with torch.no_grad():
        states = plain.trajectory(features.detach().double())
    growth = _measured_growth(plain, features, num_iterations)
    if not all(bool(part.isfinite().all()) for state in states for part in state):
        return BlockStability(steps=(), growth=growth, verdict=diverged_verdict(plain))
    steps = tuple(
        _step_stability(plain, _first_example(states[index]), index, dense_size)
        for index in range(plain.num_steps)
    )
    verdict = judge(plain, steps, growth, tuple(features.shape[2:]), dense_size)
    return BlockStability(steps=steps, growth=growth, verdict=verdict)


def network_stability(
    network: Network, images: Tensor, *, dense_size: int = DENSE_SIZE, num_iterations: int = 30
) -> list[BlockStability]:
    """`block_stability` of every block, at the features that standardised `images` bring to it."""
    return [
        block_stability(block, features, dense_size=dense_size, num_iterations=num_iterations)
        for block, features in zip(network.blocks, block_inputs(network, images), strict=True)
        if isinstance(block, Block)
    ]


def _first_example(state: State) -> State:
    return tuple(part[:1] for part in state)


def _measured_growth(block: Block, features: Tensor, num_iterations: int) -> tuple[Growth, ...]:
    directions = (False, True) if is_hyperbolic(block) else (False,)
    return tuple(
        measure_growth(
            block,
            features,
            perturbation=perturbation,
            backward=backward,
            num_iterations=num_iterations,
        )
        for backward in directions
        for perturbation in PERTURBATIONS
    )


def _step_stability(block: Block, state: State, index: int, dense_size: int) -> StepStability:
    layers = block.steps[index]
    size = tuple(state[0].shape[2:])
    own = [layer for layer in layers if isinstance(layer, AbstractLayer)]
    jacobians = [
        layer_jacobian(layer, source)
        for layer, source in zip(layers, _sources(block, layers, state), strict=True)
    ]
    spectra = tuple(spectrum(jacobian, dense_size=dense_size) for jacobian in jacobians)
    local = local_stability(block.integrator, layers, state, block.step_size, dense_size=dense_size)
    return StepStability(
        step_size=block.step_size,
        guaranteed_bound=guaranteed_bound(block.integrator, layers, size, dense_size=dense_size),
        local_bound=None if local is None else local.bound,
        norms=tuple(
            convolution_norm(layer.convolution, size, dense_size=dense_size) for layer in own
        ),
        symmetric_eigenvalues=tuple(
            largest_symmetric_eigenvalue(jacobian, dense_size=dense_size) for jacobian in jacobians
        ),
        amplification=None if local is None else local.amplification,
        layer_spectra=spectra,
        system_spectrum=_system_spectrum(block, state, index, spectra, dense_size),
    )


def _system_spectrum(
    block: Block, state: State, index: int, spectra: tuple[Spectrum, ...], dense_size: int
) -> Spectrum | None:
    """Of `system_jacobian`, found from matrices of half its size where it is a wave.

    The eigenvalues of [[0, I], [J, 0]] are +-sqrt(lambda(J)), those of [[0, P], [-Q, 0]]
    +-sqrt(-lambda(P Q)).
    """
    layers, integrator = block.steps[index], block.integrator
    if isinstance(integrator, Leapfrog):
        return spectra[0].square_roots()
    if isinstance(integrator, Verlet):
        first, second = layer_jacobian(layers[0], state[1]), layer_jacobian(layers[1], state[0])
        return spectrum(first.after(second), dense_size=dense_size).negated().square_roots()
    if integrator.reversible:
        return spectrum(system_jacobian(block, state, step=index), dense_size=dense_size)
    # Y' = F(Y) where there is one layer a step, and unknown where there are several.
    return spectra[0] if len(spectra) == 1 else None


def _sources(block: Block, layers: Layers, state: State) -> list[Tensor]:
    """What each layer of a step is applied to."""
    integrator = block.integrator
    if not isinstance(integrator, AbstractReversibleIntegrator):
        return [state[0]] * len(layers)
    components, sources = list(state), []
    with torch.no_grad():
        for shear in integrator.shears(layers):
            if shear.layer is not None:
                sources.append(components[shear.source])
            components[shear.target] = shear.add_to(
                components[shear.target], components[shear.source], block.step_size, None
            )
    return sources
