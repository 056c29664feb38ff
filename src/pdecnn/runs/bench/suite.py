"""The parts of a bench, and running them."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from pdecnn.errors import unknown_name
from pdecnn.learning.memory import free_memory
from pdecnn.runs.bench.compilation import bench_compile
from pdecnn.runs.bench.depth import bench_depth
from pdecnn.runs.bench.digits import bench_digits
from pdecnn.runs.bench.large import bench_large
from pdecnn.runs.bench.sizes import BenchSizes, bench_sizes
from pdecnn.runs.bench.steps import bench_steps
from pdecnn.runs.environment import describe_environment, resolve_device

FORMAT_VERSION = 3

Part = Callable[[BenchSizes, torch.device, Callable[[str], None]], dict[str, Any]]
PARTS: dict[str, Part] = {
    "steps": bench_steps,
    "digits": bench_digits,
    "depth": bench_depth,
    "large": bench_large,
    "compile": bench_compile,
}


def _say_nothing(text: str) -> None:
    """The default: nobody is told."""


def _keep(result: dict[str, Any]) -> None:
    """The default: nothing is done after a part."""


def run_bench(
    only: Sequence[str] = (),
    *,
    device: str = "auto",
    quick: bool = False,
    say: Callable[[str], None] = _say_nothing,
    on_part: Callable[[dict[str, Any]], object] = _keep,
) -> dict[str, Any]:
    """Measure the parts named, or all; the figures as JSON values.

    `say` gets a line before each measurement, `on_part` the result so far after each part. A
    part carries hardware, versions and commit with it, so that parts of several runs may stand
    side by side.
    """
    for name in only:
        if name not in PARTS:
            raise unknown_name("part of the bench", name, PARTS)
    where = resolve_device(device)
    sizes = bench_sizes(where, quick=quick)
    say(sizes.name)
    result: dict[str, Any] = {"format_version": FORMAT_VERSION, "parts": {}}
    for name, part in PARTS.items():
        if only and name not in only:
            continue
        device_of_part = torch.device("cpu") if name == "digits" else where
        environment = _environment(device_of_part)
        say(f"{name}, on {environment['hardware']['gpu'] or 'the CPU'}")
        begin = perf_counter()
        measured = part(sizes, device_of_part, lambda text: say(f"  {text}"))
        seconds = perf_counter() - begin
        say(f"  all of {name} took {seconds:.0f} s")
        head = {"version": sizes.name, "quick": quick, "environment": environment}
        result["parts"][name] = head | {"measuring_seconds": seconds} | measured
        free_memory()
        on_part(result)
    return result


def _environment(device: torch.device) -> dict[str, Any]:
    environment = describe_environment(device, seed=0)
    del environment["command"], environment["seed"]
    if device.type == "cuda":
        environment["versions"] |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
        environment["hardware"]["gpu_bytes"] = torch.cuda.get_device_properties(device).total_memory
    return environment
