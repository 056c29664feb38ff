"""The PDE that was learned: every K as a differential operator, its bias as a source (Sec. 2.2).

Also written as LaTeX.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import isfinite, nan, sqrt

import torch
from torch import Tensor, nn

from pdecnn.errors import ConfigError
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import Convolution
from pdecnn.pde.facts import declared
from pdecnn.pde.layers import AbstractLayer
from pdecnn.pde.stencil import pde_coefficients, pde_terms, stencil_from_pde_coefficients
from pdecnn.settings import check_count, check_number, is_count

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


def derivative_name(term: Sequence[int]) -> str:
    """'xxy' for two derivatives in x and one in y; '1' for none."""
    return "".join(letter * order for letter, order in zip("xyz", term, strict=False)) or "1"


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
        changes = dict.fromkeys(KINDS, 0.0)
        for kind in KINDS if len(self.steps) > 1 else ():
            parts = torch.stack([_parts(step, kind) for step in self.steps])
            size = float(parts.square().sum(1).mean())
            change = float(parts.diff(dim=0).square().sum(1).mean())
            changes[kind] = 0.0 if size == 0 else sqrt(change / size)
        return changes


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
    steps = ([operator_coefficients(layer, size) for layer in layers] for layers in block.steps)
    return BlockCoefficients(steps=tuple(tuple(chain.from_iterable(step)) for step in steps))


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


_ACTIVATIONS = {"relu": r"\max(0, \cdot)", "tanh": r"\tanh", "identity": r"\mathrm{id}"}
_NORMALIZATIONS = {"tv": r"\mathcal{N}_{\mathrm{tv}}", "batch": r"\mathcal{N}_{\mathrm{batch}}"}


def pde_latex(
    block: Block, size: Sequence[int], *, step: int = 0, digits: int = 3, threshold: float = 0.0
) -> str:
    """The PDE that a step of the block discretises, as a LaTeX `aligned` environment.

    First the equation in Y (and Z for eq. 10), then every operator written out on images of
    `size`, the domain being the unit cube. Terms whose part of the stencil is below `threshold`
    times the operator's largest one are left out.
    """
    if not 0 <= step < block.num_steps:
        raise ConfigError(f"step must be from 0 to {block.num_steps - 1}, found {step!r}")
    check_count("digits", digits)
    check_number("threshold", threshold, smallest=0.0, below=1.0)
    layers = block.steps[step]
    lines = _equations(block, layers)
    for index, layer in enumerate(layers, start=1):
        assert isinstance(layer, AbstractLayer)
        for operator in operator_coefficients(layer, size):
            letter = _letter(layer, operator.name, index, len(layers))
            lines.extend(_operator_lines(operator, letter, index, digits, threshold))
    body = " \\\\\n".join(lines)
    return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"


def has_equation(block: Block) -> bool:
    """Whether `pde_latex` can write its PDE: known layers of 3-point stencils, in known methods."""
    known = len(block.integrator.equations) == block.integrator.layers_per_step
    # Of a layer that does not say how K, N and sigma make F only the parts are known.
    return (
        known
        and all(declared(type(layer), "symmetric") is not None for layer in block.layers)
        and has_coefficients(block)
    )


def _equations(block: Block, layers: Sequence[nn.Module]) -> list[str]:
    for layer in layers:
        if declared(type(layer), "symmetric") is None:
            raise ConfigError(
                f"{type(layer).__name__} is not one of pdecnn's layers, so its PDE is not known"
            )
    equations = block.integrator.equations
    if len(equations) != len(layers):
        raise ConfigError(f"the differential equation behind {block.integrator.name} is not known")
    lines = []
    for index, (layer, equation) in enumerate(zip(layers, equations, strict=True), start=1):
        power = "" if equation.order == 1 else f"^{equation.order}"
        right = _right_side(layer, equation.argument, equation.sign, index, len(layers))
        lines.append(rf"\partial_t{power} {equation.unknown} &= {right}")
    return lines


def _right_side(layer: nn.Module, unknown: str, sign: int, index: int, num_layers: int) -> str:
    assert isinstance(layer, AbstractLayer)
    inner = _letter(layer, "convolution", index, num_layers)
    argument = f"{inner} {unknown}"
    norm = _NORMALIZATIONS.get(layer.normalization_name)
    if norm is not None:
        argument = rf"{norm}({argument})"
    if any(name.endswith("bias") for name, _ in layer.normalization.named_parameters()):
        argument = rf"S_{{{index}}} {argument} + b_{{{index}}}"
    name = layer.activation.name
    symbol = _ACTIVATIONS.get(name, rf"\text{{{name}}}")
    activated = rf"\sigma\left({argument}\right), \quad \sigma = {symbol}"
    if declared(type(layer), "symmetric") is not True:
        outer = _letter(layer, "output_convolution", index, num_layers)
        return f"{'-' if sign < 0 else ''}{outer} {activated}"
    # The minus of F_sym, against that of the auxiliary variable.
    return rf"{'-' if sign > 0 else ''}{inner}^\top {activated}"


def _letter(layer: AbstractLayer, name: str, index: int, num_layers: int) -> str:
    """K where there is one, K_1 and K_2 where there are two, K_{12} the second of layer 1."""
    if declared(type(layer), "symmetric") is not True:
        place = 1 if name == "convolution" else 2
        return f"K_{{{index}{place}}}" if num_layers > 1 else f"K_{place}"
    return f"K_{index}" if num_layers > 1 else "K"


def _operator_lines(
    operator: OperatorCoefficients, letter: str, index: int, digits: int, threshold: float
) -> list[str]:
    smallest = threshold * float(operator.contributions.max())
    lines = []
    rows = zip(operator.derivatives.tolist(), operator.contributions.tolist(), strict=True)
    for output, row in enumerate(rows, start=1):
        entries = []
        for source, (values, sizes) in enumerate(zip(*row, strict=True), start=1):
            polynomial = _polynomial(operator.terms, values, sizes, digits, smallest)
            if polynomial:
                entries.append(rf"\left({polynomial}\right) U_{{{source}}}")
        lines.append(rf"({letter} U)_{{{output}}} &= {' + '.join(entries) or '0'}")
    scale, bias = (
        None if values is None else ", ".join(_number(value, digits) for value in values.tolist())
        for values in (operator.scale, operator.source)
    )
    lines += [] if scale is None else [rf"S_{{{index}}} &= \mathrm{{diag}}({scale})"]
    lines += [] if bias is None else [rf"b_{{{index}}} &= \left({bias}\right)^\top"]
    return lines


def _polynomial(
    terms: Sequence[tuple[int, ...]],
    values: Sequence[float],
    sizes: Sequence[float],
    digits: int,
    smallest: float,
) -> str:
    """The differential operator from one channel to another."""
    text = ""
    for term, value, size in zip(terms, values, sizes, strict=True):
        if value == 0 or size < smallest:
            continue
        sign = "-" if value < 0 else "+"
        joint = f" {sign} " if text else sign.replace("+", "")
        name = derivative_name(term)
        derivative = "" if name == "1" else rf"\,\partial_{{{name}}}"
        text += f"{joint}{_number(abs(value), digits)}{derivative}"
    return text


def _number(value: float, digits: int) -> str:
    """The number with that many significant digits; 1.5e-07 as 1.5 \\cdot 10^{-7}."""
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if exponent else mantissa
