"""The size of the house, and how deep a call goes in it; writes docs/results/house.json.

    python -m benchmarks.house [--before 9a0660f] [--times] [--output docs/results/house.json]

Lines and files of src/**/*.py by room, at a commit of before and at HEAD, kernels apart; what was
moved out of the package rather than saved; and, by `sys.setprofile` in the code of pdecnn, the
files that `pdecnn train` of one epoch passes, the frames between `Block.forward` and a layer's
`forward`, and the calls of one training step. `--times` also sets forward and step against the
plain twin.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[1]
BEFORE = "9a0660f"
PACKAGE = "src/pdecnn"
MOVED = (
    "multilevel_figure",
    "multilevel_page",
    "plain_training",
    "resnets",
    "roofline",
    "speed",
    "speed_cpu",
    "speed_depth",
    "speed_figure",
    "speed_page",
)
"""The files of benchmarks that were in the package, or hold what was."""

# Run with the package of a commit; the rooms of runs and learning had other names before.
PROBE = """
import json, os, sys, tempfile, threading
from importlib import import_module

def runs(name):
    for room in ("runs", "experiments"):
        try:
            return import_module(f"pdecnn.{room}.{name}")
        except ModuleNotFoundError:
            pass
    raise

import pdecnn
HOME = os.path.dirname(pdecnn.__file__) + os.sep

class Calls:
    def __init__(self):
        self.functions, self.number, self.depth, self.deepest = set(), 0, 0, 0
    def __call__(self, frame, event, argument):
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(HOME):
            return
        if code.co_name == "<module>":
            return
        self.depth += 1 if event == "call" else -1
        self.deepest = max(self.deepest, self.depth)
        if event == "call":
            self.number += 1
            self.functions.add((code.co_filename, code.co_qualname))
    def __enter__(self):
        threading.setprofile(self)
        sys.setprofile(self)
        return self
    def __exit__(self, *error):
        sys.setprofile(None)
        threading.setprofile(None)

found = {}
with tempfile.TemporaryDirectory() as folder:
    sys.argv = ["pdecnn", "train", "hamiltonian_digits", "--quiet", "--device", "cpu",
                "--set", "training.epochs=1", "--output", folder + "/run"]
    from pdecnn.cli import main
    with Calls() as calls:
        try:
            main()
        except SystemExit as end:
            assert not end.code, end
    files = sorted({name[len(HOME):] for name, _ in calls.functions})
    found["train"] = {"files": len(files), "functions": len(calls.functions),
                      "frames_deep": calls.deepest, "names": files}

import torch
from pdecnn.data.augmentation import Augmentation
from pdecnn.learning.trainer import Trainer
preparation = runs("preparation")
config = pdecnn.recipe("hamiltonian_digits")
splits = preparation.read_splits(config.data, config.seed)
network = preparation.make_network(config, splits.train)
block = next(part for part in network.modules() if isinstance(part, pdecnn.Block))
between = []

def seen(frame, event, argument):
    if event != "call" or frame.f_code.co_name != "forward":
        return
    if not isinstance(frame.f_locals.get("self"), pdecnn.AbstractLayer):
        return
    frames, above = 0, frame.f_back
    while above is not None:
        if above.f_code.co_filename.startswith(HOME):
            if above.f_code.co_qualname == "Block.forward":
                between.append(frames)
                return
            frames += 1
        above = above.f_back

images = network.preprocess(splits.train.images[:32])
network.train()
sys.setprofile(seen)
network(images)
sys.setprofile(None)
found["frames_from_block_to_layer"] = max(between)

trainer = Trainer(network, config.training, train=splits.train, validation=splits.validation,
                  augmentation=Augmentation(flip=config.data.flip, padding=config.data.padding),
                  seed=config.seed)
trainer.begin_epoch()
for _ in range(3):
    trainer.step()
with Calls() as calls:
    trainer.step()
found["calls_of_a_training_step"] = calls.number
print(json.dumps(found))
"""


def main() -> None:
    """Count, walk, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", default=BEFORE)
    parser.add_argument("--times", action="store_true", help="forward and step beside plain torch")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "house.json")
    arguments = parser.parse_args()
    before, after = describe(arguments.before), describe("HEAD")
    result: dict[str, Any] = {
        "before": before,
        "after": after,
        "lines_less": before["lines"] - after["lines"],
        "moved_to_benchmarks": moved() | {"all": sum(moved().values())},
    }
    if arguments.times:
        result["times"] = times()
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    for name in ("before", "after"):
        entry = {key: value for key, value in result[name].items() if key != "walk"}
        print(name, json.dumps(entry))
        print("  ", {key: value for key, value in result[name]["walk"].items() if key != "train"})


def describe(commit: str) -> dict[str, Any]:
    """Lines and files of the package by room, and how deep its calls go, at a commit."""
    rooms: dict[str, dict[str, int]] = defaultdict(lambda: {"lines": 0, "files": 0})
    kernels = {"lines": 0, "files": 0}
    with tempfile.TemporaryDirectory() as folder:
        archive = git("archive", "--format=tar", commit, "src")
        subprocess.run(["tar", "--extract", "--directory", folder], input=archive, check=True)
        for path in sorted(Path(folder, PACKAGE).rglob("*.py")):
            inner = PurePosixPath(path.relative_to(Path(folder, PACKAGE)).as_posix())
            room = inner.parts[0] if len(inner.parts) > 1 else "."
            entry = kernels if "kernels" in inner.parts else rooms[room]
            entry["lines"] += len(path.read_bytes().splitlines())
            entry["files"] += 1
        walk = probe(Path(folder, "src"))
    return {
        "commit": git("rev-parse", commit).decode().strip(),
        "lines": sum(entry["lines"] for entry in rooms.values()),
        "files": sum(entry["files"] for entry in rooms.values()),
        "kernels": kernels,
        "rooms": dict(rooms),
        "walk": walk,
    }


def probe(source: Path) -> dict[str, Any]:
    """What `PROBE` finds with the package in that folder."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the walk through {source} failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def moved() -> dict[str, int]:
    """Lines of what lies in benchmarks now, file by file."""
    files = {name: ROOT / "benchmarks" / f"{name}.py" for name in MOVED}
    return {name: len(path.read_bytes().splitlines()) for name, path in files.items()}


def times() -> dict[str, float]:
    """Forward at batch 1 and step at batch 32 over those of plain torch: medians of 200 in turn."""
    import torch

    from benchmarks.speed_cpu import make_digits_pair, make_forwards
    from pdecnn.runs.bench import TrainerSteps
    from pdecnn.runs.preparation import cpu_threads
    from pdecnn.runs.timing import time_in_turn

    trainer, twin = make_digits_pair("hamiltonian")
    ratios = {}
    with cpu_threads(1):
        for name, (ours, plain) in {
            "forward_at_batch_1": make_forwards(trainer, twin),
            "step_at_batch_32": (TrainerSteps(trainer), twin),
        }.items():
            timings = time_in_turn(
                {"pdecnn": ours, "plain": plain},
                device=torch.device("cpu"),
                num_repeats=200,
                repeat_seconds=0,
                num_warm_ups=20,
            )
            mine, other = timings["pdecnn"], timings["plain"]
            assert mine is not None
            assert other is not None
            ratios[name] = mine.median / other.median
    return ratios


def git(*arguments: str) -> bytes:
    """What git answers about the repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


if __name__ == "__main__":
    main()
