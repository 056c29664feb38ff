"""The figures of `pdecnn bench` as tables of words, for the terminal and for a page."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from pdecnn.pde.backprop import BACKPROP_MODES
from pdecnn.reports.bench_cells import (
    MARK,
    NOT_THERE,
    by_mode,
    gigabytes,
    how,
    largest_spread,
    megabytes,
    milliseconds,
    spread,
    three_digits,
    time_and_ratio,
    went_otherwise,
)
from pdecnn.reports.provenance import processor_name
from pdecnn.runs.bench.depth import FUSED
from pdecnn.runs.bench.trainers import CAPTURED


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
        f"{environment['date']}, commit {commit}; measured in {part['measuring_seconds']:.0f} s."
    )


def describe_hardware(part: dict[str, Any]) -> str:
    """The device, and the processor beside it."""
    hardware = part["environment"]["hardware"]
    processor = processor_name(hardware)
    if hardware["gpu"] is None:
        return processor
    return f"{hardware['gpu']} with {gigabytes(hardware['gpu_bytes'])} GB beside {processor}"


def _steps(part: dict[str, Any]) -> list[Table]:
    times = [
        (
            _short(row["network"]),
            how(row),
            str(row["batch_size"]),
            milliseconds(row["time"]),
            spread(row["time"]),
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
            gigabytes(row["minimum_bytes"]),
            gigabytes(row["moved_bytes"]),
            three_digits(1e3 * row["floor_seconds"]),
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
            "forward, cross entropy, backward and SGD on batches made before, nothing else; on a "
            "GPU in bfloat16 autocast with channels last (`torch.channels_last`), as ours. "
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
        f"A copy of {gigabytes(copy['bytes_read_and_written'] // 2)} GB within the device, bytes "
        f"read plus written; a product of two {matrix['dtype']} matrices of {matrix['size']} rows. "
        f"Measured before and after the steps, {copy['time']['repeats']} repeats.",
    )


def _rate(amount: float, time: dict[str, Any]) -> list[str]:
    which = ("lowest", "median", "highest")
    return [three_digits(amount / time[f"{word}_seconds"]) for word in which]


def _digits(part: dict[str, Any]) -> list[Table]:
    rows = [
        (
            row["network"].removesuffix("_digits"),
            milliseconds(row["time"]),
            spread(row["time"]),
            milliseconds(row["plain_time"]),
            spread(row["plain_time"]),
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
    about = (
        f"one block of {part['channels']} channels, {part['image_size']}x{part['image_size']} "
        f"images, batch {part['batch_size']}"
    )
    for dynamics, rows in groupby(part["memory_rows"], key=lambda row: row["dynamics"]):
        tables.append(
            Table(
                f"Memory in MB: {dynamics}, {about}",
                ("steps", "how", *BACKPROP_MODES),
                _depth_memory(list(rows)),
                _depth_memory_note(part),
                num_names=2,
            )
        )
    for dynamics, rows in groupby(part["rows"], key=lambda row: row["dynamics"]):
        times = _depth_times(list(rows))
        tables.append(
            Table(
                f"Time of a training step in ms: {dynamics}, {about}",
                ("steps", "how", *BACKPROP_MODES, "spread"),
                times,
                _depth_time_note(part["rows"], gaps=any(NOT_THERE in line for line in times)),
                num_names=2,
            )
        )
    return tables


def _depth_memory(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for (depth, variant), group in groupby(
        rows, key=lambda row: (row["num_steps"], row["variant"])
    ):
        ((_, cells),) = by_mode(group, "num_steps", megabytes)
        lines.append((str(depth), variant, *cells))
    return lines


def _depth_memory_note(part: dict[str, Any]) -> str:
    note = f"{_memory_note(part)} Each step has weights of its own."
    if any(row["variant"] == FUSED for row in part["memory_rows"]):
        note += (
            " eager: operator by operator; fused: by the kernels of a captured step, with "
            "bfloat16 copies of all weights."
        )
    return note


def _depth_times(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for (depth, variant), group in groupby(
        rows, key=lambda row: (row["num_steps"], row["variant"])
    ):
        mine = list(group)
        ((_, cells),) = by_mode(mine, "num_steps", time_and_ratio)
        lines.append((str(depth), variant, *cells, largest_spread(mine)))
    return lines


def _depth_time_note(rows: list[dict[str, Any]], *, gaps: bool) -> str:
    depths = {row["num_steps"] for row in rows}
    captured = {row["num_steps"] for row in rows if row["variant"] == CAPTURED}
    eager = ", ".join(map(str, sorted(depths - captured)))
    sentences = [
        "The whole step; in brackets times `stored`. spread: the largest distance of a repeat "
        "from its median in the line. eager: operator by operator, one step a repeat; captured: "
        "replayed as one CUDA graph.",
        f"With {eager} steps all times are eager." if eager else "",
        f"{NOT_THERE}: not timed." if gaps else "",
        f"{MARK}: not captured or not compiled as wanted."
        if any(map(went_otherwise, rows))
        else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _large(part: dict[str, Any]) -> list[Table]:
    rows = [
        (
            "x".join(map(str, row["size"])),
            row["backprop"],
            str(row["num_steps"]),
            megabytes(row),
            milliseconds(row["time"]),
            spread(row["time"]),
        )
        for row in part["rows"]
    ]
    widths = ", ".join(map(str, part["channels"]))
    return [
        Table(
            f"One training step on one large input: hamiltonian, widths {widths}",
            ("input", "backprop", "steps", "memory, MB", "ms", "spread"),
            rows,
            f"Eager steps. {_memory_note(part)}",
            num_names=2,
        )
    ]


def _compile(part: dict[str, Any]) -> list[Table]:
    rows: list[tuple[str, ...]] = [
        (
            row["network"],
            f"{row['cold_seconds']:.1f}",
            f"{row['cached_seconds']:.1f}",
            f"{row['cached_share']:.0%}",
        )
        for row in part["rows"]
    ]
    return [
        Table(
            f"First training step in a fresh process, seconds, batch {part['batch_size']}",
            ("network", "cold", "cached", "share"),
            rows or [("nothing is compiled on a CPU", *[NOT_THERE] * 3)],
            "Compilation, capture and the step itself, measured once each: with empty caches, "
            "then with those the first process left behind. share: cached over cold.",
        )
    ]


_TABLES: dict[str, Callable[[dict[str, Any]], list[Table]]] = {
    "steps": _steps,
    "digits": _digits,
    "depth": _depth,
    "large": _large,
    "compile": _compile,
}


def _memory_note(part: dict[str, Any]) -> str:
    if part["memory"] == "peak":
        return (
            "Memory: the peak of a forward and backward pass, less weights, batch and the "
            "weights' gradients."
        )
    return "Memory: what is saved for backward, weights left out."


def _short(network: str) -> str:
    """The title says that they are the CIFAR-10 ones."""
    return network.removesuffix("_cifar10")
