"""How good a network is and what it costs: scores on images, figures of an epoch, operations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf, isfinite, nan
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.data.image_set import ImageSet, StoredImages, evaluation_batches, image_batches
from pdecnn.errors import DataError, unknown_name
from pdecnn.fast.acceleration import fast_layout
from pdecnn.files import finite_number
from pdecnn.learning.checkpoint import Progress
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network, evaluation_mode
from pdecnn.settings import formerly

Precision = Literal["auto", "float32", "bfloat16"]
AUTO: Precision = "auto"
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """What 'auto' means on the device: bfloat16 on a GPU that has it, float32 elsewhere."""
    if precision not in (AUTO, *PRECISIONS):
        raise unknown_name("precision", precision, (AUTO, *PRECISIONS))
    if precision != AUTO:
        return precision
    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if has_bfloat16 else "float32"


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """The context in which layers compute in the given precision."""
    dtype = PRECISIONS[resolve_precision(precision, device)]
    enabled = dtype != torch.float32
    return torch.autocast(device.type, dtype=dtype if enabled else torch.bfloat16, enabled=enabled)


def compute_scores(network: Network, images: Tensor, precision: Precision) -> Tensor:
    """Class scores of standardised images, the layers computing in the given precision."""
    with autocast(precision, images.device):
        scores: Tensor = network(images)
    return scores


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Accuracies in [0, 1] and the mean cross entropy, with the confusion matrix behind them."""

    loss: float
    accuracy: float
    balanced_accuracy: float
    """The mean of the classes' accuracies; classes without images left out."""
    per_class: dict[str, float | None]
    """The accuracy of each class; None for a class without images."""
    confusion: list[list[int]]
    """confusion[i][j]: images of class i taken for class j."""
    num_images: int

    @property
    def score(self) -> float:
        """The accuracy, by which networks are compared."""
        return self.accuracy

    def summary(self) -> dict[str, Any]:
        """What a run keeps of it."""
        return {**self.to_dict(), "confusion": self.confusion}

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values, without the confusion matrix."""
        return {
            "accuracy": self.accuracy,
            "loss": finite_number(self.loss),
            "balanced_accuracy": self.balanced_accuracy,
            "per_class": self.per_class,
            "num_images": self.num_images,
        }


class Measured(Protocol):
    """What any evaluation has."""

    @property
    def loss(self) -> float:
        """The mean loss."""

    @property
    def score(self) -> float:
        """The figure of which more is better."""

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""

    def summary(self) -> dict[str, Any]:
        """What a run keeps of them."""


def _go_on() -> None:
    """The default poll: nothing asks to stop."""


@torch.no_grad()
def class_scores(
    network: Network,
    images: Tensor | StoredImages,
    *,
    batch_size: int,
    precision: Precision = "float32",
    poll: Callable[[], None] = _go_on,
    batches: Sequence[slice] | None = None,
) -> Tensor:
    """Scores of all images, or of some batches, in evaluation mode.

    `poll` runs between batches and may raise.
    """
    parts = []
    if batches is None:
        batches = evaluation_batches(len(images), batch_size)
    with evaluation_mode(network):
        for pixels in image_batches(images, batches):
            poll()
            features = fast_layout(network.preprocess(pixels))
            scores = compute_scores(network, features, precision)
            parts.append(scores.to(torch.promote_types(scores.dtype, torch.float32)))
    return torch.cat(parts)


@formerly(ranks="leave it out")
def evaluate_network(
    network: Network,
    image_set: ImageSet,
    *,
    batch_size: int = 250,
    precision: Precision = "float32",
    poll: Callable[[], None] = _go_on,
    score: Callable[[Callable[[], None]], Tensor] | None = None,
) -> Evaluation:
    """Loss and accuracies of the network on an image set.

    `score(poll)` returns its scores where there is a quicker way to them than `class_scores`.
    """
    check_fit(network, image_set)
    if score is None:
        scores = class_scores(
            network, image_set.images, batch_size=batch_size, precision=precision, poll=poll
        )
    else:
        scores = score(poll)
    labels = image_set.labels.cpu()
    loss = float(functional.cross_entropy(scores.double().cpu(), labels))
    return summarize(scores.argmax(1).cpu(), labels, image_set.class_names, loss)


def check_fit(network: Network, image_set: ImageSet) -> None:
    """Refuse images the network was not made for: other channels, other classes."""
    if image_set.num_classes != network.num_classes:
        raise DataError(
            f"the network tells {network.num_classes} classes apart but the data has "
            f"{image_set.num_classes}; use the data it was made for"
        )
    names = network.preprocessing.class_names
    if names is not None and names != image_set.class_names:
        own, found = next(
            pair for pair in zip(names, image_set.class_names, strict=True) if pair[0] != pair[1]
        )
        raise DataError(
            f"the network has a class {own!r} where the data has {found!r}; use data with the "
            f"classes it was made for"
        )
    check_form(network, image_set)


def check_form(network: Network, image_set: ImageSet) -> None:
    """Refuse images of other dimensions or channels than the network's."""
    if len(image_set.size) != network.config.dimension:
        raise DataError(
            f"the network takes {network.config.dimension}D samples but those of the data have "
            f"{len(image_set.size)} dimensions; use the data it was made for"
        )
    if image_set.channels != network.config.in_channels:
        raise DataError(
            f"the network takes {network.config.in_channels} channels but the data has "
            f"{image_set.channels}; use the data it was made for"
        )


def summarize(
    predictions: Tensor, labels: Tensor, class_names: tuple[str, ...], loss: float
) -> Evaluation:
    """The evaluation of predicted against true classes."""
    num_classes = len(class_names)
    pairs = labels * num_classes + predictions
    confusion = torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)
    counts, correct = confusion.sum(1), confusion.diagonal()
    present = counts > 0
    rates = correct.double() / counts.clamp(min=1)
    return Evaluation(
        loss=loss,
        accuracy=float(correct.sum()) / len(labels),
        balanced_accuracy=float(rates[present].mean()),
        per_class={
            name: float(rate) if there else None
            for name, rate, there in zip(class_names, rates, present, strict=True)
        },
        confusion=confusion.tolist(),
        num_images=len(labels),
    )


class EpochReport(NamedTuple):
    """The figures of one epoch; nothing in it depends on the clock."""

    epoch: int
    step: int
    learning_rate: float
    loss: float
    data_loss: float
    smoothness: float
    decay: float
    accuracy: float
    """The score of the training's task, whose name files have in its place."""
    validation_loss: float | None
    validation_accuracy: float | None
    """Likewise; None, as the loss: there is no validation."""
    nonfinite_steps: int
    """Steps skipped so far for a loss or gradient that was not finite."""
    nonfinite_batches: list[int]
    """Those of this epoch, by the number of the batch from 0."""
    reversal_error: float | None
    """The gradient error of reversible blocks at the start of the epoch; None: not measured."""
    checkpointed_blocks: int
    """How many of them the drift guard has switched to 'checkpointed' so far."""
    level: int
    """From 0."""
    work: float
    """Floating-point operations of the training so far."""


def report_epoch(
    progress: Progress, sums: Tensor, evaluation: "Measured | None", *, learning_rate: float
) -> EpochReport:
    """The figures of the epoch that `progress` has just completed, with the step's `sums`."""
    *totals, number = sums.tolist()
    count = number or nan  # no figures for an epoch whose every step was skipped
    loss, data_loss, smoothness, decay, accuracy = (total / count for total in totals)
    return EpochReport(
        epoch=progress.epoch,
        step=progress.step,
        learning_rate=learning_rate,
        loss=loss,
        data_loss=data_loss,
        smoothness=smoothness,
        decay=decay,
        accuracy=accuracy,
        validation_loss=None if evaluation is None else evaluation.loss,
        validation_accuracy=None if evaluation is None else evaluation.score,
        nonfinite_steps=progress.nonfinite_steps,
        nonfinite_batches=progress.nonfinite_batches,
        reversal_error=progress.reversal_error,
        checkpointed_blocks=len(progress.checkpointed_blocks),
        level=progress.level,
        work=progress.work,
    )


Ties = Literal["loss", "first"]
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
    """The place of the best of the recorded epochs, which is one of their last level.

    Without validation that is the last one.
    """
    best = 0
    for place, epoch in enumerate(epochs):
        so_far = epochs[best]
        if (
            epoch["validation_accuracy"] is None
            or epoch.get("level") != so_far.get("level")
            or is_better(
                epoch["validation_accuracy"],
                epoch.get("validation_loss"),
                so_far["validation_accuracy"],
                so_far.get("validation_loss"),
                ties=ties,
            )
        ):
            best = place
    return best


@cache
def training_flops(config: NetworkConfig, size: tuple[int, ...], batch_size: int) -> int:
    """The floating-point operations of scores and gradient of a batch, without running any.

    What reversal or checkpoints compute again is left out, so that all modes compare. 0, not
    known, where a part of others must see numbers to go on, as an iteration for a step does.
    """
    with torch.device("meta"):
        network = Network(replace(config, backprop="stored"))
        images = torch.empty(batch_size, config.in_channels, *size)

    def differentiate() -> None:
        torch.autograd.grad(network(images).sum(), list(network.parameters()), allow_unused=True)

    try:
        return count_flops(differentiate)
    except (RuntimeError, TypeError, ValueError):
        return 0


def count_flops(call: Callable[[], object]) -> int:
    """The floating-point operations of the convolutions and matrix products in a call.

    A multiplication and an addition each count one.
    """
    from torch.utils.flop_counter import FlopCounterMode  # takes long to import

    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())
