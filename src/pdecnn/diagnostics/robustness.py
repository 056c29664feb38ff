"""How many images a classifier still gets right under attack, in pixel units.

Images are pixels in [0, 1] and stay so; gradients go through the preprocessing. An attack counts
as resisted only if the clean image and every image on its way are classified right.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.checks import check_count, check_number
from pdecnn.diagnostics.attacks import Classifier, PGDConfig, fgsm, pgd_iterates
from pdecnn.diagnostics.inputs import evaluation_mode
from pdecnn.errors import DataError, DivergedError, unknown_name
from pdecnn.networks.network import Network
from pdecnn.pde.block import Block

ATTACKS = ("fgsm", "pgd")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackResult:
    """The share of images that resist an attack."""

    epsilon: float
    norm: str
    attack: str
    accuracy: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Robustness:
    """The clean accuracy and what is left of it under attacks."""

    clean_accuracy: float
    results: tuple[AttackResult, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        results = [result.to_dict() for result in self.results]
        return {"clean_accuracy": self.clean_accuracy, "results": results}


def measure_robustness(
    classifier: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilons: Iterable[float],
    norms: Sequence[str] = ("linf",),
    attacks: Sequence[str] = ATTACKS,
    preprocess: Classifier | None = None,
    pgd_config: PGDConfig | None = None,
    batch_size: int = 250,
) -> Robustness:
    """Accuracies under each attack, norm and epsilon, in evaluation mode.

    `images` are uint8, or floating in [0, 1]; `preprocess` makes the classifier's input of
    pixels, by default `network.preprocess` for a `Network`; other classifiers get pixels, in the
    dtype of their weights.
    """
    epsilons = [check_number("epsilon", epsilon, smallest=0.0) for epsilon in epsilons]
    check_count("batch_size", batch_size)
    pixels, labels = checked_images(images, labels)
    results = []
    with scores_of_pixels(classifier, preprocess) as scores:
        batches = list(in_batches(pixels, labels, batch_size, device=device_of(classifier)))
        _refuse_nonfinite(scores, batches)
        clean = torch.cat([is_right(scores, *batch) for batch in batches])
        for norm in norms:
            for epsilon in epsilons:
                for attack in attacks:
                    robust = torch.cat(
                        [
                            resists(
                                scores,
                                *batch,
                                epsilon=epsilon,
                                norm=norm,
                                attack=attack,
                                pgd_config=pgd_config,
                            )
                            for batch in batches
                        ]
                    )
                    results.append(
                        AttackResult(
                            epsilon=epsilon, norm=norm, attack=attack, accuracy=_share(robust)
                        )
                    )
    return Robustness(clean_accuracy=_share(clean), results=tuple(results))


def resists(
    scores: Classifier,
    pixels: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    norm: str = "linf",
    attack: str = "pgd",
    pgd_config: PGDConfig | None = None,
) -> Tensor:
    """For each image, whether the clean one and every iterate of the attack are right.

    The fast gradient's image is tried by PGD too, which is therefore never the weaker attack.
    """
    if attack not in ATTACKS:
        raise unknown_name("attack", attack, ATTACKS)
    robust = is_right(scores, pixels, labels)
    robust &= is_right(scores, fgsm(scores, pixels, labels, epsilon=epsilon, norm=norm), labels)
    if attack == "pgd":
        for iterate in pgd_iterates(
            scores, pixels, labels, epsilon=epsilon, norm=norm, config=pgd_config
        ):
            robust &= is_right(scores, iterate, labels)
    return robust


@torch.no_grad()
def _refuse_nonfinite(scores: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    if not any(bool(scores(pixels).isfinite().all(1).any()) for pixels, _ in batches):
        raise DivergedError(
            "of no image are the class scores finite: the features leave the range of "
            "floating-point numbers on their way; take other weights"
        )


@torch.no_grad()
def is_right(scores: Classifier, pixels: Tensor, labels: Tensor) -> Tensor:
    """For each image, whether its label has the largest score; never where scores are NaN."""
    found = scores(pixels)
    if int(labels.max()) >= found.shape[1]:
        raise DataError(
            f"there is a label {int(labels.max())}, but the classifier has {found.shape[1]} scores"
        )
    # The largest of scores with a NaN among them is the NaN.
    return (found.argmax(1) == labels) & found.isfinite().all(1)


@contextmanager
def scores_of_pixels(
    classifier: nn.Module, preprocess: Classifier | None = None
) -> Iterator[Classifier]:
    """Class scores as a function of pixels, differentiable through the preprocessing.

    Within it the classifier is in evaluation mode and its reversible blocks are checkpointed,
    since gradients of 'reversible' are wrong at kinks and would make attacks weaker.
    """
    if preprocess is None and isinstance(classifier, Network):
        preprocess = classifier.preprocess
    weight = next((part for part in classifier.parameters() if part.is_floating_point()), None)

    def scores(pixels: Tensor) -> Tensor:
        if preprocess is not None:
            inputs = preprocess(pixels)
        else:
            inputs = pixels if weight is None else pixels.to(weight.dtype)
        found: Tensor = classifier(inputs)
        return found

    with ExitStack() as stack:
        stack.enter_context(evaluation_mode(classifier))
        stack.enter_context(_checkpointed(classifier))
        yield scores


def checked_images(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels in [0, 1], in float32 at least, and their labels; a DataError for anything else."""
    if images.dtype == torch.uint8:
        pixels = images.float() / 255
    elif images.is_floating_point():
        pixels = images.detach().to(torch.promote_types(images.dtype, torch.float32))
    else:
        raise DataError(f"images must be uint8 or floating in [0, 1], found {images.dtype}")
    if labels.dim() != 1 or len(labels) != len(images) or len(images) == 0:
        raise DataError(
            f"there must be one label for each image and at least one image, found "
            f"{tuple(images.shape)} and {tuple(labels.shape)}"
        )
    if labels.is_floating_point() or int(labels.min()) < 0:
        raise DataError(f"labels must be whole numbers from 0 on, found {labels.dtype}")
    if not bool(((pixels >= 0) & (pixels <= 1)).all()):
        raise DataError(
            f"pixels must be in [0, 1], where epsilon has its meaning; found "
            f"{float(pixels.min()):.4g} to {float(pixels.max()):.4g}: scale the data into "
            f"[0, 1], or pass images before standardisation"
        )
    return pixels, labels.to(pixels.device).long()


def in_batches(
    pixels: Tensor, labels: Tensor, size: int, *, device: torch.device | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels in batches of at most that size, on `device` if there is one."""
    for begin in range(0, len(pixels), size):
        end = begin + size
        yield pixels[begin:end].to(device), labels[begin:end].to(device)


def device_of(classifier: nn.Module) -> torch.device | None:
    """Where its weights are; None: it has none."""
    weight = next(classifier.parameters(), None)
    return None if weight is None else weight.device


@contextmanager
def _checkpointed(classifier: nn.Module) -> Iterator[None]:
    reversible = [
        part
        for part in classifier.modules()
        if isinstance(part, Block) and part.backprop == "reversible"
    ]
    for block in reversible:
        block.backprop = "checkpointed"
    try:
        yield
    finally:
        for block in reversible:
            block.backprop = "reversible"


def _share(right: Tensor) -> float:
    return float(right.cpu().double().mean())
