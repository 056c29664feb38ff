"""Measure what a second process gains and what a lost one costs; write docs/results/scaling.

    python benchmarks/scaling.py [--only steps,kills] [--trials 10] [--speed FILE] [--output DIR]

Steps of 8 to 64 GPUs are arithmetic from the measured steps of one (docs/results/speed.json) and
the sizes of the messages; the assumptions are on the page. What is not asked for is kept.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from scaling_kills import run_trials
from scaling_page import page

import pdecnn
from pdecnn.files import write_atomically, write_json
from pdecnn.runs.preparation import describe_environment

GPUS = (8, 16, 32, 64)
GPUS_A_MACHINE = 8
# Bytes and seconds of a link: within a machine (NVLink), between machines (400 Gb/s a GPU).
BYTES_PER_SECOND = {"within": 300e9, "between": 40e9}
LATENCY_SECONDS = {"within": 10e-6, "between": 20e-6}
AGREEMENT_SECONDS = 200e-6
NETWORKS = ("parabolic_cifar10", "hamiltonian_cifar10", "second_order_cifar10")


def main() -> None:
    """Measure, calculate, then write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="steps,kills")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--speed", type=Path, default=Path("docs/results/speed.json"))
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    path = arguments.output / "scaling.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    environment = describe_environment(torch.device("cpu"), 0)
    for name in ("command", "seed"):
        environment.pop(name)
    if "steps" in arguments.only:
        result["steps"] = {"environment": environment, **measured_steps()}
    if "kills" in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            trials = run_trials(arguments.trials, Path(folder))
        result["kills"] = {"environment": environment, "trials": trials}
    result["arithmetic"] = arithmetic(json.loads(arguments.speed.read_text()))
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
    write_atomically(arguments.output / "scaling.md", page(result).encode())


def measured_steps() -> dict[str, Any]:
    """What scaling_steps.py measures with two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steps.json"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        script = Path(__file__).with_name("scaling_steps.py")
        subprocess.run(
            [sys.executable, *launcher, str(script), str(file)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=True,
        )
        steps: dict[str, Any] = json.loads(file.read_text())
    return steps


def arithmetic(speed: dict[str, Any]) -> dict[str, Any]:
    """Steps of many GPUs: the step of one, and every message waited for, none hidden."""
    steps = speed["parts"]["steps"]
    times = {
        (row["network"], row["batch_size"], row["variant"]): row["time"]["median_seconds"]
        for row in steps["rows"]
    }
    rows = []
    for network in NETWORKS:
        num_bytes = 4 * (pdecnn.create_model(network).num_weights + 3)
        for batch_size in sorted({batch for name, batch, _ in times if name == network}):
            eager, captured = (times[network, batch_size, kind] for kind in ("eager", "captured"))
            for gpus in GPUS:
                messages = message_seconds(num_bytes, gpus) + norm_seconds(network, gpus)
                seconds = eager + messages + AGREEMENT_SECONDS
                rows.append(
                    {
                        "network": network,
                        "batch_size_a_gpu": batch_size,
                        "gpus": gpus,
                        "gradient_bytes": num_bytes,
                        "one_eager_seconds": eager,
                        "one_captured_seconds": captured,
                        "message_seconds": messages + AGREEMENT_SECONDS,
                        "step_seconds": seconds,
                        "images_per_second": gpus * batch_size / seconds,
                        "efficiency": eager / seconds,
                        "times_one_captured_gpu": gpus * captured / seconds,
                        "efficiency_if_captured": captured / (captured + messages),
                    }
                )
    return {
        "bytes_per_second": BYTES_PER_SECOND,
        "latency_seconds": LATENCY_SECONDS,
        "agreement_seconds": AGREEMENT_SECONDS,
        "gpus_a_machine": GPUS_A_MACHINE,
        "measured_on": steps["environment"],
        "rows": rows,
    }


def message_seconds(num_bytes: int, gpus: int) -> float:
    """An all-reduce: 2 (n - 1)/n times the bytes over the slowest link, 2 log2 n latencies."""
    where = "within" if gpus <= GPUS_A_MACHINE else "between"
    moved = 2 * (gpus - 1) / gpus * num_bytes
    return moved / BYTES_PER_SECOND[where] + 2 * math.log2(gpus) * LATENCY_SECONDS[where]


def norm_seconds(network: str, gpus: int) -> float:
    """Two sums in float64 and a count for each channel, forward and backward, of each norm."""
    widths = pdecnn.create_model(network).config.channels  # of the opening and the connectors
    return sum(2 * message_seconds(8 * (2 * width + 1), gpus) for width in widths)


if __name__ == "__main__":
    main()
