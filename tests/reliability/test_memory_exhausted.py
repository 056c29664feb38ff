"""Promise 20: what does not fit into memory is computed in smaller parts, and that is said."""

import json
import os
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import pdecnn
from pdecnn.errors import TooLargeError
from pdecnn.learning import step as step_module
from pdecnn.learning.distributed import Ranks
from pdecnn.learning.memory import PartTooLarge, finer_division
from pdecnn.runs.signals import Interrupted
from tests.runs import Killed, Recorder, call, fingerprint, small_config
from tests.unit.learning.trainings import (
    assert_same_bits,
    digits,
    make_network,
    make_trainer,
    on_disk,
    run,
    snapshot,
)

FAILURES = {
    "cuda": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "cpu": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
    "cublas": lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasC"),
    "python": MemoryError,
}


class SmallMemory:
    """Scores of more images than `most` do not fit; from the given score on, all if none."""

    def __init__(self, monkeypatch, most, kind="cpu", first=0):
        self.most, self.kind, self.first = most, kind, first
        self.sizes = []
        original = step_module.compute_scores

        def compute_scores(network, images, precision):
            scores = original(network, images, precision)  # batch norms have counted it by then
            self.sizes.append(len(images))
            if len(self.sizes) > self.first and len(images) > self.most:
                raise FAILURES[self.kind]()
            return scores

        monkeypatch.setattr(step_module, "compute_scores", compute_scores)


def noted(trainer):
    trainer.note = (notes := []).append
    return notes


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize(
    ("dynamics", "overrides"),
    [("hamiltonian", {"backprop": "reversible"}), ("parabolic", {"normalization": "batch"})],
    ids=["tv", "batch norm"],
)
def test_promise_20_the_same_bits_as_with_that_accumulation(kind, dynamics, overrides, monkeypatch):
    """Halved twice at the first step, the run is that of accumulation 4, batch norms included."""
    settings = {"epochs": 2, "reversal_guard": "off"}  # which looks at images of one part
    expected = make_trainer(make_network(dynamics, **overrides), accumulation=4, **settings)
    reports = run(expected)
    trainer = make_trainer(make_network(dynamics, **overrides), **settings)
    notes = noted(trainer)
    memory = SmallMemory(monkeypatch, most=5, kind=kind)
    assert run(trainer) == reports
    assert_same_bits(snapshot(trainer), snapshot(expected))
    assert memory.sizes[:6] == [20, 10, 5, 5, 5, 5]
    assert set(memory.sizes[2:]) == {5}
    assert notes == [
        f"epoch 1: not enough memory: from now on each batch of 20 is computed in {parts}, and "
        f"batch norms see a part at a time"
        for parts in ("2 parts of 10", "4 parts of 5")
    ]


def test_promise_20_the_effective_batch_is_unchanged(monkeypatch):
    """Up to rounding the weights are those of undivided batches, where batch norms are frozen."""
    settings = {"epochs": 1, "freeze": ("opening", "blocks")}
    expected = make_trainer(make_network(dtype=torch.float64), **settings)
    run(expected)
    trainer = make_trainer(make_network(dtype=torch.float64), **settings)
    notes = noted(trainer)
    SmallMemory(monkeypatch, most=7)
    run(trainer)
    assert trainer.progress.accumulation == 4
    assert "batch norm" not in notes[0]
    found, wanted = snapshot(trainer), snapshot(expected)
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-12)


def test_promise_20_images_of_the_disk_are_not_read_twice(monkeypatch):
    sets = tuple(map(on_disk, digits()))
    expected = make_trainer(accumulation=2, epochs=1, sets=sets)
    run(expected)
    trainer = make_trainer(epochs=1, sets=sets)
    SmallMemory(monkeypatch, most=10)
    run(trainer)
    assert_same_bits(snapshot(trainer), snapshot(expected))


def test_promise_20_it_fails_cleanly_at_one(monkeypatch):
    trainer = make_trainer(make_network("parabolic", normalization="batch"))
    before, notes = snapshot(trainer), noted(trainer)
    memory = SmallMemory(monkeypatch, most=0)
    with pytest.raises(TooLargeError, match=r"each image is a part of its own; lower data\.size"):
        run(trainer)
    assert memory.sizes == [20, 10, 5, 2, 1]
    assert len(notes) == 4
    assert_same_bits(snapshot(trainer), before)
    assert trainer.progress.step == 0


class Shortage(TorchDispatchMode):
    """Memory ends at one operator: the given one, of those that are looked at."""

    def __init__(self, place, only=None):
        super().__init__()
        self.place, self.only, self.count = place, only, 0

    def __torch_dispatch__(self, operator, types, arguments=(), keywords=None):
        if self.only is None or operator is self.only:
            self.count += 1
            if self.count == self.place:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return operator(*arguments, **(keywords or {}))


def steps_with_shortage(dynamics, overrides, settings, shortage):
    """Three steps, the second of which meets the shortage in its gradient."""
    trainer = make_trainer(make_network(dynamics, **overrides), average_decay=0.9, **settings)
    trainer.begin_epoch()
    trainer.step()
    if shortage is None:
        trainer.divide(2)
    else:
        original = trainer._step._gradient

        def gradient(parts):
            trainer._step._gradient = original
            with shortage:
                return original(parts)

        trainer._step._gradient = gradient
    for _ in range(2):
        trainer.step()
    trainer.synchronize()
    return trainer


SHORT_OF_MEMORY = {
    "copies of statistics": (
        "parabolic",
        {"backprop": "checkpointed", "normalization": "batch"},
        {},
        torch.ops.aten.clone.default,
    ),
    "reversible": ("hamiltonian", {"backprop": "reversible"}, {}, None),
    "float16": ("second_order", {"backprop": "reversible"}, {"precision": "float16"}, None),
}


@pytest.mark.parametrize(
    "case",
    [
        "copies of statistics",
        pytest.param("reversible", marks=pytest.mark.slow),
        pytest.param("float16", marks=pytest.mark.slow),
    ],
)
def test_promise_20_wherever_memory_ends_nothing_of_the_step_is_left(case):
    """Also in the middle of recomputing, where norms work on copies of their statistics."""
    *subject, only = SHORT_OF_MEMORY[case]
    expected = snapshot(steps_with_shortage(*subject, None))
    everything = Shortage(0, only)
    steps_with_shortage(*subject, everything)
    places = range(1, everything.count + 1, max(1, everything.count // 12))
    assert len(places) >= 12
    for place in places:
        trainer = steps_with_shortage(*subject, Shortage(place, only))
        assert trainer.progress.accumulation == 2
        assert_same_bits(snapshot(trainer), expected)


@pytest.mark.parametrize(
    ("batch_size", "divisions"),
    [(32, [2, 4, 8, 16, 32]), (125, [5, 25, 125]), (20, [2, 4, 10, 20]), (7, [7]), (1, [])],
)
def test_promise_20_parts_are_of_one_size_and_at_most_half(batch_size, divisions):
    found, number = [], 1
    while (number := finer_division(batch_size, number)) is not None:
        found.append(number)
    assert found == divisions


def test_promise_20_if_it_is_not_wanted_the_step_fails(monkeypatch):
    trainer = make_trainer(divide_to_fit=False)
    before = snapshot(trainer)
    SmallMemory(monkeypatch, most=10)
    with pytest.raises(PartTooLarge, match="can't allocate memory"):
        run(trainer)
    assert_same_bits(snapshot(trainer), before)


def test_promise_20_several_ranks_are_refused(monkeypatch):
    """The others are in the middle of their step: all end, and say what to do."""
    trainer = make_trainer()
    trainer.ranks = Ranks(0, 2)
    SmallMemory(monkeypatch, most=10)
    trainer.begin_epoch = lambda: None
    trainer._steps_left = 1
    with pytest.raises(TooLargeError, match=r"raise training\.accumulation"):
        trainer.step()


def test_promise_20_another_failure_is_no_shortage(monkeypatch):
    trainer = make_trainer()
    monkeypatch.setitem(FAILURES, "cpu", lambda: RuntimeError("an illegal memory access"))
    SmallMemory(monkeypatch, most=10)
    with pytest.raises(RuntimeError, match="illegal"):
        run(trainer)


def test_promise_20_a_shortage_of_the_update_is_not_tried_again(monkeypatch):
    """Half an update may have happened by then."""
    trainer = make_trainer()

    def update(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer._step, "_update", update)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        run(trainer)
    assert not isinstance(caught.value, PartTooLarge)


# ------------------------------------------------------------------ a whole run

SETTINGS = {"training__batch_size": 24, "training__epochs": 3}


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """A run whose memory fell short in the second epoch, and was enough ever after."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        SmallMemory(monkeypatch, most=12, first=13)
        folder = tmp_path_factory.mktemp("divided") / "run"
        recorder = Recorder()
        run = pdecnn.train(small_config(**SETTINGS), output=folder, listener=recorder)
    return SimpleNamespace(run=run, notes=recorder.notes, steps=recorder.steps)


def test_promise_20_it_is_said_and_recorded(divided):
    assert divided.notes == [
        "epoch 2: not enough memory: from now on each batch of 24 is computed in 2 parts of 12, "
        "and batch norms see a part at a time"
    ]
    assert [entry["accumulation"] for entry in divided.run.metrics] == [1, 2, 2]
    state = json.loads((divided.run.folder / "last" / "state.json").read_text())
    assert state["progress"]["accumulation"] == 2
    assert divided.run.config.training.accumulation == 1


@pytest.mark.parametrize("place", [(1, 6), (2, 3)], ids=["within the epoch", "later"])
def test_promise_20_a_resumed_run_reaches_the_same_bits(place, divided, tmp_path, monkeypatch):
    """Memory suffices after the resumption, yet the parts stay what they were."""

    def kill(progress):
        if (progress.epoch, progress.batch) == place:
            raise Killed

    folder = tmp_path / "run"
    with monkeypatch.context() as short:
        SmallMemory(short, most=12, first=13)
        with pytest.raises(Killed):
            pdecnn.train(small_config(**SETTINGS), output=folder, listener=Recorder(on_step=kill))
    pdecnn.train(small_config(**SETTINGS), output=folder, resume=True)
    assert fingerprint(folder) == fingerprint(divided.run.folder)


def test_promise_20_a_signal_after_it_loses_nothing(divided, tmp_path, monkeypatch):
    def interrupt(progress):
        if (progress.epoch, progress.batch) == (1, 7):
            os.kill(os.getpid(), 15)

    folder, recorder = tmp_path / "run", Recorder(on_step=interrupt)
    with monkeypatch.context() as short:
        SmallMemory(short, most=12, first=13)
        with pytest.raises(Interrupted):
            pdecnn.train(small_config(**SETTINGS), output=folder, listener=recorder)
    pdecnn.train(small_config(**SETTINGS), output=folder, resume=True)
    assert fingerprint(folder) == fingerprint(divided.run.folder)


def test_promise_20_the_command_fails_in_one_line(tmp_path, capsys, monkeypatch):
    SmallMemory(monkeypatch, most=0)
    options = ("--output", tmp_path / "run", "--set", "data.fraction=0.1")
    done = call(capsys, monkeypatch, "train", *options, "--set", "training.batch_size=4")
    assert done.code == 9
    assert done.stderr.startswith("pdecnn: not enough memory for a training step, though each")
    assert done.stderr.count("\n") == 1
    assert done.stdout.count("not enough memory: from now on") == 2
