"""Public names are a promise: removing one fails here, adding one means adding it here."""

import importlib
import inspect

import pytest

import pdecnn

NAMES = {
    "pdecnn": """
        AbstractIntegrator AbstractLayer AbstractReversibleIntegrator Activation BACKPROP_MODES
        Block CheckpointError Classifier ConfigError Connector Convolution DataError DivergedError
        ForwardEuler Grid INTEGRATORS Leapfrog Network NetworkConfig Objective ObjectiveConfig
        Opening Preprocessing ProjectedSGD ResidualLayer RunConfig RungeKutta4 StableLayer
        SymmetricLayer TotalVariationNorm TrainingConfig Verlet accelerate attack certify coarsen
        coarsen_in_space coarsen_in_time create_model diagnose evaluate export follow_weights_
        freeze_steps galerkin_coarsen list_activations list_models list_recipes load
        pde_coefficients pde_terms predict recipe rediscretize refine refine_in_space
        refine_in_time register_activation register_integrator register_layer register_model report
        reproduce stencil_from_pde_coefficients train transfer_tensors
    """,
    "pdecnn.pde": """
        AbstractIntegrator AbstractLayer AbstractReversibleIntegrator Activation BACKPROP_MODES
        Block Component Convolution Equation ForwardEuler Grid INTEGRATORS Leapfrog ResidualLayer
        RungeKutta4 Shear StabilityRule StableLayer SymmetricLayer TotalVariationNorm Verlet
        follow_weights_ galerkin_coarsen list_activations pde_coefficients pde_terms rediscretize
        register_activation register_integrator register_layer stencil_from_pde_coefficients
    """,
    "pdecnn.diagnostics": """
        Assumption AttackResult Attacked AttackedImages BlockCoefficients BlockDiagnosis
        BlockStability Certificate CorruptionResult EnergyCurves Factor Growth LinearMap
        LocalStability MissingNumber NormBounds OperatorCoefficients PGDConfig ReversalErrors
        Robustness Spectrum StepStability Verdict accuracy_under apgd block_coefficients
        block_inputs block_reversibility block_stability certify convolution_norm diagnose_block
        diagnose_network energy_curves fgsm gaussian_blur gaussian_noise guaranteed_bound
        largest_symmetric_eigenvalue layer_jacobian local_bound local_stability measure_corruptions
        measure_growth measure_robustness monotone_assumptions network_reversibility
        network_stability operator_coefficients operator_norm pde_latex pgd reduce_contrast
        reversal_errors scores_of_pixels spectrum step_jacobian system_jacobian
    """,
    "pdecnn.networks": """
        Classifier Connector Network NetworkConfig Opening Preprocessing coarsen_in_space
        coarsen_in_time create_model freeze_steps list_models refine_in_space refine_in_time
        register_model transfer_tensors
    """,
}
MODELS = [
    f"{dynamics}_{data_set}"
    for dynamics in ("hamiltonian", "parabolic", "resnet", "second_order")
    for data_set in ("cifar10", "cifar100", "digits", "images", "signals", "stl10", "volumes")
]
STABLE_MODELS = [
    f"parabolic_stable_{data_set}"
    for data_set in ("cifar10", "digits", "images", "large_cifar10", "signals", "volumes")
]
TUNED_MODELS = [
    f"{dynamics}_{data_set}_tuned"
    for dynamics in ("hamiltonian", "parabolic", "second_order")
    for data_set in ("cifar10", "cifar100", "images", "stl10")
]
DENOISERS = [
    f"{dynamics}_denoising"
    for dynamics in ("hamiltonian", "parabolic", "parabolic_stable", "second_order")
]
SETTINGS = """
    channels in_channels num_classes layer integrator num_steps step_size train_step_size
    hidden_channels activation normalization epsilon backprop grid_bits dimension share_weights
    opening patch_size connector pooling classifier boundary certified_size mesh_size
"""
NETWORK_METHODS = """
    acceleration close forward forward_features forward_head forward_intermediates from_pretrained
    get_classifier num_classes num_features num_weights open padded_size preprocess propagate
    reset_classifier reverse save_pretrained
"""


@pytest.mark.parametrize("module_name", NAMES)
def test_public_names_are_frozen(module_name):
    module = importlib.import_module(module_name)
    public = {
        name
        for name in dir(module)
        if not name.startswith("_") and not inspect.ismodule(getattr(module, name))
    }
    assert public == set(NAMES[module_name].split())


@pytest.mark.parametrize("module_name", NAMES)
def test_every_public_class_and_function_is_documented(module_name):
    module = importlib.import_module(module_name)
    for name in NAMES[module_name].split():
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{module_name}.{name} has no docstring"


def test_models_are_frozen():
    # Other tests may register models of their own.
    assert {*MODELS, *STABLE_MODELS, *TUNED_MODELS, *DENOISERS} <= set(pdecnn.list_models())
    assert len(MODELS) == 28


def test_settings_of_a_network_are_frozen():
    assert list(pdecnn.NetworkConfig.__dataclass_fields__) == SETTINGS.split()


def test_methods_of_a_network_are_there():
    for name in NETWORK_METHODS.split():
        assert hasattr(pdecnn.Network, name), name


def test_integrators_and_modes_are_frozen():
    assert [integrator.name for integrator in pdecnn.pde.INTEGRATORS] == [
        "forward_euler",
        "runge_kutta_4",
        "verlet",
        "leapfrog",
        "leapfrog_second_order",
    ]
    assert pdecnn.pde.BACKPROP_MODES == ("stored", "checkpointed", "reversible", "exact")


def test_the_version_is_that_of_the_distribution():
    assert importlib.import_module("importlib.metadata").version("pdecnn") == pdecnn.__version__
