"""One training, disturbed again and again: killed, stopped, out of disk, its checkpoints damaged.

Each fault strikes a running `pdecnn train --resume` at a random place; the next one goes on with
what is left. All that is random follows from a seed, but for what the clock makes of it.
"""

import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from pdecnn.cli.application import EXIT_CODES
from pdecnn.errors import CheckpointError
from pdecnn.files import MANIFEST
from pdecnn.learning.checkpoint import FILES
from pdecnn.runs import Run
from tests.forks import Fork
from tests.outside import Surroundings
from tests.runs import fingerprint, finish, small_options

KINDS = ("kill -9", "SIGTERM", "full disk", "damaged checkpoint")
EPOCHS_A_FAULT, SPARE_EPOCHS = 3, 5
LONGEST_SECONDS = 900
SETTINGS = {
    "network__channels": [4, 4],
    "network__num_steps": 1,
    "data__fraction": 0.1,
    "training__batch_size": 8,
    "training__precision": "float32",
}
_WATCHING = "from tests.outside import complain, watch\nwatch({folders!r}, complain)"
_DAMAGES = ("flipped bits", "truncated", "emptied", "deleted")


class Fault(NamedTuple):
    """What happened to the training once."""

    kind: str
    epoch: int
    """Epochs done when it struck."""
    detail: str


class Disturbed:
    """A training in a folder of its own, with a home, a folder for temporary files and bystanders.

    The training has three epochs for each fault, so that all strike before it ends.
    """

    def __init__(self, root, num_faults, seed):
        self.root, self.num_faults = Path(root), num_faults
        self.randomness = random.Random(seed)
        self.epochs = EPOCHS_A_FAULT * num_faults + SPARE_EPOCHS
        self.run, self.surroundings = self.root / "runs" / "run", Surroundings(self.root)
        self.options = small_options(**SETTINGS, training__epochs=self.epochs)
        self.faults, self.num_damaged = [], 0
        self.touched = []
        neighbour = self.root / "runs" / "run-2" / "checkpoints" / "epoch-0001"
        neighbour.mkdir(parents=True)
        (neighbour / "config.json").write_text("{}")
        self.before = self.around()

    def around(self):
        """All but the run directory."""
        return self.surroundings.snapshot(leave_out=[self.run])

    def train(self, *, fresh=False):
        """Undisturbed from start to end, or from where it is; in a fresh interpreter or a fork."""
        done = self._finish(self._start(fresh=fresh))
        assert done.code == 0, done.stderr
        return fingerprint(self.run)

    def disturb(self):
        """All faults, in a shuffled order in which every kind comes equally often."""
        kinds = [KINDS[k % len(KINDS)] for k in range(self.num_faults)]
        self.randomness.shuffle(kinds)
        for number, kind in enumerate(kinds):
            self._strike(number, kind)

    def _strike(self, number, kind):
        process = self._start()
        starting = kind == "kill -9" and self.randomness.random() < 0.3
        if starting:
            time.sleep(self.randomness.uniform(0, 0.3))
        else:
            self._wait(process, EPOCHS_A_FAULT * (number + 1))
        epoch = num_epochs(self.run)
        code, detail = self._stop(process, kind)
        done = self._finish(process)
        assert done.code == code, f"{kind}: exit code {done.code}\n{done.stderr}"
        if kind == "full disk":
            assert "cannot be written" in done.stderr, done.stderr
        if kind == "damaged checkpoint":
            detail = self._damage()
        self.faults.append(Fault(kind, epoch, "while starting" if starting else detail))

    def _start(self, *, fresh=False):
        watching = _WATCHING.format(folders=[str(self.run), str(self.surroundings.caches)])
        program = f"{watching}\nfrom pdecnn.cli import main\nmain()"
        arguments = ["train", "--quiet", "--resume", "--output", str(self.run), *self.options]
        return (subprocess.Popen if fresh else Fork)(
            [sys.executable, "-c", program, *arguments],
            cwd=self.surroundings.work,
            env=self.surroundings.variables | {"PYTHONWARNINGS": "error"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _finish(self, process):
        done = finish(process, LONGEST_SECONDS)
        self.touched += [line for line in done.stderr.splitlines() if "touched outside" in line]
        return done

    def _wait(self, process, epoch):
        """Until so many epochs are done, one of them by this process, and then a little."""
        begin = time.monotonic()
        done = num_epochs(self.run)

        def is_early():
            epochs = num_epochs(self.run)
            return epochs < epoch or epochs == done or len(Run(self.run).checkpoints) < 2

        while process.poll() is None and is_early():
            time.sleep(0.002)
            if time.monotonic() > begin + LONGEST_SECONDS:
                raise AssertionError("the training does not get on")
        time.sleep(self.randomness.uniform(0, 0.2))

    def _stop(self, process, kind):
        """Do it; the exit code to expect, and what there is to say."""
        if kind == "SIGTERM":
            process.terminate()
            return 128 + signal.SIGTERM, ""
        if kind != "full disk":
            process.kill()
            return -signal.SIGKILL, ""
        # From now on no file may become longer than this, and the next checkpoint needs more.
        needed = (self.run / "last" / "state.safetensors").stat().st_size
        limit = self.randomness.randrange(self.randomness.choice([100, 2000, needed]))
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        return EXIT_CODES[CheckpointError], f"no file longer than {limit} bytes"

    def _damage(self):
        """Harm the newest checkpoints, but not all of them."""
        folders = Run(self.run).checkpoints
        number = self.randomness.randint(1, len(folders) - 1)
        self.num_damaged += number
        return "; ".join(self._harm(folder) for folder in folders[-number:])

    def _harm(self, folder):
        path = folder / self.randomness.choice([*FILES, MANIFEST])
        how = self.randomness.choice(_DAMAGES)
        content = bytearray(path.read_bytes())
        if how == "flipped bits":
            for _ in range(self.randomness.randint(1, 3)):
                content[self.randomness.randrange(len(content))] ^= 1 << self.randomness.randrange(
                    8
                )
        elif how == "truncated":
            del content[self.randomness.randrange(1, len(content)) :]
        path.write_bytes(b"" if how == "emptied" else bytes(content))
        if how == "deleted":
            path.unlink()
        return f"{folder.name}/{path.name} {how}"


def num_epochs(folder):
    """Epochs that have their line of metrics."""
    try:
        return (folder / "metrics.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


def disturb(root, num_faults, seed):
    """Train undisturbed and disturbed; the faults, and what both trainings came to."""
    root = Path(root)
    whole = Disturbed(root / "whole", num_faults, seed)
    expected = whole.train(fresh=True)
    disturbed = Disturbed(root / "disturbed", num_faults, seed)
    disturbed.disturb()
    found = disturbed.train()
    shutil.rmtree(whole.root)
    return {
        "seed": seed,
        "settings": {key.replace("__", "."): value for key, value in SETTINGS.items()},
        "epochs": disturbed.epochs,
        "faults": [fault._asdict() for fault in disturbed.faults],
        "damaged": disturbed.num_damaged,
        "set_aside": len(list((disturbed.run / "checkpoints").glob("*.damaged-*"))),
        "expected": expected,
        "found": found,
        "touched_outside": whole.touched + disturbed.touched,
        "surroundings_unchanged": disturbed.around() == disturbed.before,
    }
