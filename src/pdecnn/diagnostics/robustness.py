"""How many images a classifier still gets right under attack, in pixel units.

Images are pixels in [0, 1] and stay so; signals and volumes are numbers in units of their own,
without bounds. Gradients go through the preprocessing. An attack counts as resisted only if the
clean image and every image on its way are classified right.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from pdecnn.diagnostics.attacks import (
    DLR_CLASSES,
    PIXELS,
    Attacked,
    Bounds,
    Classifier,
    Loss,
    Norm,
    Rule,
    apgd,
    fgsm,
    is_right,
    walk,
)
from pdecnn.errors import ConfigError, DataError, DivergedError, unknown_name
from pdecnn.networks.network import Network, evaluation_mode
from pdecnn.pde.backprop import Backprop
from pdecnn.pde.block import Block
from pdecnn.settings import check_count, check_number, formerly

AttackMethod = Literal["fgsm", "pgd", "apgd"]
METHODS: tuple[AttackMethod, ...] = get_args(AttackMethod)
Attack = Literal["fgsm", "pgd", "apgd_ce", "apgd_dlr"]
ATTACKS: tuple[Attack, ...] = get_args(Attack)
RESTARTS, NUM_STEPS = 4, 25
"""Of PGD and of each loss of APGD. Restarts find more than as many steps from one start."""
WORST = "worst"
_NUM_SHOWN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackResult:
    """The share of images that resist an attack."""

    epsilon: float
    norm: str
    attack: str
    """'fgsm', 'pgd', 'apgd_ce', 'apgd_dlr', or 'worst': all of those that were run."""
    accuracy: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackedImages:
    """Some images that are classified right, and what the attacks made of them."""

    epsilon: float
    norm: str
    clean: Tensor
    attacked: Tensor
    """Pixels that are classified wrong where an attack found such, else of a large loss."""
    labels: Tensor
    predicted: Tensor
    """The classes of the attacked images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Robustness:
    """The clean accuracy and what is left of it under attacks."""

    clean_accuracy: float
    results: tuple[AttackResult, ...]
    notice: str | None = None
    """What was not run, and why."""
    examples: tuple[AttackedImages, ...] = field(default=(), compare=False, repr=False)
    """For each norm and epsilon, of the same images."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, without the examples."""
        results = [result.to_dict() for result in self.results]
        return {"clean_accuracy": self.clean_accuracy, "results": results, "notice": self.notice}


@formerly(attacks="pass methods", pgd_config="pass restarts, num_steps and seed")
def measure_robustness(
    classifier: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilons: Iterable[float],
    norms: Sequence[Norm] = ("linf",),
    methods: Sequence[AttackMethod] = METHODS,
    restarts: int = RESTARTS,
    num_steps: int = NUM_STEPS,
    seed: int = 0,
    preprocess: Classifier | None = None,
    batch_size: int = 250,
) -> Robustness:
    """Accuracies under each attack, norm and epsilon, and under all, in evaluation mode.

    `images` are uint8, or floating in [0, 1]; signals and volumes are in any units, which are then
    those of epsilon. `preprocess` makes the classifier's input of pixels, by default
    `network.preprocess` for a `Network`; other classifiers get pixels, in the dtype of their
    weights. PGD and APGD take `num_steps` from each of `restarts` random points; APGD is run with
    both of its losses. An image that has fallen is not attacked any further.
    """
    epsilons = [check_number("epsilon", epsilon, smallest=0.0) for epsilon in epsilons]
    check_count("batch_size", batch_size)
    pixels, labels = checked_images(images, labels)
    check_count("seed", seed, smallest=0)
    options: dict[str, Any] = {"num_steps": num_steps, "restarts": restarts}
    options["bounds"] = bounds_of(pixels)
    results, examples = [], []
    with scores_of_pixels(classifier, preprocess) as scores:
        batches = list(batches_for(classifier, pixels, labels, batch_size))
        num_classes = _num_classes(scores, batches)
        clean = [is_right(scores, *batch) for batch in batches]
        shown = torch.split(_shown(torch.cat(clean)), batch_size)
        attacks, notice = _attacks(methods, num_classes)
        for norm in norms:
            for epsilon in epsilons:
                options |= {"epsilon": epsilon, "norm": norm}
                resists: dict[str, list[Tensor]] = {name: [] for name in (*attacks, WORST)}
                pairs = []
                for batch, which in zip(batches, shown, strict=True):
                    found: dict[str, Attacked] = {
                        # From other starts than the other attacks, so that they find more together.
                        name: run_attack(scores, *batch, name, seed=seed + place, **options)
                        for name, place in attacks.items()
                    }
                    found[WORST] = _worst(found.values())
                    for name, outcome in found.items():
                        resists[name].append(outcome.resists)
                    pairs.append([part[which] for part in (*batch, found[WORST].pixels)])
                results += [
                    AttackResult(
                        epsilon=epsilon, norm=norm, attack=name, accuracy=_share(torch.cat(masks))
                    )
                    for name, masks in resists.items()
                ]
                before, truth, after = (torch.cat(parts) for parts in zip(*pairs, strict=True))
                examples.append(
                    AttackedImages(
                        epsilon=epsilon,
                        norm=norm,
                        clean=before.cpu(),
                        attacked=after.cpu(),
                        labels=truth.cpu(),
                        predicted=_classes(scores, after).cpu(),
                    )
                )
    return Robustness(
        clean_accuracy=_share(torch.cat(clean)),
        results=tuple(results),
        notice=notice,
        examples=tuple(examples),
    )


def _attacks(methods: Sequence[str], num_classes: int) -> tuple[dict[Attack, int], str | None]:
    """The places among `ATTACKS` of those to be run, and why one of them is left out."""
    for method in methods:
        if method not in METHODS:
            raise unknown_name("attack", method, METHODS)
    if not methods:
        raise ConfigError(f"there must be at least one method of {', '.join(METHODS)}")
    places = {
        name: place for place, name in enumerate(ATTACKS) if name.partition("_")[0] in methods
    }
    if "apgd" not in methods or num_classes >= DLR_CLASSES:
        return places, None
    del places["apgd_dlr"]
    return places, (
        f"APGD with the cross entropy alone: the difference of logits ratio needs {DLR_CLASSES} "
        f"classes, and there are {num_classes}"
    )


def run_attack(
    scores: Classifier,
    pixels: Tensor,
    labels: Tensor,
    attack: Attack,
    *,
    epsilon: float,
    norm: Norm = "linf",
    bounds: Bounds = PIXELS,
    **budget: Any,
) -> Attacked:
    """What one attack finds: 'fgsm', 'pgd', 'apgd_ce' or 'apgd_dlr'.

    The fast gradient's image is tried by PGD too, which is therefore never the weaker attack.
    """
    rule: dict[str, Any] = {"epsilon": epsilon, "norm": norm, "bounds": bounds}
    if attack == "apgd_ce" or attack == "apgd_dlr":
        loss: Loss = "ce" if attack == "apgd_ce" else "dlr"
        return apgd(scores, pixels, labels, loss=loss, **rule, **budget)
    moved = fgsm(scores, pixels, labels, **rule)
    right = is_right(scores, pixels, labels) & is_right(scores, moved, labels)
    fast = Attacked(moved, right)
    if attack == "fgsm":
        return fast
    return _worst([fast, walk(scores, pixels, labels, Rule(**rule), **budget)])


def _worst(found: Iterable[Attacked]) -> Attacked:
    """All attacks as one; of an image that resists all, what the last one tried."""
    (pixels, resists), *others = found
    for other in others:
        rows = resists.view(-1, *(1,) * (pixels.dim() - 1))
        pixels = other.pixels.where(rows, pixels)
        resists = resists & other.resists
    return Attacked(pixels, resists)


def _shown(right: Tensor) -> Tensor:
    """Which images are examples: some of those that are right, from all parts of the set."""
    places = right.nonzero()[:, 0]
    chosen = torch.linspace(0, len(places) - 1, min(_NUM_SHOWN, len(places))).round().long()
    mask = torch.zeros_like(right)
    mask[places[chosen.to(places.device)]] = True
    return mask


@torch.no_grad()
def _classes(scores: Classifier, pixels: Tensor) -> Tensor:
    return scores(pixels).argmax(1) if len(pixels) else torch.zeros(0, dtype=torch.long)


@torch.no_grad()
def _num_classes(scores: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> int:
    """How many scores there are; a DivergedError if they are finite for no image."""
    for pixels, _ in batches:
        found = scores(pixels)
        if bool(found.isfinite().all(1).any()):
            return found.shape[1]
    raise DivergedError(
        "of no image are the class scores finite: the features leave the range of "
        "floating-point numbers on their way; take other weights"
    )


@contextmanager
def scores_of_pixels(
    classifier: nn.Module, preprocess: Classifier | None = None
) -> Iterator[Classifier]:
    """Class scores as a function of pixels, differentiable through the preprocessing.

    Within it the classifier is in evaluation mode, its weights have no gradients, and its
    reversible blocks are checkpointed, since gradients of 'reversible' are wrong at kinks and
    would make attacks weaker.
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

    weights = [part for part in classifier.parameters() if part.requires_grad]
    blocks = [
        part
        for part in classifier.modules()
        if isinstance(part, Block) and part.backprop == "reversible"
    ]

    def set_(*, trains: bool, backprop: Backprop) -> None:
        for part in weights:
            part.requires_grad_(trains)
        for block in blocks:
            block.backprop = backprop

    with evaluation_mode(classifier):
        try:
            set_(trains=False, backprop="checkpointed")
            yield scores
        finally:
            set_(trains=True, backprop="reversible")


def bounds_of(pixels: Tensor) -> Bounds:
    """[0, 1] for images that lie in it; None for others, and for signals and volumes."""
    inside = not _is_free(pixels) and bool(((pixels >= 0) & (pixels <= 1)).all())
    return PIXELS if inside else None


def _is_free(samples: Tensor) -> bool:
    """Whether they are signals or volumes, whose numbers are in units of their own."""
    return samples.dim() in (3, 5)


def checked_images(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers in float32 at least, of images in [0, 1], and labels; a DataError for others."""
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
    if bounds_of(pixels) is None and not _is_free(pixels):
        raise DataError(
            f"pixels must be in [0, 1], where epsilon has its meaning; found "
            f"{float(pixels.min()):.4g} to {float(pixels.max()):.4g}: scale the data into "
            f"[0, 1], or pass images before standardisation"
        )
    return pixels, labels.to(pixels.device).long()


def batches_for(
    classifier: nn.Module, pixels: Tensor, labels: Tensor, size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels in batches of at most that size, where the classifier's weights are."""
    device = next(classifier.parameters(), pixels).device
    for batch, classes in zip(torch.split(pixels, size), torch.split(labels, size), strict=True):
        yield batch.to(device), classes.to(device)


def _share(right: Tensor) -> float:
    return float(right.cpu().double().mean())
