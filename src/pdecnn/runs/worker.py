"""One run of a queue, here or as a process: `python -m pdecnn.runs.worker`.

The process reads one line of JSON, its order. When its input ends, because the queue stops it or
was itself killed, it writes a checkpoint and ends.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pdecnn.errors import (
    BusyError,
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    TooLargeError,
)
from pdecnn.files import write_json
from pdecnn.learning.trainer import Trainer
from pdecnn.runs.config import RunConfig, run_config_from_dict
from pdecnn.runs.environment import cpu_threads
from pdecnn.runs.evaluation import evaluate
from pdecnn.runs.listener import Listener
from pdecnn.runs.runs import Run, is_run
from pdecnn.runs.signals import Interrupted
from pdecnn.runs.training import train

TRAINING_EVALUATION = "training_evaluation.json"
CONDITIONS = "conditions.json"
"""How many runs shared the device, on which its times depend."""


class Unfinished(Exception):
    """There is more to train, but not now."""


_KNOWN_ERRORS = (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    BusyError,
    TooLargeError,
    Interrupted,
    Unfinished,
)


class RunListener(Listener):
    """Passes on the notes of a run of a queue and writes down its conditions."""

    def __init__(self, say: Callable[[str], None], num_parallel: int) -> None:
        self.say, self.num_parallel = say, num_parallel

    def note(self, text: str) -> None:
        """Pass it on."""
        self.say(text)

    def begin(self, folder: Path, trainer: Trainer) -> None:
        """Write down how it is trained from here on."""
        del trainer
        write_json(folder / CONDITIONS, {"runs_at_a_time": self.num_parallel})


def complete_run(folder: Path, config: RunConfig, device: str, listener: Listener) -> None:
    """Train to the end, then measure the best weights on the training images too."""
    resume = is_run(folder)
    run = Run(folder) if resume else None
    if run is None or not run.is_finished:
        run = train(config, output=folder, resume=resume, device=device, listener=listener)
    if not run.is_finished:
        raise Unfinished("stopped at its time limit; run the same command again to go on")
    with cpu_threads(config.training.num_threads):
        result = evaluate(run, data=config.data.folder, split="train", device=device)
    write_json(folder / TRAINING_EVALUATION, result)


def is_complete(folder: Path) -> bool:
    """Whether `complete_run` has nothing left to do there."""
    return (
        is_run(folder) and Run(folder).is_finished and read_training_evaluation(folder) is not None
    )


def read_training_evaluation(folder: Path) -> dict[str, Any] | None:
    """The figures on the training images; None where they are to be measured again."""
    try:
        values = json.loads((folder / TRAINING_EVALUATION).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    accuracy = values.get("accuracy") if isinstance(values, dict) else None
    if not isinstance(accuracy, int | float) or isinstance(accuracy, bool):
        return None
    return values if 0 <= accuracy <= 1 else None  # a NaN is in no interval


def explain(error: Exception) -> str:
    """What went wrong, in one line."""
    text = " ".join(str(error).splitlines())
    return text if isinstance(error, _KNOWN_ERRORS) else f"{type(error).__name__}: {text}"


def main() -> None:
    """Do what the first line of the input says, while the input lasts."""
    order = json.loads(sys.stdin.buffer.readline())
    sys.argv = order["command"]  # what the environment of the run records
    threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    try:
        complete_run(
            Path(order["folder"]),
            run_config_from_dict(order["config"]),
            order["device"],
            RunListener(lambda text: print(text, flush=True), order["num_parallel"]),
        )
    except Exception as error:
        print(explain(error), file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, Interrupted) else 1)


def _stop_at_end_of_input() -> None:
    # Not through sys.stdin, whose lock would be missed when the interpreter ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
