"""Weights that are no numbers: nothing is computed with them without a word."""

from pathlib import Path

from torch import nn

from pdecnn.errors import DivergedError


def nonfinite_weights(module: nn.Module) -> str | None:
    """How many weights and statistics are NaN or infinite, and where the first is; None: none."""
    tensors = {
        name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()
    }
    counts = {name: int((~tensor.isfinite()).sum()) for name, tensor in tensors.items()}
    first = next((name for name, count in counts.items() if count), None)
    if first is None:
        return None
    number, total = sum(counts.values()), sum(tensor.numel() for tensor in tensors.values())
    verb = "is" if number == 1 else "are"
    return f"{number:,} of {total:,} weights {verb} NaN or infinite, the first in {first}"


def refuse_nonfinite(module: nn.Module, origin: Path) -> None:
    """Raise a DivergedError where weights are no numbers, before anything is made of them."""
    found = nonfinite_weights(module)
    if found is not None:
        raise DivergedError(
            f"{origin}: {found}, so that nothing it computes means anything; take other weights, "
            f"or look at what is left with `pdecnn diagnose`"
        )
