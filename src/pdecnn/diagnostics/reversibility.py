"""How well a block runs backwards: the error of states and, what matters, of gradients (Sec. 3.2).

A state recovered to the last digit may still give a wrong gradient: where pre-activations are
exactly 0 the slope of ReLU flips. So gradients are measured, not only states.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pdecnn.diagnostics.jacobians import block_inputs
from pdecnn.errors import ConfigError
from pdecnn.networks.network import Network
from pdecnn.networks.reversal import block_gradients, relative_error
from pdecnn.pde.backprop import REVERSING_MODES, Backprop, Reversing
from pdecnn.pde.block import Block, copy_in_mode
from pdecnn.pde.grid import Grid

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReversalErrors:
    """Relative errors |found - expected| / |expected| of running a block backwards."""

    dtype: torch.dtype
    """Of weights and features; the state is float32 at least."""
    reconstruction: float
    """`reverse` after `propagate` against the features (rounded to the grid in 'exact')."""
    feature_gradient: float
    """The gradient with respect to the features, against that of 'stored'."""
    weight_gradient: float
    """The gradient with respect to all weights together, against that of 'stored'."""

    @property
    def precision(self) -> str:
        """The dtype in a word: 'float32'."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def gradient(self) -> float:
        """The larger of both gradient errors."""
        return max(self.feature_gradient, self.weight_gradient)


def reversal_errors(
    block: Block,
    features: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    backprop: Reversing = "reversible",
    seed: int = 0,
) -> ReversalErrors:
    """Compare `backprop` ('reversible' or 'exact') with 'stored' on a copy in `dtype`.

    The gradients are those of <g, block(features)> with a random g. 'exact' is compared with
    'stored' on the same grid. Needs a hyperbolic block.
    """
    if backprop not in REVERSING_MODES:
        raise ConfigError(f"backprop must be 'reversible' or 'exact', found {backprop!r}")
    grid = Grid(block.exact_bits) if backprop == "exact" else None
    bits = None if grid is None else grid.bits
    modes: tuple[Backprop, ...] = (backprop, "stored")
    copies = (copy_in_mode(block, backprop=mode, grid_bits=bits) for mode in modes)
    reversing, stored = (copy.to(dtype).eval().requires_grad_(True) for copy in copies)
    inputs = features.detach().to(dtype)
    with torch.no_grad():
        wide = inputs.to(torch.promote_types(dtype, torch.float32))
        expected_features = wide if grid is None else grid.round(wide)
        recovered = reversing.reverse(reversing.propagate(inputs))
    generator = torch.Generator().manual_seed(seed)
    cotangent = torch.randn(features.shape, generator=generator, dtype=torch.float64)
    # Of the features, then of the weights.
    found, expected = (block_gradients(one, inputs, cotangent) for one in (reversing, stored))
    return ReversalErrors(
        dtype=dtype,
        reconstruction=relative_error([recovered], [expected_features]),
        feature_gradient=relative_error(found[:1], expected[:1]),
        weight_gradient=relative_error(found[1:], expected[1:]),
    )


def block_reversibility(
    block: Block, features: Tensor, *, dtypes: Iterable[torch.dtype] = DTYPES
) -> list[ReversalErrors]:
    """`reversal_errors` of mode 'reversible' in each dtype."""
    return [reversal_errors(block, features, dtype=dtype) for dtype in dtypes]


def network_reversibility(
    network: Network, images: Tensor, *, dtypes: Sequence[torch.dtype] = DTYPES
) -> list[list[ReversalErrors]]:
    """`block_reversibility` of every block, at the features standardised `images` bring to it."""
    return [
        block_reversibility(block, features, dtypes=dtypes)
        for block, features in zip(network.blocks, block_inputs(network, images), strict=True)
        if isinstance(block, Block)
    ]
