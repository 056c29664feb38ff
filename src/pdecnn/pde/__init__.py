"""The mathematics of Sections 2 and 3: operators in space, methods in time, ways back."""

from pdecnn.pde.activations import Activation as Activation
from pdecnn.pde.activations import list_activations as list_activations
from pdecnn.pde.activations import register_activation as register_activation
from pdecnn.pde.backprop import BACKPROP_MODES as BACKPROP_MODES
from pdecnn.pde.block import Block as Block
from pdecnn.pde.convolution import Convolution as Convolution
from pdecnn.pde.grid import Grid as Grid
from pdecnn.pde.integrators import INTEGRATORS as INTEGRATORS
from pdecnn.pde.integrators import AbstractIntegrator as AbstractIntegrator
from pdecnn.pde.integrators import AbstractReversibleIntegrator as AbstractReversibleIntegrator
from pdecnn.pde.integrators import ForwardEuler as ForwardEuler
from pdecnn.pde.integrators import Leapfrog as Leapfrog
from pdecnn.pde.integrators import RungeKutta4 as RungeKutta4
from pdecnn.pde.integrators import Shear as Shear
from pdecnn.pde.integrators import Verlet as Verlet
from pdecnn.pde.layers import AbstractLayer as AbstractLayer
from pdecnn.pde.layers import ResidualLayer as ResidualLayer
from pdecnn.pde.layers import SymmetricLayer as SymmetricLayer
from pdecnn.pde.normalization import TotalVariationNorm as TotalVariationNorm
from pdecnn.pde.stencil import galerkin_coarsen as galerkin_coarsen
from pdecnn.pde.stencil import pde_coefficients as pde_coefficients
from pdecnn.pde.stencil import pde_terms as pde_terms
from pdecnn.pde.stencil import rediscretize as rediscretize
from pdecnn.pde.stencil import stencil_from_pde_coefficients as stencil_from_pde_coefficients
