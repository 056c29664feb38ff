"""What PDE theory predicts of a network, measured: stability, energy, reversal, coefficients."""

from pdecnn.diagnostics.attacks import PGDConfig as PGDConfig
from pdecnn.diagnostics.attacks import fgsm as fgsm
from pdecnn.diagnostics.attacks import pgd as pgd
from pdecnn.diagnostics.coefficients import BlockCoefficients as BlockCoefficients
from pdecnn.diagnostics.coefficients import OperatorCoefficients as OperatorCoefficients
from pdecnn.diagnostics.coefficients import block_coefficients as block_coefficients
from pdecnn.diagnostics.coefficients import operator_coefficients as operator_coefficients
from pdecnn.diagnostics.corruptions import CorruptionResult as CorruptionResult
from pdecnn.diagnostics.corruptions import accuracy_under as accuracy_under
from pdecnn.diagnostics.corruptions import gaussian_blur as gaussian_blur
from pdecnn.diagnostics.corruptions import gaussian_noise as gaussian_noise
from pdecnn.diagnostics.corruptions import measure_corruptions as measure_corruptions
from pdecnn.diagnostics.corruptions import reduce_contrast as reduce_contrast
from pdecnn.diagnostics.diagnosis import BlockDiagnosis as BlockDiagnosis
from pdecnn.diagnostics.diagnosis import diagnose_block as diagnose_block
from pdecnn.diagnostics.diagnosis import diagnose_network as diagnose_network
from pdecnn.diagnostics.energy import EnergyCurves as EnergyCurves
from pdecnn.diagnostics.energy import energy_curves as energy_curves
from pdecnn.diagnostics.growth import Growth as Growth
from pdecnn.diagnostics.growth import measure_growth as measure_growth
from pdecnn.diagnostics.guarantees import Assumption as Assumption
from pdecnn.diagnostics.guarantees import guaranteed_bound as guaranteed_bound
from pdecnn.diagnostics.guarantees import monotone_assumptions as monotone_assumptions
from pdecnn.diagnostics.inputs import block_inputs as block_inputs
from pdecnn.diagnostics.jacobians import LinearMap as LinearMap
from pdecnn.diagnostics.jacobians import layer_jacobian as layer_jacobian
from pdecnn.diagnostics.jacobians import step_jacobian as step_jacobian
from pdecnn.diagnostics.jacobians import system_jacobian as system_jacobian
from pdecnn.diagnostics.latex import pde_latex as pde_latex
from pdecnn.diagnostics.local_bounds import LocalStability as LocalStability
from pdecnn.diagnostics.local_bounds import local_bound as local_bound
from pdecnn.diagnostics.local_bounds import local_stability as local_stability
from pdecnn.diagnostics.reversibility import ReversalErrors as ReversalErrors
from pdecnn.diagnostics.reversibility import block_reversibility as block_reversibility
from pdecnn.diagnostics.reversibility import network_reversibility as network_reversibility
from pdecnn.diagnostics.reversibility import reversal_errors as reversal_errors
from pdecnn.diagnostics.robustness import AttackResult as AttackResult
from pdecnn.diagnostics.robustness import Robustness as Robustness
from pdecnn.diagnostics.robustness import measure_robustness as measure_robustness
from pdecnn.diagnostics.robustness import scores_of_pixels as scores_of_pixels
from pdecnn.diagnostics.spectra import NormBounds as NormBounds
from pdecnn.diagnostics.spectra import Spectrum as Spectrum
from pdecnn.diagnostics.spectra import convolution_norm as convolution_norm
from pdecnn.diagnostics.spectra import (
    largest_symmetric_eigenvalue as largest_symmetric_eigenvalue,
)
from pdecnn.diagnostics.spectra import operator_norm as operator_norm
from pdecnn.diagnostics.spectra import spectrum as spectrum
from pdecnn.diagnostics.stability import BlockStability as BlockStability
from pdecnn.diagnostics.stability import block_stability as block_stability
from pdecnn.diagnostics.stability import network_stability as network_stability
from pdecnn.diagnostics.verdict import MissingNumber as MissingNumber
from pdecnn.diagnostics.verdict import StepStability as StepStability
from pdecnn.diagnostics.verdict import Verdict as Verdict
