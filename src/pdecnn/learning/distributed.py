"""The processes of one training, its ranks: how they meet and what they agree on."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from time import monotonic, sleep
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor

from pdecnn.data.image_set import ImageSet, StoredImages, evaluation_batches
from pdecnn.errors import ConfigError, RankError
from pdecnn.learning.metrics import Measured, Precision, class_scores
from pdecnn.learning.tasks import AbstractTask, Score
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.network import Network

if TYPE_CHECKING:  # a torch may be built without it
    from torch.distributed import ProcessGroup, Store  # type: ignore[attr-defined]

ANSWER_SECONDS = 300.0
"""How long a rank waits for the others in training, while rank 0 writes too."""
PREPARATION_SECONDS = 1800.0
"""How long it waits for the others to read their data."""
_POLL_SECONDS = 0.02
_ABSENT = "not all ranks have come"
_REMEDY = "start again with --resume"
# What preparing may raise; anything else is no result to be agreed on.
_FAILURES = (ValueError, RuntimeError, OSError, MemoryError)
Result = TypeVar("Result")


class Ranks:
    """All processes of a training. A rank that is alone sends nothing."""

    def __init__(self, rank: int = 0, size: int = 1, control: "ProcessGroup | None" = None) -> None:
        self.rank, self.size = rank, size
        self._control = control  # for tensors on the CPU; None: the default group

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ranks":
        """A copied network is one of the same ranks."""
        return self

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, the only one that writes and speaks."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over all ranks, which has the same bits on each."""
        if self.size > 1:
            with _answered():
                dist.all_reduce(tensor, group=self._group(tensor))

    def largest(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        return int(self.largest_of([number])[0])

    def largest_of(self, numbers: Sequence[float]) -> list[float]:
        """For each place the largest of the ranks' numbers."""
        found = torch.tensor(numbers, dtype=torch.float64)
        if self.size > 1:
            with _answered():
                dist.all_reduce(found, dist.ReduceOp.MAX, group=self._control)
        return found.tolist()

    def wait_for(self, device: torch.device, *, seconds: float = ANSWER_SECONDS) -> None:
        """Wait until a GPU has taken its steps, for as long as other ranks may take to answer.

        Nothing else ends a message within a graph that some rank does not send.
        """
        if self.size == 1 or device.type == "cpu":
            return
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(device))
        with _answered():
            _wait(done.query, monotonic() + seconds, "a step does not end", pause=1e-4)

    def copy_from_first_(self, tensors: Sequence[Tensor]) -> None:
        """Give all ranks the tensors of rank 0, in place."""
        if self.size > 1:
            with torch.no_grad(), _answered():
                for tensor in tensors:
                    whole = tensor.detach().contiguous()
                    dist.broadcast(whole, 0, group=self._group(whole))
                    tensor.copy_(whole)

    def first(self, function: Callable[[], Result]) -> Result:
        """Call the function on rank 0 only; its result, as JSON values, is that of all ranks.

        An error ends all of them. The others wait, with a time limit.
        """
        if self.size == 1:
            return function()
        failure, result = _attempt(function) if self.is_first else (None, None)
        text = json.dumps([None if failure is None else str(failure), result])
        told, common = json.loads(self._gather(text if self.is_first else "")[0])
        if failure is not None:
            raise failure
        if told is not None:
            raise RankError(f"rank 0 failed: {told}", told=True)
        return cast(Result, common) if result is None else result

    def together(self, function: Callable[[], Result]) -> Result:
        """Call the function on all ranks, in whatever time each needs; if one fails, all do."""
        if self.size == 1:
            return function()
        failure, result = _attempt(function)
        with _answered():
            limit = timedelta(seconds=PREPARATION_SECONDS)
            dist.monitored_barrier(self._control, timeout=limit, wait_all_ranks=True)
        texts = self._gather("" if failure is None else f"rank {self.rank}: {failure}")
        failures = [rank for rank, text in enumerate(texts) if text]
        if failure is not None and failures[0] == self.rank:
            raise failure
        if failures:  # one of them is enough to say it
            raise RankError(texts[failures[0]], told=True) from failure
        return cast(Result, result)

    def evaluate(
        self,
        task: AbstractTask,
        network: Network,
        images: ImageSet,
        config: TrainingConfig,
        *,
        poll: Callable[[], None] = lambda: None,
        alone: Callable[[], Score | None] = lambda: None,
    ) -> Measured:
        """The figures of a network on images, of which each rank takes a share.

        `alone` makes a quicker way to the class scores of one rank, if there is one.
        """
        how: dict[str, Any] = {
            "batch_size": config.evaluation_batch_size,
            "precision": config.precision,
        }

        def quick() -> Score | None:
            score = self.scoring(network, images.images, **how)
            return alone() if score is None else score

        return self.agreed(task.evaluate(network, images, poll=poll, quick=quick, **how))

    def scoring(
        self,
        network: Network,
        images: Tensor | StoredImages,
        *,
        batch_size: int,
        precision: Precision = "float32",
    ) -> Score | None:
        """How all ranks together score images, as `evaluate_network` takes it; None: one alone."""
        if self.size == 1:
            return None
        batches = evaluation_batches(len(images), batch_size)
        own = batches[self.rank :: self.size]
        how: dict[str, Any] = {"batch_size": batch_size, "precision": precision}

        def score(poll: Callable[[], None]) -> Tensor:
            weight = network.weight
            dtype = torch.promote_types(weight.dtype, torch.float32)
            scores = weight.new_zeros((len(images), network.num_classes), dtype=dtype)
            if own:
                rows = torch.cat([torch.arange(len(images))[batch] for batch in own])
                scores[rows] = class_scores(network, images, poll=poll, batches=own, **how)
            if len(own) < len(range(0, len(batches), self.size)):
                poll()  # as often as the others
            self.sum_(scores)  # one rank's scores and zeros: nothing is rounded
            return scores

        return score

    def agreed(self, evaluation: Measured) -> Measured:
        """The evaluation with the loss of rank 0.

        Processors round sums differently, and ties of accuracy are settled by the loss.
        """
        if self.size == 1:
            return evaluation
        loss = self.first(lambda: evaluation.loss)
        return cast(Measured, replace(cast(Any, evaluation), loss=loss))

    def _gather(self, text: str) -> list[str]:
        """The texts of all ranks."""
        content = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = self.largest(len(content))
        own = torch.zeros(length, dtype=torch.uint8)
        own[: len(content)] = content
        parts = [torch.empty_like(own) for _ in range(self.size)]
        with _answered():
            dist.all_gather(parts, own, group=self._control)
        return [bytes(part.tolist()).rstrip(b"\0").decode() for part in parts]

    def _group(self, tensor: Tensor) -> "ProcessGroup | None":
        return None if tensor.is_cuda else self._control


ALONE = Ranks()


def _attempt(function: Callable[[], Result]) -> tuple[Exception | None, Result | None]:
    try:
        return None, function()
    except _FAILURES as error:
        return error, None


@contextmanager
def _answered() -> Iterator[None]:
    """Say in one line that another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        clear_frames(error.__traceback__)  # they hold the group, which is to end
        lines = re.sub(r"^\[[^]]*\]\s*", "", str(error).strip()).splitlines()  # gloo's source line
        reason = lines[0].removesuffix(".") if lines else type(error).__name__
        raise RankError(
            f"another rank has ended or does not answer ({reason}); {_REMEDY}"
        ) from error


def num_ranks() -> int:
    """How many processes torchrun started for this training; 1 without it."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    size = _number("WORLD_SIZE", 1)
    if size < 1:
        raise ConfigError("WORLD_SIZE=0 is set; start processes with torchrun, or unset it")
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if size > 1 and missing:
        raise ConfigError(
            f"WORLD_SIZE={size} is set, but {', '.join(missing)} is not; start several processes "
            f"with torchrun, or unset WORLD_SIZE"
        )
    return size


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Within it this process is a rank among those that torchrun started, if it did.

    On a GPU the ranks talk by nccl and, about anything but tensors there, by gloo. A group that
    exists already is used and left as it is.
    """
    if num_ranks() == 1:
        yield ALONE
        return
    own, limit = not dist.is_initialized(), timedelta(seconds=ANSWER_SECONDS)
    if own:
        _meet(device, limit)
    control = None
    if dist.get_backend() != dist.Backend.GLOO:
        with _answered():
            control = dist.new_group(backend="gloo", timeout=limit)
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), control)
    # A thread of gloo must not see the interpreter end: if it still has a tensor to let go, that
    # aborts the process. It ends with the last reference to its group.
    try:
        yield ranks
    except BaseException:
        if own:  # gloo alone: nccl may wait for ranks that are gone
            dist.destroy_process_group(control)
        raise
    else:
        if own:
            dist.destroy_process_group()
    finally:
        ranks._control = control = None


def _meet(device: torch.device, limit: timedelta) -> None:
    """Make the process group of this attempt, apart from what earlier ones left in the store."""
    # Building an optimiser imports it, and its functions' defaults are the group of that moment:
    # so held, a group and its threads would outlive destroy_process_group. Now there is none.
    import torch.distributed.nn.functional  # noqa: F401
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    with _answered():
        store, rank, size = next(rendezvous("env://", timeout=limit))
        attempt = agree_on_attempt(store, rank, size, limit.total_seconds())
        options: dict[str, Any] = {} if device.type == "cpu" else {"device_id": device}
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "nccl",
            store=PrefixStore(attempt, store),
            rank=rank,
            world_size=size,
            timeout=limit,
            **options,
        )


def agree_on_attempt(store: "Store", rank: int, size: int, seconds: float) -> str:
    """A name that the ranks alive now share and no earlier attempt had.

    Rank 0 draws it; another rank answers with a name of its own and goes on when rank 0 has
    confirmed that one. Names that killed processes left in the store are thus never mistaken for
    those of living ones. torchrun's restart count would not do: machines count for themselves.
    """
    deadline = monotonic() + seconds
    if rank == 0:
        attempt = uuid4().hex
        store.set("pdecnn/attempt", attempt)
        answers = [f"pdecnn/{attempt}/{other}" for other in range(1, size)]
        _wait(lambda: bool(store.check(answers)), deadline, _ABSENT)
        for answer in answers:
            store.set(f"pdecnn/{attempt}/{store.get(answer).decode()}", "")
        return attempt
    name, attempt = uuid4().hex, ""

    def confirmed() -> bool:
        nonlocal attempt
        if not store.check(["pdecnn/attempt"]):
            return False
        newest = store.get("pdecnn/attempt").decode()
        if newest != attempt:
            attempt = newest
            store.set(f"pdecnn/{attempt}/{rank}", name)
        return bool(store.check([f"pdecnn/{attempt}/{name}"]))

    _wait(confirmed, deadline, _ABSENT)
    return attempt


def _wait(
    condition: Callable[[], bool], deadline: float, failure: str, *, pause: float = _POLL_SECONDS
) -> None:
    while not condition():
        if monotonic() > deadline:
            raise RuntimeError(failure)
        sleep(pause)


def local_rank() -> int:
    """The place of this process among those of its machine."""
    return _number("LOCAL_RANK", 0)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise ConfigError(f"{name} must be a whole number, found {text!r}; use torchrun")
    return int(text)
