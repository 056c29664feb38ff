"""Captured training steps of this tree beside those of an earlier commit, in turn on one GPU.

    git worktree add ../earlier 9a0660f
    python -m benchmarks.earlier_speed ../earlier/src --commit 9a0660f --output docs/results

Each tree runs in a process of its own, which prepares its networks and then times steps when it is
told to, so that both meet the same machine in the same minutes. Writes earlier-speed.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NETWORKS = ("parabolic_cifar10", "second_order_cifar10", "hamiltonian_cifar10")
BATCHES = (125, 1000)
ROUNDS, STEPS = 7, 300

WORKER = """
import sys, time, torch, pdecnn
try:
    from pdecnn.runs.bench import make_steps, random_images
except ImportError:
    from pdecnn.experiments.bench.trainers import make_steps, random_images
device = torch.device("cuda")
prepared = {}
for line in sys.stdin:
    word, name, batch, number = line.split()
    key, number = (name, int(batch)), int(number)
    if word == "prepare":
        images = random_images(20 * int(batch), 3, (32, 32))
        config = pdecnn.recipe(name).network
        prepared[key] = make_steps(
            config, images, batch_size=int(batch), device=device, capture=True
        )
    steps = prepared[key]
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(number):
        steps()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    print("timed", seconds / number, steps.finish()["captured"], flush=True)
"""


class Tree:
    """A process that trains with the package below a folder."""

    def __init__(self, source: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            env={**os.environ, "PYTHONPATH": str(source.resolve())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, word: str, name: str, batch: int, number: int) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word} {name} {batch} {number}\n")
        self.process.stdin.flush()

    def answer(self) -> float:
        """The seconds of a step, as soon as it is through."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("timed "):
                _, seconds, captured = line.split()
                if captured != "True":
                    sys.exit("the steps were not captured")
                return float(seconds)
        sys.exit("the process ended early; its error stands above")

    def time(self, name: str, batch: int) -> float:
        """The seconds of a step now."""
        self.ask("time", name, batch, STEPS * 125 // batch)
        return self.answer()


def main() -> None:
    """Time both trees and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("earlier", type=Path, help="the earlier tree's src folder")
    parser.add_argument("--commit", required=True, help="the earlier tree's commit")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    trees = {"earlier": Tree(arguments.earlier), "now": Tree(ROOT / "src")}
    rows = []
    for batch in BATCHES:
        for name in NETWORKS:
            for tree in trees.values():
                tree.ask("prepare", name, batch, 30)
            for tree in trees.values():
                tree.answer()
    for batch in BATCHES:
        for name in NETWORKS:
            seconds: dict[str, list[float]] = {key: [] for key in trees}
            for _ in range(ROUNDS):
                for key, tree in trees.items():
                    seconds[key].append(tree.time(name, batch))
            rows.append(row(name, batch, seconds))
            print(rows[-1], flush=True)
    result = {"earlier_commit": arguments.commit, **environment(), "rows": rows}
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "earlier-speed.json").write_text(json.dumps(result, indent=2) + "\n")


def row(name: str, batch: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Images a second of both, and the median of the ratios of neighbouring rounds."""
    pairs = zip(seconds["earlier"], seconds["now"], strict=True)
    return {
        "network": name,
        "batch": batch,
        "rounds": ROUNDS,
        "earlier_images_per_second": round(batch / statistics.median(seconds["earlier"])),
        "now_images_per_second": round(batch / statistics.median(seconds["now"])),
        "ratio": round(statistics.median(before / after for before, after in pairs), 4),
    }


def environment() -> dict[str, str]:
    """The card, the versions and the day."""
    import torch

    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    main()
