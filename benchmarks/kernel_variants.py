"""Whole training steps with one thing changed: what each way to run the kernels gains.

    python -m benchmarks.kernel_variants compile    # 60 s on 16 cores; the card need not be quiet
    python -m benchmarks.kernel_variants profile    # 20 s: kernels of a captured step as it is
    python -m benchmarks.kernel_variants blocks     # 60 s: the best blocks of each kernel alone
    python -m benchmarks.kernel_variants steps      # 140 s: steps of all variants, in turn

The seconds are estimates for an H200. All write to `--output DIRECTORY`; what `blocks` finds is a
variant of `steps`. Nothing is begun after `--seconds`, and what is known then has been printed;
`steps` writes after each network. `compile` fills Triton's cache in processes side by side, and
says which variants do not run; those that do are named to `steps --only`.

A line of `steps` is `network, batch, variant: images/s, times the baseline's (lowest to highest
of the repeats), how far the weights after three steps are from the baseline's`: 0 where all bits
are equal.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product, starmap
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from pdecnn.data.image_set import ImageSet
from pdecnn.fast import fused
from pdecnn.fast.kernels import symmetric_shear as kernels
from pdecnn.fast.kernels.symmetric_shear import Blocks
from pdecnn.learning.memory import free_memory
from pdecnn.networks.registry import model_config
from pdecnn.runs.bench import PAPER_DYNAMICS, TrainerSteps, make_steps, random_images
from pdecnn.runs.timing import synchronize, time_in_turn

BATCH_SIZES = (125, 1000)
SHAPES = {  # images x channels x side; those of parabolic and second order, then of hamiltonian
    number: [
        (number, *shape) for shape in zip((32, 64, 112, 16, 32, 56), (32, 16, 8) * 2, strict=True)
    ]
    for number in BATCH_SIZES
}
BASELINE, CHOSEN = "as it is", "chosen blocks"
NUM_COMPARED = 3
"""Steps after which weights are compared."""
NUM_CALLS, NUM_REPLAYS = 20, 5
_MOST_SHARED = 41_000
"""Numbers of bfloat16 that a gradient of a stencil holds, so that kernels beside it find room."""
NETWORKS = tuple(f"{dynamics}_cifar10" for dynamics in PAPER_DYNAMICS)

Tables = dict[str, dict[int, Blocks]]
Times = dict[tuple[str, int, bool], dict[Blocks, list[float]]]
"""By kernel, padded channels and whether features are few numbers."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Variant:
    """What is changed; the tables hold for few pixels and for many."""

    beside: bool = False
    late: bool = False
    lazy: bool = False
    chained: bool = False
    few: Tables = field(default_factory=dict)
    many: Tables = field(default_factory=dict)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within it networks are compiled and captured so; graphs stay as they are after."""
        few, many = kernels._BLOCKS_OF_FEW, kernels._BLOCKS
        fused.BESIDE, fused.LATE, fused.LAZY = self.beside, self.late, self.lazy
        kernels.CHAINED = self.chained
        kernels._BLOCKS_OF_FEW, kernels._BLOCKS = self.few, _merged(many, self.many)
        fused._rehearsed.clear()
        try:
            yield
        finally:
            fused.BESIDE = fused.LATE = fused.LAZY = kernels.CHAINED = False
            kernels._BLOCKS_OF_FEW, kernels._BLOCKS = few, many


def _merged(tables: Tables, others: Tables) -> Tables:
    return {kernel: entries | others.get(kernel, {}) for kernel, entries in tables.items()}


def unstaged() -> Tables:
    """The table in use without stages, so that loads go through the first cache."""
    return {
        kernel: {padded: blocks._replace(num_stages=1) for padded, blocks in entries.items()}
        for kernel, entries in kernels._BLOCKS.items()
    }


def slim() -> Tables:
    """Gradients of stencils that leave others room in a processor's shared memory."""
    entries = kernels._BLOCKS["stencil_gradient"]
    return {"stencil_gradient": {p: one._replace(num_stages=2) for p, one in entries.items()}}


def variants(directory: Path) -> dict[str, Variant]:
    """All that are timed, the most promising first."""
    beside = Variant(beside=True, late=True)
    found = {BASELINE: Variant()}
    path = directory / "blocks.json"
    if path.exists():
        few, many = ({}, {})  # type: Tables, Tables
        for row in json.loads(path.read_text()):
            table = few if row["few"] else many
            table.setdefault(row["kernel"], {})[row["padded"]] = Blocks(*row["blocks"])
        found |= {
            CHOSEN: Variant(few=few, many=many),
            f"{CHOSEN}, beside": replace(beside, few=few, many=many),
            f"{CHOSEN}, all": replace(beside, few=few, many=many, chained=True, lazy=True),
        }
    return found | {
        "beside": beside,
        "beside, slim": replace(beside, few=slim(), many=slim()),
        "chained": Variant(chained=True),
        "lazy": Variant(lazy=True),
        "beside, slim, all": replace(beside, few=slim(), many=slim(), chained=True, lazy=True),
        "no stages": Variant(few=unstaged(), many=unstaged()),
    }


def chosen_variants(options: argparse.Namespace) -> dict[str, Variant]:
    """Those that are asked for, the baseline always."""
    known = variants(options.output)
    unknown = [name for name in options.only or () if name not in known]
    if unknown:
        raise SystemExit(f"--only: no variant {unknown[0]!r}; there are {', '.join(known)}")
    return {
        name: variant
        for name, variant in known.items()
        if name == BASELINE or name in (options.only or known)
    }


# Kernels alone.


def candidates(kernel: str, padded: int) -> list[Blocks]:
    """Blocks worth trying, few enough for a minute."""
    if kernel == "stencil_gradient":
        widths = (64, 128) if padded in (32, 64) else (128, 256)
        splits = starmap(Blocks, product((64, 128), widths, (4, 8), (1, 2, 3)))
        return [
            one
            for one in splits
            if padded * one.width <= 4096 * one.num_warps
            and one.num_stages * one.pixels * (padded + one.width) <= _MOST_SHARED
        ]
    wide = {16: (64, 256), 32: (64, 128), 64: (128,), 128: (128,)}[padded]
    # Pixels and warps; of 128 channels more registers than there are would spill.
    programs = ((64, 4), (128, 8), (64, 8) if padded == 128 else (128, 4))
    sizes = [
        *product(programs, (min(padded, 64),), (1, 3)),
        *product(programs, wide, (1, 3) if padded == 128 else (1,)),
        *product(((32, 4),) if padded >= 64 else (), (64, 128), (1, 3)),
    ]
    return [Blocks(pixels, width, warps, stages) for (pixels, warps), width, stages in sizes]


def calls_of(shape: tuple[int, int, int]) -> list[tuple[str, Callable[[], Any]]]:
    """The kernels of a training step at a shape, each with its entry in the table."""
    from benchmarks.kernel_blocks import make_calls

    number, channels, side = shape
    calls = make_calls(number, channels, (side, side))
    names = ("activate, kept", "add adjoint", "add adjoint, following", "hidden gradient")
    return [calls[name] for name in (*names, "stencil gradient")]


@contextmanager
def used(kernel: str, padded: int, blocks: Blocks) -> Iterator[None]:
    """Within it a kernel takes those blocks for any number of pixels."""
    with Variant(many={kernel: {padded: blocks}}).applied():
        yield


def choose_blocks(directory: Path, deadline: float, say: Say) -> None:
    """Time all candidates at all shapes and write the best."""
    times: Times = defaultdict(lambda: defaultdict(list))
    for number in BATCH_SIZES:
        for shape in SHAPES[number]:
            padded = kernels._padded(shape[1])
            few = number * shape[1] * shape[2] ** 2 <= kernels._FEW_NUMBERS
            for kernel, call in calls_of(shape):
                in_use = kernels._BLOCKS[kernel][padded]
                here = times[kernel, padded, few]
                for blocks in dict.fromkeys([in_use, *candidates(kernel, padded)]):
                    if monotonic() > deadline:
                        break
                    seconds = _time_call(call, kernel, padded, blocks)
                    if seconds is not None:
                        here[blocks].append(seconds)
                if here[in_use]:
                    shown = ", ".join(
                        f"{tuple(one)} {1e6 * here[one][-1]:.1f}" for one in _best_first(here)[:3]
                    )
                    now = f"in use {tuple(in_use)} {1e6 * here[in_use][-1]:.1f} us"
                    say(f"{'x'.join(map(str, shape))} {kernel}: {shown}; {now}")
    _write_blocks(times, directory)


def _write_blocks(times: Times, directory: Path) -> None:
    rows = []
    for (kernel, padded, few), here in times.items():
        known = here
        if kernel == "stencil_gradient":  # those in use leave no room for others
            known = {one: here[one] for one in candidates(kernel, padded) if one in here}
        if known:
            best = _best_first(known)[0]
            rows.append({"kernel": kernel, "padded": padded, "few": few, "blocks": list(best)})
    (directory / "blocks.json").write_text(json.dumps(rows, indent=1))


def _best_first(times: Mapping[Blocks, list[float]]) -> list[Blocks]:
    """By the sum over shapes and calls; those that were not timed in all of them last."""
    return sorted(times, key=lambda blocks: (-len(times[blocks]), sum(times[blocks])))


def _time_call(call: Callable[[], Any], kernel: str, padded: int, blocks: Blocks) -> float | None:
    """Seconds of a call within a graph of some; None where a program does not fit."""
    try:
        with used(kernel, padded, blocks):
            call()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(NUM_CALLS):
                    call()
    except Exception as error:  # too many registers or too much shared memory
        if "resource" not in str(error).lower():
            raise
        return None
    seconds = []
    for _ in range(NUM_REPLAYS):
        torch.cuda.synchronize()
        begin = perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        seconds.append((perf_counter() - begin) / NUM_CALLS)
    return median(seconds)


# Whole steps.


@cache
def images_of(number: int, side: int, device: torch.device) -> ImageSet:
    """Random ones, the same for all."""
    return random_images(number, 3, (side, side)).to(device)


def steps_of(network: str, batch_size: int, device: torch.device, *, quick: bool) -> TrainerSteps:
    """Captured steps of a network, quickly of one that is small."""
    config = model_config(network)
    if quick:
        config = replace(config, channels=(8, 16, 16))
    images = images_of(*((24, 8) if quick else (50_000, 32)), device)
    return make_steps(config, images, batch_size=batch_size, device=device, capture=True)


def first_steps(steps: TrainerSteps) -> tuple[list[Tensor], dict[str, Any]]:
    """Weights and sums after a few steps, and how these were run."""
    for _ in range(NUM_COMPARED):
        steps()
    how = steps.finish()
    weights = [weight.detach().clone() for weight in steps.trainer.network.parameters()]
    return [*weights, steps.trainer.sums.clone()], how


def difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest relative error of a tensor, zero if all have the same bits."""
    errors = (
        torch.where(a == b, 0, a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30)
        for a, b in zip(found, expected, strict=True)
    )
    return float(torch.stack(list(errors)).amax())  # NaN if one is


def kernels_of(steps: TrainerSteps, device: torch.device) -> list[tuple[str, float]]:
    """Name and microseconds of all that runs on the GPU in a step, in order."""
    if device.type != "cuda":
        return []
    steps()
    synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        steps()
        synchronize(device)
    events = [event for event in profiled.events() if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    return [(event.name, event.device_time) for event in events]


def profile_steps(options: argparse.Namespace, deadline: float, say: Say) -> None:
    """The kernels of the steps, as they are or of the one variant that is asked for.

    In a process of its own, since being watched may slow what follows.
    """
    device, profiles = torch.device(options.device), []
    variant = chosen_variants(options)[options.only[0] if options.only else BASELINE]
    for batch_size, network in product(options.batch_sizes, NETWORKS):
        if monotonic() > deadline:
            break
        say(f"kernels of a step: {network}, {batch_size} images")
        with variant.applied():
            steps = steps_of(network, batch_size, device, quick=options.quick)
            found = kernels_of(steps, device)
        show_kernels(found, say)
        profiles.append({"network": network, "batch_size": batch_size, "kernels": found})
        free_memory()
    (options.output / "profiles.json").write_text(json.dumps(profiles, indent=1))


def time_steps(options: argparse.Namespace, deadline: float, say: Say) -> None:
    """All variants in turn; write after each network."""
    rows: list[dict[str, Any]] = []
    for batch_size, network in product(options.batch_sizes, NETWORKS):
        rows += _time_network(network, batch_size, options, deadline, say)
        (options.output / "steps.json").write_text(json.dumps(rows, indent=1))
        free_memory()
    show_table(rows, say)


def _time_network(
    network: str, batch_size: int, options: argparse.Namespace, deadline: float, say: Say
) -> list[dict[str, Any]]:
    device = torch.device(options.device)
    ready, differences = {}, {}
    expected: list[Tensor] = []
    for name, variant in chosen_variants(options).items():
        if monotonic() > deadline:
            break
        try:
            with variant.applied():
                steps = steps_of(network, batch_size, device, quick=options.quick)
                weights, how = first_steps(steps)
        except Exception as error:  # the others are still to be timed
            say(f"{network}, {batch_size}, {name}: {type(error).__name__}: {error}"[:300])
            continue
        expected = expected or weights
        if how["captured"] is not (device.type == "cuda") or how["notes"]:
            say(f"{network}, {batch_size}, {name}: {how}")
        ready[name], differences[name] = steps, difference(weights, expected)
    timings = time_in_turn(
        ready, device=device, num_repeats=5, repeat_seconds=options.repeat_seconds
    )
    rows = []
    base = timings.get(BASELINE)
    for name, timing in timings.items():
        if timing is None or base is None:
            continue
        pairs = zip(timing.seconds, base.seconds, strict=True)
        ratios = sorted(theirs / mine for mine, theirs in pairs)
        rate = batch_size / timing.median
        say(
            f"{network}, {batch_size}, {name}: {rate:,.0f}/s, {median(ratios):.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f}), {differences[name]:.1e}"
        )
        rows.append(
            {
                "network": network,
                "batch_size": batch_size,
                "variant": name,
                "images_per_second": rate,
                "times_baseline": median(ratios),
                "difference": differences[name],
                "time": timing.to_dict(),
            }
        )
    return rows


def show_kernels(found: list[tuple[str, float]], say: Say) -> None:
    """Print them by name, the longest first."""
    number, total = Counter(name for name, _ in found), defaultdict[str, float](float)
    for name, microseconds in found:
        total[name] += microseconds
    say(f"  {len(found)} launches, {sum(total.values()):.0f} us")
    for name in sorted(total, key=total.__getitem__, reverse=True)[:16]:
        say(f"  {total[name]:7.1f} us {number[name]:4} x {name[:70]}")


def show_table(rows: list[dict[str, Any]], say: Say) -> None:
    """Images a second by variant, a column for each network and batch."""
    columns = list(dict.fromkeys((row["batch_size"], row["network"]) for row in rows))
    say("")
    for batch_size, network in columns:
        here = [r for r in rows if (r["batch_size"], r["network"]) == (batch_size, network)]
        shown = "; ".join(f"{r['variant']} {r['images_per_second']:,.0f}" for r in here)
        say(f"{network} {batch_size}: {shown}")


# Compilation, in processes of their own.


def compile_variant(name: str, options: argparse.Namespace) -> None:
    """Take a step of all networks and sizes; raise if a graph cannot be made of one."""
    device = torch.device(options.device)
    for batch_size in options.batch_sizes:
        for network in NETWORKS:
            with variants(options.output)[name].applied():
                steps = steps_of(network, batch_size, device, quick=options.quick)
                steps()
                how = steps.finish()
            if how["captured"] is not (device.type == "cuda"):
                raise SystemExit(f"{name}, {network}, {batch_size}: {how}")
            del steps
            free_memory()


def compile_share(share: int, jobs: int) -> None:
    """Compile each of so many candidates for blocks, from the one at that place on."""
    place = 0
    for number in BATCH_SIZES:
        for shape in SHAPES[number]:
            padded = kernels._padded(shape[1])
            for kernel, call in calls_of(shape):
                if number != BATCH_SIZES[0] and kernel != "stencil_gradient":
                    continue  # the same code for any number of images
                for blocks in candidates(kernel, padded):
                    place += 1
                    if place % jobs == share:
                        with used(kernel, padded, blocks), kernels.rehearsal(torch.device("cuda")):
                            call()


def compile_all(options: argparse.Namespace, deadline: float, say: Say) -> None:
    """In a process for each variant and for each share of the candidates."""
    command = [sys.executable, "-m", "benchmarks.kernel_variants", *sys.argv[1:]]
    names = chosen_variants(options)
    work = {name: [*command, "--compile-variant", name] for name in names}
    if not (options.quick or options.only):
        for share in range(options.jobs):
            work[f"blocks {share}"] = [*command, "--compile-share", str(share)]
    running = {name: subprocess.Popen(line) for name, line in work.items()}
    for name, process in running.items():
        try:
            code = process.wait(max(1.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code != 0:
            say(f"{name}: ended with {code}")


def main() -> None:
    """Do one part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("part", choices=("compile", "profile", "blocks", "steps"))
    parser.add_argument("--seconds", type=float, default=150, help="after which nothing is begun")
    parser.add_argument("--repeat-seconds", type=float, default=0.06)
    parser.add_argument("--jobs", type=int, default=8, help="that compile candidates for blocks")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=BATCH_SIZES)
    parser.add_argument("--only", nargs="*", help="variants, the baseline is always one")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small networks: does it run?")
    parser.add_argument("--output", type=Path, default=Path("kernel-variants"))
    parser.add_argument("--compile-variant")
    parser.add_argument("--compile-share", type=int)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("needs a CUDA device; to see whether it runs: steps --quick --device cpu")
    begin = monotonic()
    chosen_variants(options)
    options.output.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        print(f"{monotonic() - begin:5.1f} {text}", flush=True)

    if options.compile_variant is not None:
        compile_variant(options.compile_variant, options)
    elif options.compile_share is not None:
        compile_share(options.compile_share, options.jobs)
    elif options.part == "compile":
        compile_all(options, begin + options.seconds, say)
    elif options.part == "profile":
        profile_steps(options, begin + options.seconds, say)
    elif options.part == "blocks":
        choose_blocks(options.output, begin + options.seconds, say)
    else:
        time_steps(options, begin + options.seconds, say)
    say("done")


if __name__ == "__main__":
    main()
