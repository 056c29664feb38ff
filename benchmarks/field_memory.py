"""Memory of networks from field to field against steps and levels: docs/results/field-memory.md.

    python -m benchmarks.field_memory measure --output DIR
    python -m benchmarks.field_memory page [--results docs/results]

The same hamiltonian network in mode `exact` with as many steps on each of its levels, each with
weights of its own: for a volume of 128 pixels an axis and an image of 2048, without a GPU of 32 and
256. Memory is that of docs/results/speed.md: the peak of a forward and a backward pass less
weights, their gradients and the batch. Of the deepest networks the opened features, rounded to the
grid, are recovered through all levels.
`measure` writes DIR/field-memory.json after each network, without a GPU field-memory-cpu.json.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from benchmarks.provenance import measured_on
from pdecnn.data.image_set import ImageSet
from pdecnn.fast.acceleration import fast_layout
from pdecnn.files import write_atomically, write_json
from pdecnn.learning.memory import free_memory
from pdecnn.learning.metrics import autocast
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network
from pdecnn.networks.registry import DYNAMICS
from pdecnn.pde.grid import Grid
from pdecnn.reports.bench import megabytes
from pdecnn.runs.bench import activation_bytes, make_network, precision_of, random_images
from pdecnn.runs.preparation import describe_environment, resolve_device

NAME = "field-memory"
NUM_STEPS = (10, 30, 100, 300)
NUM_LEVELS = (1, 2, 3, 4)
MOST_OF_STEPS, MOST_OF_LEVELS = 1.1, 1.2
"""How many times the memory of the fewest steps, or of one level, the most may take."""
SUBJECTS = {3: "a volume of {0} x {0} x {0}", 2: "an image of {0} x {0}"}
SIZES = {"cuda": {3: 128, 2: 2048}, "cpu": {3: 32, 2: 256}}
CHANNELS = HIDDEN_CHANNELS = 8
NUM_CLASSES = 3
# Small: a thin K of many channels has a large norm, and 1,200 steps must stay bounded.
STEP_SIZE = 0.001
EXACT, STORED = "exact", "stored"


@dataclass(frozen=True, slots=True)
class Case:
    """One network to measure."""

    dimension: int
    num_steps: int
    num_levels: int
    backprop: str = EXACT

    def config(self) -> NetworkConfig:
        """One block on each level, each 2^d times as wide, then back to the finest."""
        widths = [CHANNELS * 2 ** (self.dimension * level) for level in range(self.num_levels)]
        return NetworkConfig(
            channels=(*widths, CHANNELS),
            hidden_channels=HIDDEN_CHANNELS,
            in_channels=1,
            num_classes=NUM_CLASSES,
            num_steps=self.num_steps,
            step_size=STEP_SIZE,
            normalization="bias",
            backprop=self.backprop,
            dimension=self.dimension,
            opening="linear",
            connector="invertible",
            pooling="space_to_depth",
            classifier="field",
            **DYNAMICS["hamiltonian"],
        )


def cases(num_steps: Sequence[int]) -> Iterator[Case]:
    """All numbers of steps on the fewest and the most levels, all of levels with few steps."""
    for dimension in SUBJECTS:
        for steps in num_steps:
            for levels in NUM_LEVELS:
                if steps == num_steps[0] or levels in (NUM_LEVELS[0], NUM_LEVELS[-1]):
                    yield Case(dimension, steps, levels)
        for steps in num_steps[:2]:
            yield Case(dimension, steps, NUM_LEVELS[0], STORED)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--output", type=Path, required=True)
    measuring.add_argument("--device", default="auto")
    measuring.add_argument("--steps", type=int, nargs="+", default=NUM_STEPS)
    paging = commands.add_parser("page")
    paging.add_argument("--results", type=Path, default=Path("docs/results"))
    chosen = parser.parse_args(arguments)
    if chosen.command == "page":
        write_atomically(chosen.results / f"{NAME}.md", page(*read(chosen.results)).encode())
        return
    chosen.output.mkdir(parents=True, exist_ok=True)
    device = resolve_device(chosen.device)
    name = NAME if device.type == "cuda" else f"{NAME}-cpu"
    measure(device, chosen.steps, chosen.output / f"{name}.json")


def read(results: Path) -> list[dict[str, Any]]:
    """What was measured on a GPU, then on a CPU, as far as there is any."""
    paths = [results / f"{name}.json" for name in (NAME, f"{NAME}-cpu")]
    return [json.loads(path.read_bytes()) for path in paths if path.exists()]


def measure(device: torch.device, num_steps: Sequence[int], path: Path) -> None:
    """Measure all cases on the device, smallest first."""
    begin = perf_counter()
    sizes = SIZES["cuda" if device.type == "cuda" else "cpu"]
    environment = describe_environment(device, seed=0)
    del environment["command"]
    found: dict[str, Any] = {
        "environment": environment,
        "precision": precision_of(device),
        "sizes": {str(dimension): size for dimension, size in sizes.items()},
        "rows": [],
    }
    batches = {dimension: random_batch(dimension, size) for dimension, size in sizes.items()}
    memory_of = activation_bytes if device.type == "cuda" else peak_bytes
    for case in sorted(cases(num_steps), key=lambda case: case.num_steps * case.num_levels):
        network = make_network(case.config(), device)
        batch = batches[case.dimension].to(device)
        row = {
            "dimension": case.dimension,
            "backprop": case.backprop,
            "num_steps": case.num_steps,
            "num_levels": case.num_levels,
            "num_weights": network.num_weights,
            "activation_bytes": memory_of(network, batch),
            "recovered": None,
        }
        if case.backprop == EXACT and case.num_levels == NUM_LEVELS[-1]:
            row["recovered"] = recovers(network, batch)
        found["rows"].append(row)
        found["seconds"] = round(perf_counter() - begin, 1)
        write_json(path, found)
        print(f"{found['seconds']:6.1f} s {case} {row['activation_bytes']}", flush=True)
        del network
        free_memory()


def random_batch(dimension: int, size: int) -> ImageSet:
    """One image of random bytes, a random class for each pixel."""
    images = random_images(1, 1, (size,) * dimension, num_classes=NUM_CLASSES)
    generator = torch.Generator().manual_seed(1)
    shape = (1, *images.size)
    masks = torch.randint(0, NUM_CLASSES, shape, generator=generator, dtype=torch.uint8)
    return ImageSet(
        images=images.images, labels=images.labels, class_names=images.class_names, masks=masks
    )


def peak_bytes(network: Network, batch: ImageSet) -> int:
    """The same memory on a CPU, from what its allocator tells the profiler.

    Each weight's gradient is left out from when it is there, for it may be long after the peak.
    """
    images = fast_layout(network.preprocess(batch.images[:]))
    assert batch.masks is not None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        cross_entropy(network.train()(images), batch.masks.long()).backward()  # type: ignore[no-untyped-call]
    assert profiled.profiler is not None
    waiting = profiled.profiler.kineto_results.experimental_event_tree()
    changes: list[tuple[int, int, int]] = []
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            changes.append((event.start_time_ns, fields.ptr, fields.alloc_size))
    changes.sort()
    last = {address: index for index, (_, address, _) in enumerate(changes)}
    for weight in network.parameters():
        assert weight.grad is not None
        when, address, size = changes[last[weight.grad.untyped_storage().data_ptr()]]
        assert size >= weight.grad.nbytes, "a gradient that was not allocated"
        changes[last[address]] = when, address, 0
    return max(accumulate(size for _, _, size in changes))


@torch.no_grad()
def recovers(network: Network, batch: ImageSet) -> bool:
    """Whether going through all levels and back gives the opened features, rounded to the grid."""
    bits = network.config.grid_bits
    assert bits is not None
    device = network.weight.device
    # Kernels that may add in another order the second time would not come back.
    kernels = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    with kernels, autocast(precision_of(device), device):
        features = network.open(fast_layout(network.preprocess(batch.images[:])))
        rounded = Grid(bits).round(features.float())
        state = network.propagate(features)
        assert not torch.equal(state[0], rounded[:, : state[0].shape[1]]), "nothing moved"
        return torch.equal(network.reverse(state), rounded)


def page(*measured: dict[str, Any]) -> str:
    """The whole page."""
    lines = [
        f"# Memory of networks from field to field: {headline(measured)}",
        "",
        "The same hamiltonian network with as many steps on each of its levels, every step with",
        f"weights of its own, {CHANNELS} channels and {HIDDEN_CHANNELS} within layers. Memory is "
        "that of [speed](speed.md):",
        "the peak of a forward and a backward pass less weights, their gradients and the batch,",
        "in MB; on a CPU the peak of all that the allocator gave out but gradients of weights.",
        "Written by `python -m benchmarks.field_memory` from `field-memory.json` and",
        "`field-memory-cpu.json`.",
    ]
    for found in measured:
        for dimension, subject in SUBJECTS.items():
            lines += _table(found, dimension, subject)
        lines += ["", f"{measured_on(found['environment'])}; {found['seconds']:.0f} s."]
    return "\n".join([*lines, ""])


def _table(found: dict[str, Any], dimension: int, subject: str) -> list[str]:
    mine = [row for row in found["rows"] if row["dimension"] == dimension]
    exact = [row for row in mine if row["backprop"] == EXACT]
    size = found["sizes"][str(dimension)]
    by_case = {(row["num_steps"], row["num_levels"]): row for row in exact}
    stored = {row["num_steps"]: row for row in mine if row["backprop"] == STORED}
    lines = [
        "",
        f"## {subject.format(size)[:1].upper()}{subject.format(size)[1:]}, {found['precision']}",
        "",
        f"| steps a level | {' | '.join(map(_levels, NUM_LEVELS))} | stored, 1 level | "
        f"recovered through {NUM_LEVELS[-1]} levels |",
        f"|--:|{'--:|' * len(NUM_LEVELS)}--:|---|",
    ]
    for number in sorted({row["num_steps"] for row in exact}):
        of_levels = [by_case.get((number, levels)) for levels in NUM_LEVELS]
        cells = ["" if row is None else megabytes(row) for row in of_levels]
        cells.append(megabytes(stored[number]) if number in stored else "")
        last = of_levels[-1]
        back = {True: "to the last bit", False: "**no**", None: ""}
        cells.append(back[None if last is None else last["recovered"]])
        lines.append(f"| {number} | {' | '.join(cells)} |")
    missing = [
        f"{case.num_steps} steps on {_levels(case.num_levels)}"
        for case in cases(NUM_STEPS)
        if case.dimension == dimension and case.backprop == EXACT
        if (case.num_steps, case.num_levels) not in by_case
    ]
    lines += ["", *(f"- {text}" for text in ratios(exact))]
    return [*lines, *([f"- not measured: {', '.join(missing)}"] if missing else [])]


def headline(measured: Sequence[dict[str, Any]]) -> str:
    """The worst of all cases beside the fewest steps on one level."""
    worst, most = 1.0, 0
    for found in measured:
        for dimension in SUBJECTS:
            used = {
                (row["num_steps"], row["num_levels"]): row["activation_bytes"]
                for row in found["rows"]
                if (row["dimension"], row["backprop"]) == (dimension, EXACT)
            }
            few, many = (choose(steps for steps, _ in used) for choose in (min, max))
            worst = max(worst, max(used.values()) / used[few, NUM_LEVELS[0]])
            most = max(most, many)
    return f"{worst:.2f} times that of {few} steps, with up to {most} on each level"


def ratios(rows: list[dict[str, Any]]) -> list[str]:
    """What more steps and more levels cost, beside what they may."""
    by_case = {(row["num_steps"], row["num_levels"]): row["activation_bytes"] for row in rows}
    few, many = (choose(steps for steps, _ in by_case) for choose in (min, max))
    said = []
    for levels in (NUM_LEVELS[0], NUM_LEVELS[-1]):
        if (many, levels) in by_case:
            ratio = by_case[many, levels] / by_case[few, levels]
            said.append(
                f"{many} steps take {ratio:.3f} times the memory of {few}, on {_levels(levels)} "
                f"(wanted: at most {MOST_OF_STEPS})"
            )
    for steps in (few, many):
        if (steps, NUM_LEVELS[-1]) in by_case:
            ratio = by_case[steps, NUM_LEVELS[-1]] / by_case[steps, NUM_LEVELS[0]]
            said.append(
                f"{NUM_LEVELS[-1]} levels take {ratio:.3f} times the memory of one, with {steps} "
                f"steps (wanted: at most {MOST_OF_LEVELS})"
            )
    return said


def _levels(number: int) -> str:
    return f"{number} level{'s' if number > 1 else ''}"


if __name__ == "__main__":
    main()
