"""What layers compute in; states, weights and sums are float32 throughout."""

import torch
from torch import Tensor

from pdecnn.errors import unknown_name
from pdecnn.networks.network import Network

PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
AUTO = "auto"


def check_precision(precision: str) -> None:
    """Refuse a precision that is none of `PRECISIONS`, nor 'auto'."""
    if precision not in (AUTO, *PRECISIONS):
        raise unknown_name("precision", precision, (AUTO, *PRECISIONS))


def resolve_precision(precision: str, device: torch.device) -> str:
    """What 'auto' means on the device: bfloat16 on a GPU that has it, float32 elsewhere."""
    check_precision(precision)
    if precision != AUTO:
        return precision
    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if has_bfloat16 else "float32"


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context in which layers compute in the given precision."""
    dtype = PRECISIONS[resolve_precision(precision, device)]
    enabled = dtype != torch.float32
    return torch.autocast(device.type, dtype=dtype if enabled else torch.bfloat16, enabled=enabled)


def compute_scores(network: Network, images: Tensor, precision: str) -> Tensor:
    """Class scores of standardised images, the layers computing in the given precision."""
    with autocast(precision, images.device):
        scores: Tensor = network(images)
    return scores


class LossScale:
    """The factor that keeps float16 gradients from underflowing; 1 in other precisions.

    Halved when a gradient overflows, doubled after `growth_interval` steps without; kept on the
    device, where the decision is taken.
    """

    growth_interval = 1000
    smallest = 1.0
    exhausted_message = (
        "float16 gradients overflow even without loss scaling; use training.precision=bfloat16 or "
        "a smaller learning rate"
    )

    def __init__(self, precision: str, device: torch.device | str = "cpu") -> None:
        self.active = resolve_precision(precision, torch.device(device)) == "float16"
        self.value = torch.full((), 2.0**16 if self.active else 1.0, device=device)
        self.steps_since_change = torch.zeros((), dtype=torch.int64, device=device)

    def update_(self, *, accepted: Tensor, overflowed: Tensor) -> Tensor:
        """Adapt after a step, if it was one or the other; say whether the scale is exhausted."""
        age = self.steps_since_change + accepted
        grown = accepted & (age >= self.growth_interval)
        exhausted = overflowed & (self.value <= self.smallest)
        halved = overflowed & ~exhausted
        factor = torch.where(grown, 2.0, torch.where(halved, 0.5, 1.0))
        self.value.mul_(factor)
        self.steps_since_change.copy_(torch.where(grown | halved, 0, age))
        return exhausted
