"""What is said of any run under attack, and those with an answer for each pixel attacked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from pdecnn.data.image_set import ImageSet
from pdecnn.diagnostics.attacks import Norm
from pdecnn.diagnostics.field_attacks import AttackedFields, attack_fields
from pdecnn.learning.metrics import Measured
from pdecnn.learning.tasks import AbstractFieldTask
from pdecnn.learning.training_config import ObjectiveConfig
from pdecnn.networks.network import Network
from pdecnn.runs.runs import Run, Weights

NUM_ATTACKED = 8
"""Images that are attacked unless said otherwise: each takes some hundred gradients."""
_NUM_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class AbstractAttackReport:
    """Of which run, on how many images, and how hard was tried."""

    limits: ClassVar[str]
    """Where pixels stay."""
    run: str
    recipe: str
    weights: str
    num_images: int
    restarts: int
    num_steps: int
    seed: int
    subject: str = "image"
    """What the samples are: 'signal', 'image' or 'volume'."""

    @property
    def units(self) -> str:
        """Those of epsilon, and of noise."""
        if self.subject == "image":
            return self.limits
        return "Numbers are in the data's own units, without bounds."

    def head(self) -> dict[str, Any]:
        """How the JSON values begin."""
        names = ("run", "recipe", "weights", "num_images", "restarts", "num_steps", "seed")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldAttackResult:
    """The figures of the task under one attack."""

    attack: str
    epsilon: float
    amplification: float | None
    """The largest |change of the answer| / |change of the image|; None: nothing was changed."""
    evaluation: Measured


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownFields:
    """A few images under one attack, each (channels, *spatial), and the answers to them."""

    attack: str
    """'': none."""
    epsilon: float
    images: list[Tensor]
    answers: list[Tensor]
    figures: list[dict[str, Any]]
    """Of each image, those of the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldAttackReport(AbstractAttackReport):
    """What attacks make of the answers of a run."""

    limits = "No pixel leaves [0, 1] that was in it."
    norm: str
    task: AbstractFieldTask
    clean: Measured
    results: tuple[FieldAttackResult, ...]
    examples: tuple[ShownFields, ...] = field(default=(), compare=False, repr=False)
    """Without an attack, then for each epsilon under that which raised the loss most."""
    wanted: tuple[Tensor, ...] = field(default=(), compare=False, repr=False)
    """Of each example, what should have been found."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; `docs/diagnostics.md` says what every key means."""
        return {
            **self.head(),
            "score": self.task.score,
            "clean": self.clean.to_dict(),
            "results": [
                {
                    "epsilon": result.epsilon,
                    "norm": self.norm,
                    "attack": result.attack,
                    "amplification": result.amplification,
                    **result.evaluation.to_dict(),
                }
                for result in self.results
            ],
        }


def attack_field_run(
    run: Run,
    task: AbstractFieldTask,
    network: Network,
    test: ImageSet,
    *,
    weights: Weights,
    chosen: Tensor,
    say: Callable[[str], None],
    epsilons: Sequence[float],
    norm: Norm,
    restarts: int,
    num_steps: int,
    seed: int,
    **how: Any,
) -> FieldAttackReport:
    """Raise the loss of the task at the `chosen` test images, which are in order."""
    wanted_places = set(chosen.tolist())
    say(f"{len(chosen)} of {len(test)} test {network.subject}s")
    # Of all of them, since each has noise of its own.
    everything = enumerate(task.examples(network, test))
    examples = [example for place, example in everything if place in wanted_places]
    budget: dict[str, Any] = {"restarts": restarts, "num_steps": num_steps, "seed": seed}
    found = attack_fields(
        network,
        examples,
        lambda outputs, wanted: task.losses(ObjectiveConfig(), outputs, wanted),
        epsilons=epsilons,
        norm=norm,
        say=say,
        **budget,
        **how,
    )
    images, wanted = test.subset(chosen), [target[0] for _, target in examples]
    figures = [
        task.assess(images, zip(wanted, (answer[0] for answer in one.answers), strict=True))
        for one in found
    ]
    attacked = list(zip(found, figures, strict=True))[1:]
    strongest = [
        max(
            (pair for pair in attacked if pair[0].epsilon == epsilon), key=lambda pair: pair[1].loss
        )
        for epsilon in epsilons
    ]
    return FieldAttackReport(
        run=str(run.folder),
        recipe=run.config.recipe,
        weights=weights,
        num_images=len(chosen),
        norm=norm,
        task=task,
        clean=figures[0],
        results=tuple(
            FieldAttackResult(
                attack=one.attack,
                epsilon=one.epsilon,
                amplification=one.amplification,
                evaluation=evaluation,
            )
            for one, evaluation in attacked
        ),
        examples=tuple(_shown(task, *pair) for pair in ((found[0], figures[0]), *strongest)),
        wanted=tuple(
            (target if target.is_floating_point() else target[None]).cpu()
            for target in wanted[:_NUM_SHOWN]
        ),
        subject=network.subject,
        **budget,
    )


def _shown(task: AbstractFieldTask, one: AttackedFields, evaluation: Measured) -> ShownFields:
    return ShownFields(
        attack=one.attack,
        epsilon=one.epsilon,
        images=[pixels[0].cpu() for pixels in one.pixels[:_NUM_SHOWN]],
        answers=[task.seen(answer[0]).cpu() for answer in one.answers[:_NUM_SHOWN]],
        figures=evaluation.to_dict()["per_image"][:_NUM_SHOWN],
    )
