"""The page of `benchmarks.speed`: tables of words, in the terminal and as docs/results/speed.md."""

import json
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.speed_depth import FUSED
from benchmarks.speed_figure import draw_depth
from pdecnn.errors import ConfigError
from pdecnn.files import write_all, write_json
from pdecnn.pde.backprop import BACKPROP_MODES
from pdecnn.reports import style
from pdecnn.reports.bench import (
    describe_part,
    how,
    markdown_table,
    megabytes,
    milliseconds,
    spread,
    three_digits,
    with_notes,
)
from pdecnn.reports.terminal import Table
from pdecnn.runs.bench import CAPTURED

FIGURE = "depth"
"""The file of the figure on the page, without its ending."""

_INTRODUCTION = """
Written by `python -m benchmarks.speed`; every repeat of every measurement is in `speed.json`. Times
are medians over repeats in which what is compared was measured in turn, after a warm-up and with
the device synchronised; their lowest and highest repeat stand beside them. All inputs are
random images, never zeros, and change from step to step.
"""


def bench_page(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    sections = [f"# Speed and memory{_headline(result['parts'])}", _INTRODUCTION]
    for name, part in result["parts"].items():
        sections.append(f"## {_HEADINGS[name]}\n\n{describe_part(part)}\n")
        if name == "depth":
            sections.append(f"![Memory and time against the number of steps]({FIGURE}.png)\n")
        sections += [markdown_table(table) for table in bench_tables(name, part)]
    return "\n".join(sections)


def _headline(parts: dict[str, Any]) -> str:
    """How much more memory the most steps need than the fewest, run backwards."""
    rows = [
        row
        for row in parts.get("depth", {}).get("memory_rows", ())
        if (row["dynamics"], row["variant"], row["backprop"]) == ("hamiltonian", "eager", "exact")
    ]
    if not rows:
        return ""
    few, many = (take(rows, key=lambda row: row["num_steps"]) for take in (min, max))
    factor = many["activation_bytes"] / few["activation_bytes"]
    return f": {many['num_steps']:,} steps in {factor:.2f} times the memory of {few['num_steps']}"


_HEADINGS = {
    "steps": "Training steps",
    "recipes": "Recipes and optimisers",
    "digits": "On a CPU",
    "images": "Images on a CPU",
    "depth": "Depth",
    "large": "Large inputs",
    "compile": "Compilation",
    "loops": "Loops of your own",
    "volumes": "Volumes",
}


def bench_tables(name: str, part: dict[str, Any]) -> list[Table]:
    """The tables of a part of the bench; what went other than wanted is said below the last."""
    return with_notes(_TABLES[name](part), part)


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


def _recipes(part: dict[str, Any]) -> list[Table]:
    rows = [
        (
            row["recipe"],
            str(row["batch_size"]),
            milliseconds(row["time"]),
            spread(row["time"]),
            NOT_THERE if row["time"] is None else f"{row['ratio_to_paper']:.2f}",
            NOT_THERE if row["time"] is None else f"{1e3 * row['more_seconds']:+.3f}",
            str(sum(kind["number"] for kind in row["kernels"])) if row["kernels"] else NOT_THERE,
        )
        for row in part["rows"]
    ]
    return [
        Table(
            f"Training steps of {part['network']} by recipe and optimiser, {part['precision']}",
            ("recipe", "batch", "ms", "spread", "times paper", "ms more", "on the GPU"),
            rows,
            "Captured steps on a GPU, in turn. paper: the recipe of the paper; nesterov, adamw, "
            "muon: that recipe with another optimiser; tuned: the tuned recipe with all of its "
            "augmentation. on the GPU: kernels and copies of a step, each by name in `speed.json`.",
        )
    ]


def _digits(part: dict[str, Any]) -> list[Table]:
    steps = Table(
        f"Training steps of the digits networks on the CPU, {_batch_and_threads(part)}",
        ("network", *_BESIDE_PLAIN),
        _digits_rows(part["rows"]),
        "pdecnn beside plain torch that does the same: gathering and standardising a batch, "
        "forward, backward, regulariser, finite check, SGD, projection, sums of the metrics. "
        f"{_ABOUT_RATIOS}",
    )
    forward = Table(
        f"One of the digits to its scores, {part['threads']} thread",
        ("network", *_BESIDE_PLAIN),
        _digits_rows(part["forward_rows"]),
        f"Without a gradient: there what counts is the number of calls. {_ABOUT_RATIOS}",
    )
    return [steps, forward]


def _digits_rows(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [(row["network"].removesuffix("_digits"), *_beside_plain(row)) for row in rows]


def _images(part: dict[str, Any]) -> list[Table]:
    rows = [(row["precision"], *_beside_plain(row)) for row in part["rows"]]
    size = part["size"]
    return [
        Table(
            f"Training steps of {part['rows'][0]['network']} on the CPU, {size}x{size} pixels, "
            f"{_batch_and_threads(part)}",
            ("precision", *_BESIDE_PLAIN),
            rows,
            "As with the digits, and with augmentation: mirrored, padded and cropped at random. "
            "Plain torch has stencils and images channels last; bfloat16 is by autocast in both, "
            f"measured where the processor computes in it. {_ABOUT_RATIOS}",
        )
    ]


_BESIDE_PLAIN = ("ms", "spread", "plain, ms", "spread", "ratio", "middle half")
_ABOUT_RATIOS = (
    "Processor time; ratio: the median over repeats made in turn; middle half: where the ratios "
    "of half of the repeats lie."
)


def _beside_plain(row: dict[str, Any]) -> tuple[str, ...]:
    """Our step and that of plain torch, with the ratio and the quartiles of it."""
    pairs = zip(row["time"]["seconds"], row["plain_time"]["seconds"], strict=True)
    low, _, high = quantiles([ours / plain for ours, plain in pairs])
    return (
        milliseconds(row["time"]),
        spread(row["time"]),
        milliseconds(row["plain_time"]),
        spread(row["plain_time"]),
        f"{row['ratio']:.3f}",
        f"{low:.3f} to {high:.3f}",
    )


def _batch_and_threads(part: dict[str, Any]) -> str:
    return f"batch {part['batch_size']}, {part['threads']} thread"


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


def _loops(part: dict[str, Any]) -> list[Table]:
    inference = [
        (
            _short(row["network"]),
            str(row["batch_size"]),
            milliseconds(row["time"]),
            spread(row["time"]),
            NOT_THERE if row["time"] is None else f"{row['images_per_second']:,.0f}",
        )
        for row in part["inference"]
    ]
    first = [
        (_short(row["network"]), f"{row['cold_seconds']:.1f}", f"{row['cached_seconds']:.1f}")
        for row in part["first_steps"]
    ]
    return [
        _ways(f"Training steps in a loop, {part['precision']}", part["rows"]),
        Table(
            f"Inference, {part['precision']}",
            ("network", "batch", "ms", "spread", "images/s"),
            inference,
            "Bytes on the device to scores, by an accelerated network; on a GPU as one CUDA graph.",
        ),
        Table(
            "First step of such a loop in a fresh process, seconds",
            ("network", "cold", "cached"),
            first or [("nothing is compiled on a CPU", *[NOT_THERE] * 2)],
            "Without the import of torch: with empty caches, then with those left behind.",
        ),
    ]


def _volumes(part: dict[str, Any]) -> list[Table]:
    size = " x ".join(map(str, part["size"]))
    return [_ways(f"Training steps on volumes of {size}, {part['precision']}", part["rows"])]


def _ways(title: str, rows: list[dict[str, Any]]) -> Table:
    """Loops beside the trainer's steps."""
    cells = [
        (
            _short(row["network"]),
            row["variant"],
            str(row["batch_size"]),
            milliseconds(row["time"]),
            spread(row["time"]),
            NOT_THERE if row["time"] is None else f"{row['images_per_second']:,.0f}",
            *(
                NOT_THERE if ratio is None else f"{ratio:.2f}"
                for ratio in (row["ratio_to_trainer"], row["ratio_to_plain"])
            ),
        )
        for row in rows
    ]
    return Table(
        title,
        ("network", "step", "batch", "ms", "spread", "images/s", "of trainer", "of plain"),
        cells,
        "trainer: pdecnn's whole step. loop: `pdecnn.accelerate`, batches of bytes on the "
        "device, standardised, forward, cross entropy, backward, fused SGD; graph: replayed as "
        "one CUDA graph; plain torch: the same network written in torch alone, in the same "
        "loop, channels last; compiled: by torch.compile. of trainer, of plain: times their time.",
        num_names=2,
    )


_TABLES: dict[str, Callable[[dict[str, Any]], list[Table]]] = {
    "steps": _steps,
    "recipes": _recipes,
    "digits": _digits,
    "images": _images,
    "depth": _depth,
    "large": _large,
    "compile": _compile,
    "loops": _loops,
    "volumes": _volumes,
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


def gigabytes(num_bytes: int) -> str:
    """Of a number of bytes."""
    return f"{num_bytes / 1e9:,.3g}"


JSON_FILE, PAGE_FILE = "speed.json", "speed.md"


def write_speed(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write speed.json, speed.md and the depth figure; parts measured before are kept.

    A quick result is refused beside full ones, which it would replace.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JSON_FILE
    before = json.loads(path.read_bytes()) if path.exists() else result
    if before["format_version"] != result["format_version"]:
        raise ConfigError(f"{path}: has another format; move it away or choose another --output")
    parts = before["parts"] | result["parts"]
    if len({part["quick"] for part in parts.values()}) > 1:
        raise ConfigError(
            f"{path}: quick and full measurements do not mix; choose another --output"
        )
    merged = result | {"parts": {name: parts[name] for name in _HEADINGS if name in parts}}
    contents = {PAGE_FILE: bench_page(merged).encode()}
    if "depth" in parts:
        with style.journal_style():
            contents |= style.render(FIGURE, draw_depth(parts["depth"]))
    write_json(path, merged)
    return [path, *write_all(folder, contents)]
