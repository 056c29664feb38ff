"""Resident memory of one forward and backward pass, each in a process of its own.

`python -m tests.resident MODE INTEGRATOR BATCH STEPS...` prints one number of bytes for each depth.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from pdecnn.pde import Block, SymmetricLayer
from pdecnn.pde.integrators import resolve_integrator

ROOT = Path(__file__).parents[1]
CHANNELS, SIZE = 32, (32, 32)


def resident_bytes(
    backprop: str, integrator: str, num_steps: Sequence[int], *, batch: int
) -> list[int]:
    """What a pass adds to the resident memory at its peak, for each number of steps."""
    arguments = [backprop, integrator, str(batch), *map(str, num_steps)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    found = subprocess.run(
        [sys.executable, "-m", "tests.resident", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return [int(line) for line in found.stdout.split()]


def measure(backprop: str, integrator: str, num_steps: int, batch: int) -> int:
    """The peak during a pass less what was resident before it, in bytes."""
    torch.manual_seed(0)
    method = resolve_integrator(integrator)
    width = method.layer_channels(CHANNELS)
    layers = [SymmetricLayer(width) for _ in range(method.layers_per_step * num_steps)]
    block = Block(layers, method, step_size=0.1, backprop=backprop)
    features = torch.randn(batch, CHANNELS, *SIZE)
    before = _status("VmRSS")
    block(features).sum().backward()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])


def main() -> None:
    """Measure in a fork for each depth: its peak begins anew, and what is imported is shared."""
    backprop, integrator, batch, *depths = sys.argv[1:]
    for num_steps in depths:
        child = os.fork()
        if child == 0:
            print(measure(backprop, integrator, int(num_steps), int(batch)), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"the pass of {num_steps} steps ended with status {status}")


if __name__ == "__main__":
    main()
