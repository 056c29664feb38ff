"""One run of a queue, here or as a process: `python -m pdecnn.experiments.worker`.

The process reads one line of JSON, its order. When its input ends, because the queue stops it or
was itself killed, it writes a checkpoint and ends.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from pdecnn.errors import CheckpointError, ConfigError, DataError, DivergedError
from pdecnn.experiments.config import RunConfig, run_config_from_dict
from pdecnn.experiments.evaluation import evaluate
from pdecnn.experiments.runs import Run, is_run
from pdecnn.experiments.signals import Interrupted
from pdecnn.experiments.training import train
from pdecnn.files import write_json

TRAINING_EVALUATION = "training_evaluation.json"
_KNOWN_ERRORS = (CheckpointError, ConfigError, DataError, DivergedError, Interrupted)


def complete_run(folder: Path, config: RunConfig, device: str) -> None:
    """Train to the end, then measure the best weights on the training images too."""
    run = train(config, output=folder, resume=True, device=device)
    result = evaluate(run, data=config.data.folder, split="train", device=device)
    write_json(folder / TRAINING_EVALUATION, result)


def is_complete(folder: Path) -> bool:
    """Whether `complete_run` has nothing left to do there."""
    return is_run(folder) and Run(folder).is_finished and (folder / TRAINING_EVALUATION).is_file()


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
        complete_run(Path(order["folder"]), run_config_from_dict(order["config"]), order["device"])
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
