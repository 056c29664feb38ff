"""Disturb, fuzz and train for long; write docs/results/soak.{md,json}.

    python -m benchmarks.soak [--only faults,fuzzing,numbers] [--collect DIR ...] [--output DIR]

What is not asked for is kept, so that parts can run side by side: `--collect` takes those that
others have written elsewhere. Anything that does not hold is an error, and nothing is written.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.soak_page import page
from pdecnn.files import write_atomically, write_json
from pdecnn.runs.preparation import describe_environment
from tests import faults, fuzzing, numerical_soak

JSON_FILE = "soak.json"
NUM_FAULTS = 50
NUM_INPUTS = 100_000
NUM_STEPS = 10_000
"""Of each mode, half of them of each dynamics."""


def main() -> None:
    """Soak, then write both files."""
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "faults": soak_faults,
        "fuzzing": soak_parsers,
        "numbers": soak_numbers,
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(parts))
    parser.add_argument("--collect", nargs="*", type=Path, default=[])
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for folder in arguments.collect:
        write(json.loads((folder / JSON_FILE).read_text()), arguments.output)
    for name in () if arguments.collect else arguments.only.split(","):
        environment = describe_environment(torch.device("cpu"), 0)
        for key in ("command", "seed"):
            environment.pop(key)
        begin = time.monotonic()
        found = parts[name]()
        found["seconds"] = round(time.monotonic() - begin)
        write({name: {"environment": environment, **found}}, arguments.output)


def write(parts: dict[str, Any], output: Path) -> None:
    """Add parts to those that stand there."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / JSON_FILE
    result = (json.loads(path.read_text()) if path.exists() else {}) | parts
    write_json(path, dict(sorted(result.items())))
    write_atomically(output / "soak.md", page(result).encode())


def soak_faults() -> dict[str, Any]:
    """One training with many faults, and the SHA-256 of all that it leaves."""
    with tempfile.TemporaryDirectory() as folder:
        done = faults.disturb(Path(folder), NUM_FAULTS, seed=1)
    require(done["found"] == done.pop("expected"), "the bits differ", done)
    require(done["damaged"] == done["set_aside"], "a damaged checkpoint was used", done)
    require(not done["touched_outside"], "files outside were touched", done["touched_outside"])
    require(done["surroundings_unchanged"], "the surroundings have changed", done)
    return {"sha256": done.pop("found"), **done}


def soak_parsers() -> dict[str, Any]:
    """Inputs for every parser, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = fuzzing.fuzz_apart(NUM_INPUTS, Path(folder))
    failures = result.pop("failures")
    require(not failures, "a parser failed", "\n".join(failures.values()))
    require(result["inputs"] >= NUM_INPUTS, "too few inputs", result)
    return result


def soak_numbers() -> dict[str, Any]:
    """Long trainings in bfloat16, each in a process of its own, one for each core at a time."""
    subjects = [*numerical_soak.SUBJECTS, numerical_soak.TRAPPED]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context, max_tasks_per_child=1) as pool:
        jobs = [pool.submit(numerical_soak.soak, one, NUM_STEPS // 2, 50) for one in subjects]
        runs = [job.result() for job in jobs]
    for subject, run in zip(subjects, runs, strict=True):
        growth = run["rss_bytes_at_most"] - run["rss_bytes_after_warm_up"]
        require(len(run["saved_bytes_a_step"]) == 1, "saved bytes vary", run)
        require(growth <= numerical_soak.MAX_GROWTH_BYTES, "memory grows", run)
        if subject == numerical_soak.TRAPPED:
            continue
        tolerance = 0.0 if run["backprop"] == "exact" else run["tolerance"]
        require(run["largest_gradient_error"] <= tolerance, "gradients are wrong", run)
        require(run["switched_blocks"] == [], "the guard has switched a block", run)
    network, batch_size = numerical_soak.NETWORK, numerical_soak.BATCH_SIZE
    return {"network": network, "batch_size": batch_size, "runs": runs}


def require(holds: bool, message: str, found: object) -> None:
    """End here unless it holds."""
    if not holds:
        raise SystemExit(f"{message}: {found}")


if __name__ == "__main__":
    main()
