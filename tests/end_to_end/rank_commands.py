"""Command lines that the ranks of one torchrun run one after another, and faults on the way.

torchrun --standalone --nproc-per-node 2 -m tests.end_to_end.rank_commands PLAN

A fault is a signal that a rank sends itself in training, so that it strikes at the same step on
any machine; the n-th one strikes in the n-th attempt of torchrun.
"""

import json
import os
import signal
import sys
from itertools import count
from typing import NamedTuple

from pdecnn.cli import main
from pdecnn.learning import Trainer


class Fault(NamedTuple):
    """What strikes whom, and after how many steps of the attempt."""

    rank: int
    signal: signal.Signals
    steps: int


def plan(*commands, faults=()):
    """The argument of this module."""
    return json.dumps({"commands": [list(map(str, words)) for words in commands], "faults": faults})


def strike(rank, number, steps):
    """Have this process, if it is that rank, send itself the signal before a step."""
    train, numbers = Trainer.step, count()

    def step(trainer):
        if next(numbers) == steps and trainer.ranks.rank == rank:
            os.kill(os.getpid(), number)
        train(trainer)

    Trainer.step = step


def run(text):
    """Run the commands up to the first that fails, whose exit code is that of the process."""
    planned = json.loads(text)
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt < len(planned["faults"]):
        strike(*planned["faults"][attempt])
    for words in planned["commands"]:
        sys.argv = ["pdecnn", *words]
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise


if __name__ == "__main__":
    run(sys.argv[1])
