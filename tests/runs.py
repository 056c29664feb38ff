"""Small runs, their fingerprints, and the command line, within this process and as another."""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

import pdecnn
from pdecnn import cli
from pdecnn.files import write_json
from pdecnn.runs import Listener, queue
from tests.forks import Fork

SMALL = {
    "network.channels": [8, 8],
    "network.num_steps": 2,
    "data.fraction": 0.2,
    "training.batch_size": 25,
    "training.epochs": 4,
}
SOPHISTICATED = {
    "training__precision": "bfloat16",
    "training__accumulation": 5,
    "training__average_decay": 0.99,
    "training__clip_norm": 1.0,
    "data__flip": True,
    "data__padding": 0.125,
}
RESULTS = ("metrics.jsonl", "summary.json", "predictions.safetensors")


def small_config(recipe="hamiltonian_digits", **settings):
    """A run of a second; settings with two underscores for the dot."""
    return pdecnn.recipe(recipe).with_settings(_small(settings))


def small_options(**settings):
    """The same settings as `--set` options of the command line."""
    options = []
    for key, value in _small(settings).items():
        text = json.dumps(value) if isinstance(value, list | bool) else str(value)
        options += ["--set", f"{key}={text}"]
    return options


def _small(settings):
    return SMALL | {key.replace("__", "."): value for key, value in settings.items()}


def fingerprint(folder):
    """The SHA-256 of every file of `best`, `last`, all checkpoints and the results of a run."""
    paths = [folder / name for name in RESULTS]
    for part in ("best", "last", "checkpoints"):
        paths += [path for path in (folder / part).rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if ".damaged-" not in str(path)
    }


def modification_times(folder):
    """When every file and folder of a run was last changed."""
    return {str(path): path.lstat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


class _Notes(logging.Handler):
    def __init__(self, notes):
        super().__init__(logging.INFO)
        self.notes = notes

    def emit(self, record):
        self.notes.append(record.getMessage())


class Recorder(Listener):
    """Keeps what a run says, and may do something after a step or an epoch."""

    def __init__(self, on_step=None, on_epoch=None):
        self.notes, self.reports, self.steps = [], [], []
        logger, handler = logging.getLogger("pdecnn"), _Notes(self.notes)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        weakref.finalize(self, logger.removeHandler, handler)
        self.on_step, self.on_epoch = on_step, on_epoch

    def begin(self, folder, trainer):
        self.trainer = trainer

    def step(self, progress):
        self.steps.append((progress.epoch, progress.batch))
        if self.on_step is not None:
            self.on_step(progress)

    def epoch(self, report, timing):
        self.reports.append(report)
        if self.on_epoch is not None:
            self.on_epoch(report)


def complete_run(folder, config):
    """A run as a queue leaves it, without its process."""
    pdecnn.train(config, output=folder, device="cpu")
    write_json(folder / queue.CONDITIONS, {"runs_at_a_time": 1})
    assert queue._measure(folder, config, torch.device("cpu")) is None


class Killed(BaseException):
    """Stands for kill -9 within this process: nothing that handles errors may catch it."""


def assert_resumed_to_the_bit(config, folder):
    """A training killed within its first epoch and resumed ends as the undisturbed one."""

    def stop(progress):
        if (progress.epoch, progress.batch) == (1, 2):
            raise Killed

    whole = pdecnn.train(config, output=folder / "whole")
    with pytest.raises(Killed):
        pdecnn.train(config, output=folder / "halves", listener=Recorder(on_step=stop))
    halves = pdecnn.train(config, output=folder / "halves", resume=True)
    assert fingerprint(halves.folder) == fingerprint(whole.folder)


@contextmanager
def own_signal_handlers():
    """Put the handlers of the test process back."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def call(capsys, monkeypatch, *arguments):
    """The command line within this process: exit code, stdout and stderr."""
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["pdecnn", *map(str, arguments)])
    with own_signal_handlers():
        try:
            cli.main()
            code = 0
        except SystemExit as error:
            code = error.code or 0
    captured = capsys.readouterr()
    return SimpleNamespace(code=code, stdout=captured.out, stderr=captured.err)


def environment():
    """One thread, as in the test process, so that bits can be compared."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}


def start(*arguments, code=None, fresh=False, **options):
    """The command line as another process; with `code` a script that runs before it.

    A fork of this one, or a fresh interpreter, where its start or end matters.
    """
    program = ["-m", "pdecnn"]
    if code is not None:
        program = ["-c", f"{code}\nfrom pdecnn.cli import main\nmain()\n"]
    return (subprocess.Popen if fresh else Fork)(
        [sys.executable, *program, *map(str, arguments)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process, timeout=400):
    """Wait for such a process: exit code, stdout and stderr."""
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return SimpleNamespace(code=process.returncode, stdout=stdout, stderr=stderr)


def command(*arguments, **options):
    """Run the command line as another process to its end."""
    return finish(start(*arguments, **options))
