"""What training minimises: the loss (eq. 4) and the regulariser in time (eq. 13)."""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from torch import Tensor, nn

from pdecnn.errors import ConfigError
from pdecnn.learning.optimizer import Entry, blocks_of, flatten, matrices
from pdecnn.learning.tasks import CLASSIFICATION, AbstractTask, check_class_weights
from pdecnn.learning.training_config import ObjectiveConfig
from pdecnn.pde.block import Block


class Regularization(NamedTuple):
    """The two parts of eq. 13, weighted."""

    smoothness: Tensor
    decay: Tensor


class ObjectiveValue(NamedTuple):
    """The objective and its parts: total = data_loss + smoothness + decay."""

    total: Tensor
    data_loss: Tensor
    smoothness: Tensor
    decay: Tensor


class Objective:
    """S(scores, labels) + R(module) (eqs. 4 and 13), for any module that contains blocks.

    R punishes changes in time within each `Block`, and the size of convolutions and matrices: of a
    module whose own weights are all vectors, scales and shifts of a normalisation, it takes none.
    alpha_1 -> `smoothness_weight`, alpha_2 -> `decay_weight`, tau -> `smoothing`. The factor 1/2
    of eq. 4 is left out, as in the authors' code.

    For margins the cross entropy has an offset m and a temperature T, T S((scores - m e_y) / T)
    with the label y: what leads by m costs what a tie did. Where distances grow from images to
    scores by at most 1, no perturbation shorter than margin / sqrt(2) changes the class. The
    radius 36/255 thus needs a margin of sqrt(2) 36/255; m = 2 sqrt(2) 36/255 = 0.40 asks for twice
    that, to reach it with many images.
    """

    def __init__(
        self, config: ObjectiveConfig | None = None, task: AbstractTask = CLASSIFICATION
    ) -> None:
        self.config = ObjectiveConfig() if config is None else config
        self.task = task

    def __call__(self, module: nn.Module, scores: Tensor, labels: Tensor) -> ObjectiveValue:
        """The objective at the weights of a module, with the parts by name."""
        data_loss = self.data_loss(scores, labels)
        smoothness, decay = self.regularization(module)
        return ObjectiveValue(data_loss + smoothness + decay, data_loss, smoothness, decay)

    def check_classes(self, num_classes: int) -> None:
        """Refuse class weights for another number of classes."""
        check_class_weights(self.config, num_classes)

    def data_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean loss over the examples, in float32 at least."""
        return self.task.losses(self.config, scores, labels).mean()

    def regularization(self, module: "nn.Module | WeightsInTime") -> Regularization:
        """R in its two parts; the constant floor of the smoothed total variation is left out.

        Where many steps follow each other a `WeightsInTime` takes the place of its module.
        """
        parts = module if isinstance(module, WeightsInTime) else WeightsInTime(module)
        decay = _sum_of_squares(parts.outside, parts.zero)
        smoothness = decay.new_zeros(())
        for block in parts.blocks:
            smoothness = smoothness + self._smoothness(block)
            decay = decay + block.duration * _sum_of_squares(block.matrices, parts.zero)
        return Regularization(
            self.config.smoothness_weight * smoothness, self.config.decay_weight / 2 * decay
        )

    def _smoothness(self, block: "BlockInTime") -> Tensor | float:
        """The total variation or H1 seminorm in time of all weights of a block."""
        if not block.weights:
            return 0.0
        step_size = block.step_size
        weights = flatten(block.weights).view(block.num_rows, -1)  # (steps, weights)
        rates = (weights[1:] - weights[:-1]) / step_size
        if self.config.smoothness == "h1":
            return step_size / 2 * rates.square().sum()
        # sqrt(r^2 + tau) - sqrt(tau), in a form that does not cancel.
        squares, corner = rates.square(), sqrt(self.config.smoothing)
        return step_size * (squares / ((squares + self.config.smoothing).sqrt() + corner)).sum()


class BlockInTime(NamedTuple):
    """The weights of a block as the regulariser needs them."""

    step_size: float
    duration: float
    """The time that a row stands for: more than a step where steps share weights."""
    num_rows: int
    """Distinct steps; 1 if all share their weights."""
    weights: list[Tensor]
    """All weights, those of one step after those of another."""
    matrices: list[Entry]


class WeightsInTime:
    """Where the regulariser finds the weights of a module: in its blocks, and outside them.

    Modules with names, not tensors, where a parametrisation may compute a weight anew each time.
    """

    def __init__(self, module: nn.Module) -> None:
        blocks = blocks_of(module)
        within = {id(part) for block in blocks for part in block.modules()}
        self.outside = matrices(part for part in module.modules() if id(part) not in within)
        self.blocks = [_block_in_time(block) for block in blocks]
        self.zero = next(module.parameters()).detach().new_zeros(())


def _block_in_time(block: Block) -> BlockInTime:
    width, layers = block.integrator.layers_per_step, list(block.layers)
    rows = [
        [weight for layer in layers[k : k + width] for weight in layer.parameters()]
        for k in range(0, len(layers), width)
    ]
    if any([w.shape for w in row] != [w.shape for w in rows[0]] for row in rows):
        raise ConfigError(
            "the steps of a block have weights of other shapes each, which have no change in time; "
            "give all steps layers of one kind"
        )
    return BlockInTime(
        step_size=block.step_size,
        duration=block.step_size * (block.num_steps * width // len(layers)),
        num_rows=len(rows),
        weights=[weight for row in rows for weight in row],
        matrices=matrices(part for layer in layers for part in layer.modules()),
    )


def _sum_of_squares(entries: Sequence[Entry], zero: Tensor) -> Tensor:
    if not entries:
        return zero
    # As one vector: a few kernels however many weights there are.
    return flatten([getattr(part, name) for part, name in entries]).square().sum()
