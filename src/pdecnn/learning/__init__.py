"""Learning: objective, optimiser, trainer and checkpoints (Secs. 4 and 5)."""

from pdecnn.learning.metrics import EpochReport as EpochReport
from pdecnn.learning.metrics import Evaluation as Evaluation
from pdecnn.learning.metrics import evaluate_network as evaluate_network
from pdecnn.learning.objective import Objective as Objective
from pdecnn.learning.objective import ObjectiveValue as ObjectiveValue
from pdecnn.learning.optimizer import ProjectedSGD as ProjectedSGD
from pdecnn.learning.trainer import Trainer as Trainer
from pdecnn.learning.training_config import ObjectiveConfig as ObjectiveConfig
from pdecnn.learning.training_config import OptimizerConfig as OptimizerConfig
from pdecnn.learning.training_config import TrainingConfig as TrainingConfig
