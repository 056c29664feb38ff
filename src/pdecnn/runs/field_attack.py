"""A run with an answer for each pixel under attack, in the figures of its task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pdecnn.data.image_set import ImageSet
from pdecnn.diagnostics.attacks import Norm
from pdecnn.diagnostics.field_attacks import attack_fields
from pdecnn.learning.metrics import Measured
from pdecnn.learning.tasks import AbstractFieldTask
from pdecnn.learning.training_config import ObjectiveConfig
from pdecnn.networks.network import Network
from pdecnn.runs.runs import Run, Weights

NUM_ATTACKED = 8
"""Images that are attacked unless said otherwise: each takes some hundred gradients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldAttackResult:
    """The figures of the task under one attack."""

    attack: str
    epsilon: float
    amplification: float | None
    """The largest |change of the answer| / |change of the image|; None: nothing was changed."""
    evaluation: Measured


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldAttackReport:
    """What attacks make of the answers of a run."""

    run: str
    recipe: str
    weights: str
    num_images: int
    restarts: int
    num_steps: int
    seed: int
    norm: str
    task: AbstractFieldTask
    clean: Measured
    results: tuple[FieldAttackResult, ...]
    subject: str
    """What the samples are: 'image' or 'volume'."""

    @property
    def units(self) -> str:
        """Those of epsilon."""
        if self.subject == "image":
            return "No pixel leaves [0, 1] that was in it."
        return "Numbers are in the data's own units, without bounds."

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; `docs/diagnostics.md` says what every key means."""
        return {
            "run": self.run,
            "recipe": self.recipe,
            "weights": self.weights,
            "num_images": self.num_images,
            "restarts": self.restarts,
            "num_steps": self.num_steps,
            "seed": self.seed,
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
            for one, evaluation in zip(found[1:], figures[1:], strict=True)
        ),
        subject=network.subject,
        **budget,
    )
