"""Is a block stable: bounds, spectra and growth of its steps, and the verdict (eq. 6)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pdecnn.diagnostics.growth import PERTURBATIONS, Growth, measure_growth
from pdecnn.diagnostics.guarantees import departure, guaranteed_bound, is_linear
from pdecnn.diagnostics.jacobians import (
    block_inputs,
    layer_jacobian,
    plain_copy,
    system_jacobian,
)
from pdecnn.diagnostics.local_bounds import LocalStability, layer_sources, local_stability
from pdecnn.diagnostics.spectra import (
    DENSE_SIZE,
    NormBounds,
    Spectrum,
    convolution_norm,
    largest_symmetric_eigenvalue,
    spectrum,
)
from pdecnn.diagnostics.verdict import (
    MissingNumber,
    StepStability,
    Verdict,
    diverged_verdict,
    judge,
)
from pdecnn.errors import ConfigError, DivergedError
from pdecnn.networks.network import Network
from pdecnn.pde.block import Block
from pdecnn.pde.integrators import State
from pdecnn.pde.layers import AbstractLayer

NUM_LONG = 2
"""Long signals of which growth is measured."""
_SIGNALS = 3
"""Axes of a batch of signals."""
LARGEST_PIECE, _FEWEST_POINTS = 4096, 32
"""Numbers (channels times points) of a longer signal that its spectra are of."""
_Found = TypeVar("_Found")


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockStability:
    """The stability of a block at given features."""

    steps: tuple[StepStability, ...]
    growth: tuple[Growth, ...]
    """Each perturbation forwards, then where steps can be undone backwards."""
    verdict: Verdict
    piece: tuple[int, int] | None = None
    """The points of the first signal, from and to, that spectra are of; None: of all points."""


def block_stability(
    block: Block, features: Tensor, *, dense_size: int = DENSE_SIZE, num_iterations: int = 30
) -> BlockStability:
    """Measure a block at `features` and say what can be said of its stability (eq. 6).

    Everything is computed in float64 on a copy in evaluation mode. The spectra are those of the
    first example, growth is the largest over all of them. Of long signals, where nothing is proved
    by it, the spectra are those of the loudest piece and growth is that of the first two. A number
    that is not known, or that no iteration finds, is None, and `StepStability.missing` says why.
    """
    plain = plain_copy(block)
    with torch.no_grad():
        states = plain.trajectory(features.detach().double())
    piece = _loudest_piece(plain, features, dense_size)
    grown = features if piece is None else features[:NUM_LONG]
    growth = tuple(
        measure_growth(
            plain, grown, perturbation=name, backward=backward, num_iterations=num_iterations
        )
        for backward in ((False, True) if plain.integrator.reversible else (False,))
        for name in PERTURBATIONS
    )
    if not all(bool(part.isfinite().all()) for state in states for part in state):
        return BlockStability(steps=(), growth=growth, verdict=diverged_verdict(plain, features))
    steps = tuple(
        _step_stability(plain, tuple(part[:1] for part in state), index, dense_size, piece)
        for index, state in enumerate(states[:-1])
    )
    # What was attached to the block itself, which the copy has not.
    changed = departure(block, with_parts=False)
    size, of_piece = tuple(features.shape[2:]), piece is not None
    verdict = judge(plain, steps, growth, size, dense_size, changed, of_piece=of_piece)
    return BlockStability(steps=steps, growth=growth, verdict=verdict, piece=piece)


def network_stability(
    network: Network, images: Tensor, *, dense_size: int = DENSE_SIZE, num_iterations: int = 30
) -> list[BlockStability]:
    """`block_stability` of every block, at the features that standardised `images` bring to it."""
    return [
        block_stability(block, features, dense_size=dense_size, num_iterations=num_iterations)
        for block, features in zip(network.blocks, block_inputs(network, images), strict=True)
        if isinstance(block, Block)
    ]


def _loudest_piece(block: Block, features: Tensor, dense_size: int) -> tuple[int, int] | None:
    """Where the first of long signals has most in it.

    The ends of a spectrum crowd like 1/n^2 on n points, and to tell them apart takes the more
    products with Jacobians the longer the signal: tens of thousands on a second of sound. Linear
    layers keep all points, since their spectra may be a proof, and so do layers that are not
    pdecnn's own, which may depend on the size.
    """
    channels, length = features.shape[1:3]
    most = max(LARGEST_PIECE // channels, _FEWEST_POINTS)
    small = length <= most or features[0].numel() <= dense_size
    own = [layer for layers in block.steps for layer in layers if departure(layer) is None]
    known = len(own) == sum(map(len, block.steps))
    if features.dim() != _SIGNALS or small or not known or all(map(is_linear, own)):
        return None
    power = features[0].detach().double().square().sum(0)
    begin = int(power.unfold(0, most, 1).sum(1).argmax())
    return begin, begin + most


def _step_stability(
    block: Block, state: State, index: int, dense_size: int, piece: tuple[int, int] | None
) -> StepStability:
    layers = block.steps[index]
    size = tuple(state[0].shape[2:])
    if piece is not None:
        state = tuple(part[..., slice(*piece)] for part in state)
    reasons: dict[str, str] = {}

    def find(number: str, compute: Callable[..., _Found], *arguments: Any) -> _Found | None:
        """What is computed; None where it is not known, or no iteration finds it."""
        try:
            return compute(*arguments, dense_size=dense_size)
        except (ConfigError, DivergedError) as error:
            reasons[number] = str(error)
            return None

    # A layer with a dt of its own is bounded relative to it.
    own = block.step_sizes[index] / block.step_size
    sources, _ = layer_sources(block.integrator, layers, state, block.step_size)
    jacobians = list(map(layer_jacobian, layers, sources))
    norm = _norm if piece is None else _estimated_norm
    norms = [find(f"norm of K of layer {k}", norm, layer, size) for k, layer in enumerate(layers)]
    symmetric_eigenvalues = [
        find(f"largest symmetric eigenvalue of layer {k}", largest_symmetric_eigenvalue, jacobian)
        for k, jacobian in enumerate(jacobians)
    ]
    spectra = [
        find(f"spectrum of layer {k}", spectrum, jacobian) for k, jacobian in enumerate(jacobians)
    ]
    local = find("local bound", _local, block, state, index)
    amplification = None if local is None else local.amplification
    if amplification is None:
        reasons["amplification"] = str(local.why_missing if local else reasons["local bound"])
    first = spectra[0] or reasons["spectrum of layer 0"]
    system = find("spectrum of the system", _system_spectrum, block, state, index, first)
    guaranteed = guaranteed_bound(block.integrator, layers, size, dense_size=dense_size)
    return StepStability(
        step_size=block.step_sizes[index],
        guaranteed_bound=None if guaranteed is None else own * guaranteed,
        local_bound=None if local is None else own * local.bound,
        norms=tuple(norms),
        symmetric_eigenvalues=tuple(symmetric_eigenvalues),
        amplification=amplification,
        layer_spectra=tuple(spectra),
        system_spectrum=system,
        missing=tuple(
            MissingNumber(number=number, reason=reason) for number, reason in reasons.items()
        ),
    )


def _norm(layer: nn.Module, size: tuple[int, ...], *, dense_size: int) -> NormBounds:
    if not isinstance(layer, AbstractLayer):
        raise ConfigError(
            f"{type(layer).__name__} is not one of pdecnn's layers, so that its K is not known"
        )
    return convolution_norm(layer.convolution, size, dense_size=dense_size)


def _estimated_norm(layer: AbstractLayer, size: tuple[int, ...], *, dense_size: int) -> NormBounds:
    """Of a layer of pdecnn's own; from below by a power iteration, not by Lanczos."""
    del dense_size
    upper = layer.convolution.norm_bound(size)
    return NormBounds(lower=min(layer.convolution.norm_estimate(size), upper), upper=upper)


def _local(block: Block, state: State, index: int, *, dense_size: int) -> LocalStability:
    found = local_stability(
        block.integrator, block.steps[index], state, block.step_size, dense_size=dense_size
    )
    if found is None:
        raise ConfigError(f"no step bound is known for {type(block.integrator).__name__}")
    return found


def _system_spectrum(
    block: Block, state: State, index: int, of_layer: Spectrum | str, *, dense_size: int
) -> Spectrum:
    """Of `system_jacobian`, found from matrices of half its size where it is a wave.

    The eigenvalues of [[0, I], [J, 0]] are +-sqrt(lambda(J)), those of [[0, P], [-Q, 0]]
    +-sqrt(-lambda(P Q)). `of_layer` has those of the first layer, or says why they are missing.
    """
    layers, equations = block.steps[index], block.integrator.equations
    if len(equations) == len(layers) == 1 and equations[0].unknown == equations[0].argument:
        if isinstance(of_layer, str):
            raise DivergedError(of_layer)
        found = of_layer if equations[0].sign > 0 else of_layer.negated()
        return found.square_roots() if equations[0].order == 2 else found
    arguments = [equation.argument for equation in equations]
    if [equation.unknown for equation in reversed(equations)] == arguments and len(layers) == 2:
        first, second = (
            layer_jacobian(layer, state[block.integrator.place(argument)])
            for layer, argument in zip(layers, arguments, strict=True)
        )
        product = spectrum(first.after(second), dense_size=dense_size)
        same = equations[0].sign == equations[1].sign
        return (product if same else product.negated()).square_roots()
    # Refused where the differential equation is not known.
    return spectrum(system_jacobian(block, state, step=index), dense_size=dense_size)
