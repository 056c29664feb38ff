"""How long the first training step takes: cold, and with the compiled kernels cached."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from pdecnn.networks.registry import model_config
from pdecnn.runs.bench.measurement import synchronize
from pdecnn.runs.bench.sizes import BenchSizes
from pdecnn.runs.bench.trainers import make_steps, random_images

_LIMIT_SECONDS = 900


def bench_compile(
    sizes: BenchSizes, device: torch.device, say: Callable[[str], None]
) -> dict[str, Any]:
    """In two fresh processes; on a CPU nothing is compiled, so nothing measured."""
    batch_size = sizes.batch_sizes[0]
    names = ["hamiltonian_cifar10"] if device.type == "cuda" else []  # it has the most kernels
    rows = []
    for name in names:
        rows.append({"network": name, **cold_and_cached(name, batch_size, device, say)})
    return {"batch_size": batch_size, "rows": rows}


def cold_and_cached(
    name: str, batch_size: int, device: torch.device, say: Callable[[str], None]
) -> dict[str, float]:
    """The seconds of the first step with empty caches, then with those it left behind."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor"),
            "TRITON_CACHE_DIR": str(Path(folder) / "triton"),
        }
        say(f"first step of {name}, cold")
        cold = _in_fresh_process(name, batch_size, device, caches)
        say(f"it took {cold:.1f} s; the same with what is cached")
        cached = _in_fresh_process(name, batch_size, device, caches)
    return {"cold_seconds": cold, "cached_seconds": cached, "cached_share": cached / cold}


def first_step_seconds(name: str, batch_size: int, device: str) -> float:
    """Of a trainer on random images, in this process."""
    where = torch.device(device)
    images = random_images(2 * batch_size, 3, (32, 32))
    config = model_config(name)
    step = make_steps(config, images, batch_size=batch_size, device=where, capture=True)
    synchronize(where)
    begin = perf_counter()
    step()
    synchronize(where)
    return perf_counter() - begin


def _in_fresh_process(
    name: str, batch_size: int, device: torch.device, variables: dict[str, str]
) -> float:
    code = (
        f"from {__name__} import first_step_seconds as measure\n"
        f"print(measure({name!r}, {batch_size}, {str(device)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"a first step of {name} in a fresh process failed: {last}")
    return float(json.loads(done.stdout.splitlines()[-1]))
