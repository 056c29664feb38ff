"""Which epoch of a training is its best: the one whose weights are kept."""

from collections.abc import Sequence
from math import inf, isfinite
from typing import Any

TIES = ("loss", "first")
"""What settles equal validation accuracies: the lower validation loss, then the earlier epoch; or
the earlier epoch alone."""


def is_better(
    accuracy: float,
    loss: float | None,
    best_accuracy: float,
    best_loss: float | None,
    *,
    ties: str,
) -> bool:
    """Whether an epoch beats the best of those before it; a loss may be not finite or None."""
    if accuracy != best_accuracy or ties == "first":
        return accuracy > best_accuracy
    return _comparable(loss) < _comparable(best_loss)


def _comparable(loss: float | None) -> float:
    """What is not finite loses against any number, and no such loss beats another."""
    return loss if loss is not None and isfinite(loss) else inf


def best_epoch(epochs: Sequence[dict[str, Any]], *, ties: str) -> int:
    """The place of the best of the recorded epochs, which is one of their last level."""
    best = 0
    for place, epoch in enumerate(epochs):
        so_far = epochs[best]
        if epoch.get("level") != so_far.get("level") or is_better(
            epoch["validation_accuracy"],
            epoch.get("validation_loss"),
            so_far["validation_accuracy"],
            so_far.get("validation_loss"),
            ties=ties,
        ):
            best = place
    return best
