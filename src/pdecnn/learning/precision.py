"""What layers compute in; states, weights and sums are float32 throughout."""

import torch
from torch import Tensor

from pdecnn.errors import unknown_name
from pdecnn.networks.network import Network

PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
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
