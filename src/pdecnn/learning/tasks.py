"""What a network is trained for: the loss, the figures, and which of two networks is better.

Objective, trainer, evaluation, prediction and attack ask the task, without knowing which it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.data.image_set import ImageSet
from pdecnn.data.patches import with_test_noise
from pdecnn.errors import ConfigError, DataError, unknown_name
from pdecnn.fast.acceleration import fast_layout
from pdecnn.files import finite_number
from pdecnn.learning.image_quality import SMALLEST_ERROR, psnr, ssim
from pdecnn.learning.metrics import (
    Evaluation,
    Measured,
    Precision,
    check_fit,
    check_form,
    class_scores,
    compute_scores,
    evaluate_network,
)
from pdecnn.learning.training_config import ObjectiveConfig
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network, evaluation_mode
from pdecnn.networks.preprocessing import constant
from pdecnn.settings import Settings, documented, setting

FIELD_LOSSES = {
    "regression": ("squared", "charbonnier"),
    "segmentation": ("cross_entropy_dice", "cross_entropy", "dice"),
}
"""The losses of tasks with an answer for each pixel, the usual one first."""
TASKS = ("classification", *FIELD_LOSSES)
_DATA = {"regression": "pictures", "segmentation": "segmented"}
_CHARBONNIER = 1e-3
_MOST_SLICES = 12
"""Of a volume that is shown."""
Score = Callable[[Callable[[], None]], Tensor]
"""All class scores of a set at once, by a quicker way than batch by batch."""


@documented
@dataclass(frozen=True, kw_only=True)
class TaskConfig(Settings):
    """What a network is trained for."""

    section = "task"
    name: str = setting(
        "classification",
        "'classification': a class for each sample; 'regression': numbers for each pixel; "
        "'segmentation': a class for each pixel.",
        TASKS,
        kind="task",
    )
    loss: str | None = setting(
        None,
        "Of regression: 'squared', or 'charbonnier', the root of the squared error and 1e-6. Of "
        "segmentation: 'cross_entropy_dice', the sum of two that can be had alone too, "
        "'cross_entropy' and 'dice'. None: the first of them; a classification has training.loss.",
        [name for names in FIELD_LOSSES.values() for name in names],
    )

    def check_together(self) -> None:
        """Refuse a loss that would be ignored."""
        if self.loss is None:
            return
        if self.name == "classification":
            raise ConfigError(
                f"task.loss is for regression and segmentation; a classification has "
                f"training.loss, found task.loss={self.loss}"
            )
        if self.loss not in FIELD_LOSSES[self.name]:
            raise unknown_name(f"loss of {self.name}", self.loss, FIELD_LOSSES[self.name])

    def check_network(self, network: NetworkConfig) -> None:
        """Refuse a network that gives another kind of answer."""
        wanted = self.name != "classification"
        if network.is_field != wanted:
            kind = "field, residual or transpose" if wanted else "linear or unit_rows"
            raise ConfigError(
                f"task.name={self.name} needs network.classifier={kind}, found {network.classifier}"
            )

    def check_data(self, name: str) -> None:
        """Refuse data whose targets are of another kind."""
        wanted = _DATA.get(self.name)
        if name != wanted and (wanted is not None or name in _DATA.values()):
            raise ConfigError(
                f"task.name={self.name} does not fit data.name={name}: pictures are for "
                f"regression, segmented ones for segmentation, all others for classification"
            )


class AbstractTask(ABC):
    """What targets are, and how answers are compared with them."""

    score: ClassVar[str]
    """The figure of which more is better, and by which the best epoch is chosen."""
    label: ClassVar[str]
    """What people call it."""
    percent: ClassVar[bool]
    """Whether it is a share."""
    has_classes: ClassVar[bool] = False
    """Whether each sample has one class, as certificates need; if not, each pixel has an answer."""
    columns: ClassVar[tuple[str, ...]]
    """What of `show` stands side by side, where each pixel has an answer."""
    answer: ClassVar[str]
    """Which of the columns the network made; the others are the data's."""

    def format(self, score: float, digits: int = 1) -> str:
        """The score as people read it."""
        return f"{score:.{digits}%}" if self.percent else f"{score:.{digits + 1}f}"

    @abstractmethod
    def num_outputs(self, images: ImageSet) -> int:
        """How many numbers a network has to give of such data."""

    @abstractmethod
    def check_fit(self, network: Network, images: ImageSet) -> None:
        """Refuse images that the network was not made for."""

    @abstractmethod
    def losses(self, config: ObjectiveConfig, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example, in float32 at least."""

    @abstractmethod
    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of the examples' scores, on the device."""

    @abstractmethod
    def evaluate(
        self,
        network: Network,
        images: ImageSet,
        *,
        batch_size: int,
        precision: Precision,
        poll: Callable[[], None],
        quick: Callable[[], Score | None],
    ) -> Measured:
        """All figures of a network on images, in evaluation mode."""

    @abstractmethod
    def show(self, network: Network, images: ImageSet, precision: Precision) -> dict[str, Tensor]:
        """The answers to a few images, for people to look at."""


class Classification(AbstractTask):
    """A class for each sample, by cross entropy or least squares (eq. 4)."""

    score, label, percent = "accuracy", "accuracy", True
    has_classes = True

    def num_outputs(self, images: ImageSet) -> int:
        """One for each class."""
        return images.num_classes

    def check_fit(self, network: Network, images: ImageSet) -> None:
        """The same channels, dimension and classes."""
        check_fit(network, images)

    def losses(self, config: ObjectiveConfig, outputs: Tensor, targets: Tensor) -> Tensor:
        """S(scores, labels) of each, weighted by its class."""
        num_classes = outputs.shape[1]
        scores = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        weights = None
        if config.class_weights is not None:
            check_class_weights(config, num_classes)
            weights = constant(config.class_weights, scores.dtype, scores.device)[targets]
        if config.loss == "cross_entropy":
            if config.margin_offset:
                right = functional.one_hot(targets, num_classes).to(scores.dtype)
                scores = scores - config.margin_offset * right
            losses = config.temperature * functional.cross_entropy(
                scores / config.temperature,
                targets,
                reduction="none",
                label_smoothing=config.label_smoothing,
            )
        else:
            wanted = functional.one_hot(targets, num_classes).to(scores.dtype)
            wanted = wanted * (1 - config.label_smoothing) + config.label_smoothing / num_classes
            losses = (scores - wanted).square().sum(1) / 2
        return losses if weights is None else weights * losses

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The number of right answers."""
        return (outputs.detach().argmax(1) == targets).sum()

    def evaluate(
        self,
        network: Network,
        images: ImageSet,
        *,
        batch_size: int,
        precision: Precision,
        poll: Callable[[], None],
        quick: Callable[[], Score | None],
    ) -> Evaluation:
        """Accuracies and the mean cross entropy."""
        return evaluate_network(
            network, images, batch_size=batch_size, precision=precision, poll=poll, score=quick()
        )

    def show(self, network: Network, images: ImageSet, precision: Precision) -> dict[str, Tensor]:
        """The probabilities of the classes."""
        pixels = images.images[:]
        scores = class_scores(network, pixels, batch_size=len(images), precision=precision)
        return {"images": pixels, "labels": images.labels, "probabilities": scores.softmax(1)}


def check_class_weights(config: ObjectiveConfig, num_classes: int) -> None:
    """Refuse class weights for another number of classes."""
    weights = config.class_weights
    if weights is not None and len(weights) != num_classes:
        raise ConfigError(
            f"training.class_weights has {len(weights)} entries for {num_classes} classes"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureEvaluation:
    """The mean PSNR in dB and SSIM of images, on outputs clipped to [0, 1] and not rounded."""

    loss: float
    psnr: float
    ssim: float | None
    """None: no image is as large as its window."""
    per_image: list[dict[str, Any]]
    """`image`, `psnr` and `ssim` of each, in order."""

    @property
    def score(self) -> float:
        """The PSNR."""
        return self.psnr

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "psnr": self.psnr,
            "ssim": self.ssim,
            "loss": finite_number(self.loss),
            "num_images": len(self.per_image),
            "per_image": self.per_image,
        }

    def summary(self) -> dict[str, Any]:
        """What a run keeps of it."""
        return self.to_dict()


class AbstractFieldTask(AbstractTask):
    """An answer for each pixel: images differ in size, and are measured one after the other."""

    @abstractmethod
    def examples(self, network: Network, images: ImageSet) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each image what a network is given, before its preprocessing, and what is wanted.

        Both in a batch of one, where the network is.
        """

    @abstractmethod
    def assess(self, images: ImageSet, answers: Iterable[tuple[Tensor, Tensor]]) -> Measured:
        """All figures of what was wanted and found of each image, without batches."""

    @abstractmethod
    def seen(self, outputs: Tensor) -> Tensor:
        """Of what a network gives of one image, what is shown: numbers of [0, 1], or classes."""

    @abstractmethod
    def _answers(
        self, network: Network, images: ImageSet, precision: Precision, poll: Callable[[], None]
    ) -> Iterable[tuple[Tensor, ...]]:
        """Of each image, without a batch: what was wanted first, what was found last."""

    def evaluate(
        self,
        network: Network,
        images: ImageSet,
        *,
        batch_size: int,
        precision: Precision,
        poll: Callable[[], None],
        quick: Callable[[], Score | None],
    ) -> Measured:
        """The figures of each image, whole."""
        del batch_size, quick
        answers = self._answers(network, images, precision, poll)
        return self.assess(images, ((wanted, found) for wanted, *_, found in answers))


@dataclass(frozen=True, slots=True)
class Denoising(AbstractFieldTask):
    """The clean image of a noisy one: a regression at each pixel."""

    score, label, percent = "psnr", "PSNR in dB", False
    columns, answer = ("noisy", "denoised", "clean"), "denoised"
    kind: str
    """One of the FIELD_LOSSES of regression."""
    noise: float
    """With which it is measured, in units of 255."""

    def num_outputs(self, images: ImageSet) -> int:
        """As many numbers a pixel as go in."""
        return images.channels

    def check_fit(self, network: Network, images: ImageSet) -> None:
        """The same channels and dimension."""
        check_form(network, images)

    def losses(self, config: ObjectiveConfig, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the pixels of each."""
        del config
        squares = (outputs.float() - targets).square()
        errors = squares if self.kind == "squared" else (squares + _CHARBONNIER**2).sqrt()
        return errors.flatten(1).mean(1)

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of the PSNR in dB, of outputs that are not clipped."""
        errors = (outputs.detach().float() - targets).square().flatten(1).mean(1)
        return -10 * errors.clamp(min=SMALLEST_ERROR).log10().sum()

    def examples(self, network: Network, images: ImageSet) -> Iterator[tuple[Tensor, Tensor]]:
        """The noisy image and the clean one."""
        prepared = [network.preprocess(images.picture(k)[None]) for k in range(len(images))]
        yield from zip(with_test_noise(prepared, self.noise), prepared, strict=True)

    def assess(
        self, images: ImageSet, answers: Iterable[tuple[Tensor, Tensor]]
    ) -> PictureEvaluation:
        """PSNR and SSIM of each image."""
        rows: list[dict[str, Any]] = []
        losses = []
        for place, (clean, found) in enumerate(answers):
            losses.append(float(self.losses(ObjectiveConfig(), found[None], clean[None])))
            clipped = found.nan_to_num().clamp(0, 1)  # the loss tells that there was a NaN
            figures = {"psnr": psnr(clipped, clean), "ssim": ssim(clipped, clean)}
            rows.append({"image": images.name_of(place), **figures})
        similar = [row["ssim"] for row in rows if row["ssim"] is not None]
        return PictureEvaluation(
            loss=_mean(losses),
            psnr=_mean([row["psnr"] for row in rows]),
            ssim=_mean(similar) if similar else None,
            per_image=rows,
        )

    def seen(self, outputs: Tensor) -> Tensor:
        """As it is."""
        return outputs.float()

    def show(self, network: Network, images: ImageSet, precision: Precision) -> dict[str, Tensor]:
        """Noisy, denoised and clean pixels, as far as all images reach."""
        answers = self._answers(network, images, precision, lambda: None)
        rows = [[part.float() for part in answer] for answer in answers]
        return _cropped_alike(("clean", "noisy", "denoised"), rows)

    @torch.no_grad()
    def _answers(
        self, network: Network, images: ImageSet, precision: Precision, poll: Callable[[], None]
    ) -> Sequence[tuple[Tensor, Tensor, Tensor]]:
        """Clean, noisy and denoised, each (channels, *spatial)."""
        prepared = [network.preprocess(images.picture(k)[None])[0] for k in range(len(images))]
        found = []
        with evaluation_mode(network):
            for clean, noisy in zip(prepared, with_test_noise(prepared, self.noise), strict=True):
                poll()
                answer = compute_scores(network, fast_layout(noisy[None]), precision)[0]
                found.append((clean, noisy, answer.float()))
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentationEvaluation:
    """Dice 2|A B| / (|A| + |B|) and IoU |A B| / |A or B| of the pixels A found and B meant.

    For each image and class but the background; None where there are neither.
    """

    loss: float
    class_names: tuple[str, ...]
    """Without the background."""
    per_image: list[dict[str, Any]]
    """`image`, and `dice` and `iou` by class, in order."""

    def figures(self, name: str, average: Callable[[list[float]], float]) -> dict[str, Any]:
        """`dice` or `iou` of each class, averaged over the images that have it."""
        found = {}
        for label in self.class_names:
            values = [row[name][label] for row in self.per_image if row[name][label] is not None]
            found[label] = average(values) if values else None
        return found

    @property
    def score(self) -> float:
        """The mean over the classes of their mean Dice; 1: nothing to find, and nothing found."""
        found = [value for value in self.figures("dice", _mean).values() if value is not None]
        return _mean(found) if found else 1.0

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "mean_dice": self.score,
            "dice": self.figures("dice", _mean),
            "median_dice": self.figures("dice", median),
            "iou": self.figures("iou", _mean),
            "loss": finite_number(self.loss),
            "num_images": len(self.per_image),
            "per_image": self.per_image,
        }

    def summary(self) -> dict[str, Any]:
        """What a run keeps of it."""
        return self.to_dict()


@dataclass(frozen=True, slots=True)
class Segmentation(AbstractFieldTask):
    """A class for each pixel, by cross entropy, and by Dice without the background (class 0)."""

    score, label, percent = "mean_dice", "mean Dice", True
    columns, answer = ("image", "labels", "found"), "found"
    kind: str
    """One of the FIELD_LOSSES of segmentation."""

    def num_outputs(self, images: ImageSet) -> int:
        """A score for each class, at each pixel."""
        return images.num_classes

    def check_fit(self, network: Network, images: ImageSet) -> None:
        """The same channels, dimension and classes, and one of them for each pixel."""
        if images.masks is None:
            raise DataError("the data has no class for each pixel; set data.name=segmented")
        check_fit(network, images)

    def losses(self, config: ObjectiveConfig, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cross entropy over the pixels of each, plus 1 less its soft Dice.

        That is the mean over the classes c > 0 of (2 sum p_c [y = c] + 1) / (sum p_c + sum [y = c]
        + 1) with the probabilities p.
        """
        del config
        scores = outputs.float().flatten(2)
        classes = torch.arange(scores.shape[1], device=scores.device)
        wanted = targets.flatten(1)[:, None] == classes[:, None]
        losses = scores.new_zeros(len(scores))
        # Sums instead of torch's cross entropy, whose gradient on a GPU has other bits each time.
        logarithms = scores.log_softmax(1)
        if self.kind != "dice":
            losses = losses - (logarithms * wanted).sum(1).mean(1)
        if self.kind != "cross_entropy":
            probabilities = logarithms.exp()[:, 1:]
            common = (probabilities * wanted[:, 1:]).sum(2)
            total = probabilities.sum(2) + wanted[:, 1:].sum(2)
            losses = losses + 1 - ((2 * common + 1) / (total + 1)).mean(1)
        return losses

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of the mean Dice of the classes, 1 of those that are neither there nor found."""
        common, total = _overlaps(outputs.detach().argmax(1), targets, outputs.shape[1])
        dice = torch.where(total > 0, 2 * common / total.clamp(min=1), 1)
        return dice.mean(1).sum()

    def examples(self, network: Network, images: ImageSet) -> Iterator[tuple[Tensor, Tensor]]:
        """The image, bytes divided by 255, and its classes."""
        device = next(network.parameters()).device
        for place in range(len(images)):
            picture, labels = images.picture(place)[None].to(device), images.mask(place)[None]
            pixels = picture.float() / 255 if picture.dtype == torch.uint8 else picture
            yield pixels, labels.to(device).long()

    def assess(
        self, images: ImageSet, answers: Iterable[tuple[Tensor, Tensor]]
    ) -> SegmentationEvaluation:
        """Dice and IoU of each image, whole."""
        names = images.class_names[1:]
        measured, losses = [], []
        for labels, scores in answers:
            losses.append(self.losses(ObjectiveConfig(), scores[None], labels[None])[0])
            common, total = _overlaps(scores.argmax(0)[None], labels[None], len(scores))
            measured.append(torch.stack([common[0], total[0]]))
        rows: list[dict[str, Any]] = []
        # In one copy: the device is waited for once, not at each image.
        for place, (common, total) in enumerate(torch.stack(measured).double().cpu()):
            pairs = list(zip(names, common.tolist(), total.tolist(), strict=True))
            dice = {name: 2 * both / each if each else None for name, both, each in pairs}
            iou = {name: both / (each - both) if each else None for name, both, each in pairs}
            rows.append({"image": images.name_of(place), "dice": dice, "iou": iou})
        loss = _mean(torch.stack(losses).tolist())
        return SegmentationEvaluation(loss=loss, class_names=names, per_image=rows)

    def seen(self, outputs: Tensor) -> Tensor:
        """The class of the largest score, (1, *spatial)."""
        return outputs.argmax(0)[None].byte()

    def show(self, network: Network, images: ImageSet, precision: Precision) -> dict[str, Tensor]:
        """Images with the classes wanted and found, as far as all reach; of volumes some slices
        along the last axis, from the first to the last."""
        rows = []
        for place, (labels, scores) in enumerate(
            self._answers(network, images, precision, lambda: None)
        ):
            image = _in_unit_range(images.picture(place))
            rows.append([image, labels[None].byte(), self.seen(scores)])
        if images.dimension == 3:
            number = min(_MOST_SLICES, *(row[0].shape[-1] for row in rows))
            rows = [[_slices(part, number) for part in row] for row in rows]
        return _cropped_alike(self.columns, rows)

    @torch.no_grad()
    def _answers(
        self, network: Network, images: ImageSet, precision: Precision, poll: Callable[[], None]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The classes (*spatial) and the scores (classes, *spatial) of each image."""
        for place in range(len(images)):
            poll()
            with evaluation_mode(network):
                features = fast_layout(network.preprocess(images.picture(place)[None]))
                scores = compute_scores(network, features, precision)[0].float()
            yield images.mask(place).to(scores.device).long(), scores


def _cropped_alike(names: Iterable[str], rows: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
    """The columns of rows of tensors, one row an image, as far as all images reach."""
    sizes = [min(row[0].shape[axis] for row in rows) for axis in range(1, rows[0][0].dim())]
    where = (slice(None), *(slice(0, n) for n in sizes))
    return {
        name: torch.stack([row[k][where].cpu() for row in rows]) for k, name in enumerate(names)
    }


def _slices(volume: Tensor, number: int) -> Tensor:
    """So many slices along the last axis, evenly from the first to the last."""
    last = volume.shape[-1] - 1
    places = torch.linspace(0, last, number, dtype=torch.float64).round().long()
    return volume.index_select(-1, places.to(volume.device))


def _in_unit_range(image: Tensor) -> Tensor:
    """The image in float32 from 0 to 1, whatever its units."""
    values = image.float() - image.float().amin()
    return values / values.amax().clamp(min=1e-30)


def _overlaps(found: Tensor, wanted: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """|A B| and |A| + |B| of each example and class but the first, (batch, classes - 1)."""
    pairs = [
        ((found == label).flatten(1), (wanted == label).flatten(1))
        for label in range(1, num_classes)
    ]
    common = torch.stack([(one & two).sum(1) for one, two in pairs], 1)
    total = torch.stack([one.sum(1) + two.sum(1) for one, two in pairs], 1)
    return common, total


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


CLASSIFICATION = Classification()


def make_task(config: TaskConfig, *, noise: tuple[float, float] | None) -> AbstractTask:
    """The task of a config; `noise` is the range that the data is trained with."""
    if config.name == "classification":
        return CLASSIFICATION
    if config.name == "segmentation":
        return Segmentation(config.loss or FIELD_LOSSES["segmentation"][0])
    if noise is None:
        raise ConfigError(
            "task.name=regression learns to take noise away: set data.noise, e.g. data.noise=25"
        )
    return Denoising(config.loss or FIELD_LOSSES["regression"][0], (noise[0] + noise[1]) / 2)
