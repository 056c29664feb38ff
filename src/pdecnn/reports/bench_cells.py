"""The cells of the tables of `pdecnn bench`: figures as words."""

from collections.abc import Callable, Iterable
from typing import Any

from pdecnn.pde.backprop import BACKPROP_MODES
from pdecnn.runs.bench.trainers import CAPTURED

NOT_THERE = "-"
NO_MEMORY = "out of memory"
MARK = "*"
"""Behind a time whose step was not captured and compiled as wanted."""

Row = dict[str, Any]


def by_mode(
    rows: Iterable[Row], key: str, cell: Callable[[Row], str]
) -> list[tuple[Any, list[str]]]:
    """For each value of the key, the cells of the backprop modes."""
    cells: dict[Any, dict[str, str]] = {}
    for row in rows:
        cells.setdefault(row[key], {})[row["backprop"]] = cell(row)
    return [
        (value, [found.get(mode, NOT_THERE) for mode in BACKPROP_MODES])
        for value, found in cells.items()
    ]


def how(row: Row) -> str:
    """How a step ran, whatever was wanted."""
    if not went_otherwise(row):
        return str(row["variant"])
    return "not compiled" if row["captured"] else "not captured"


def went_otherwise(row: Row) -> bool:
    """Whether a step was to be captured with compiled kernels and was not."""
    wanted = row["variant"] == CAPTURED and row["time"] is not None
    return wanted and not (row["captured"] and not row["notes"])


def time_and_ratio(row: Row) -> str:
    """'1.39 (1.30)': milliseconds, and times `stored` where that is known."""
    if row["time"] is None:
        return NO_MEMORY
    ratio = row["ratio_to_stored"]
    known = ratio is not None and row["backprop"] != "stored"
    mark = MARK if went_otherwise(row) else ""
    return milliseconds(row["time"]) + mark + (f" ({ratio:.2f})" if known else "")


def largest_spread(rows: Iterable[Row]) -> str:
    """The largest distance of a repeat from its median."""
    times = [row["time"] for row in rows if row["time"] is not None]
    if not times:
        return NOT_THERE
    return f"{max(max(_distances(time)) for time in times):.0%}"


def _distances(time: dict[str, Any]) -> tuple[float, float]:
    median = time["median_seconds"]
    return time["highest_seconds"] / median - 1, 1 - time["lowest_seconds"] / median


def megabytes(row: Row) -> str:
    """Of the activations."""
    found = row["activation_bytes"]
    if found is None:
        return NO_MEMORY
    return f"{found / 1e6:,.0f}" if found >= 1e9 else f"{found / 1e6:,.4g}"


def milliseconds(time: dict[str, Any] | None) -> str:
    """The median."""
    return NO_MEMORY if time is None else three_digits(1e3 * time["median_seconds"])


def spread(time: dict[str, Any] | None) -> str:
    """The lowest and the highest repeat."""
    if time is None:
        return NOT_THERE
    ends = (time["lowest_seconds"], time["highest_seconds"])
    return " to ".join(three_digits(1e3 * seconds) for seconds in ends)


def three_digits(value: float) -> str:
    """Or more, of large numbers."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def gigabytes(num_bytes: int) -> str:
    """Of a number of bytes."""
    return f"{num_bytes / 1e9:,.3g}"
