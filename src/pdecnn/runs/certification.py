"""The certificate of a run or of a published model: what is proved, and what attacks find."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from pdecnn.data.augmentation import cpu_generator
from pdecnn.diagnostics.attacks import DLR_CLASSES, Loss, apgd
from pdecnn.diagnostics.certificate import Certificate, certify
from pdecnn.diagnostics.robustness import bounds_of, scores_of_pixels
from pdecnn.errors import ConfigError
from pdecnn.fast.acceleration import use_kernels
from pdecnn.files import finite_number
from pdecnn.learning.metrics import class_scores
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Preprocessing
from pdecnn.pde.convolution import SUBJECTS
from pdecnn.runs.diagnosis import float64_device
from pdecnn.runs.evaluation import read_run
from pdecnn.runs.preparation import Device, cpu_threads, open_run
from pdecnn.runs.runs import Weights
from pdecnn.settings import check_count, check_number

RADII = (36 / 255, 72 / 255, 108 / 255)
"""In pixels of [0, 1], as in comparisons of certified networks."""
SMALL = 1 / 255
_NUM_POINTS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class CertifiedResult:
    """How many images are right within a radius: between the two shares."""

    radius: float
    certified_accuracy: float
    """Proved."""
    attacked_accuracy: float | None
    """Those that APGD takes to no other class; None: not attacked."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CertificateReport:
    """The certificate of a network on test images, and attacks at the same radii."""

    run: str
    recipe: str
    weights: str
    num_weights: int
    certificate: Certificate
    places: tuple[int, ...]
    """Of the images in the test set."""
    results: tuple[CertifiedResult, ...]
    subject: str = "image"
    """What the samples are: 'signal', 'image' or 'volume'."""

    @property
    def largest_radius(self) -> float:
        """Of all images."""
        return float(self.certificate.radii.amax())

    @property
    def notices(self) -> list[str]:
        """What is not certified, and why."""
        found, said = self.certificate, []
        if self.largest_radius <= SMALL:
            name, value = found.largest_factor
            said.append(
                f"no radius above 1/255: L = {found.lipschitz:.4g}, of which {name} has "
                f"{value:.4g}; networks with network.step_size=stable have L = 1"
            )
        if len(found.disagreeing):
            places = [str(self.places[k]) for k in found.disagreeing.tolist()]
            shown = ", ".join(places[:8]) + (", ..." if len(places) > 8 else "")
            said.append(
                f"{len(places)} {self.subject}s have another class in the precision used to "
                f"predict than in float64, and no radius: {shown}"
            )
        return said

    @property
    def curve(self) -> tuple[list[float], list[float]]:
        """Radii from 0 to half as much again as the largest asked for, and what is certified."""
        end = 1.5 * max(result.radius for result in self.results) or 1.0
        radii = [end * k / _NUM_POINTS for k in range(_NUM_POINTS + 1)]
        return radii, [self.certificate.certified_accuracy(radius) for radius in radii]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; `docs/diagnostics.md` says what every key means."""
        found = self.certificate
        radii, accuracies = self.curve
        return {
            "run": self.run,
            "recipe": self.recipe,
            "weights": self.weights,
            "num_images": found.num_images,
            "num_weights": self.num_weights,
            "norm": "l2",
            "clean_accuracy": found.clean_accuracy,
            "lipschitz": finite_number(found.lipschitz),
            "factors": [
                {"name": name, "bound": finite_number(value)} for name, value in found.factors
            ],
            "largest_radius": self.largest_radius,
            "disagreeing": [self.places[k] for k in found.disagreeing.tolist()],
            "notices": self.notices,
            "results": [
                {
                    "radius": result.radius,
                    "certified_accuracy": result.certified_accuracy,
                    "attacked_accuracy": result.attacked_accuracy,
                }
                for result in self.results
            ],
            "curve": {"radii": radii, "certified_accuracies": accuracies},
        }


def certify_run(
    run: str | Path,
    *,
    radii: Sequence[float] = RADII,
    data: str | Path | None = None,
    weights: Weights = "best",
    num_images: int | None = None,
    attack: bool = True,
    device: Device = "auto",
    say: Callable[[str], None] = lambda text: None,
) -> CertificateReport:
    """The certificate of a run, or of the model with published weights of that name.

    On all test images, or on `num_images` of them, the same ones each time. With `attack` also APGD
    (cross entropy and, from 3 classes on, DLR, 100 steps from one start each) at every radius.
    """
    if not radii:
        raise ConfigError("there must be at least one radius")
    radii = sorted({check_number("radius", radius, smallest=0.0) for radius in radii})
    where = float64_device(device)
    opened = open_run(run)
    network, test, training = read_run(opened, data, weights=weights)
    places = torch.arange(len(test))
    if num_images is not None:
        drawn = torch.randperm(len(test), generator=cpu_generator("certified images"))
        places = drawn[: check_count("num_images", num_images)].sort().values
    chosen = test.subset(places)
    images, labels = chosen.images[:], chosen.labels
    with cpu_threads(training.num_threads):
        use_kernels(network.to(where)).eval()
        how: dict[str, Any] = {"batch_size": training.evaluation_batch_size}
        say(f"classes of {len(places)} {SUBJECTS[network.config.dimension]}s")
        scores = class_scores(network, images, **how, precision=training.precision)
        say("bounds, and scores in float64")
        found = certify(network, images, labels, predicted=scores.argmax(1))
        attacked: list[float | None] = [None] * len(radii)
        if attack:
            attacked = [*_attacked(network, images, labels, radii, **how, say=say)]
    return CertificateReport(
        run=str(run),
        recipe=opened.config.recipe,
        weights=weights,
        num_weights=network.num_weights,
        certificate=found,
        places=tuple(places.tolist()),
        results=tuple(
            CertifiedResult(
                radius=radius,
                certified_accuracy=found.certified_accuracy(radius),
                attacked_accuracy=accuracy,
            )
            for radius, accuracy in zip(radii, attacked, strict=True)
        ),
        subject=SUBJECTS[network.config.dimension],
    )


def _attacked(
    network: Network,
    images: Tensor,
    labels: Tensor,
    radii: Sequence[float],
    *,
    batch_size: int,
    say: Callable[[str], None],
) -> list[float]:
    """The share of images that APGD takes to no other class at each radius, the smallest first.

    What falls within a radius falls within a larger one.
    """
    # Perturbed is what is certified: the image after resizing, which no second one changes.
    pixels = Preprocessing(standardize="none", size=network.preprocessing.size).apply(images)
    bounds, subject = bounds_of(pixels), SUBJECTS[network.config.dimension]
    losses: tuple[Loss, ...] = get_args(Loss)[: 2 if network.num_classes >= DLR_CLASSES else 1]
    device = network.weight.device
    resisting, found = torch.ones(len(pixels), dtype=torch.bool), []
    with scores_of_pixels(network) as scores:
        for radius in radii:
            say(f"APGD at radius {radius:.4g} on {int(resisting.sum())} {subject}s")
            for loss in losses:
                left = resisting.nonzero()[:, 0]
                for chosen in torch.split(left, batch_size) if len(left) else ():
                    batch = pixels[chosen].to(device), labels[chosen.to(labels.device)].to(device)
                    outcome = apgd(
                        scores, *batch, epsilon=radius, norm="l2", loss=loss, bounds=bounds
                    )
                    resisting[chosen] = outcome.resists.cpu()
            found.append(float(resisting.double().mean()))
    return found
