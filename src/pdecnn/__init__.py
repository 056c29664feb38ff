"""Convolutional networks that are partial differential equations."""

import typing

from pdecnn.errors import CheckpointError as CheckpointError
from pdecnn.errors import ConfigError as ConfigError
from pdecnn.errors import DataError as DataError
from pdecnn.errors import DivergedError as DivergedError
from pdecnn.fast import accelerate as accelerate
from pdecnn.learning import Objective as Objective
from pdecnn.learning import ObjectiveConfig as ObjectiveConfig
from pdecnn.learning import ProjectedSGD as ProjectedSGD
from pdecnn.learning import TrainingConfig as TrainingConfig
from pdecnn.networks import Classifier as Classifier
from pdecnn.networks import Connector as Connector
from pdecnn.networks import Network as Network
from pdecnn.networks import NetworkConfig as NetworkConfig
from pdecnn.networks import Opening as Opening
from pdecnn.networks import Preprocessing as Preprocessing
from pdecnn.networks import coarsen_in_space as coarsen_in_space
from pdecnn.networks import coarsen_in_time as coarsen_in_time
from pdecnn.networks import create_model as create_model
from pdecnn.networks import freeze_steps as freeze_steps
from pdecnn.networks import list_models as list_models
from pdecnn.networks import refine_in_space as refine_in_space
from pdecnn.networks import refine_in_time as refine_in_time
from pdecnn.networks import register_model as register_model
from pdecnn.networks import transfer_tensors as transfer_tensors
from pdecnn.pde import BACKPROP_MODES as BACKPROP_MODES
from pdecnn.pde import INTEGRATORS as INTEGRATORS
from pdecnn.pde import AbstractIntegrator as AbstractIntegrator
from pdecnn.pde import AbstractLayer as AbstractLayer
from pdecnn.pde import AbstractReversibleIntegrator as AbstractReversibleIntegrator
from pdecnn.pde import Activation as Activation
from pdecnn.pde import Block as Block
from pdecnn.pde import Convolution as Convolution
from pdecnn.pde import ForwardEuler as ForwardEuler
from pdecnn.pde import Grid as Grid
from pdecnn.pde import Leapfrog as Leapfrog
from pdecnn.pde import ResidualLayer as ResidualLayer
from pdecnn.pde import RungeKutta4 as RungeKutta4
from pdecnn.pde import StableLayer as StableLayer
from pdecnn.pde import SymmetricLayer as SymmetricLayer
from pdecnn.pde import TotalVariationNorm as TotalVariationNorm
from pdecnn.pde import Verlet as Verlet
from pdecnn.pde import follow_weights_ as follow_weights_
from pdecnn.pde import galerkin_coarsen as galerkin_coarsen
from pdecnn.pde import list_activations as list_activations
from pdecnn.pde import pde_coefficients as pde_coefficients
from pdecnn.pde import pde_terms as pde_terms
from pdecnn.pde import rediscretize as rediscretize
from pdecnn.pde import register_activation as register_activation
from pdecnn.pde import register_integrator as register_integrator
from pdecnn.pde import register_layer as register_layer
from pdecnn.pde import stencil_from_pde_coefficients as stencil_from_pde_coefficients
from pdecnn.runs import RunConfig as RunConfig
from pdecnn.runs import evaluate as evaluate
from pdecnn.runs import list_recipes as list_recipes
from pdecnn.runs import load as load
from pdecnn.runs import predict as predict
from pdecnn.runs import recipe as recipe
from pdecnn.runs import train as train
from pdecnn.version import __version__ as __version__

if typing.TYPE_CHECKING:
    from pdecnn.diagnostics.certificate import certify as certify
    from pdecnn.reports.page import report as report
    from pdecnn.reports.paper import reproduce as reproduce
    from pdecnn.runs.diagnosis import attack as attack
    from pdecnn.runs.diagnosis import diagnose as diagnose
    from pdecnn.runs.export import export as export
    from pdecnn.runs.leveling import coarsen as coarsen
    from pdecnn.runs.leveling import refine as refine
else:
    # Only when asked for: an import is to take little longer than that of torch.
    _LATER = ("attack", "certify", "coarsen", "diagnose", "export", "refine", "report", "reproduce")

    def __getattr__(name):
        if name in ("attack", "diagnose"):
            from pdecnn.runs import diagnosis as module
        elif name == "certify":
            from pdecnn.diagnostics import certificate as module
        elif name in ("coarsen", "refine"):
            from pdecnn.runs import leveling as module
        elif name == "export":
            from pdecnn.runs import export as module
        elif name == "report":
            from pdecnn.reports import page as module
        elif name == "reproduce":
            from pdecnn.reports import paper as module
        else:
            raise AttributeError(f"module 'pdecnn' has no attribute {name!r}")
        return getattr(module, name)

    def __dir__():
        return [*globals(), *_LATER]
