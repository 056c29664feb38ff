"""Many runs, several at a time, each a process `pdecnn train --resume`; resumable at any point."""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

import torch

from pdecnn.errors import CheckpointError, ConfigError, DataError, in_one_line, system_errors_as
from pdecnn.files import read_bytes, write_json
from pdecnn.runs.config import RunConfig
from pdecnn.runs.evaluation import evaluate
from pdecnn.runs.preparation import (
    QUEUED,
    Device,
    Interrupted,
    StopSignals,
    cpu_threads,
    read_own,
    read_splits,
    resolve_device,
)
from pdecnn.runs.runs import DATA, Run, is_run, locked_folder
from pdecnn.runs.training import begin_run, check_data, check_settings

log = logging.getLogger(__name__)
NUM_PARALLEL = {"cuda": 3}
"""Runs at a time by device, where more than one are faster than one after the other."""
TRAINING_EVALUATION = "training_evaluation.json"
CONDITIONS = "conditions.json"
"""How many runs shared the device, on which its times depend."""
QUEUE_WAIT_SECONDS = 30.0
"""How long a queue waits for another one that is just ending."""
_POLL_SECONDS = 0.05
_MOST_BYTES_READ = 2**16


def run_queue(
    runs: dict[str, RunConfig],
    folder: Path,
    *,
    device: Device = "auto",
    num_parallel: int | None = None,
) -> dict[str, str]:
    """Bring each run to its end in `folder/name` and return what went wrong, by name.

    Finished runs are skipped, interrupted ones go on where they stopped. On a signal every run
    writes a checkpoint before Interrupted is raised; if this process is killed they do so too.
    """
    where = resolve_device(device)
    if num_parallel is None:
        num_parallel = NUM_PARALLEL.get(where.type, 1)
    if num_parallel < 1:
        raise ConfigError(f"at least 1 run at a time is needed, found {num_parallel}")

    def on_wait() -> None:
        log.info("waiting for the runs that are still at work in %s", folder)

    with ExitStack() as held:
        with system_errors_as(ConfigError, f"{folder}: cannot be used"):
            held.enter_context(
                locked_folder(folder, wait_seconds=QUEUE_WAIT_SECONDS, on_wait=on_wait)
            )
        waiting, damaged = _unfinished(runs, folder)
        finished = len(runs) - len(waiting) - len(damaged)
        log.info(
            f"{len(runs)} run{'s' * (len(runs) > 1)} in {folder}: {finished} finished before, "
            f"{len(waiting)} to go, {num_parallel} at a time on {where}"
        )
        queue = _Queue(folder, where, num_parallel, waiting, failures=damaged)
        try:
            queue.work()
        except Interrupted:
            log.info("interrupted; run the same command again to go on")
            raise
    return queue.failures


def _unfinished(
    runs: dict[str, RunConfig], folder: Path
) -> tuple[dict[str, RunConfig], dict[str, str]]:
    """The runs that are not at their end, and what is wrong with those that cannot be read."""
    waiting, damaged = {}, {}
    # Shared by the networks that are compared.
    fingerprint = cache(lambda data, seed: read_splits(data, seed).fingerprint())
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
            damaged[name] = str(error)
    return waiting, damaged


def is_complete(folder: Path) -> bool:
    """Whether a run of a queue has nothing left to do."""
    return (
        is_run(folder) and Run(folder).is_finished and read_training_evaluation(folder) is not None
    )


def read_training_evaluation(folder: Path) -> dict[str, Any] | None:
    """The figures on the training images; None where they are to be measured again."""
    try:
        values = json.loads(read_bytes(folder / TRAINING_EVALUATION))
    except (OSError, ValueError, RecursionError):
        return None
    accuracy = values.get("accuracy") if isinstance(values, dict) else None
    if not isinstance(accuracy, int | float) or isinstance(accuracy, bool):
        return None
    return values if 0 <= accuracy <= 1 else None  # a NaN is in no interval


@dataclass(slots=True)
class _Queue:
    """Runs that wait and runs at work, each in its process; what is done is said line by line."""

    folder: Path
    device: torch.device
    num_parallel: int
    runs: dict[str, RunConfig]
    failures: dict[str, str]
    working: "dict[str, _Worker]" = field(default_factory=dict)
    begin: float = field(default_factory=monotonic)
    done: int = 0

    def work(self) -> None:
        """Bring all runs to their ends."""
        waiting = list(self.runs)
        with StopSignals() as signals:
            signals.deferred = True
            try:
                while waiting or self.working:
                    while waiting and len(self.working) < self.num_parallel:
                        self._begin(waiting.pop(0))
                    sleep(_POLL_SECONDS if self.working else 0)
                    signals.poll()
                    for name in list(self.working):
                        self._look_after(name)
            finally:
                for worker in self.working.values():
                    worker.stop()
                for worker in self.working.values():
                    worker.process.wait()
                    worker.close()

    def _begin(self, name: str) -> None:
        folder, config = self.folder / name, self.runs[name]
        try:
            if is_run(folder) and Run(folder).is_finished:
                self._end(name, _measure(folder, config, self.device))
            else:
                self.working[name] = _start(folder, config, self.device, self.num_parallel)
        except (CheckpointError, ConfigError, DataError) as error:
            self._end(name, str(error))

    def _look_after(self, name: str) -> None:
        """Pass on what a run says; if its process has ended, see to the rest."""
        folder, worker = self.folder / name, self.working[name]
        ended = worker.process.poll() is not None
        for text in worker.new_notes():
            log.info(f"{name}: {text}")
        if not ended:
            return
        del self.working[name]
        worker.stop()
        failure = worker.failure()
        worker.close()
        if failure is None:
            failure = _measure(folder, self.runs[name], self.device)
        elif not (folder / DATA).exists():  # it never began
            (folder / CONDITIONS).unlink(missing_ok=True)
            Run(folder, elsewhere=True).discard([folder])
        self._end(name, failure)

    def _end(self, name: str, failure: str | None) -> None:
        """A run is over, well or not."""
        self.done += 1
        if failure is not None:
            self.failures[name] = failure
        outcome = _test_accuracy(self.folder / name) if failure is None else f"failed: {failure}"
        total = len(self.runs)
        remaining = (monotonic() - self.begin) / self.done * (total - self.done)
        left = f"about {_duration(remaining)} left" if self.done < total else "all done"
        log.info(f"{self.done:3d} of {total}  {name}: {outcome}; {left}")


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


@dataclass(slots=True)
class _Worker:
    """A process that trains one run."""

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
        self.notes.seek(self.num_read)
        text = self.notes.read(_MOST_BYTES_READ)
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
        return lines[-1].removeprefix("pdecnn: ") if lines else f"ended with exit code {code}"


def _start(folder: Path, config: RunConfig, device: torch.device, num_parallel: int) -> _Worker:
    """Make the run, if there is none yet, and start the process that trains it."""
    if not is_run(folder):
        begin_run(folder, read_own(config)[0], device, [folder])
    write_json(folder / CONDITIONS, {"runs_at_a_time": num_parallel})
    command = [sys.executable, "-m", "pdecnn", "train", "--resume", "--output", str(folder)]
    command += ["--device", str(device)]
    if config.data.folder is not None:
        command += ["--data", config.data.folder]
    limit = config.training.time_limit_seconds
    command += ["--set", f"training.time_limit_seconds={'none' if limit is None else limit}"]
    # Files, not pipes, which could fill up; opened to append, since both ends share their place.
    errors, notes = tempfile.TemporaryFile("a+b"), tempfile.TemporaryFile("a+b")  # noqa: SIM115
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=notes,
        stderr=errors,
        env=os.environ | {QUEUED: "1"},
        # Ctrl-C reaches this process alone, which stops the others in order.
        start_new_session=True,
    )
    return _Worker(process, errors, notes)


def _measure(folder: Path, config: RunConfig, device: torch.device) -> str | None:
    """Measure the best weights of a trained run on the training images too; or why not."""
    try:
        run = Run(folder)
        if not run.is_finished:
            return "stopped at its time limit; run the same command again to go on"
        with cpu_threads(config.training.num_threads):
            data = config.data.folder
            result = evaluate(run, data=data, split="train", device=str(device))
        write_json(folder / TRAINING_EVALUATION, result)
    except (CheckpointError, ConfigError, DataError) as error:
        return str(error)
    except (RuntimeError, OSError) as error:
        return in_one_line(error)
    return None
