"""The PDE that was learned: every K as a differential operator, its bias as a source (Sec. 2.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite, nan, sqrt

import torch
from torch import Tensor, nn

from pdecnn.errors import ConfigError
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import Convolution
from pdecnn.pde.integrators import Layers
from pdecnn.pde.layers import AbstractLayer
from pdecnn.pde.stencil import pde_coefficients, pde_terms, stencil_from_pde_coefficients
from pdecnn.settings import is_count

KINDS = ("reaction", "convection", "diffusion", "mixed", "higher order")


def term_kind(term: Sequence[int]) -> str:
    """What a term of `pde_terms` is, given its number of derivatives in (x, y, z).

    reaction 1; convection d_x; diffusion d_xx; mixed d_x d_y; higher order: three derivatives
    or more.
    """
    total = sum(term)
    if total > 2:
        return "higher order"
    if total == 2:
        return "diffusion" if max(term) == 2 else "mixed"
    return KINDS[total]


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorCoefficients:
    """One K as a system of differential operators: (K Y)_i = sum_j sum_t beta_ijt B_t Y_j."""

    name: str
    """Where K is in its layer: 'convolution', or 'output_convolution' for K_2 of eq. 1."""
    coefficients: Tensor
    """beta of shape (out_channels, in_channels, 3^dimension), in float64, ordered by
    `pde_terms`; b3 multiplies minus d_xx."""
    mesh_size: tuple[float, ...]
    """h of each axis, x last: 1/n at n pixels."""
    source: Tensor | None
    """The bias after K, (out_channels); None if there is none."""
    scale: Tensor | None
    """The diagonal of S, which K (or its normalisation) is multiplied by before the bias; None:
    there is none."""

    @property
    def dimension(self) -> int:
        """Of space."""
        return len(self.mesh_size)

    @property
    def terms(self) -> tuple[tuple[int, ...], ...]:
        """The number of derivatives in (x, y, z) of each coefficient."""
        return pde_terms(self.dimension)

    @property
    def derivatives(self) -> Tensor:
        """The coefficients of the derivatives themselves: -b3 for d_xx, +b9 for d_xx d_yy."""
        signs = [(-1.0) ** term.count(2) for term in self.terms]
        return self.coefficients * self.coefficients.new_tensor(signs)

    @property
    def contributions(self) -> Tensor:
        """|beta_t| |B_t|, the size of each term's part of the stencil: free of the mesh size."""
        return self.coefficients.abs() * self.coefficients.new_tensor(_basis_norms(self.mesh_size))

    @property
    def shares(self) -> dict[str, float]:
        """The part of each kind in sum_t |beta_t B_t|^2 over all channels; they add up to 1.

        All 0 for K = 0, NaN where weights are no numbers. The basis stencils B_t are not
        orthogonal, so that the sum is not the squared norm of the stencil, but it vanishes with it.
        """
        squares = self.contributions.square().sum((0, 1))
        total = float(squares.sum())
        if not isfinite(total):
            return dict.fromkeys(KINDS, nan)
        shares = dict.fromkeys(KINDS, 0.0)
        for term, square in zip(self.terms, squares.tolist(), strict=True):
            shares[term_kind(term)] += square / total if total > 0 else 0.0
        return shares


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockCoefficients:
    """The learned PDE of a block: the operators of each step, in time order."""

    steps: tuple[tuple[OperatorCoefficients, ...], ...]
    """Empty: a layer of one's own, or a stencil of more than 3 points, has no known ones."""

    @property
    def shares(self) -> dict[str, float]:
        """The mean of the operators' shares; all 0 where none are known."""
        operators = [operator for step in self.steps for operator in step]
        return {
            kind: sum(operator.shares[kind] for operator in operators) / max(len(operators), 1)
            for kind in KINDS
        }

    @property
    def random_shares(self) -> dict[str, float]:
        """The expected shares of weights as they are initialised, to see what was learned.

        Entries are independent and of one variance, so that the mean square of beta_t(theta) goes
        with the sum of its squares over the unit stencils. On any mesh; all 0 where none are known.
        """
        if not self.steps:
            return dict.fromkeys(KINDS, 0.0)
        dimension = self.steps[0][0].dimension
        units = torch.eye(3**dimension, dtype=torch.float64).view(-1, 1, *(3,) * dimension)
        return OperatorCoefficients(
            name="convolution",
            coefficients=pde_coefficients(units, 1.0, dimension=dimension),
            mesh_size=(1.0,) * dimension,
            source=None,
            scale=None,
        ).shares

    @property
    def changes(self) -> dict[str, float]:
        """How much each kind changes from step to step: rms of |c_{j+1} - c_j| over rms of |c_j|.

        c are the parts beta_t B_t of the stencils. 0: constant in time; about sqrt(2): steps have
        nothing to do with each other.
        """
        return {kind: self._change(kind) for kind in KINDS}

    def _change(self, kind: str) -> float:
        sizes = [_parts(step, kind) for step in self.steps]
        if len(sizes) < 2:
            return 0.0
        stacked = torch.stack(sizes)
        size = float(stacked.square().sum(1).mean())
        change = float(stacked.diff(dim=0).square().sum(1).mean())
        return 0.0 if size == 0 else sqrt(change / size)


def operator_coefficients(
    layer: nn.Module, size: Sequence[int]
) -> tuple[OperatorCoefficients, ...]:
    """The coefficients of every K of a layer on images of `size`, with h = 1/n an axis.

    Only 3-point stencils have them; others are refused.
    """
    if not isinstance(layer, AbstractLayer):
        raise ConfigError(
            f"{type(layer).__name__} is not one of pdecnn's layers, so its operators are not "
            f"known; use SymmetricLayer or ResidualLayer"
        )
    if len(size) != layer.dimension or not all(is_count(n) for n in size):
        raise ConfigError(f"size must name {layer.dimension} positive image sizes, found {size!r}")
    mesh_size = tuple(1 / n for n in size)
    return tuple(
        OperatorCoefficients(
            name=name,
            coefficients=pde_coefficients(
                part.stencil.detach().double(), mesh_size, dimension=layer.dimension
            ),
            mesh_size=mesh_size,
            source=_affine(layer, ("bias",)) if part is layer.convolution else None,
            scale=_affine(layer, ("scale", "weight")) if part is layer.convolution else None,
        )
        for name, part in layer.named_children()
        if isinstance(part, Convolution)
    )


def has_coefficients(block: Block) -> bool:
    """Whether every layer is made of K, N and sigma and every K has a 3-point stencil."""
    return all(
        isinstance(layer, AbstractLayer)
        and all(
            part.stencil_size == (3,) * part.dimension
            for part in layer.children()
            if isinstance(part, Convolution)
        )
        for layer in block.layers
    )


def block_coefficients(block: Block, size: Sequence[int]) -> BlockCoefficients:
    """The coefficients of every K of every step of a block on images of `size`."""
    return BlockCoefficients(steps=tuple(_step_operators(layers, size) for layers in block.steps))


def _step_operators(layers: Layers, size: Sequence[int]) -> tuple[OperatorCoefficients, ...]:
    return tuple(operator for layer in layers for operator in operator_coefficients(layer, size))


def _affine(layer: AbstractLayer, names: Sequence[str]) -> Tensor | None:
    """The weights of one of these names in the normalisation, or in its affine part."""
    found = [
        weight.detach().double()
        for name, weight in layer.normalization.named_parameters()
        if name.split(".")[-1] in names
    ]
    return found[0] if found else None


def _parts(operators: tuple[OperatorCoefficients, ...], kind: str) -> Tensor:
    """beta_t |B_t| of one kind, of all operators of a step in one vector."""
    parts = []
    for operator in operators:
        positions = [n for n, term in enumerate(operator.terms) if term_kind(term) == kind]
        signed = operator.contributions * operator.coefficients.sign()
        parts.append(signed[..., positions].flatten())
    return torch.cat(parts)


@cache
def _basis_norms(mesh_size: tuple[float, ...]) -> tuple[float, ...]:
    """|B_t| of each basis stencil."""
    dimension = len(mesh_size)
    units = torch.eye(3**dimension, dtype=torch.float64)
    stencils = stencil_from_pde_coefficients(units, mesh_size, dimension=dimension)
    return tuple(stencils.flatten(1).norm(dim=1).tolist())
