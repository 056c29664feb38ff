"""Disturb, fuzz and train for long; write docs/results/soak.{md,json}.

    python -m benchmarks.soak [--only faults,fuzzing,numbers] [--output docs/results]

What is not asked for is kept. Anything that does not hold is an error, and nothing is written.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.soak_page import page
from pdecnn.experiments.environment import describe_environment
from pdecnn.files import write_atomically, write_json
from tests import faults, fuzzing, numerical_soak

NUM_FAULTS = 50
NUM_INPUTS = 100_000
NUM_STEPS = 10_000
"""Of each mode, shared by the dynamics."""
MAX_GROWTH_BYTES = 16 * 2**20


def main() -> None:
    """Soak, then write both files."""
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "faults": soak_faults,
        "fuzzing": soak_parsers,
        "numbers": soak_numbers,
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(parts))
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = arguments.output / "soak.json"
    for name in arguments.only.split(","):
        environment = describe_environment(torch.device("cpu"), 0)
        for key in ("command", "seed"):
            environment.pop(key)
        begin = time.monotonic()
        found = parts[name]()
        found["seconds"] = round(time.monotonic() - begin)
        result = json.loads(path.read_text()) if path.exists() else {}
        result[name] = {"environment": environment, **found}
        arguments.output.mkdir(parents=True, exist_ok=True)
        write_json(path, {part: result[part] for part in parts if part in result})
        write_atomically(arguments.output / "soak.md", page(result).encode())


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
    """Long trainings in bfloat16 with every way of running backwards."""
    share = NUM_STEPS // len(numerical_soak.DYNAMICS)
    runs = []
    for mode in numerical_soak.MODES:
        for dynamics in numerical_soak.DYNAMICS:
            done = numerical_soak.soak(dynamics, mode, share, interval=50)
            print(done, flush=True)
            tolerance = 0.0 if mode == "exact" else done["tolerance"]
            growth = done["rss_bytes_at_most"] - done["rss_bytes_after_warm_up"]
            require(done["largest_gradient_error"] <= tolerance, "gradients are wrong", done)
            require(len(done["saved_bytes_a_step"]) == 1, "saved bytes vary", done)
            require(growth <= MAX_GROWTH_BYTES, "memory grows", done)
            require(done["switched_blocks"] == [], "the guard has switched a block", done)
            runs.append(done)
    return {
        "network": numerical_soak.NETWORK,
        "batch_size": numerical_soak.BATCH_SIZE,
        "runs": runs,
    }


def require(holds: bool, message: str, found: object) -> None:
    """End here unless it holds."""
    if not holds:
        raise SystemExit(f"{message}: {found}")


if __name__ == "__main__":
    main()
