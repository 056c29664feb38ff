"""The learned PDE of a block as LaTeX (Sec. 2.2)."""

from collections.abc import Sequence

from torch import Tensor, nn

from pdecnn.diagnostics.coefficients import (
    OperatorCoefficients,
    has_coefficients,
    operator_coefficients,
)
from pdecnn.errors import ConfigError
from pdecnn.pde.block import Block
from pdecnn.pde.facts import declared
from pdecnn.pde.layers import AbstractLayer
from pdecnn.settings import check_count, check_number

_VARIABLES = "xyz"
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
    return known and all(map(_is_known, block.layers)) and has_coefficients(block)


def _is_known(layer: nn.Module) -> bool:
    """Whether its class says how K, N and sigma make F; of others only the parts are known."""
    return declared(type(layer), "symmetric") is not None


def _is_symmetric(layer: AbstractLayer) -> bool:
    return declared(type(layer), "symmetric") is True


def _equations(block: Block, layers: Sequence[nn.Module]) -> list[str]:
    for layer in layers:
        if not _is_known(layer):
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
    if _has_bias(layer):
        argument = rf"S_{{{index}}} {argument} + b_{{{index}}}"
    activated = rf"\sigma\left({argument}\right)"
    if not _is_symmetric(layer):
        outer = _letter(layer, "output_convolution", index, num_layers)
        return f"{'-' if sign < 0 else ''}{outer} {activated}{_where(layer)}"
    # The minus of F_sym, against that of the auxiliary variable.
    return rf"{'-' if sign > 0 else ''}{inner}^\top {activated}{_where(layer)}"


def _where(layer: AbstractLayer) -> str:
    name = layer.activation.name
    symbol = _ACTIVATIONS.get(name, rf"\text{{{name}}}")
    return rf", \quad \sigma = {symbol}"


def _has_bias(layer: AbstractLayer) -> bool:
    return any(name.endswith("bias") for name, _ in layer.normalization.named_parameters())


def _letter(layer: AbstractLayer, name: str, index: int, num_layers: int) -> str:
    """K where there is one, K_1 and K_2 where there are two, K_{12} the second of layer 1."""
    if not _is_symmetric(layer):
        place = 1 if name == "convolution" else 2
        return f"K_{{{index}{place}}}" if num_layers > 1 else f"K_{place}"
    return f"K_{index}" if num_layers > 1 else "K"


def _operator_lines(
    operator: OperatorCoefficients, letter: str, index: int, digits: int, threshold: float
) -> list[str]:
    smallest = threshold * float(operator.contributions.max())
    lines = []
    for row in range(operator.coefficients.shape[0]):
        entries = []
        for column in range(operator.coefficients.shape[1]):
            polynomial = _polynomial(operator, row, column, digits, smallest)
            if polynomial:
                entries.append(rf"\left({polynomial}\right) U_{{{column + 1}}}")
        right = " + ".join(entries) or "0"
        lines.append(rf"({letter} U)_{{{row + 1}}} &= {right}")
    if operator.scale is not None:
        lines.append(rf"S_{{{index}}} &= \mathrm{{diag}}({_numbers(operator.scale, digits)})")
    if operator.source is not None:
        lines.append(rf"b_{{{index}}} &= \left({_numbers(operator.source, digits)}\right)^\top")
    return lines


def _numbers(values: Tensor, digits: int) -> str:
    return ", ".join(_number(value, digits) for value in values.tolist())


def _polynomial(
    operator: OperatorCoefficients, row: int, column: int, digits: int, smallest: float
) -> str:
    """The differential operator from channel `column` to channel `row`."""
    text = ""
    sizes = operator.contributions[row, column].tolist()
    values = operator.derivatives[row, column].tolist()
    for term, value, size in zip(operator.terms, values, sizes, strict=True):
        if value == 0 or size < smallest:
            continue
        sign = "-" if value < 0 else "+"
        joint = f" {sign} " if text else sign.replace("+", "")
        text += f"{joint}{_number(abs(value), digits)}{_derivative(term)}"
    return text


def _derivative(term: Sequence[int]) -> str:
    """\\partial_{xxy} for (2, 1)."""
    letters = "".join(variable * order for variable, order in zip(_VARIABLES, term, strict=False))
    return rf"\,\partial_{{{letters}}}" if letters else ""


def _number(value: float, digits: int) -> str:
    """The number with that many significant digits; 1.5e-07 as 1.5 \\cdot 10^{-7}."""
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if exponent else mantissa
