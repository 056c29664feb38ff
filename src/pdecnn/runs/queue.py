"""Many runs, several at a time, each in a process of its own; resumable at any point."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from pdecnn.errors import CheckpointError, ConfigError, system_errors_as
from pdecnn.runs.config import DataConfig, RunConfig
from pdecnn.runs.environment import resolve_device
from pdecnn.runs.folder_lock import QUEUE_WAIT_SECONDS, locked_folder
from pdecnn.runs.listener import Listener
from pdecnn.runs.opening import check_settings
from pdecnn.runs.preparation import read_splits
from pdecnn.runs.runs import Run, is_run
from pdecnn.runs.saving import check_data
from pdecnn.runs.signals import Interrupted, StopSignals
from pdecnn.runs.worker import RunListener, complete_run, explain, is_complete

NUM_PARALLEL = {"cuda": 3}
"""Runs at a time by device, where more than one are faster than one after the other."""
_POLL_SECONDS = 0.1
_MOST_BYTES_READ = 2**16


def run_queue(
    runs: dict[str, RunConfig],
    folder: Path,
    *,
    device: str = "auto",
    num_parallel: int | None = None,
    listener: Listener | None = None,
) -> dict[str, str]:
    """Bring each run to its end in `folder/name` and return what went wrong, by name.

    Finished runs are skipped, interrupted ones go on where they stopped. On a signal every run
    writes a checkpoint before Interrupted is raised.
    """
    listener = Listener() if listener is None else listener
    where = resolve_device(device)
    if num_parallel is None:
        num_parallel = NUM_PARALLEL.get(where.type, 1)
    if num_parallel < 1:
        raise ConfigError(f"at least 1 run at a time is needed, found {num_parallel}")

    def on_wait() -> None:
        listener.note(f"waiting for the runs that are still at work in {folder}")

    with ExitStack() as held:
        with system_errors_as(ConfigError, f"{folder}: cannot be used"):
            lock = held.enter_context(
                locked_folder(folder, wait_seconds=QUEUE_WAIT_SECONDS, on_wait=on_wait)
            )
        waiting, damaged = _unfinished(runs, folder)
        finished = len(runs) - len(waiting) - len(damaged)
        listener.note(
            f"{len(runs)} run{'s' * (len(runs) > 1)} in {folder}: {finished} finished before, "
            f"{len(waiting)} to go, {num_parallel} at a time on {where}"
        )
        tally = _Tally(folder, len(waiting), listener, damaged)
        try:
            # A run that breaks the CUDA context would take those after it along.
            if num_parallel == 1 and where.type == "cpu":
                _run_here(waiting, folder, tally)
            else:
                _run_apart(waiting, folder, str(where), num_parallel, lock, tally)
        except Interrupted:
            listener.note("interrupted; run the same command again to go on")
            raise
    return tally.failures


def _unfinished(
    runs: dict[str, RunConfig], folder: Path
) -> tuple[dict[str, RunConfig], dict[str, str]]:
    """The runs that are not at their end, and what is wrong with those that cannot be read."""
    waiting, damaged = {}, {}
    fingerprint = cache(_fingerprint)  # shared by the networks that are compared
    for name, config in runs.items():
        try:
            if is_run(folder / name):
                run = Run(folder / name)
                check_settings(run, config)
                # In its place data is taken as it was: to read all of it takes minutes.
                moved = run.config.data.folder != config.data.folder
                if moved and run.data_fingerprint is not None:
                    check_data(run, fingerprint(config.data, config.seed))
            if not is_complete(folder / name):
                waiting[name] = config
        except CheckpointError as error:
            damaged[name] = explain(error)
    return waiting, damaged


def _fingerprint(data: DataConfig, seed: int) -> str:
    return read_splits(data, seed).fingerprint()


@dataclass(slots=True)
class _Tally:
    """What is done, said line by line."""

    folder: Path
    total: int
    listener: Listener
    failures: dict[str, str]
    begin: float = field(default_factory=monotonic)
    done: int = 0

    def add(self, name: str, failure: str | None) -> None:
        """A run is over, well or not."""
        self.done += 1
        if failure is not None:
            self.failures[name] = failure
            said = f"failed: {failure}"
        else:
            said = _test_accuracy(self.folder / name)
        remaining = (monotonic() - self.begin) / self.done * (self.total - self.done)
        left = f"about {_duration(remaining)} left" if self.done < self.total else "all done"
        self.listener.note(f"{self.done:3d} of {self.total}  {name}: {said}; {left}")

    def note(self, name: str, text: str) -> None:
        """A run has something to say."""
        self.listener.note(f"{name}: {text}")


def _test_accuracy(folder: Path) -> str:
    try:
        summary = Run(folder).summary or {}
        return f"test accuracy {summary['test']['accuracy']:.2%}"
    except (CheckpointError, KeyError, TypeError, ValueError):
        return "done"  # what is wrong with its summary is said where it is needed


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _run_here(runs: dict[str, RunConfig], folder: Path, tally: _Tally) -> None:
    for name, config in runs.items():
        try:
            complete_run(folder / name, config, "cpu", RunListener(partial(tally.note, name), 1))
        except Interrupted:
            raise
        except Exception as error:
            tally.add(name, explain(error))
        else:
            tally.add(name, None)


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    notes: IO[bytes]
    num_read: int = 0

    def stop(self) -> None:
        """The end of its input asks it to write a checkpoint and end."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def new_notes(self) -> list[str]:
        """What it has said since the last time, in whole lines."""
        # Not read(), which would move the place at which the process writes.
        text = os.pread(self.notes.fileno(), _MOST_BYTES_READ, self.num_read)
        text = text[: text.rfind(b"\n") + 1]
        self.num_read += len(text)
        return text.decode(errors="replace").splitlines()

    def close(self) -> None:
        """Its process has ended."""
        self.errors.close()
        self.notes.close()

    def failure(self) -> str | None:
        """Why an ended process did not do its work; None if it did."""
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        code = self.process.returncode
        if code == 0:
            return None
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return lines[-1] if lines else f"ended with exit code {code}"


def _run_apart(
    runs: dict[str, RunConfig],
    folder: Path,
    device: str,
    num_parallel: int,
    lock: int,
    tally: _Tally,
) -> None:
    waiting = list(runs.items())
    working: dict[str, _Worker] = {}
    with StopSignals() as signals:
        signals.deferred = True
        try:
            while waiting or working:
                while waiting and len(working) < num_parallel:
                    name, config = waiting.pop(0)
                    working[name] = _start(folder / name, config, device, num_parallel, lock)
                sleep(_POLL_SECONDS)
                signals.poll()
                for name, worker in list(working.items()):
                    ended = worker.process.poll() is not None
                    for text in worker.new_notes():
                        tally.note(name, text)
                    if ended:
                        del working[name]
                        worker.stop()
                        tally.add(name, worker.failure())
                        worker.close()
        finally:
            for worker in working.values():
                worker.stop()
            for worker in working.values():
                worker.process.wait()
                worker.close()


def _start(folder: Path, config: RunConfig, device: str, num_parallel: int, lock: int) -> _Worker:
    # Not pipes, which could fill up; closed when the process has ended.
    errors, notes = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, "-m", "pdecnn.runs.worker"],
        stdin=subprocess.PIPE,
        bufsize=0,
        stdout=notes,
        stderr=errors,
        # Ctrl-C reaches this process alone, which stops the others in order; the lock is theirs
        # too, so that nobody else writes to the runs of a queue that was killed.
        start_new_session=True,
        pass_fds=(lock,),
    )
    order = {
        "folder": str(folder),
        "config": config.to_dict(),
        "device": device,
        "num_parallel": num_parallel,
        "command": sys.argv,
    }
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it ended at once: why will be read from its errors
        process.stdin.write(json.dumps(order).encode() + b"\n")
    return _Worker(process, errors, notes)
