"""Promises 2, 18, 19, 23 and 24: numbers during training, and what a run is a function of."""

import json
import os
import random
import signal

import numpy as np
import pytest
import torch

import pdecnn
from pdecnn.data.batches import training_batches
from pdecnn.errors import ConfigError, DivergedError
from pdecnn.learning import step as step_module
from pdecnn.learning import trainer as trainer_module
from pdecnn.learning.step import Count
from pdecnn.reports.terminal import ConsoleListener
from pdecnn.runs import environment
from pdecnn.runs.environment import deterministic_algorithms
from pdecnn.runs.signals import Interrupted
from tests.runs import Killed, Recorder, call, fingerprint, small_config, small_options
from tests.unit.learning.trainings import Poisoned, make_network, make_trainer, run

# ------------------------------------------------------------------ promise 18


def test_promise_18_the_skipped_batches_are_recorded():
    index = int(training_batches(62, 20, seed=0, epoch=1)[2][4])
    trainer = make_trainer(
        make_network("parabolic"), augmentation=Poisoned(index, epochs=(1,)), max_nonfinite_steps=1
    )
    reports = run(trainer)
    assert [report.nonfinite_batches for report in reports] == [[], [2], []]
    assert [report.nonfinite_steps for report in reports] == [0, 1, 1]


def test_promise_18_divergence_says_step_epoch_and_batch():
    index = int(training_batches(62, 20, seed=0, epoch=1)[2][4])
    trainer = make_trainer(make_network("parabolic"), augmentation=Poisoned(index, epochs=(1,)))
    with pytest.raises(DivergedError, match=r"diverged at step 6 \(epoch 2, batch 3, learning"):
        run(trainer)
    assert trainer.progress.nonfinite_batches == [2]


def explode(monkeypatch, epoch, largest_rate):
    """From the fifth batch of the epoch on a learning rate above the given one is too large."""
    original = step_module.TrainingStep._measure

    def measure(step, scores, labels):
        loss, measured = original(step, scores, labels)
        batch = int(step.counts[Count.BATCH])
        explodes = step.epoch == epoch and batch >= 4 and step.rates[batch] > largest_rate
        return (loss * float("nan") if explodes else loss), measured

    monkeypatch.setattr(step_module.TrainingStep, "_measure", measure)


ROLLBACK = {"training__max_rollbacks": 2, "training__learning_rates": [0.1, 0.1, 0.1]}


def test_promise_18_a_run_goes_back_to_its_last_checkpoint_if_asked(tmp_path, monkeypatch):
    explode(monkeypatch, epoch=2, largest_rate=0.04)
    recorder = Recorder()
    run = pdecnn.train(small_config(**ROLLBACK), output=tmp_path / "run", listener=recorder)
    assert run.is_finished
    assert [entry["rollbacks"] for entry in run.metrics] == [0, 0, 2, 2]
    rates = [entry["learning_rate"] for entry in run.metrics]
    assert rates == [0.1, 0.1, 0.025, 0.025]
    assert [note.partition(" (")[0] for note in recorder.notes] == [
        "diverged at step 23",
        "resumed from epoch-0002",
    ] * 2
    assert "going back to a checkpoint, and on with half the learning rate" in recorder.notes[0]
    # Killed after the first of the two, it meets the same end.
    other = Recorder(on_step=kill_at((2, 2), times=3))
    with pytest.raises(Killed):
        pdecnn.train(small_config(**ROLLBACK), output=tmp_path / "killed", listener=other)
    pdecnn.train(small_config(**ROLLBACK), output=tmp_path / "killed", resume=True)
    assert fingerprint(tmp_path / "killed") == fingerprint(run.folder)


@pytest.mark.parametrize("passed", [1, 2])
def test_promise_18_a_run_that_was_interrupted_goes_back_as_far(passed, tmp_path, monkeypatch):
    """The checkpoint of a signal is none that the undisturbed run has."""
    explode(monkeypatch, epoch=2, largest_rate=0.04)
    run = pdecnn.train(small_config(**ROLLBACK), output=tmp_path / "run")
    met = []

    def interrupt(progress):
        met.append((progress.epoch, progress.batch))
        if met.count((2, 3)) == passed and met[-1] == (2, 3):
            os.kill(os.getpid(), signal.SIGTERM)

    folder = tmp_path / "interrupted"
    with pytest.raises(Interrupted):
        pdecnn.train(small_config(**ROLLBACK), output=folder, listener=Recorder(on_step=interrupt))
    assert (folder / "checkpoints" / "epoch-0002-batch-000003").is_dir()
    pdecnn.train(small_config(**ROLLBACK), output=folder, resume=True)
    assert fingerprint(folder) == fingerprint(run.folder)


def kill_at(place, times):
    """Kill when a place is met for so many times."""
    met = []

    def on_step(progress):
        met.append((progress.epoch, progress.batch))
        if met.count(place) == times:
            raise Killed

    return on_step


def test_promise_18_it_goes_back_to_the_beginning_and_not_for_ever(tmp_path, monkeypatch):
    explode(monkeypatch, epoch=0, largest_rate=0.0)
    recorder = Recorder()
    with pytest.raises(DivergedError, match=r"diverged at step 5 .*learning rate 0\.025"):
        pdecnn.train(small_config(**ROLLBACK), output=tmp_path / "run", listener=recorder)
    assert recorder.notes[1::2] == ["resumed from epoch-0000"] * 2


def test_promise_18_it_goes_back_across_a_change_of_level(tmp_path, monkeypatch):
    explode(monkeypatch, epoch=2, largest_rate=0.06)
    levels = {"training__level_epochs": [1, 1], "training__level_sizes": [4, 8]}
    run = pdecnn.train(small_config(**ROLLBACK, **levels), output=tmp_path / "run")
    assert [(entry["level"], entry["rollbacks"]) for entry in run.metrics] == [
        (0, 0),
        (0, 0),
        (1, 1),
        (1, 1),
    ]


# ------------------------------------------------------------------ promise 19


def test_promise_19_skipped_steps_are_shown(tmp_path, capsys, monkeypatch):
    original = step_module.LossScale

    def too_large(*arguments):
        scale = original(*arguments)
        scale.value.fill_(2.0**45)
        return scale

    monkeypatch.setattr(step_module, "LossScale", too_large)
    config = small_config(training__precision="float16", training__epochs=1)
    run = pdecnn.train(config, output=tmp_path / "run", listener=ConsoleListener())
    skipped = run.metrics[-1]["overflow_steps"]
    assert skipped > 0
    assert f"  {skipped} steps skipped\n" in capsys.readouterr().out


# ------------------------------------------------------------------ promise 23


def switches():
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )


def test_promise_23_two_deterministic_runs_have_equal_hashes(tmp_path, capsys, monkeypatch):
    seen, before = [], switches()
    original = trainer_module.Trainer.step

    def step(trainer):
        seen.append(switches()[:4])
        original(trainer)

    monkeypatch.setattr(trainer_module.Trainer, "step", step)
    options = small_options(training__epochs=2, data__flip="true", data__padding=0.125)
    for name in ("one", "two"):
        arguments = ("train", "--quiet", "--deterministic", "--output", tmp_path / name, *options)
        done = call(capsys, monkeypatch, *arguments)
        assert done.code == 0, done.stderr
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    assert set(seen) == {(True, False, True, False)}
    assert switches() == before
    # It is part of the run, so that --resume alone keeps it.
    assert json.loads((tmp_path / "one" / "config.json").read_text())["training"]["deterministic"]


def use_what_is_not_deterministic(*arguments):
    """An operation of which torch has no deterministic version, on a CPU too."""
    torch.zeros(2).put_(torch.zeros(1, dtype=torch.int64), torch.ones(1), accumulate=False)


def test_promise_23_what_is_not_deterministic_is_refused(tmp_path, monkeypatch):
    original = pdecnn.runs.training.make_network

    def make(config, train):
        network = original(config, train)
        network.opening.register_forward_hook(use_what_is_not_deterministic)
        return network

    monkeypatch.setattr(pdecnn.runs.training, "make_network", make)
    before = switches()
    with pytest.raises(ConfigError, match=r"put_.*does not have.*training.deterministic=false"):
        pdecnn.train(small_config(training__deterministic=True), output=tmp_path / "run")
    assert switches() == before
    config = small_config(training__epochs=1)
    assert pdecnn.train(config, output=tmp_path / "free").is_finished


def test_promise_23_on_a_gpu_cublas_is_told(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with deterministic_algorithms(True, torch.device("cuda")):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with deterministic_algorithms(True, torch.device("cuda")):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_promise_23_other_errors_pass_and_other_switches_are_kept():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with (
            pytest.raises(DivergedError),
            environment.deterministic_algorithms(True, torch.device("cpu")),
        ):
            raise DivergedError("the loss")
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        with deterministic_algorithms(False, torch.device("cpu")):
            assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


# ------------------------------------------------------------------ promise 24


def test_promise_24_one_seed_is_printed_stored_and_drives_all(tmp_path, capsys):
    config = small_config(training__epochs=1, data__flip=True, seed=7)
    for name, seed_of_the_process in (("one", 1), ("two", 2)):
        torch.manual_seed(seed_of_the_process)
        random.seed(seed_of_the_process)
        np.random.seed(seed_of_the_process)
        pdecnn.train(config, output=tmp_path / name, listener=ConsoleListener())
        assert ", seed 7\n" in capsys.readouterr().out
    for file in ("config.json", "environment.json"):
        assert json.loads((tmp_path / "one" / file).read_text())["seed"] == 7
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    # Seed and determinism are two switches.
    assert not config.training.deterministic
