"""SIGTERM and SIGINT: a checkpoint within one step, then the exit code of the signal."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

import pdecnn
from pdecnn.data.registry import NUM_TEST_IMAGES
from pdecnn.errors import RankError
from pdecnn.learning import tasks as tasks_module
from pdecnn.runs import preparation, training
from pdecnn.runs.preparation import Interrupted, StopSignals
from pdecnn.runs.runs import Run
from tests.forks import Fork
from tests.runs import SOPHISTICATED, Recorder, environment, fingerprint, finish, small_config

both = pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def signal_at(epoch, batch, number=signal.SIGTERM):
    def on_step(progress):
        if (progress.epoch, progress.batch) == (epoch, batch):
            send(number)

    return Recorder(on_step=on_step)


def interrupted_run(folder, listener, **settings):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Interrupted) as error:
        pdecnn.train(small_config(**settings), output=folder, resume=True, listener=listener)
    # The handlers of the caller are back.
    assert handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    return error.value


@both
def test_promise_21_a_signal_in_an_epoch_leaves_a_checkpoint_within_one_step(
    number, code, undisturbed, tmp_path
):
    listener = signal_at(1, 4, number)
    error = interrupted_run(tmp_path / "run", listener)
    assert error.exit_code == code
    assert listener.steps[-1] == (1, 4)
    assert listener.notes[1:] == [
        f"interrupted; go on with `pdecnn train --output {tmp_path / 'run'} --resume`"
    ]
    assert (tmp_path / "run" / "last").resolve().name == "epoch-0001-batch-000004"
    assert pdecnn.load(tmp_path / "run", "last").num_weights
    notes = Recorder()
    run = pdecnn.train(small_config(), output=tmp_path / "run", resume=True, listener=notes)
    assert notes.notes == ["resumed from epoch-0001-batch-000004"]
    assert notes.steps[0] == (1, 5)
    assert fingerprint(run.folder) == fingerprint(undisturbed.folder)


def signal_in_validation(monkeypatch):
    """Send SIGTERM between two batches of the second epoch's validation; the polls of each."""
    original, calls = tasks_module.evaluate_network, []

    def evaluate(*arguments, poll, **options):
        calls.append(0)

        def signalling_poll():
            calls[-1] += 1
            if len(calls) == 2 and calls[-1] == 2:
                send()
            poll()

        return original(*arguments, poll=signalling_poll, **options)

    monkeypatch.setattr(tasks_module, "evaluate_network", evaluate)
    return calls


@pytest.mark.parametrize(
    ("settings", "whole"),
    [({}, "undisturbed"), (SOPHISTICATED, "undisturbed_sophisticated")],
    ids=["plain", "sophisticated"],
)
def test_promise_21_a_signal_in_validation_leaves_a_checkpoint(
    settings, whole, tmp_path, request, monkeypatch
):
    whole = request.getfixturevalue(whole)
    polls = signal_in_validation(monkeypatch)
    error = interrupted_run(tmp_path / "run", Recorder(), **settings)
    assert error.exit_code == 143
    assert polls == [2, 2]
    assert (tmp_path / "run" / "last").resolve().name == "epoch-0001-batch-000009"
    monkeypatch.undo()
    run = pdecnn.train(small_config(**settings), output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(whole.folder)


def test_promise_21_signals_thrice_at_odd_places(undisturbed, tmp_path):
    # Before the first step's end, at the last step of an epoch, and within the last epoch.
    for place in ((0, 1), (0, 9), (3, 8)):
        interrupted_run(tmp_path / "run", signal_at(*place))
    run = pdecnn.train(small_config(), output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(undisturbed.folder)


def test_promise_21_with_everything_on(undisturbed_sophisticated, tmp_path):
    interrupted_run(tmp_path / "run", signal_at(2, 5), **SOPHISTICATED)
    run = pdecnn.train(small_config(**SOPHISTICATED), output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(undisturbed_sophisticated.folder)


@both
def test_promise_21_a_signal_in_preparation_ends_at_once_and_the_run_can_go_on(
    number, code, undisturbed, tmp_path, monkeypatch
):
    def read(*arguments):
        send(number)
        raise AssertionError("the signal came late")

    monkeypatch.setattr(training, "read_splits", read)
    error = interrupted_run(tmp_path / "run", Recorder())
    assert error.exit_code == code
    monkeypatch.undo()
    run = pdecnn.train(Run(tmp_path / "run").config, output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(undisturbed.folder)


def test_promise_21_a_signal_in_the_preparation_of_a_resumption_harms_nothing(
    undisturbed, tmp_path, monkeypatch
):
    interrupted_run(tmp_path / "run", signal_at(1, 4))
    read = preparation.read_splits
    monkeypatch.setattr(training, "read_splits", lambda *arguments: (send(), read(*arguments))[1])
    interrupted_run(tmp_path / "run", Recorder())
    monkeypatch.undo()
    run = pdecnn.train(small_config(), output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(undisturbed.folder)


def test_a_signal_before_the_first_step_leaves_a_checkpoint_that_goes_on(tmp_path):
    config = {"training__epochs": 1, "data__fraction": 0.05}
    whole = pdecnn.train(small_config(**config), output=tmp_path / "whole")
    listener = Recorder()
    listener.begin = lambda folder, trainer: send()
    interrupted_run(tmp_path / "run", listener, **config)
    assert listener.steps == []
    assert (tmp_path / "run" / "last").resolve().name == "epoch-0000"
    run = pdecnn.train(small_config(**config), output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(whole.folder)


def test_a_signal_after_the_last_epoch_is_not_forgotten(undisturbed, tmp_path):
    def on_epoch(report):
        if report.epoch == 4:
            send()

    interrupted_run(tmp_path / "run", Recorder(on_epoch=on_epoch))
    assert not (tmp_path / "run" / "summary.json").exists()
    run = pdecnn.train(small_config(), output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(undisturbed.folder)


def test_a_signal_in_the_final_test_ends_at_once_and_is_made_up_for(
    undisturbed, tmp_path, monkeypatch
):
    original = tasks_module.evaluate_network

    def evaluate(network, images, **options):
        if len(images) != NUM_TEST_IMAGES:  # of a validation
            return original(network, images, **options)
        send()
        raise AssertionError("the signal came late")

    monkeypatch.setattr(tasks_module, "evaluate_network", evaluate)
    interrupted_run(tmp_path / "run", Recorder())
    monkeypatch.undo()
    run = pdecnn.train(small_config(), output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(undisturbed.folder)


def test_promise_21_a_second_signal_exits_at_once(tmp_path):
    code = (
        "import os, signal\n"
        "from pdecnn.runs.preparation import StopSignals\n"
        "with StopSignals() as signals:\n"
        "    signals.deferred = True\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('not here', flush=True)\n"
    )
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    done = finish(Fork([sys.executable, "-c", code], env=environment(), **output))
    assert (done.code, done.stdout, done.stderr) == (130, "still here\n", "")


def test_what_is_not_deferred_raises_at_once():
    with StopSignals() as signals:
        signals.poll()
        with pytest.raises(Interrupted, match="interrupted by SIGINT"):
            send(signal.SIGINT)


def test_a_signal_whose_error_was_swallowed_is_met_at_the_next_poll():
    with StopSignals() as signals:
        with suppress(Exception):
            send()
        with pytest.raises(Interrupted):
            signals.poll()


def test_a_signal_while_a_lost_rank_is_told_raises_nothing_else():
    with StopSignals() as signals, suppress(RankError):
        try:
            raise RankError("another rank has ended")
        finally:
            send()
    with pytest.raises(Interrupted):
        signals.poll()
