"""Functions on a GPU captured as graphs: launched as one, without Python in between."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from pdecnn.errors import DivergedError
from pdecnn.fast.acceleration import accelerated, compiled_modules, fast_layout
from pdecnn.learning.precision import compute_scores
from pdecnn.networks.network import Network
from pdecnn.pde.grid import deferred_checks

_NUM_WARM_UPS = 2


@contextmanager
def compiled_network(network: Network, backend: str = "inductor") -> Iterator[None]:
    """Within it the network's stages run as compiled code, its blocks by fused kernels."""
    stages = [network.opening, *network.connectors, network.classifier]
    with compiled_modules(stages, backend), accelerated(network, backend):
        yield


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
                with torch.cuda.graph(self.graph):
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
    note: Callable[[str], None],
) -> CapturedFunction | None:
    """The function as a graph of compiled kernels; failing that of plain ones; else None.

    What does not work is said, not hidden; running out of memory is the caller's to handle.
    """
    state = list(state)
    for context, failure in (
        (compiled, "cannot be compiled: its kernels run as they are"),
        (nullcontext(), "cannot be captured: its operators run one by one"),
    ):
        try:
            with context:
                return CapturedFunction(function, state)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or "no reason given"
            note(f"the {name} {failure} ({type(error).__name__}: {reason})")
    return None


class CapturedScores:
    """The scores of all images of a set by a network in evaluation mode, batch by batch."""

    def __init__(
        self, network: Network, images: Tensor, *, batch_size: int, precision: str
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
        for _ in range(self.num_batches):
            poll()
            launch()
        if self.outside:
            raise DivergedError(
                "the state left the range of exact reversal in validation; use a smaller "
                "network.step_size, a normalisation or network.backprop=checkpointed"
            )
        return self.scores[: len(self.images)]
