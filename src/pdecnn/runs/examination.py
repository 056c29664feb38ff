"""A run on its test images one by one: what it takes each for, and which it gets wrong."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pdecnn.data.augmentation import cpu_generator
from pdecnn.data.image_set import ImageSet
from pdecnn.learning.metrics import Evaluation, class_scores, evaluate_network
from pdecnn.runs.environment import resolve_device
from pdecnn.runs.evaluation import read_run
from pdecnn.runs.runs import Run, as_run
from pdecnn.runs.training import SHOWN_IMAGES


class Sample(NamedTuple):
    """Some test images and what the network says of them."""

    places: list[int]
    """Where they stand in the test set, from 0."""
    images: Tensor
    """As the data has them, (n, channels, *spatial)."""
    labels: Tensor
    probabilities: Tensor
    """(n, classes)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """The network of a run on all test images, and some of them to look at."""

    evaluation: Evaluation
    class_names: tuple[str, ...]
    shown: Sample
    """At random, the same for every run on a data set."""
    wrong: Sample
    """Those it is most certain of and wrong about."""
    num_wrong: int
    test_set: str
    """Equal for runs with the same test labels and classes, whose accuracies can be compared."""


def examine(
    run: str | Path | Run,
    *,
    data: str | Path | None = None,
    weights: str = "best",
    device: str = "auto",
    num_images: int = 12,
) -> Examination:
    """Score all test images and keep up to `num_images` at random and as many wrong ones."""
    where = resolve_device(device)
    network, test, training = read_run(as_run(run), data, weights=weights)
    scores = class_scores(
        network.to(where),
        test.images,
        batch_size=training.evaluation_batch_size,
        precision=training.precision,
    )
    evaluation = evaluate_network(network, test, score=lambda poll: scores)
    probabilities = scores.double().softmax(1).cpu()
    predicted, labels = scores.argmax(1).cpu(), test.labels.cpu()
    wrong = (predicted != labels).nonzero()[:, 0]
    certainty = probabilities[wrong, predicted[wrong]].nan_to_num()
    wrong = wrong[torch.argsort(certainty, descending=True, stable=True)]
    shown = torch.randperm(len(test), generator=cpu_generator(SHOWN_IMAGES))
    return Examination(
        evaluation=evaluation,
        class_names=test.class_names,
        shown=_sample(test, probabilities, shown[:num_images]),
        wrong=_sample(test, probabilities, wrong[:num_images]),
        num_wrong=len(wrong),
        test_set=_digest(labels, test.class_names),
    )


def _sample(test: ImageSet, probabilities: Tensor, places: Tensor) -> Sample:
    images, labels = test.images[places].cpu(), test.labels.cpu()[places]
    return Sample(places.tolist(), images, labels, probabilities[places])


def _digest(labels: Tensor, class_names: Sequence[str]) -> str:
    digest = hashlib.sha256(repr(tuple(class_names)).encode())
    digest.update(labels.numpy().tobytes())
    return digest.hexdigest()
