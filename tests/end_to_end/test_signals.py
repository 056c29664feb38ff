"""SIGTERM and SIGINT sent to the command: a checkpoint, a message, 143 or 130 (promise 21)."""

import signal
import time

import pytest

import pdecnn
from tests.runs import command, fingerprint, finish, small_options, start
from tests.runs import small_config as config_of

LONGER = {"data__fraction": 0.5, "training__epochs": 5}

# What a script does before the command runs: the process signals itself at a chosen place.
IN_VALIDATION = """
import os, signal
from pdecnn.learning import tasks
original, calls = tasks.evaluate_network, []
def evaluate(*arguments, poll, **options):
    calls.append(1)
    def signalling_poll():
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        poll()
    return original(*arguments, poll=signalling_poll, **options)
tasks.evaluate_network = evaluate
"""
IN_PREPARATION = """
import os, signal
from pdecnn.runs import training
def read_splits(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
training.read_splits = read_splits
"""
TWICE = """
import os, signal
from pdecnn.runs import Listener
from pdecnn.reports import terminal as console
class Impatient(console.ConsoleListener):
    def step(self, progress):
        if progress.step == 30:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
console.ConsoleListener = Impatient
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return fingerprint(pdecnn.train(config_of(**LONGER), output=folder).folder)


def signal_after_an_epoch(folder, number):
    process = start("train", "--output", folder, *small_options(**LONGER))
    while process.poll() is None and not (folder / "timing.jsonl").exists():
        time.sleep(0.01)
    process.send_signal(number)
    return finish(process)


def test_promise_21_a_signal_from_outside(whole, tmp_path):
    folder = tmp_path / "run"
    done = signal_after_an_epoch(folder, signal.SIGTERM)
    assert done.code == 143, done.stderr
    assert done.stderr == "pdecnn: interrupted by SIGTERM\n"
    assert f"interrupted; go on with `pdecnn train --output {folder} --resume`" in done.stdout
    assert (folder / "last" / "state.safetensors").exists()
    pdecnn.train(config_of(**LONGER), output=folder, resume=True)
    assert fingerprint(folder) == whole


@pytest.mark.slow
def test_promise_21_a_signal_in_validation(whole, tmp_path):
    folder = tmp_path / "run"
    options = ("train", "--quiet", "--output", folder, *small_options(**LONGER))
    done = command(*options, code=IN_VALIDATION)
    assert (done.code, done.stdout) == (143, "")
    assert done.stderr == "pdecnn: interrupted by SIGTERM\n"
    assert (folder / "last").resolve().name == "epoch-0001-batch-000023"
    pdecnn.train(config_of(**LONGER), output=folder, resume=True)
    assert fingerprint(folder) == whole


def test_promise_21_a_signal_in_preparation(tmp_path):
    done = command("train", "--output", tmp_path / "run", code=IN_PREPARATION)
    assert (done.code, done.stdout) == (130, "")
    assert done.stderr == "pdecnn: interrupted by SIGINT\n"
    # The run knows what it was to be, so that --resume alone starts it.
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.json",
        "environment.json",
    ]


@pytest.mark.slow
def test_promise_21_a_second_signal_ends_at_once(whole, tmp_path):
    folder = tmp_path / "run"
    done = command("train", "--output", folder, *small_options(**LONGER), code=TWICE)
    assert done.code == 143
    assert "interrupted" not in done.stdout + done.stderr
    # No time for a checkpoint, but none is damaged either.
    assert (folder / "last").resolve().name == "epoch-0001"
    pdecnn.train(config_of(**LONGER), output=folder, resume=True)
    assert fingerprint(folder) == whole
