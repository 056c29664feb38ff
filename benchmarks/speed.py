"""All of docs/results/speed.md: what `pdecnn bench` measures, and more beside it.

    python -m benchmarks.speed [--quick]
        [--only steps,recipes,digits,images,depth,large,compile,loops,volumes]

Steps are set against the ceilings of the machine and ResNets, recipes against the paper's, networks
for digits and images on the CPU against plain torch that does the same, large inputs `reversible`
against `stored`, the first step with cold caches against cached ones, and loops of a user's own
against the trainer's. Parts measured before are kept.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.fresh_process import cold_and_cached
from benchmarks.resnets import CifarResNet
from benchmarks.roofline import Ceilings, Roofline
from benchmarks.speed_cpu import bench_digits, bench_images
from benchmarks.speed_depth import bench_depth
from benchmarks.speed_loops import bench_loops, bench_volumes
from benchmarks.speed_page import bench_tables, write_speed
from benchmarks.speed_recipes import bench_recipes
from benchmarks.work import Work, count_work
from pdecnn.learning.memory import free_memory
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.registry import DYNAMICS, model_config
from pdecnn.reports.bench import print_bench
from pdecnn.runs.bench import (
    CPU,
    GPU,
    NOT_RUN,
    PAPER_DYNAMICS,
    PLAIN,
    QUICK,
    BenchSizes,
    Say,
    activation_bytes,
    describe_device,
    make_network,
    make_steps,
    plain_steps,
    precision_of,
    random_images,
    time_steps,
)
from pdecnn.runs.preparation import resolve_device
from pdecnn.runs.timing import synchronize, time_in_turn

FORMAT_VERSION = 3
RESNET_DEPTHS = (20, 32)
LARGE_MODES = ("stored", "reversible")
_NUM_LARGE_INPUTS = 16  # so many that an epoch rarely ends within a repeat


@dataclass(frozen=True, kw_only=True, slots=True)
class MoreSizes:
    """What the further parts measure."""

    copy_bytes: int
    matrix_size: int
    """Rows of the multiplied matrices."""
    large_channels: tuple[int, ...]
    large_steps: tuple[int, ...]
    """Numbers of time steps a block."""
    image_size: int
    volume_size: int


MORE = {
    GPU.name: MoreSizes(
        copy_bytes=2**31,
        matrix_size=8192,
        large_channels=(32, 64, 112, 112),
        large_steps=(3, 10),
        image_size=2048,
        volume_size=128,
    ),
    CPU.name: MoreSizes(
        copy_bytes=2**27,
        matrix_size=1024,
        large_channels=(16, 32, 32),
        large_steps=(3,),
        image_size=256,
        volume_size=32,
    ),
    QUICK.name: MoreSizes(
        copy_bytes=2**22,
        matrix_size=256,
        large_channels=(4, 4),
        large_steps=(2,),
        image_size=32,
        volume_size=8,
    ),
}


def bench_steps(sizes: BenchSizes, device: torch.device, say: Say) -> dict[str, Any]:
    """Training steps of ours, of their plain twins and of ResNets, against the roofline."""
    more = MORE[sizes.name]
    precision = precision_of(device)
    ceilings = Ceilings(
        device,
        torch.bfloat16 if precision == "bfloat16" else torch.float32,
        copy_bytes=more.copy_bytes,
        matrix_size=more.matrix_size,
        num_repeats=sizes.num_repeats,
        repeat_seconds=sizes.repeat_seconds,
    )
    rows: list[dict[str, Any]] = []
    for batch_size in sizes.batch_sizes:
        say("copy bandwidth and matrix rate")
        ceilings.measure()
        say(f"training steps of {batch_size} images")
        resnets = {f"ResNet-{depth}": CifarResNet(depth) for depth in RESNET_DEPTHS}
        plain = plain_steps(batch_size, device, resnets)
        works = {name: count_work(step) for name, step in plain.items()}
        timed = time_steps(batch_size, plain, sizes, device)
        rows += [row | _work_of(row, works[row["network"]]) for row in timed]
        free_memory()
    say("copy bandwidth and matrix rate")
    ceilings.measure()
    return {
        "repeats": sizes.num_repeats,
        "precision": precision,
        "roofline": ceilings.to_dict(),
        "rows": [row | _against_roofline(row, ceilings.roofline()) for row in rows],
    }


def _work_of(row: dict[str, Any], work: Work) -> dict[str, Any]:
    """The work of a network is that counted on its plain form, whatever the variant."""
    return {
        "flops": work.flops,
        "minimum_bytes": work.minimum_bytes,
        "moved_bytes": work.moved_bytes if row["variant"] == PLAIN else None,
    }


def _against_roofline(row: dict[str, Any], roofline: Roofline) -> dict[str, Any]:
    floor = roofline.floor_seconds(Work(row["flops"], row["minimum_bytes"], 0))
    time = row["time"]
    return {
        "floor_seconds": floor,
        "roofline_fraction": None if time is None else floor / time["median_seconds"],
    }


def bench_large(sizes: BenchSizes, device: torch.device, say: Say) -> dict[str, Any]:
    """The Hamiltonian network, one input at a time."""
    more = MORE[sizes.name]
    rows = []
    for dimension, channels, size in ((2, 3, more.image_size), (3, 1, more.volume_size)):
        for num_steps in more.large_steps:
            say(f"{' x '.join([str(size)] * dimension)}, {num_steps} steps a block")
            rows += _measure_large((size,) * dimension, channels, num_steps, sizes, device)
            free_memory()
    return {
        "repeats": sizes.num_repeats,
        "channels": list(more.large_channels),
        "memory": "peak" if device.type == "cuda" else "saved",
        "rows": rows,
    }


def _measure_large(
    size: tuple[int, ...], channels: int, num_steps: int, sizes: BenchSizes, device: torch.device
) -> list[dict[str, Any]]:
    images = random_images(_NUM_LARGE_INPUTS, channels, size)
    first = images.subset(torch.arange(1)).to(device)
    memory, variants = {}, {}
    for mode in LARGE_MODES:
        config = NetworkConfig(
            channels=MORE[sizes.name].large_channels,
            in_channels=channels,
            dimension=len(size),
            num_steps=num_steps,
            backprop=mode,
            **DYNAMICS["hamiltonian"],
        )
        network = make_network(config, device)
        memory[mode] = activation_bytes(network, first)
        variants[mode] = make_steps(config, images, batch_size=1, device=device, capture=False)
    timings = time_in_turn(
        variants,
        device=device,
        num_repeats=sizes.num_repeats,
        repeat_seconds=sizes.repeat_seconds,
    )
    runs = {mode: step.finish() for mode, step in variants.items() if timings[mode] is not None}
    return [
        {
            "size": list(size),
            "num_steps": num_steps,
            "backprop": mode,
            "activation_bytes": memory[mode],
            "time": None if timing is None else timing.to_dict(),
        }
        | runs.get(mode, NOT_RUN)
        for mode, timing in timings.items()
    ]


def bench_compile(sizes: BenchSizes, device: torch.device, say: Say) -> dict[str, Any]:
    """In two fresh processes; on a CPU nothing is compiled, so nothing measured."""
    batch_size = sizes.batch_sizes[0]
    rows = []
    for dynamics in PAPER_DYNAMICS if device.type == "cuda" else ():
        name = f"{dynamics}_cifar10"
        code = (
            f"from benchmarks.speed import first_step_seconds as measure\n"
            f"print(measure({name!r}, {batch_size}, {str(device)!r}))"
        )
        rows.append({"network": name, **cold_and_cached(code, say, name)})
    return {"batch_size": batch_size, "rows": rows}


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


PARTS = {
    "steps": bench_steps,
    "recipes": bench_recipes,
    "digits": bench_digits,
    "images": bench_images,
    "depth": bench_depth,
    "large": bench_large,
    "compile": bench_compile,
    "loops": bench_loops,
    "volumes": bench_volumes,
}
ON_CPU = ("digits", "images")


def main() -> None:
    """Measure part by part and write after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"of {','.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see whether it runs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, help="docs/results, or speed-quick if quick")
    arguments = parser.parse_args()
    output = arguments.output or Path("speed-quick" if arguments.quick else "docs/results")
    names = [name.strip() for name in arguments.only.split(",")] if arguments.only else [*PARTS]
    for name in names:
        device = resolve_device("cpu" if name in ON_CPU else arguments.device)
        sizes = QUICK if arguments.quick else GPU if device.type == "cuda" else CPU
        print(f"{name}, on {device}", file=sys.stderr, flush=True)
        begin = perf_counter()
        measured = PARTS[name](
            sizes, device, lambda text: print(f"  {text}", file=sys.stderr, flush=True)
        )
        head = {
            "version": sizes.name,
            "quick": arguments.quick,
            "environment": describe_device(device),
            "measuring_seconds": perf_counter() - begin,
        }
        result = {"format_version": FORMAT_VERSION, "parts": {name: head | measured}}
        write_speed(result, output)
        print_bench(result, tables=bench_tables)


if __name__ == "__main__":
    main()
