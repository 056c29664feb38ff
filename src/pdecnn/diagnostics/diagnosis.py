"""Everything that is known of the blocks of a network at given images, together."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pdecnn.diagnostics.coefficients import (
    BlockCoefficients,
    block_coefficients,
    has_coefficients,
)
from pdecnn.diagnostics.energy import EnergyCurves, energy_curves
from pdecnn.diagnostics.inputs import block_inputs
from pdecnn.diagnostics.latex import has_equation, pde_latex
from pdecnn.diagnostics.reversibility import ReversalErrors, block_reversibility
from pdecnn.diagnostics.spectra import DENSE_SIZE
from pdecnn.diagnostics.stability import BlockStability, block_stability
from pdecnn.networks.network import Network
from pdecnn.pde.block import Block

LATEX_THRESHOLD = 0.25
"""Terms below this share of the largest one of their operator are left out of the LaTeX."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockDiagnosis:
    """A block, and what was measured of it."""

    block: Block
    channels: int
    size: tuple[int, ...]
    """Of the images the block sees."""
    stability: BlockStability
    energy: EnergyCurves
    reversibility: tuple[ReversalErrors, ...]
    """In float64, float32 and bfloat16; empty: the block cannot be run backwards."""
    coefficients: BlockCoefficients
    latex: tuple[str, ...]
    """The PDE of each step, terms below `LATEX_THRESHOLD` left out; empty: it is not known."""


def diagnose_block(
    block: Block, features: Tensor, *, dense_size: int = DENSE_SIZE, num_iterations: int = 30
) -> BlockDiagnosis:
    """Measure a block at `features`; see the functions of each part."""
    size = tuple(features.shape[2:])
    reversible = block.integrator.reversible
    return BlockDiagnosis(
        block=block,
        channels=features.shape[1],
        size=size,
        stability=block_stability(
            block, features, dense_size=dense_size, num_iterations=num_iterations
        ),
        energy=energy_curves(block, features),
        reversibility=tuple(block_reversibility(block, features)) if reversible else (),
        coefficients=block_coefficients(block, size)
        if has_coefficients(block)
        else BlockCoefficients(steps=()),
        latex=tuple(
            pde_latex(block, size, step=step, threshold=LATEX_THRESHOLD)
            for step in range(block.num_steps)
            if has_equation(block)
        ),
    )


def diagnose_network(
    network: Network,
    images: Tensor,
    *,
    dense_size: int = DENSE_SIZE,
    num_iterations: int = 30,
    say: Callable[[str], None] = lambda text: None,
) -> list[BlockDiagnosis]:
    """`diagnose_block` for every block, at the features that standardised `images` bring to it.

    `say` is told before each block.
    """
    found = []
    for index, (block, features) in enumerate(
        zip(network.blocks, block_inputs(network, images), strict=True)
    ):
        assert isinstance(block, Block)
        say(f"block {index} (of {len(network.blocks)}): {_describe(features)}")
        found.append(
            diagnose_block(block, features, dense_size=dense_size, num_iterations=num_iterations)
        )
    return found


def _describe(features: Tensor) -> str:
    size = " x ".join(map(str, features.shape[2:]))
    return f"{features.shape[1]} channels of {size} pixels"
