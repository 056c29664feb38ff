"""The step and the validation of a training, as graphs where there is a GPU to capture them on."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from pdecnn.data.image_set import ImageSet
from pdecnn.learning.capture import CapturedFunction, CapturedScores, capture, compiled_network
from pdecnn.learning.metrics import evaluation_mode
from pdecnn.learning.step import TrainingStep
from pdecnn.pde.randomness import has_hooks


class TrainingGraphs:
    """Captures a step and the scores of the validation images when first asked for them."""

    def __init__(
        self, step: TrainingStep, *, validation: ImageSet, note: Callable[[str], None]
    ) -> None:
        self.step, self.validation, self.note = step, validation, note
        self._launch: Callable[[], None] | None = None
        self._score: Callable[[Callable[[], None]], Tensor] | None = None
        self._tried_scores = False

    @property
    def captured(self) -> bool:
        """Whether steps are replayed from a graph."""
        return isinstance(self._launch, CapturedFunction)

    def forget_step(self) -> None:
        """Capture the next step anew: it computes something else."""
        self._launch = None

    def forget(self) -> None:
        """Capture step and validation anew: the network computes otherwise."""
        self._launch = self._score = None
        self._tried_scores = False

    def launch_step(self) -> None:
        """Take the next step, by a graph where there is one."""
        if self._launch is None:
            self._launch = self._captured_step() or self.step
        self._launch()

    @property
    def _wanted(self) -> bool:
        step = self.step
        return step.config.capture and step.sums.is_cuda and step.ranks.size == 1

    def _captured_step(self) -> CapturedFunction | None:
        """The step as a graph; None where there is no GPU, or it is not wanted or possible."""
        step = self.step
        if not self._wanted:
            if step.config.capture and step.sums.is_cuda:
                self.note("with several ranks operators run one by one: no graph is captured")
            return None
        if has_hooks(step.network):
            self.note("the network has hooks, which no graph would run: operators run one by one")
            return None
        return capture(step, step.state, step.compiled(), name="training step", note=self.note)

    def scores(self) -> Callable[[Callable[[], None]], Tensor] | None:
        """How to score the validation images by a graph; None where that is not wanted."""
        # Not: where steps are captured. A training resumed in its validation has taken none.
        network, config, images = self.step.evaluated, self.step.config, self.validation.images
        wanted = self._wanted and not has_hooks(network)
        if wanted and not self._tried_scores and isinstance(images, Tensor):
            self._tried_scores = True
            scores = CapturedScores(
                network,
                images,
                batch_size=min(config.evaluation_batch_size, len(self.validation)),
                precision=config.precision,
            )
            with evaluation_mode(network):
                launch = capture(
                    scores.score_batch,
                    [scores.begin],
                    compiled_network(network),
                    name="validation",
                    note=self.note,
                )
            self._score = None if launch is None else partial(scores, launch)
        return self._score
