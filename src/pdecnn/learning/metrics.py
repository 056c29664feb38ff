"""How good a network is on a set of images."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.data.batches import evaluation_batches
from pdecnn.data.image_set import ImageSet
from pdecnn.data.stored_images import StoredImages, image_batches
from pdecnn.errors import DataError
from pdecnn.fast.acceleration import fast_layout
from pdecnn.learning.distributed import ALONE, Ranks
from pdecnn.learning.precision import compute_scores
from pdecnn.networks.network import Network


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

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values, without the confusion matrix."""
        return {
            "accuracy": self.accuracy,
            "loss": self.loss if isfinite(self.loss) else None,
            "balanced_accuracy": self.balanced_accuracy,
            "per_class": self.per_class,
            "num_images": self.num_images,
        }


def _go_on() -> None:
    """The default poll: nothing asks to stop."""


@contextmanager
def evaluation_mode(network: Network) -> Iterator[None]:
    """Within it the network is in evaluation mode; every part goes back to the mode it had."""
    modes = [(part, part.training) for part in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training


@torch.no_grad()
def class_scores(
    network: Network,
    images: Tensor | StoredImages,
    *,
    batch_size: int,
    precision: str = "float32",
    poll: Callable[[], None] = _go_on,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Scores of all images in evaluation mode; `poll` runs between batches and may raise.

    Several ranks take the batches in turn and share the scores, which have the bits of one's.
    """
    parts = []
    batches = evaluation_batches(len(images), batch_size)
    own = batches[ranks.rank :: ranks.size]
    with evaluation_mode(network):
        for pixels in image_batches(images, own):
            poll()
            features = fast_layout(network.preprocess(pixels))
            scores = compute_scores(network, features, precision)
            parts.append(scores.to(torch.promote_types(scores.dtype, torch.float32)))
    if ranks.size == 1:
        return torch.cat(parts)
    if len(own) < len(range(0, len(batches), ranks.size)):
        poll()  # as often as the others
    weight = network.classifier.weight
    dtype = torch.promote_types(weight.dtype, torch.float32)
    shared = weight.new_zeros((len(images), network.num_classes), dtype=dtype)
    for where, scores in zip(own, parts, strict=True):
        shared[where] = scores
    ranks.sum_(shared)  # one rank's scores and zeros: nothing is rounded
    return shared


def evaluate_network(
    network: Network,
    image_set: ImageSet,
    *,
    batch_size: int = 250,
    precision: str = "float32",
    poll: Callable[[], None] = _go_on,
    score: Callable[[Callable[[], None]], Tensor] | None = None,
    ranks: Ranks = ALONE,
) -> Evaluation:
    """Loss and accuracies of the network on an image set, shared by the ranks.

    `score(poll)` may say its scores, if there is a quicker way to them than `class_scores`.
    """
    check_fit(network, image_set)
    if score is not None:
        scores = score(poll)
    else:
        scores = class_scores(
            network,
            image_set.images,
            batch_size=batch_size,
            precision=precision,
            poll=poll,
            ranks=ranks,
        )
    labels = image_set.labels.to(scores.device)
    # Rank 0's: processors round sums differently, and ties of accuracy are settled by the loss.
    loss = ranks.first(lambda: float(functional.cross_entropy(scores.double().cpu(), labels.cpu())))
    return summarize(scores.argmax(1).cpu(), labels.cpu(), image_set.class_names, loss)


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
    if len(image_set.size) != network.config.dimension:
        raise DataError(
            f"the network takes {network.config.dimension}D samples but those of the data have "
            f"{len(image_set.size)} dimensions; use the data it was made for"
        )
    if image_set.channels != network.config.in_channels:
        raise DataError(
            f"the network takes {network.config.in_channels} channels but the images have "
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
