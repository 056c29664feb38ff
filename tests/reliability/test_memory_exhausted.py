"""Promise 20: a step that does not fit into memory ends the run with code 9 and what to set."""

import pytest
import torch

from pdecnn.errors import TooLargeError
from pdecnn.learning import step as step_module
from pdecnn.learning.distributed import Ranks
from tests.runs import call
from tests.unit.learning.trainings import make_trainer, run

FAILURES = {
    "cuda": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "cpu": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
    "cublas": lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasC"),
    "python": MemoryError,
    "other": lambda: RuntimeError("an illegal memory access"),
}


@pytest.fixture
def shortage(monkeypatch):
    """Lets the scores of a training fail as the given kind does."""

    def fail(kind):
        def compute_scores(*arguments):
            raise FAILURES[kind]()

        monkeypatch.setattr(step_module, "compute_scores", compute_scores)

    return fail


@pytest.mark.parametrize("kind", ["cuda", "cpu", "cublas", "python"])
def test_promise_20_every_kind_of_shortage_is_told(kind, shortage):
    shortage(kind)
    with pytest.raises(TooLargeError, match=r"set training\.accumulation=2 .*backprop=exact"):
        run(make_trainer())


@pytest.mark.parametrize(
    ("batch_size", "accumulation", "ranks", "remedy"),
    [
        (20, 1, 1, r"batch of 20; set training\.accumulation=2 "),
        (20, 2, 1, r"batch of 20 in 2 parts; set training\.accumulation=4 "),
        (25, 1, 1, r"set training\.accumulation=5 "),
        (20, 2, 2, r"set training\.accumulation=5 "),
        (20, 20, 1, r"lower data\.size or network\.channels or set network\.backprop=exact"),
    ],
)
def test_promise_20_the_next_larger_divisor_is_named(
    batch_size, accumulation, ranks, remedy, shortage
):
    shortage("cpu")
    trainer = make_trainer(batch_size=batch_size, accumulation=accumulation)
    trainer.begin_epoch()
    trainer.ranks = Ranks(0, ranks)
    with pytest.raises(TooLargeError, match=remedy):
        trainer.step()


def test_promise_20_another_failure_is_no_shortage(shortage):
    shortage("other")
    with pytest.raises(RuntimeError, match="illegal") as caught:
        run(make_trainer())
    assert not isinstance(caught.value, TooLargeError)


def test_promise_20_the_command_fails_in_one_line(tmp_path, capsys, monkeypatch, shortage):
    shortage("cpu")
    options = ("--output", tmp_path / "run", "--set", "data.fraction=0.1")
    done = call(capsys, monkeypatch, "train", *options, "--set", "training.batch_size=4")
    assert done.code == 9
    assert done.stderr.startswith("pdecnn: not enough memory for a batch of 4; set training.accum")
    assert done.stderr.count("\n") == 1
