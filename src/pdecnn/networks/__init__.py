"""Section 5: whole networks made of blocks, by name, as folders."""

from pdecnn.networks.config import NetworkConfig as NetworkConfig
from pdecnn.networks.multilevel import coarsen_in_space as coarsen_in_space
from pdecnn.networks.multilevel import coarsen_in_time as coarsen_in_time
from pdecnn.networks.multilevel import freeze_steps as freeze_steps
from pdecnn.networks.multilevel import refine_in_space as refine_in_space
from pdecnn.networks.multilevel import refine_in_time as refine_in_time
from pdecnn.networks.multilevel import transfer_tensors as transfer_tensors
from pdecnn.networks.network import Network as Network
from pdecnn.networks.preprocessing import Preprocessing as Preprocessing
from pdecnn.networks.registry import create_model as create_model
from pdecnn.networks.registry import list_models as list_models
from pdecnn.networks.registry import register_model as register_model
from pdecnn.networks.stages import Classifier as Classifier
from pdecnn.networks.stages import Connector as Connector
from pdecnn.networks.stages import Opening as Opening
