"""The tables of `benchmarks.speed` that `pdecnn bench` has not."""

from typing import Any

from pdecnn.reports.bench import (
    NOT_THERE,
    Table,
    Tables,
    depth_tables,
    megabytes,
    memory_note,
    milliseconds,
    spread,
    steps_tables,
    three_digits,
)


def _steps(part: dict[str, Any]) -> list[Table]:
    if "roofline" not in part:  # by `pdecnn bench`
        return steps_tables(part)
    work = [
        (
            row["network"].removesuffix("_cifar10"),
            str(row["batch_size"]),
            f"{row['flops'] / 1e9:,.4g}",
            _gigabytes(row["minimum_bytes"]),
            _gigabytes(row["moved_bytes"]),
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
        *steps_tables(part),
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
            f"Eager steps. {memory_note(part)}",
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


TABLES: Tables = {
    "steps": _steps,
    "digits": _digits,
    "depth": depth_tables,
    "large": _large,
    "compile": _compile,
}


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.3g}"
