"""What layers compute in; states, weights and sums are float32 throughout."""

import torch
from torch import Tensor

from pdecnn.errors import DivergedError, unknown_name
from pdecnn.networks.network import Network

PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def check_precision(precision: str) -> None:
    """Refuse a precision that is none of `PRECISIONS`."""
    if precision not in tuple(PRECISIONS):
        raise unknown_name("precision", precision, PRECISIONS)


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context in which layers compute in the given precision."""
    check_precision(precision)
    dtype = PRECISIONS[precision]
    enabled = dtype != torch.float32
    return torch.autocast(device.type, dtype=dtype if enabled else torch.bfloat16, enabled=enabled)


def compute_scores(network: Network, images: Tensor, precision: str) -> Tensor:
    """Class scores of standardised images, the layers computing in the given precision."""
    with autocast(precision, images.device):
        scores: Tensor = network(images)
    return scores


class LossScale:
    """The factor that keeps float16 gradients from underflowing; 1 in other precisions.

    Halved when a gradient overflows, doubled after `growth_interval` steps without.
    """

    growth_interval = 1000
    smallest = 1.0

    def __init__(self, precision: str) -> None:
        check_precision(precision)
        self.active = precision == "float16"
        self.value = 2.0**16 if self.active else 1.0
        self.steps_since_change = 0

    def update(self, finite: bool) -> None:
        """Adapt after a step."""
        if not self.active:
            return
        self.steps_since_change += 1
        if not finite:
            if self.value <= self.smallest:
                raise DivergedError(
                    "float16 gradients overflow even without loss scaling; use "
                    "training.precision=bfloat16 or a smaller learning rate"
                )
            self.value, self.steps_since_change = self.value / 2, 0
        elif self.steps_since_change >= self.growth_interval:
            self.value, self.steps_since_change = self.value * 2, 0
