"""What training minimises: the loss (eq. 4) and the regulariser in time (eq. 13)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pdecnn.checks import check_number
from pdecnn.errors import ConfigError, unknown_name
from pdecnn.learning.optimizer import flatten
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import constant
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import Convolution

LOSSES = ("cross_entropy", "least_squares")
SMOOTHNESS = ("tv", "h1")
# Far below it float32 loses tau, and the slope of the total variation at 0 becomes 0/0.
SMALLEST_SMOOTHING = 1e-30


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The loss S and the regulariser R of eqs. 4 and 13."""

    loss: str = "cross_entropy"
    """'cross_entropy', or 'least_squares': half the squared distance of the scores to the one-hot
    label; both are means over the examples."""
    class_weights: tuple[float, ...] | None = None
    """A factor for the loss of each class; None: 1 for all."""
    label_smoothing: float = 0.0
    """The share of the label that is spread evenly over all classes."""
    smoothness: str = "tv"
    """How changes of the weights in time are punished: 'tv' (eq. 13) or 'h1' (squared)."""
    smoothness_weight: float = 2e-4
    """alpha_1."""
    decay_weight: float = 2e-4
    """alpha_2."""
    smoothing: float = 1e-3
    """tau, which rounds the corner of the total variation."""

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise unknown_name("loss", self.loss, LOSSES)
        if self.smoothness not in SMOOTHNESS:
            raise unknown_name("smoothness", self.smoothness, SMOOTHNESS)
        if self.class_weights is not None:
            self._check_class_weights(self.class_weights)
        for name, smallest, below in (
            ("label_smoothing", 0.0, 1.0),
            ("smoothness_weight", 0.0, inf),
            ("decay_weight", 0.0, inf),
            ("smoothing", SMALLEST_SMOOTHING, inf),
        ):
            value = check_number(name, getattr(self, name), smallest=smallest, below=below)
            object.__setattr__(self, name, value)

    def _check_class_weights(self, weights: Sequence[float]) -> None:
        if not isinstance(weights, list | tuple) or not weights:
            raise ConfigError(f"class_weights must be a list of numbers, found {weights!r}")
        numbers = tuple(check_number("class_weights", weight, smallest=0) for weight in weights)
        object.__setattr__(self, "class_weights", numbers)


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
    """S(scores, labels) + R(network) (eqs. 4 and 13).

    alpha_1 -> `smoothness_weight`, alpha_2 -> `decay_weight`, tau -> `smoothing`. The factor 1/2
    of eq. 4 is left out, as in the authors' code.
    """

    def __init__(self, config: ObjectiveConfig | None = None) -> None:
        self.config = ObjectiveConfig() if config is None else config

    def __call__(self, network: Network, scores: Tensor, labels: Tensor) -> ObjectiveValue:
        """The objective at the network's weights, with the parts by name."""
        data_loss = self.data_loss(scores, labels)
        smoothness, decay = self.regularization(network)
        return ObjectiveValue(data_loss + smoothness + decay, data_loss, smoothness, decay)

    def check_classes(self, num_classes: int) -> None:
        """Refuse class weights for another number of classes."""
        weights = self.config.class_weights
        if weights is not None and len(weights) != num_classes:
            raise ConfigError(f"class_weights has {len(weights)} entries for {num_classes} classes")

    def data_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean loss over the examples, in float32 at least."""
        config = self.config
        num_classes = scores.shape[1]
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        weights = None
        if config.class_weights is not None:
            self.check_classes(num_classes)
            weights = constant(config.class_weights, scores.dtype, scores.device)[labels]
        if config.loss == "cross_entropy":
            losses = functional.cross_entropy(
                scores, labels, reduction="none", label_smoothing=config.label_smoothing
            )
        else:
            targets = functional.one_hot(labels, num_classes).to(scores.dtype)
            targets = targets * (1 - config.label_smoothing) + config.label_smoothing / num_classes
            losses = (scores - targets).square().sum(1) / 2
        return (losses if weights is None else weights * losses).mean()

    def regularization(self, network: "Network | WeightsInTime") -> Regularization:
        """R in its two parts; the constant floor of the smoothed total variation is left out.

        Instead of a network its `WeightsInTime` will do, where many steps follow each other.
        """
        parts = WeightsInTime(network) if isinstance(network, Network) else network
        classifier = parts.classifier
        stages = [k.stencil for k in parts.stages]
        decay = _sum_of_squares([*stages, classifier.weight, classifier.bias])
        smoothness = decay.new_zeros(())
        for block, rows, convolutions in parts.blocks:
            smoothness = smoothness + self._smoothness(rows, block.step_size)
            repeats = block.num_steps * block.integrator.layers_per_step // len(block.layers)
            squares = _sum_of_squares([k.stencil for k in convolutions])
            decay = decay + block.step_size * repeats * squares
        return Regularization(
            self.config.smoothness_weight * smoothness, self.config.decay_weight / 2 * decay
        )

    def _smoothness(self, rows: list[list[Tensor]], step_size: float) -> Tensor:
        """The total variation or H1 seminorm in time of all weights of a block."""
        weights = torch.stack([flatten(row) for row in rows])  # (steps, weights)
        rates = (weights[1:] - weights[:-1]) / step_size
        if self.config.smoothness == "h1":
            return step_size / 2 * rates.square().sum()
        # sqrt(r^2 + tau) - sqrt(tau), in a form that does not cancel.
        squares, corner = rates.square(), sqrt(self.config.smoothing)
        return step_size * (squares / ((squares + self.config.smoothing).sqrt() + corner)).sum()


class BlockInTime(NamedTuple):
    """The weights of a block as the regulariser needs them."""

    block: Block
    rows: list[list[Tensor]]
    """All trainable weights of each distinct step; one row if the steps share them."""
    convolutions: list[Convolution]


class WeightsInTime:
    """Where the regulariser finds the weights of a network.

    Modules, not tensors, where a parametrisation may compute the weight anew each time.
    """

    def __init__(self, network: Network) -> None:
        self.stages = _convolutions([network.opening, *network.connectors])
        self.classifier = network.classifier
        self.blocks = [_block_in_time(block) for block in network.blocks]


def _block_in_time(block: nn.Module) -> BlockInTime:
    assert isinstance(block, Block)
    width, layers = block.integrator.layers_per_step, list(block.layers)
    steps = [layers[k : k + width] for k in range(0, len(layers), width)]
    rows: list[list[Tensor]] = [
        [weight for layer in step for weight in layer.parameters()] for step in steps
    ]
    return BlockInTime(block, rows, _convolutions(layers))


def _convolutions(modules: Sequence[nn.Module]) -> list[Convolution]:
    parts = (part for module in modules for part in module.modules())
    return [part for part in parts if isinstance(part, Convolution)]


def _sum_of_squares(tensors: Sequence[Tensor]) -> Tensor:
    # As one vector: a few kernels however many weights there are.
    return flatten(tensors).square().sum()
