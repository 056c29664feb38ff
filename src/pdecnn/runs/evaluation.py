"""A finished run on data: accuracy and loss, or predictions for single images."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pdecnn.data.image_set import ImageSet
from pdecnn.data.images import read_image
from pdecnn.errors import ConfigError, DivergedError
from pdecnn.learning.distributed import joined_ranks
from pdecnn.learning.metrics import check_fit, class_scores, evaluate_network
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import refuse_nonfinite
from pdecnn.runs.environment import resolve_device
from pdecnn.runs.preparation import read_splits
from pdecnn.runs.runs import Run, as_run
from pdecnn.runs.weights import load

SPLITS = ("test", "validation", "train")


def evaluate(
    run: str | Path | Run,
    *,
    data: str | Path | None = None,
    split: str = "test",
    weights: str = "best",
    device: str = "auto",
) -> dict[str, Any]:
    """Accuracy, loss and per-class accuracies of a run on its test, validation or training images.

    The training images come as they are, without augmentation. Several ranks share the images.
    """
    where = resolve_device(device)
    with joined_ranks(where) as ranks:
        network, images, training = ranks.together(
            lambda: read_run(as_run(run), data, split=split, weights=weights)
        )
        how: dict[str, Any] = {
            "batch_size": training.evaluation_batch_size,
            "precision": training.precision,
        }
        score = ranks.scoring(network.to(where), images.images, **how)
        evaluation = ranks.agreed(evaluate_network(network, images, score=score, **how))
    return {**evaluation.to_dict(), "num_weights": network.num_weights}


def read_run(
    run: Run,
    data: str | Path | None,
    *,
    split: str = "test",
    weights: str = "best",
    finite: bool = True,
) -> tuple[Network, ImageSet, TrainingConfig]:
    """The network of a run, the images to measure it on, which must fit it, and its settings.

    `data` is where its data lie now, if that is not where they were. With `finite` a network of
    weights that are no numbers is refused.
    """
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, found {split!r}")
    config = run.config
    if data is not None:
        config = replace(config, data=replace(config.data, folder=str(data)))
    network = Network.from_pretrained(run.weights(weights))
    if finite:
        refuse_nonfinite(network, run.weights(weights))
    images: ImageSet = getattr(read_splits(config.data, config.seed), split)
    check_fit(network, images)
    return network, images, config.training


def predict(
    run: str | Path,
    images: Sequence[str | Path],
    *,
    top: int = 3,
    weights: str = "best",
    device: str = "auto",
) -> list[dict[str, Any]]:
    """The most probable classes of image files, by name: one entry per image."""
    if top < 1:
        raise ConfigError(f"top must be at least 1, found {top}")
    network = load(run, weights).to(resolve_device(device))
    refuse_nonfinite(network, Path(run))
    names = network.preprocessing.class_names or tuple(map(str, range(network.num_classes)))
    size = network.preprocessing.size
    if network.config.dimension != 2:
        raise ConfigError(
            f"{run}: its network takes {network.config.dimension}D arrays, and image files have 2 "
            f"dimensions; use pdecnn.load and network.preprocess from Python"
        )
    height_width = None if size is None else (size[0], size[1])
    pixels = [read_image(path, network.config.in_channels, height_width) for path in images]
    results = []
    for path, image in zip(images, pixels, strict=True):
        scores = class_scores(network, image.unsqueeze(0), batch_size=1)
        if not bool(scores.isfinite().all()):
            raise DivergedError(
                f"{path}: its class scores are not finite: the features leave the range of "
                f"floating-point numbers on their way; take other weights"
            )
        probabilities, classes = torch.topk(scores[0].softmax(0), min(top, network.num_classes))
        results.append(
            {
                "image": str(path),
                "predictions": [
                    {"class": names[index], "probability": probability}
                    for index, probability in zip(
                        classes.tolist(), probabilities.tolist(), strict=True
                    )
                ],
            }
        )
    return results
