"""What `pdecnn bench` shows and writes: tables in the terminal, a page, a figure, all as JSON."""

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from pdecnn.errors import CheckpointError, ConfigError, in_one_line, system_errors_as
from pdecnn.files import write_all, write_json
from pdecnn.pde.backprop import BACKPROP_MODES
from pdecnn.reports.recorded import processor_name
from pdecnn.reports.terminal import make_console, number_table
from pdecnn.runs.bench import CAPTURED, FORMAT_VERSION, FUSED

JSON_FILE, PAGE_FILE = "speed.json", "speed.md"
FIGURE = "depth"
"""The file of the figure on the page, without its ending."""
NOT_THERE = "-"
NO_MEMORY = "out of memory"
MARK = "*"
"""Behind a time whose step was not captured and compiled as wanted."""
HEADINGS = {
    "steps": "Training steps",
    "digits": "On a CPU",
    "depth": "Depth",
    "large": "Large inputs",
    "compile": "Compilation",
}
_INTRODUCTION = """# Speed and memory

Written by `pdecnn bench --output DIR` or `python -m benchmarks.speed`; every repeat of every
measurement is in `speed.json`. Times are medians over repeats in which what is compared was
measured in turn, after a warm-up and with the device synchronised; their lowest and highest repeat
stand beside them. All inputs are random images, never zeros, and change from step to step.
"""
_ELSEWHERE = "move it away or choose another --output"
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)

Row = dict[str, Any]


class Table(NamedTuple):
    """A table and what must be known to read it."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str
    num_names: int = 1
    """The columns on the left that are names; the others are numbers."""


Tables = Mapping[str, Callable[[dict[str, Any]], list[Table]]]


def print_bench(
    result: dict[str, Any], console: Console | None = None, *, tables: Tables | None = None
) -> None:
    """All tables of a result, with what each was measured on."""
    if console is None:
        console = make_console()
    before = None
    for name, part in result["parts"].items():
        hardware = describe_hardware(part)
        if hardware != before:
            console.print(f"{describe_part(part)}\n")
        before = hardware
        for table in part_tables(name, part, tables):
            console.print(table.title, style="bold")
            shown = number_table(*table.header, num_names=table.num_names)
            for row in table.rows:
                shown.add_row(*row)
            console.print(shown)
            console.print(f"{table.note}\n", style="dim")


def bench_page(result: dict[str, Any], tables: Tables | None = None) -> str:
    """The result as Markdown."""
    sections = [_INTRODUCTION]
    for name, part in result["parts"].items():
        sections.append(f"## {HEADINGS[name]}\n\n{describe_part(part)}\n")
        if name == "depth":
            sections.append(f"![Memory and time against the number of steps]({FIGURE}.png)\n")
        sections += [_markdown_table(table) for table in part_tables(name, part, tables)]
    return "\n".join(sections)


def _markdown_table(table: Table) -> str:
    marks = ["---" if k < table.num_names else "--:" for k in range(len(table.header))]
    lines = [table.header, marks, *table.rows]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{table.title}**\n\n{body}\n\n{table.note}\n"


def check_output(folder: Path, *, quick: bool, tables: Tables | None = None) -> dict[str, Any]:
    """The parts that stand there; an error if these, or the folder, cannot take new ones.

    A quick result is refused beside full ones, which it would replace.
    """
    with _using(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    parts = _read_parts(folder / JSON_FILE, tables)
    full = [name for name, part in parts.items() if not part["quick"]]
    if quick and full:
        raise ConfigError(
            f"{folder / JSON_FILE}: holds full measurements ({', '.join(full)}), which a quick "
            f"result must not replace; leave out --quick or choose another --output"
        )
    return parts


def write_bench(result: dict[str, Any], folder: Path, tables: Tables | None = None) -> list[Path]:
    """Write speed.json, speed.md and the depth figure; parts measured before are kept."""
    quick = any(part["quick"] for part in result["parts"].values())
    parts = check_output(folder, quick=quick, tables=tables) | result["parts"]
    merged = result | {"parts": {name: parts[name] for name in HEADINGS if name in parts}}
    contents = {PAGE_FILE: bench_page(merged, tables).encode()}
    if "depth" in parts:
        from pdecnn.reports import style
        from pdecnn.reports.bench_figure import draw_depth

        with style.journal_style():
            contents |= style.render(FIGURE, draw_depth(parts["depth"]))
    with _using(folder):
        paths = write_all(folder, contents)
        write_json(folder / JSON_FILE, merged)
    return [folder / JSON_FILE, *paths]


def _read_parts(path: Path, tables: Tables | None) -> dict[str, Any]:
    with _using(path):
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return {}
    try:
        values = json.loads(text)
        version, parts = values["format_version"], values["parts"]
        if version == FORMAT_VERSION:
            _refuse_other_parts(path, parts, tables)
            bench_page(values, tables)  # it reads whatever will be needed
            return {name: part | {"quick": bool(part["quick"])} for name, part in parts.items()}
    except _DAMAGE as error:
        raise CheckpointError(
            f"{path}: damaged, or not written by pdecnn bench ({in_one_line(error)}); {_ELSEWHERE}"
        ) from error
    raise CheckpointError(
        f"{path}: has format {version!r}, this version of pdecnn writes {FORMAT_VERSION}; "
        f"{_ELSEWHERE}"
    )


def _refuse_other_parts(path: Path, parts: dict[str, Any], tables: Tables | None) -> None:
    others = [name for name in parts if name in HEADINGS and name not in (tables or TABLES)]
    if others:
        raise ConfigError(
            f"{path}: holds {', '.join(others)}, measured by python -m benchmarks.speed; add to it "
            f"by that command, or choose another --output"
        )


def _using(path: Path) -> AbstractContextManager[None]:
    return system_errors_as(ConfigError, f"{path}: cannot be used")


# The tables.


def part_tables(name: str, part: dict[str, Any], tables: Tables | None = None) -> list[Table]:
    """The tables of a part of the bench; what went other than wanted is said below the last."""
    made = (tables or TABLES)[name](part)
    notes = dict.fromkeys(note for row in part["rows"] for note in row.get("notes", []))
    if notes:
        last = made[-1]
        made[-1] = last._replace(note=" ".join([last.note, *(f"Note: {n}." for n in notes)]))
    return made


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
    return f"{hardware['gpu']} with {hardware['gpu_bytes'] / 1e9:,.3g} GB beside {processor}"


def steps_tables(part: dict[str, Any]) -> list[Table]:
    """Times of whole training steps; the share of the roofline where that was measured."""
    by_roofline = "roofline" in part
    rows = [
        (
            row["network"].removesuffix("_cifar10"),
            _how(row),
            str(row["batch_size"]),
            milliseconds(row["time"]),
            spread(row["time"]),
            NOT_THERE if row["time"] is None else f"{row['images_per_second']:,.0f}",
            _share(row["roofline_fraction"] if by_roofline else row["ratio_to_plain"], by_roofline),
        )
        for row in part["rows"]
    ]
    column, meaning = ("x plain", "time over that of plain")
    if by_roofline:
        column, meaning = ("of roofline", "floor over time")
    return [
        Table(
            f"Training steps of the CIFAR-10 networks, {part['precision']}",
            ("network", "step", "batch", "ms", "spread", "images/s", column),
            rows,
            "captured, eager: pdecnn's whole step, replayed as one CUDA graph or launched one by "
            "one: gathering and standardising a batch, augmentation, forward, backward, "
            "regulariser, finite check, SGD, projection, sums of the metrics. plain: eager torch, "
            "forward, cross entropy, backward and SGD on batches made before, nothing else; on a "
            "GPU in bfloat16 autocast with channels last (`torch.channels_last`), as ours. "
            f"{column}: {meaning}.",
            num_names=2,
        ),
    ]


def _share(value: float | None, by_roofline: bool) -> str:
    if value is None:
        return NOT_THERE
    return f"{value:.1%}" if by_roofline else f"{value:.2f}"


def depth_tables(part: dict[str, Any]) -> list[Table]:
    """Memory and time by depth, a column for each backprop mode."""
    tables = []
    about = (
        f"one block of {part['channels']} channels, {part['image_size']}x{part['image_size']} "
        f"images, batch {part['batch_size']}"
    )
    for dynamics, rows in groupby(part["memory_rows"], key=lambda row: row["dynamics"]):
        lines = [(*head, *_by_mode(mine, megabytes)) for head, mine in _by_depth(rows)]
        title, header = f"Memory in MB: {dynamics}, {about}", ("steps", "how", *BACKPROP_MODES)
        tables.append(Table(title, header, lines, _depth_memory_note(part), num_names=2))
    for dynamics, rows in groupby(part["rows"], key=lambda row: row["dynamics"]):
        lines = [
            (*head, *_by_mode(mine, _time_and_ratio), _largest_spread(mine))
            for head, mine in _by_depth(rows)
        ]
        tables.append(
            Table(
                f"Time of a training step in ms: {dynamics}, {about}",
                ("steps", "how", *BACKPROP_MODES, "spread"),
                lines,
                _depth_time_note(part["rows"], gaps=any(NOT_THERE in line for line in lines)),
                num_names=2,
            )
        )
    return tables


def _by_depth(rows: Iterable[Row]) -> list[tuple[tuple[str, str], list[Row]]]:
    groups = groupby(rows, key=lambda row: (str(row["num_steps"]), str(row["variant"])))
    return [(head, list(mine)) for head, mine in groups]


def _by_mode(rows: Iterable[Row], cell: Callable[[Row], str]) -> list[str]:
    cells = {row["backprop"]: cell(row) for row in rows}
    return [cells.get(mode, NOT_THERE) for mode in BACKPROP_MODES]


def _depth_memory_note(part: dict[str, Any]) -> str:
    note = f"{memory_note(part)} Each step has weights of its own."
    if any(row["variant"] == FUSED for row in part["memory_rows"]):
        note += (
            " eager: operator by operator; fused: by the kernels of a captured step, with "
            "bfloat16 copies of all weights."
        )
    return note


def memory_note(part: dict[str, Any]) -> str:
    """How memory was measured."""
    if part["memory"] == "peak":
        return (
            "Memory: the peak of a forward and backward pass, less weights, batch and the "
            "weights' gradients."
        )
    return "Memory: what is saved for backward, weights left out."


def _depth_time_note(rows: list[Row], *, gaps: bool) -> str:
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
        if any(map(_went_otherwise, rows))
        else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


TABLES: Tables = {"steps": steps_tables, "depth": depth_tables}


def _how(row: Row) -> str:
    """How a step ran, whatever was wanted."""
    if not _went_otherwise(row):
        return str(row["variant"])
    return "not compiled" if row["captured"] else "not captured"


def _went_otherwise(row: Row) -> bool:
    """Whether a step was to be captured with compiled kernels and was not."""
    wanted = row["variant"] == CAPTURED and row["time"] is not None
    return wanted and not (row["captured"] and not row["notes"])


def _time_and_ratio(row: Row) -> str:
    """'1.39 (1.30)': milliseconds, and times `stored` where that is known."""
    if row["time"] is None:
        return NO_MEMORY
    ratio = row["ratio_to_stored"]
    known = ratio is not None and row["backprop"] != "stored"
    mark = MARK if _went_otherwise(row) else ""
    return milliseconds(row["time"]) + mark + (f" ({ratio:.2f})" if known else "")


def _largest_spread(rows: Iterable[Row]) -> str:
    """The largest distance of a repeat from its median."""
    times = [row["time"] for row in rows if row["time"] is not None]
    distances = [
        abs(time[end] / time["median_seconds"] - 1)
        for time in times
        for end in ("lowest_seconds", "highest_seconds")
    ]
    return f"{max(distances):.0%}" if distances else NOT_THERE


def megabytes(row: Row) -> str:
    """Of the activations."""
    used = row["activation_bytes"]
    if used is None:
        return NO_MEMORY
    return f"{used / 1e6:,.0f}" if used >= 1e9 else f"{used / 1e6:,.4g}"


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
