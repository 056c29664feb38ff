"""A diagnosis as JSON values; `docs/diagnostics.md` says what every key means."""

from math import isfinite, sqrt
from typing import Any

from torch import Tensor

from pdecnn.diagnostics.coefficients import BlockCoefficients, OperatorCoefficients, term_kind
from pdecnn.diagnostics.diagnosis import BlockDiagnosis
from pdecnn.diagnostics.energy import CURVES, EnergyCurves, block_times
from pdecnn.diagnostics.reversibility import ReversalErrors
from pdecnn.diagnostics.spectra import NormBounds, Spectrum
from pdecnn.diagnostics.stability import BlockStability
from pdecnn.diagnostics.verdict import StepStability


def block_values(found: BlockDiagnosis) -> dict[str, Any]:
    """The diagnosis of a block."""
    block = found.block
    return {
        "integrator": block.integrator.name,
        "channels": found.channels,
        "size": list(found.size),
        "num_steps": block.num_steps,
        "step_size": block.step_size,
        "step_sizes": list(block.step_sizes),
        "backprop": block.backprop,
        "stability": _stability_values(found.stability),
        "energy": _energy_values(found.energy, block_times(block)),
        "reversibility": [_reversal_values(errors) for errors in found.reversibility],
        "pde": _pde_values(found.coefficients),
    }


def finite_number(value: float | None) -> float | None:
    """JSON has no infinity and no NaN; None stands for both."""
    return value if value is not None and isfinite(value) else None


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
        "steps": [_step_values(index, step) for index, step in enumerate(found.steps)],
        "growth": [
            {
                "perturbation": growth.perturbation,
                "backward": growth.backward,
                "depths": list(growth.depths),
                "constants": [finite_number(value) for value in growth.constants],
                "largest": finite_number(growth.constant),
                "relative_constants": [finite_number(v) for v in growth.relative_constants],
                "largest_relative": finite_number(growth.relative_constant),
            }
            for growth in found.growth
        ],
    }


def _step_values(index: int, step: StepStability) -> dict[str, Any]:
    return {
        "step": index,
        "guaranteed_bound": finite_number(step.guaranteed_bound),
        "local_bound": finite_number(step.local_bound),
        "amplification": finite_number(step.amplification),
        "layers": [
            {
                **_norm_values(norm),
                "largest_symmetric_eigenvalue": largest,
                **_spectrum_values(spectrum),
            }
            for norm, largest, spectrum in zip(
                step.norms, step.symmetric_eigenvalues, step.layer_spectra, strict=True
            )
        ],
        "system": None if step.system_spectrum is None else _spectrum_values(step.system_spectrum),
        "missing": [
            {"number": missing.number, "reason": missing.reason} for missing in step.missing
        ],
    }


def _norm_values(norm: NormBounds | None) -> dict[str, Any]:
    if norm is None:
        return {"norm_lower": None, "norm_upper": None}
    return {"norm_lower": norm.lower, "norm_upper": norm.upper}


def _spectrum_values(spectrum: Spectrum | None) -> dict[str, Any]:
    return {
        "spectral_radius": None if spectrum is None else spectrum.radius,
        "largest_real_part": None if spectrum is None else spectrum.largest_real_part,
        "largest_imaginary_part": None if spectrum is None else spectrum.largest_imaginary_part,
        "num_eigenvalues": 0 if spectrum is None else len(spectrum.eigenvalues),
        "complete": spectrum is not None and spectrum.complete,
    }


def _energy_values(energy: EnergyCurves, times: list[float]) -> dict[str, Any]:
    curves = {name: _curve_values(getattr(energy, name)) for name in CURVES}
    return {"times": times, **curves}


def _curve_values(curve: Tensor | None) -> dict[str, Any] | None:
    if curve is None:
        return None
    return {
        "mean": [finite_number(value) for value in curve.mean(1).tolist()],
        "largest_relative_change": finite_number(relative_change(curve)),
    }


def relative_change(curve: Tensor) -> float:
    """max |E_j - E_0| / |E_0| over times and images; examples that start at 0 are left out."""
    start = curve[:1].abs()
    changes = ((curve - curve[:1]).abs() / start)[:, start[0] != 0]
    return float(changes.max()) if changes.numel() else 0.0


def _reversal_values(errors: ReversalErrors) -> dict[str, Any]:
    return {
        "dtype": str(errors.dtype).removeprefix("torch."),
        "reconstruction": finite_number(errors.reconstruction),
        "feature_gradient": finite_number(errors.feature_gradient),
        "weight_gradient": finite_number(errors.weight_gradient),
    }


def _pde_values(found: BlockCoefficients) -> dict[str, Any]:
    return {
        "shares": _by_kind(found.shares),
        "random_shares": _by_kind(found.random_shares),
        "changes": _by_kind(found.changes),
        "operators": [
            {"step": step, "operator": place, **_operator_values(operator)}
            for step, operators in enumerate(found.steps)
            for place, operator in enumerate(operators)
        ],
    }


def _operator_values(operator: OperatorCoefficients) -> dict[str, Any]:
    return {
        "name": operator.name,
        "shares": _by_kind(operator.shares),
        "terms": [
            {
                "derivative": derivative_name(term),
                "kind": kind_name(term),
                "rms_coefficient": _rms(operator.derivatives[..., place]),
                "rms_contribution": _rms(operator.contributions[..., place]),
            }
            for place, term in enumerate(operator.terms)
        ],
        "rms_source": None if operator.source is None else _rms(operator.source),
    }


def _by_kind(values: dict[str, float]) -> dict[str, float | None]:
    return {kind.replace(" ", "_"): finite_number(value) for kind, value in values.items()}


def kind_name(term: tuple[int, ...]) -> str:
    """The kind of a term in one word: 'higher_order'."""
    return term_kind(term).replace(" ", "_")


def derivative_name(term: tuple[int, ...]) -> str:
    """'xxy' for two derivatives in x and one in y; '1' for none."""
    return "".join(letter * order for letter, order in zip("xyz", term, strict=False)) or "1"


def _rms(values: Tensor) -> float | None:
    return finite_number(sqrt(float(values.square().mean())))
