"""A finished run under the magnifying glass: what PDE theory predicts of it, and robustness."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pdecnn.data.augmentation import cpu_generator
from pdecnn.data.image_set import ImageSet
from pdecnn.diagnostics.attacks import NORMS, Norm
from pdecnn.diagnostics.certificate import lipschitz_factors
from pdecnn.diagnostics.corruptions import CorruptionResult, measure_corruptions
from pdecnn.diagnostics.diagnosis import (
    BlockDiagnosis,
    block_values,
    diagnose_network,
)
from pdecnn.diagnostics.lipschitz import Factor, rounded_up_product
from pdecnn.diagnostics.robustness import (
    METHODS,
    NUM_STEPS,
    RESTARTS,
    AttackedImages,
    AttackMethod,
    AttackResult,
    measure_robustness,
)
from pdecnn.errors import ConfigError, DivergedError, unknown_name
from pdecnn.files import finite_number
from pdecnn.learning.tasks import AbstractFieldTask
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import nonfinite_weights
from pdecnn.runs.evaluation import read_run
from pdecnn.runs.field_attack import (
    NUM_ATTACKED,
    AbstractAttackReport,
    FieldAttackReport,
    attack_field_run,
)
from pdecnn.runs.preparation import Device, cpu_threads, make_run_task, open_run, resolve_device
from pdecnn.runs.runs import Run, Weights
from pdecnn.settings import check_count

NUM_IMAGES = 8
"""Images at which a diagnosis is made."""
EPSILONS = (0.02, 0.05, 0.1, 0.2)


def _say_nothing(text: str) -> None:
    del text


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What was found of the network of a run."""

    run: str
    recipe: str
    weights: str
    num_images: int
    num_weights: int
    blocks: tuple[BlockDiagnosis, ...]
    notice: str | None = None
    """What is wrong with the weights: some are no numbers."""
    factors: tuple[Factor, ...] = ()
    """The Lipschitz constants of the parts of the network."""
    lipschitz_missing: str | None = None
    """Why they are not known."""
    subject: str = "image"
    """What the samples are: 'signal', 'image' or 'volume'."""

    @property
    def lipschitz(self) -> float | None:
        """L, from the input to the features before the classifier; None: not known."""
        values = [factor.value for factor in self.factors]
        return rounded_up_product(values) if values else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; `docs/diagnostics.md` says what every key means."""
        return {
            "run": self.run,
            "recipe": self.recipe,
            "weights": self.weights,
            "num_images": self.num_images,
            "num_weights": self.num_weights,
            "notice": self.notice,
            "lipschitz": finite_number(self.lipschitz),
            "lipschitz_missing": self.lipschitz_missing,
            "factors": [
                {"name": name, "bound": finite_number(value)} for name, value in self.factors
            ],
            "blocks": [
                {"block": index, **block_values(block)} for index, block in enumerate(self.blocks)
            ],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackReport(AbstractAttackReport):
    """The accuracies of a run on clean, attacked and corrupted test images."""

    limits = "Pixels are in [0, 1] and stay there."
    clean_accuracy: float
    results: tuple[AttackResult, ...]
    corruptions: tuple[CorruptionResult, ...]
    notice: str | None = None
    """Which attack was left out, and why."""
    examples: tuple[AttackedImages, ...] = field(default=(), compare=False, repr=False)
    class_names: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; `docs/diagnostics.md` says what every key means."""
        return {
            **self.head(),
            "notice": self.notice,
            "clean_accuracy": self.clean_accuracy,
            "results": [result.to_dict() for result in self.results],
            "corruptions": [result.to_dict() for result in self.corruptions],
        }


def diagnose(
    run: str | Path | Run,
    *,
    data: str | Path | None = None,
    weights: Weights = "best",
    device: Device = "auto",
    say: Callable[[str], None] = _say_nothing,
) -> Diagnosis:
    """Stability, energy, reversibility and learned PDE of a run's blocks, at test images.

    The images are 8 of the test set, the same for every run on it. Everything is computed in
    float64, which mps does not have: 'auto' is the CPU there. Weights that are no numbers are
    diagnosed too, with a notice.
    """
    run, where = open_run(run), float64_device(device)
    with cpu_threads(run.config.training.num_threads):
        network, test, _ = read_run(run, data, weights=weights, finite=False)
        found = nonfinite_weights(network)
        network.to(where).eval()
        chosen = _sample(test, NUM_IMAGES)
        factors, missing = _factors(network, chosen)
        blocks = diagnose_network(network, network.preprocess(chosen.images[:]), say=say)
    return Diagnosis(
        run=str(run.folder),
        recipe=run.config.recipe,
        weights=weights,
        num_images=len(chosen),
        num_weights=network.num_weights,
        blocks=tuple(blocks),
        factors=factors,
        lipschitz_missing=missing,
        subject=network.subject,
        notice=None if found is None else f"{run.weights(weights)}: {found}",
    )


def attack(
    run: str | Path | Run,
    *,
    epsilons: float | Sequence[float] = EPSILONS,
    norm: Norm = "linf",
    methods: AttackMethod | Sequence[AttackMethod] = METHODS,
    restarts: int = RESTARTS,
    num_steps: int = NUM_STEPS,
    seed: int = 0,
    data: str | Path | None = None,
    weights: Weights = "best",
    device: Device = "auto",
    num_images: int | None = None,
    say: Callable[[str], None] = _say_nothing,
) -> AttackReport | FieldAttackReport:
    """Accuracies of a run under attack (FGSM, PGD, APGD), and in noise, blur and loss of contrast.

    On all test images, or on `num_images` of them, the same ones each time. In float32 whatever
    the run was trained in. `methods`, `restarts`, `num_steps` and `seed` as in
    `diagnostics.measure_robustness`. Of a network with an answer for each pixel it is the loss of
    its task that is raised, on 8 images unless said otherwise, and the figures of the task are
    found: a FieldAttackReport.
    """
    if norm not in NORMS:
        raise unknown_name("norm", norm, NORMS)
    epsilons = epsilons if isinstance(epsilons, Iterable) else [epsilons]
    methods = [methods] if isinstance(methods, str) else methods
    if not epsilons:
        raise ConfigError("there must be at least one epsilon")
    if num_images is not None:
        check_count("num_images", num_images)
    run, where = open_run(run), resolve_device(device)
    config, task = run.config, make_run_task(run.config)
    with cpu_threads(config.training.num_threads):
        network, test, _ = read_run(run, data, weights=weights, any_task=True)
        network.to(where).eval()
        epsilons = sorted(set(epsilons))
        budget: dict[str, Any] = {"restarts": restarts, "num_steps": num_steps, "seed": seed}
        if isinstance(task, AbstractFieldTask):
            places = _places(test, NUM_ATTACKED if num_images is None else num_images)
            return attack_field_run(
                run,
                task,
                network,
                test,
                weights=weights,
                chosen=places.sort().values,
                epsilons=epsilons,
                norm=norm,
                methods=methods,
                say=say,
                **budget,
            )
        chosen = test if num_images is None else _sample(test, num_images)
        batch_size = config.training.evaluation_batch_size
        images = chosen.images[:]
        say(f"{', '.join(methods)} on {len(chosen)} {network.subject}s")
        found = measure_robustness(
            network,
            images,
            chosen.labels,
            epsilons=epsilons,
            norms=[norm],
            methods=methods,
            batch_size=batch_size,
            **budget,
        )
        say("noise, blur and contrast")
        corruptions = measure_corruptions(network, images, chosen.labels, batch_size=batch_size)
    return AttackReport(
        run=str(run.folder),
        recipe=config.recipe,
        weights=weights,
        num_images=len(chosen),
        **budget,
        clean_accuracy=found.clean_accuracy,
        results=found.results,
        corruptions=tuple(corruptions),
        notice=found.notice,
        examples=found.examples,
        class_names=chosen.class_names,
        subject=network.subject,
    )


def _factors(network: Network, images: ImageSet) -> tuple[tuple[Factor, ...], str | None]:
    """The Lipschitz constant of each part of a network, or why they are not known."""
    try:
        return lipschitz_factors(network, images.images[:1]), None
    except (ConfigError, DivergedError) as error:
        return (), str(error)


def _sample(images: ImageSet, number: int) -> ImageSet:
    """So many images at random, the same each time; all of them if there are fewer."""
    return images.subset(_places(images, number))


def _places(images: ImageSet, number: int) -> Tensor:
    return torch.randperm(len(images), generator=cpu_generator("diagnosed images"))[:number]


def float64_device(name: str) -> torch.device:
    """The device of that name, if it has float64."""
    device = resolve_device(name)
    if device.type != "mps":
        return device
    if name == "auto":
        return torch.device("cpu")
    raise ConfigError("this is computed in float64, which mps does not have; use cpu")
