"""The figures of `pdecnn bench` as tables of words, for the terminal and for a page."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from pdecnn.pde.backprop import BACKPROP_MODES

NOT_THERE = "-"
NO_MEMORY = "out of memory"

Rows = list[dict[str, Any]]


class Table(NamedTuple):
    """A table and what must be known to read it."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str
    num_names: int = 1
    """So many columns on the left are names; the others are numbers."""


def bench_tables(name: str, part: dict[str, Any]) -> list[Table]:
    """The tables of a part of the bench; what went other than wanted is said below the last."""
    tables = _TABLES[name](part)
    notes = dict.fromkeys(note for row in part["rows"] for note in row.get("notes", []))
    if notes:
        last = tables[-1]
        tables[-1] = last._replace(note=" ".join([last.note, *(f"Note: {n}." for n in notes)]))
    return tables


def describe_part(part: dict[str, Any]) -> str:
    """Where, when and with what a part was measured."""
    environment = part["environment"]
    names = [("torch", "torch"), ("cuda", "CUDA"), ("cudnn", "cuDNN"), ("python", "Python")]
    versions = environment["versions"]
    software = ", ".join(f"{word} {versions[key]}" for key, word in names if versions.get(key))
    commit = (environment["commit"] or "unknown")[:12]
    repeats = f" Medians of {part['repeats']} repeats." if "repeats" in part else ""
    return (
        f"{part['version']}.{repeats} {describe_hardware(part)}; {software}; "
        f"{environment['date']}, commit {commit}."
    )


def describe_hardware(part: dict[str, Any]) -> str:
    """The device, and the processor beside it."""
    hardware = part["environment"]["hardware"]
    processor = f"{hardware['processor']} with {hardware['cpu_cores']} cores"
    if hardware["gpu"] is None:
        return processor
    return f"{hardware['gpu']} with {_gigabytes(hardware['gpu_bytes'])} GB beside {processor}"


def _steps(part: dict[str, Any]) -> list[Table]:
    times = [
        (
            _short(row["network"]),
            row["variant"],
            str(row["batch_size"]),
            _milliseconds(row["time"]),
            _spread(row["time"]),
            NOT_THERE if row["time"] is None else f"{row['images_per_second']:,.0f}",
            NOT_THERE if row["time"] is None else f"{row['roofline_fraction']:.1%}",
        )
        for row in part["rows"]
    ]
    work = [
        (
            _short(row["network"]),
            str(row["batch_size"]),
            f"{row['flops'] / 1e9:,.4g}",
            _gigabytes(row["minimum_bytes"]),
            _gigabytes(row["moved_bytes"]),
            _three_digits(1e3 * row["floor_seconds"]),
        )
        for row in part["rows"]
        if row["moved_bytes"] is not None
    ]
    return [
        _ceilings(part["roofline"]),
        Table(
            "What a step has to do",
            ("network", "batch", "GFLOP", "GB at least", "GB eager", "floor, ms"),
            work,
            "GFLOP: those of convolutions and matrix products, forward and backward. GB at "
            "least: each of these reads its inputs once and writes its outputs once, all between "
            "them fused. GB eager: every single operation of plain torch does. The floor is the "
            "longer of GFLOP at the fastest matrix rate and GB at the fastest bandwidth.",
        ),
        Table(
            f"Training steps of the CIFAR-10 networks, {part['precision']}",
            ("network", "step", "batch", "ms", "spread", "images/s", "of roofline"),
            times,
            "captured, eager: pdecnn's whole step, replayed as one CUDA graph or launched one by "
            "one: gathering and standardising a batch, augmentation, forward, backward, "
            "regulariser, finite check, SGD, projection, sums of the metrics. plain: eager torch, "
            "forward, cross entropy, backward and SGD on batches made before, nothing else. "
            "of roofline: floor over time.",
            num_names=2,
        ),
    ]


def _ceilings(roofline: dict[str, Any]) -> Table:
    copy, matrix = roofline["copy"], roofline["matrix"]
    rows = [
        ("copy bandwidth, GB/s", *_rate(copy["bytes_read_and_written"] / 1e9, copy["time"])),
        ("matrix rate, TFLOP/s", *_rate(2 * matrix["size"] ** 3 / 1e12, matrix["time"])),
    ]
    return Table(
        "Ceilings of this machine, measured in the same run",
        ("", "fastest", "median", "slowest"),
        rows,
        f"A copy of {_gigabytes(copy['bytes_read_and_written'] // 2)} GB within the device, bytes "
        f"read plus written; a product of two {matrix['dtype']} matrices of {matrix['size']} rows. "
        f"Measured before and after the steps, {copy['time']['repeats']} repeats.",
    )


def _rate(amount: float, time: dict[str, Any]) -> list[str]:
    which = ("lowest", "median", "highest")
    return [_three_digits(amount / time[f"{word}_seconds"]) for word in which]


def _digits(part: dict[str, Any]) -> list[Table]:
    rows = [
        (
            row["network"].removesuffix("_digits"),
            _milliseconds(row["time"]),
            _spread(row["time"]),
            _milliseconds(row["plain_time"]),
            _spread(row["plain_time"]),
            f"{row['ratio']:.3f}",
        )
        for row in part["rows"]
    ]
    return [
        Table(
            f"Training steps of the digits networks on the CPU, batch {part['batch_size']}, "
            f"{part['threads']} thread",
            ("network", "ms", "spread", "plain, ms", "spread", "ratio"),
            rows,
            "pdecnn beside plain torch that does the same: gathering and standardising a batch, "
            "forward, backward, regulariser, finite check, SGD, projection, sums of the metrics. "
            "Processor time; ratio: the median over repeats made in turn.",
        )
    ]


def _depth(part: dict[str, Any]) -> list[Table]:
    tables = []
    for dynamics, group in groupby(part["rows"], key=lambda row: row["dynamics"]):
        rows = list(group)
        about = (
            f"{dynamics}, one block of {part['channels']} channels, "
            f"{part['image_size']}x{part['image_size']} images, batch {part['batch_size']}"
        )
        tables += [
            Table(
                f"Memory in MB: {about}",
                ("steps", "how", *BACKPROP_MODES),
                [(*key, *cells) for key, cells in _by_mode(rows, _memory)],
                _memory_note(part) + " Each step has weights of its own.",
                num_names=2,
            ),
            Table(
                f"Time of a training step in ms: {about}",
                ("steps", "how", *BACKPROP_MODES, "spread"),
                [
                    (*key, *cells, _largest_spread(rows, key))
                    for key, cells in _by_mode(rows, _time_and_ratio)
                ],
                "The whole step; in brackets times `stored`. spread: the largest distance of a "
                "repeat from its median among the four.",
                num_names=2,
            ),
        ]
    return tables


def _large(part: dict[str, Any]) -> list[Table]:
    rows = [
        (
            "x".join(map(str, row["size"])),
            row["backprop"],
            str(row["num_steps"]),
            _memory(row),
            _milliseconds(row["time"]),
            _spread(row["time"]),
        )
        for row in part["rows"]
    ]
    widths = ", ".join(map(str, part["channels"]))
    return [
        Table(
            f"One training step on one large input: hamiltonian, widths {widths}",
            ("input", "backprop", "steps", "memory, MB", "ms", "spread"),
            rows,
            _memory_note(part),
            num_names=2,
        )
    ]


def _compile(part: dict[str, Any]) -> list[Table]:
    rows = [
        (row["network"], f"{row['cold_seconds']:.1f}", f"{row['cached_seconds']:.1f}")
        for row in part["rows"]
    ]
    return [
        Table(
            f"First training step in a fresh process, seconds, batch {part['batch_size']}",
            ("network", "cold", "cached"),
            rows or [("nothing is compiled on a CPU", NOT_THERE, NOT_THERE)],
            "Compilation, capture and the step itself, measured once each: with empty caches, "
            "then with those the first process left behind.",
        )
    ]


_TABLES: dict[str, Callable[[dict[str, Any]], list[Table]]] = {
    "steps": _steps,
    "digits": _digits,
    "depth": _depth,
    "large": _large,
    "compile": _compile,
}


def _by_mode(
    rows: Rows, cell: Callable[[dict[str, Any]], str]
) -> list[tuple[tuple[str, str], list[str]]]:
    """For each depth, eager and captured, the cells of the backprop modes."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cells.setdefault(_depth_key(row), {})[row["backprop"]] = cell(row)
    return [(key, [found[mode] for mode in BACKPROP_MODES]) for key, found in cells.items()]


def _depth_key(row: dict[str, Any]) -> tuple[str, str]:
    return str(row["num_steps"]), "captured" if row["captured"] else "eager"


def _time_and_ratio(row: dict[str, Any]) -> str:
    if row["time"] is None:
        return NO_MEMORY
    ratio = row["ratio_to_stored"]
    known = ratio is not None and row["backprop"] != "stored"
    return _milliseconds(row["time"]) + (f" ({ratio:.2f})" if known else "")


def _largest_spread(rows: Rows, key: tuple[str, str]) -> str:
    times = [row["time"] for row in rows if _depth_key(row) == key and row["time"] is not None]
    if not times:
        return NOT_THERE
    return f"{max(max(_distances(time)) for time in times):.0%}"


def _distances(time: dict[str, Any]) -> tuple[float, float]:
    median = time["median_seconds"]
    return time["highest_seconds"] / median - 1, 1 - time["lowest_seconds"] / median


def _memory(row: dict[str, Any]) -> str:
    found = row["activation_bytes"]
    if found is None:
        return NOT_THERE if row["notes"] else NO_MEMORY
    return f"{found / 1e6:,.0f}" if found >= 1e9 else f"{found / 1e6:,.4g}"


def _memory_note(part: dict[str, Any]) -> str:
    if part["memory"] == "peak":
        return (
            "Memory: the peak of forward and backward, less weights, batch and the weights' "
            "gradients."
        )
    return "Memory: what is saved for backward, weights left out."


def _milliseconds(time: dict[str, Any] | None) -> str:
    return NO_MEMORY if time is None else _three_digits(1e3 * time["median_seconds"])


def _spread(time: dict[str, Any] | None) -> str:
    if time is None:
        return NOT_THERE
    ends = (time["lowest_seconds"], time["highest_seconds"])
    return " to ".join(_three_digits(1e3 * seconds) for seconds in ends)


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.3g}"


def _short(network: str) -> str:
    """The title says that they are the CIFAR-10 ones."""
    return network.removesuffix("_cifar10")
