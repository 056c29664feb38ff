"""Everything that is known of the blocks of a network at given images, together and as JSON."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

from torch import Tensor

from pdecnn.diagnostics.coefficients import (
    BlockCoefficients,
    OperatorCoefficients,
    block_coefficients,
    derivative_name,
    has_coefficients,
    has_equation,
    pde_latex,
    term_kind,
)
from pdecnn.diagnostics.energy import (
    CURVES,
    EnergyCurves,
    block_times,
    energy_curves,
    relative_change,
)
from pdecnn.diagnostics.jacobians import block_inputs
from pdecnn.diagnostics.reversibility import ReversalErrors, block_reversibility
from pdecnn.diagnostics.spectra import DENSE_SIZE, Spectrum
from pdecnn.diagnostics.stability import BlockStability, block_stability
from pdecnn.files import finite_number
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
        channels, *size = features.shape[1:]
        said = f"{channels} channels of {' x '.join(map(str, size))} pixels"
        say(f"block {index} (of {len(network.blocks)}): {said}")
        found.append(
            diagnose_block(block, features, dense_size=dense_size, num_iterations=num_iterations)
        )
    return found


def block_values(found: BlockDiagnosis) -> dict[str, Any]:
    """The diagnosis of a block as JSON values; `docs/diagnostics.md` says what every key means."""
    block, energy, pde = found.block, found.energy, found.coefficients
    return {
        "integrator": block.integrator.name,
        "channels": found.channels,
        "size": list(found.size),
        "num_steps": block.num_steps,
        "step_size": block.step_size,
        "step_sizes": list(block.step_sizes),
        "backprop": block.backprop,
        "stability": _stability_values(found.stability),
        "energy": {
            "times": block_times(block),
            **{name: _curve_values(getattr(energy, name)) for name in CURVES},
        },
        "reversibility": [
            {
                "dtype": errors.precision,
                **_numbers(errors, "reconstruction", "feature_gradient", "weight_gradient"),
            }
            for errors in found.reversibility
        ],
        "pde": {
            "shares": _by_kind(pde.shares),
            "random_shares": _by_kind(pde.random_shares),
            "changes": _by_kind(pde.changes),
            "operators": [
                {"step": step, "operator": place, **_operator_values(operator)}
                for step, operators in enumerate(pde.steps)
                for place, operator in enumerate(operators)
            ],
        },
    }


def _numbers(found: object, *names: str) -> dict[str, float | None]:
    return {name: finite_number(getattr(found, name)) for name in names}


def _stability_values(found: BlockStability) -> dict[str, Any]:
    verdict = found.verdict
    return {
        "verdict": verdict.name,
        "theorem": verdict.theorem,
        "reason": verdict.reason,
        "remedy": verdict.remedy,
        "assumptions": [
            {"statement": assumption.statement, "holds": assumption.holds}
            for assumption in verdict.assumptions
        ],
        "piece_begin": None if found.piece is None else found.piece[0],
        "piece_end": None if found.piece is None else found.piece[1],
        "steps": [
            {
                "step": index,
                **_numbers(step, "guaranteed_bound", "local_bound", "amplification"),
                "layers": [
                    {
                        "norm_lower": None if norm is None else norm.lower,
                        "norm_upper": None if norm is None else norm.upper,
                        "largest_symmetric_eigenvalue": largest,
                        **_spectrum_values(spectrum),
                    }
                    for norm, largest, spectrum in zip(
                        step.norms, step.symmetric_eigenvalues, step.layer_spectra, strict=True
                    )
                ],
                "system": step.system_spectrum and _spectrum_values(step.system_spectrum),
                "missing": [asdict(missing) for missing in step.missing],
            }
            for index, step in enumerate(found.steps)
        ],
        "growth": [
            {
                "perturbation": growth.perturbation,
                "backward": growth.backward,
                "depths": list(growth.depths),
                "constants": list(map(finite_number, growth.constants)),
                "largest": finite_number(growth.constant),
                "relative_constants": list(map(finite_number, growth.relative_constants)),
                "largest_relative": finite_number(growth.relative_constant),
            }
            for growth in found.growth
        ],
    }


def _spectrum_values(found: Spectrum | None) -> dict[str, Any]:
    return {
        "spectral_radius": None if found is None else found.radius,
        "largest_real_part": None if found is None else found.largest_real_part,
        "largest_imaginary_part": None if found is None else found.largest_imaginary_part,
        "num_eigenvalues": 0 if found is None else len(found.eigenvalues),
        "complete": found is not None and found.complete,
    }


def _curve_values(curve: Tensor | None) -> dict[str, Any] | None:
    if curve is None:
        return None
    return {
        "mean": list(map(finite_number, curve.mean(1).tolist())),
        "largest_relative_change": finite_number(relative_change(curve)),
    }


def _operator_values(operator: OperatorCoefficients) -> dict[str, Any]:
    return {
        "name": operator.name,
        "shares": _by_kind(operator.shares),
        "terms": [
            {
                "derivative": derivative_name(term),
                "kind": term_kind(term).replace(" ", "_"),
                "rms_coefficient": _rms(operator.derivatives[..., place]),
                "rms_contribution": _rms(operator.contributions[..., place]),
            }
            for place, term in enumerate(operator.terms)
        ],
        "rms_source": None if operator.source is None else _rms(operator.source),
    }


def _by_kind(values: dict[str, float]) -> dict[str, float | None]:
    return {kind.replace(" ", "_"): finite_number(value) for kind, value in values.items()}


def _rms(values: Tensor) -> float | None:
    return finite_number(sqrt(float(values.square().mean())))
