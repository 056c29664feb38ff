"""The step and the validation of a training, captured as graphs where there is a GPU for it."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor

from pdecnn.data.augmentation import stable_seed
from pdecnn.data.image_set import ImageSet
from pdecnn.errors import ConfigError, DivergedError
from pdecnn.fast.acceleration import accelerated, compile_function, fast_layout
from pdecnn.fast.fused import first_stream
from pdecnn.learning.kernel_step import kernel_parts
from pdecnn.learning.metrics import Precision, compute_scores
from pdecnn.learning.statistics import ReestimatedStatistics
from pdecnn.learning.step import TrainingStep
from pdecnn.networks.network import Network, evaluation_mode
from pdecnn.pde.grid import deferred_checks
from pdecnn.pde.repeatability import has_foreign_code
from pdecnn.pde.stable import following, known_bounds

log = logging.getLogger(__name__)

_NUM_WARM_UPS = 2
# Compiling what touches every weight by itself takes time that grows with their number.
_MOST_COMPILED_WEIGHTS = 200


@contextmanager
def compiled_network(network: Network, backend: str = "inductor") -> Iterator[None]:
    """Within it the network is accelerated, and follows no weights by itself."""
    with accelerated(network, backend), known_bounds(network):
        yield


@contextmanager
def compiled_step(step: TrainingStep, backend: str = "inductor") -> Iterator[None]:
    """Within it a step runs by kernels; what none of them fits, as compiled code."""
    # Dynamo cannot follow a hash of bytes; it depends on nothing but its arguments.
    torch.compiler.assume_constant_result(stable_seed)  # type: ignore[no-untyped-call]
    names = ["_prepare", "_measure"]
    if len(step.weights) <= _MOST_COMPILED_WEIGHTS:
        names += ["_regularization", "_apply"]
    parts = {**kernel_parts(step)}
    if "_prepare" in parts:
        names.append("_mixed")
    for name in names:
        # Inductor fails to reorder loops of an update that also has products of matrices (Muon's).
        parts.setdefault(
            name,
            compile_function(
                getattr(step, name), backend, loop_ordering_after_fusion=name != "_apply"
            ),
        )
    for name, function in parts.items():  # an attribute of the instance hides the method
        setattr(step, name, function)
    try:
        with compiled_network(step.network, backend):
            yield
    finally:
        for name in parts:
            delattr(step, name)


class CapturedFunction:
    """A function without arguments that is replayed as one CUDA graph.

    It must work on the same tensors each time and never wait for the device. Capturing runs it
    a few times; the tensors of `state` are put back afterwards.
    """

    def __init__(self, function: Callable[[], object], state: Iterable[Tensor]) -> None:
        tensors = [tensor.detach() for tensor in state]
        before = [tensor.clone() for tensor in tensors]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        # Kernels that give the same bits each time: a resumed training must not differ.
        cudnn = torch.backends.cudnn
        kernels = cudnn.flags(
            enabled=cudnn.enabled,
            benchmark=False,
            deterministic=True,
            allow_tf32=cudnn.allow_tf32,
        )
        with kernels:
            try:
                with torch.cuda.stream(stream):
                    for _ in range(_NUM_WARM_UPS):
                        function()
                        torch._foreach_copy_(tensors, before)
                torch.cuda.current_stream().wait_stream(stream)
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, stream=first_stream()):
                    function()
            finally:  # also where it broke off halfway
                torch.cuda.synchronize()
                torch._foreach_copy_(tensors, before)

    def __call__(self) -> None:
        """Launch it."""
        self.graph.replay()


def capture(
    function: Callable[[], object],
    state: Iterable[Tensor],
    compiled: AbstractContextManager[None],
    *,
    name: str,
    largest_of: Callable[[list[float]], list[float]] = list,
) -> CapturedFunction | None:
    """The function as a graph of compiled kernels; failing that of plain ones; else None.

    What does not work is said, not hidden; running out of memory is the caller's to handle, and
    a setting that is refused the user's. Of several processes, which `largest_of` compares, all
    have such a graph or none: messages within a graph and outside of one do not meet.
    """
    state = list(state)
    for context, failure in (
        (compiled, "cannot be compiled: its kernels run as they are"),
        (nullcontext(), "cannot be captured: its operators run one by one"),
    ):
        captured, reason = None, "another process cannot"
        try:
            with context:
                captured = CapturedFunction(function, state)
        except (torch.OutOfMemoryError, ConfigError):
            raise
        except Exception as error:
            reason = _reason(error)
        if not any(largest_of([captured is None])):
            return captured
        log.info(f"the {name} {failure} ({reason})")
    return None


def _reason(error: Exception) -> str:
    """In a line. A function of its own: a name for the cause would keep what its frames hold."""
    cause = error.__cause__ or error  # which compilers and ranks put words of theirs around
    text = str(cause).strip().partition("\n")[0] or "no reason given"
    return f"{type(cause).__name__}: {text}"


class CapturedScores:
    """The scores of all images of a set by a network in evaluation mode, batch by batch."""

    def __init__(
        self, network: Network, images: Tensor, *, batch_size: int, precision: Precision
    ) -> None:
        self.network, self.images, self.precision = network, images, precision
        self.num_batches = -(-len(images) // batch_size)
        device = images.device
        self.begin = torch.zeros((), dtype=torch.int64, device=device)
        self.rows = torch.arange(batch_size, device=device)
        self.outside = torch.zeros((), dtype=torch.bool, device=device)
        rows = self.num_batches * batch_size  # the last batch may be short: see the clamp
        self.scores = torch.zeros(rows, network.num_classes, device=device)

    @torch.no_grad()
    def score_batch(self) -> None:
        """The scores of the next batch."""
        rows = self.begin + self.rows
        images = self.images.index_select(0, rows.clamp(max=len(self.images) - 1))
        features = fast_layout(self.network.preprocess(images))
        with deferred_checks() as outside:
            scores = compute_scores(self.network, features, self.precision)
        for flag in outside:
            self.outside.logical_or_(flag)
        self.scores.index_copy_(0, rows, scores.to(self.scores.dtype))
        self.begin.add_(len(self.rows))

    def __call__(self, launch: Callable[[], None], poll: Callable[[], None]) -> Tensor:
        """All scores, `launch` being the captured `score_batch`."""
        self.begin.zero_()
        self.outside.zero_()
        for part in following(self.network):  # a graph cannot look at the weights by itself
            part.refresh()
        for _ in range(self.num_batches):
            poll()
            launch()
        if self.outside:
            raise DivergedError(
                "the state left the range of exact reversal in validation; use a smaller "
                "network.step_size, a normalisation or network.backprop=checkpointed"
            )
        return self.scores[: len(self.images)]


class TrainingGraphs:
    """Captures a step and the scores of the validation images when first asked for them.

    Where there are `statistics`, it is their network that is validated. Several processes capture
    a step together, its messages included; the scores of their shares go by no graph.
    """

    def __init__(
        self,
        step: TrainingStep,
        *,
        validation: ImageSet | None,
        statistics: ReestimatedStatistics | None = None,
        largest_of: Callable[[list[float]], list[float]] = list,
    ) -> None:
        self.step, self.validation, self.statistics = step, validation, statistics
        self.largest_of = largest_of
        self._launch: Callable[[], None] | None = None
        self._take_batch: Callable[[], None] | None = None
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
        self._launch = self._score = self._take_batch = None
        self._tried_scores = False

    def launch_step(self) -> None:
        """Take the next step, by a graph where there is one."""
        if self._launch is None:
            self._launch = self._captured_step() or self.step
        self._launch()

    def launch_statistics(self) -> None:
        """Take in the next batch of the statistics, by a graph where there is one."""
        statistics = self.statistics
        assert statistics is not None
        if self._take_batch is None:
            captured = None
            if self._wanted and not has_foreign_code(statistics.network):
                captured = capture(
                    statistics.take_batch,
                    statistics.state,
                    compiled_network(statistics.network),
                    name="statistics",
                    largest_of=self.largest_of,
                )
            self._take_batch = captured or statistics.take_batch
        self._take_batch()

    @property
    def _wanted(self) -> bool:
        return self.step.config.capture and self.step.sums.is_cuda

    def _captured_step(self) -> CapturedFunction | None:
        """The step as a graph; None where there is no GPU, or it is not wanted or possible."""
        step = self.step
        if not self._wanted:
            return None
        if has_foreign_code(step.network):
            log.info("the network has hooks, which no graph would run: operators run one by one")
            return None
        return capture(
            step,
            step.state,
            compiled_step(step),
            name="training step",
            largest_of=self.largest_of,
        )

    def scores(self) -> Callable[[Callable[[], None]], Tensor] | None:
        """How to score the validation images by a graph; None where that is not wanted."""
        if self.validation is None:
            return None
        # Not: where steps are captured. A training resumed in its validation has taken none.
        statistics = self.statistics
        network = self.step.evaluated if statistics is None else statistics.network
        config, images = self.step.config, self.validation.images
        wanted = self._wanted and not has_foreign_code(network)
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
                )
            self._score = None if launch is None else partial(scores, launch)
        return self._score
