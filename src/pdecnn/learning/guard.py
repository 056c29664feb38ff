"""When a training looks at the gradients of reversible blocks, and what it does about them."""

import logging
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pdecnn.learning.checkpoint import Progress
from pdecnn.learning.metrics import autocast
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.network import Network
from pdecnn.networks.reversal import DriftGuard

log = logging.getLogger(__name__)

NUM_PROBES = 8
"""Images of the probe batch: few, since deep networks are reversed for want of memory."""
_ADVICE = "network.backprop=exact has no such error"


class TrainingGuard:
    """Measures the drift of a training's network when it is time to, and acts on it."""

    def __init__(
        self,
        network: Network,
        config: TrainingConfig,
        *,
        largest_of: Callable[[list[float]], list[float]] = list,
    ) -> None:
        self.config, self.largest_of = config, largest_of
        self.drift = DriftGuard(network)
        self.autocast = partial(autocast, config.precision, network.weight.device)

    def is_due(self, progress: Progress) -> bool:
        """Whether to look now: at the start of an epoch, every so many of them."""
        return (
            self.config.reversal_guard != "off"
            and bool(self.drift.watched)
            and progress.batch == 0
            and progress.epoch % self.config.reversal_interval == 0
        )

    def look(self, progress: Progress, images: Tensor, loss: Callable[[Tensor], Tensor]) -> bool:
        """Measure, say what is wrong, and switch blocks if asked to; whether any was."""
        try:
            errors = self.drift.measure(images, loss, autocast=self.autocast)
        except torch.OutOfMemoryError:
            log.info(
                "there is not enough memory to measure the gradients of reversible blocks; they "
                "are used as they are"
            )
            return False
        # Each process has looked at images of its own; all must do the same about it.
        errors = dict(zip(errors, self.largest_of(list(errors.values())), strict=True))
        # JSON has no infinity.
        progress.reversal_error = min(max(errors.values()), sys.float_info.max)
        tolerance, policy = self.config.reversal_tolerance, self.config.reversal_guard
        wrong = [index for index, error in errors.items() if not error <= tolerance]
        fresh = [index for index in wrong if index not in self.drift.switched]
        for index in fresh:
            action = "it is checkpointed from now on" if policy == "switch" else "it goes on"
            log.info(
                f"epoch {progress.epoch + 1}: the gradient of reversible block {index} is wrong by "
                f"a relative {errors[index]:.2g} (tolerance {tolerance:g}): {action}; {_ADVICE}"
            )
        if policy != "switch" or not fresh:
            return False
        self.drift.switch(fresh)
        progress.checkpointed_blocks = self.drift.switched
        return True
