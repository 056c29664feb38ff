"""Kill one rank of two at random, ten times; what became of the training. Used by scaling.py."""

import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SETTINGS = {
    "network.channels": "[8,8]",
    "network.num_steps": "2",
    "training.batch_size": "24",
    "training.epochs": "5",
}
LONGEST_SECONDS = 240
RESULTS = ("metrics.jsonl", "summary.json", "last/state.safetensors", "best/model.safetensors")


def run_trials(number: int, folder: Path) -> list[dict[str, Any]]:
    """The outcomes of so many trials, each a training of its own below the folder."""
    whole = start(folder / "whole", static=False)
    if whole.wait(LONGEST_SECONDS) != 0:
        raise RuntimeError("the undisturbed training failed")
    expected = hashes(folder / "whole")
    return [trial(k, folder / f"run-{k}", expected) for k in range(number)]


def trial(number: int, folder: Path, expected: list[str]) -> dict[str, Any]:
    """Kill a rank at a random time after a random epoch, and wait for the end."""
    randomness, rank, static = random.Random(number), number % 2, number % 4 < 2
    process = start(folder, static=static)
    epoch = randomness.randint(0, 4)
    ranks: dict[int, int] = {}
    while process.poll() is None and (len(ranks) < 2 or num_epochs(folder) < epoch):
        time.sleep(0.01)
        ranks = workers(process.pid)
    time.sleep(randomness.uniform(0, 1.5 if epoch == 0 else 0.5))
    os.kill(ranks[rank], signal.SIGKILL)
    begin = time.monotonic()
    try:
        code = process.wait(LONGEST_SECONDS)
        outcome = "error" if code else "restarted"
        if code == 0:
            outcome = "same bits" if hashes(folder) == expected else "other bits"
    except subprocess.TimeoutExpired:
        process.kill()
        outcome = "hang"
    result = {
        "rank": rank,
        "meeting": "static" if static else "c10d",
        "after_epoch": epoch,
        "outcome": outcome,
        "seconds_to_the_end": round(time.monotonic() - begin, 1),
    }
    print(result, flush=True)
    return result


def start(folder: Path, *, static: bool) -> subprocess.Popen[bytes]:
    """A training of two ranks that torchrun may restart twice."""
    meeting = ["--standalone"]
    if static:  # one store for all attempts
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        meeting = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    options = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    launcher = [sys.executable, "-m", "torch.distributed.run", *meeting, "--nproc-per-node", "2"]
    command = ["-m", "pdecnn", "train", "--quiet", "--resume", "--output", str(folder), *options]
    return subprocess.Popen(
        [*launcher, "--max-restarts", "2", *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def hashes(folder: Path) -> list[str]:
    """The SHA-256 of what a training leaves."""
    return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in RESULTS]


def num_epochs(folder: Path) -> int:
    """Epochs saved so far."""
    try:
        return (folder / "timing.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


def workers(parent: int) -> dict[int, int]:
    """The process ids of the ranks that a torchrun has started, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if int(status[1]) == parent:
            ranks = [int(text[5:]) for text in variables if text.startswith(b"RANK=")]
            found |= dict.fromkeys(ranks, int(folder.name))
    return found
