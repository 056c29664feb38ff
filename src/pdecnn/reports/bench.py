"""What `pdecnn bench` shows and writes: tables in the terminal, a page, a figure, all as JSON."""

import json
import tempfile
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from pdecnn.errors import CheckpointError, ConfigError, in_one_line, system_errors_as
from pdecnn.files import write_all, write_json
from pdecnn.pde.backprop import BACKPROP_MODES
from pdecnn.reports.charts import Chart, Series
from pdecnn.reports.recorded import processor_name, short_commit
from pdecnn.reports.terminal import Table, make_console, terminal_table
from pdecnn.runs.bench import CAPTURED, FORMAT_VERSION, PARTS

JSON_FILE, PAGE_FILE, FIGURE = "speed.json", "speed.md", "depth"
_HEADINGS = {"steps": "Training steps", "depth": "Depth"}
_NOT_THERE, _NO_MEMORY = "-", "out of memory"
_INTRODUCTION = """# Speed and memory

Written by `pdecnn bench --output DIR`; every repeat of every measurement is in `speed.json`. Times
are medians over repeats in which what is compared was measured in turn, after a warm-up and with
the device synchronised; their lowest and highest repeat stand beside them. All inputs are
random images, never zeros, and change from step to step.
"""
_ELSEWHERE = "move it away or choose another --output"
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)

Row = dict[str, Any]


def print_bench(
    result: dict[str, Any],
    console: Console | None = None,
    *,
    tables: Callable[[str, dict[str, Any]], list[Table]] | None = None,
) -> None:
    """All tables of a result, with what each was measured on.

    `tables` makes those of a part; None: `part_tables`.
    """
    console, tables = console or make_console(), tables or part_tables
    before = None
    for name, part in result["parts"].items():
        hardware = describe_hardware(part)
        if hardware != before:
            console.print(f"{describe_part(part)}\n")
        before = hardware
        for table in tables(name, part):
            console.print(table.title, style="bold")
            console.print(terminal_table(table))
            console.print(f"{table.note}\n", style="dim")


def bench_page(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    sections = [_INTRODUCTION]
    for name, part in result["parts"].items():
        sections.append(f"## {_HEADINGS[name]}\n\n{describe_part(part)}\n")
        if name == "depth":
            sections.append(f"![Memory and time against the number of steps]({FIGURE}.png)\n")
        sections += [markdown_table(table) for table in part_tables(name, part)]
    return "\n".join(sections)


def markdown_table(table: Table) -> str:
    """A table with its title above and its note below."""
    marks = ["---" if k < table.num_names else "--:" for k in range(len(table.header))]
    lines = [table.header, marks, *table.rows]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{table.title}**\n\n{body}\n\n{table.note}\n"


def check_output(folder: Path, *, quick: bool) -> dict[str, Any]:
    """The parts that stand there; an error if these, or the folder, cannot take new ones.

    A quick result is refused beside full ones, which it would replace.
    """
    with system_errors_as(ConfigError, f"{folder}: cannot be used"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    parts = _read_parts(folder / JSON_FILE)
    full = [name for name, part in parts.items() if not part["quick"]]
    if quick and full:
        raise ConfigError(
            f"{folder / JSON_FILE}: holds full measurements ({', '.join(full)}), which a quick "
            f"result must not replace; leave out --quick or choose another --output"
        )
    return parts


def write_bench(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write speed.json, speed.md and the depth figure; parts measured before are kept."""
    quick = any(part["quick"] for part in result["parts"].values())
    parts = check_output(folder, quick=quick) | result["parts"]
    merged = result | {"parts": {name: parts[name] for name in PARTS if name in parts}}
    contents = {PAGE_FILE: bench_page(merged).encode()}
    if "depth" in parts:
        from pdecnn.reports.style import draw_charts, journal_style, render

        with journal_style():
            contents |= render(FIGURE, draw_charts(depth_charts(parts["depth"])))
    with system_errors_as(ConfigError, f"{folder}: cannot be used"):
        paths = write_all(folder, contents)
        write_json(folder / JSON_FILE, merged)
    return [folder / JSON_FILE, *paths]


def _read_parts(path: Path) -> dict[str, Any]:
    with system_errors_as(ConfigError, f"{path}: cannot be used"):
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return {}
    try:
        values = json.loads(text)
        version, parts = values["format_version"], values["parts"]
        if version == FORMAT_VERSION:
            bench_page(values)  # it reads whatever will be needed
            return {name: part | {"quick": bool(part["quick"])} for name, part in parts.items()}
    except _DAMAGE as error:
        raise CheckpointError(
            f"{path}: damaged, or not written by pdecnn bench ({in_one_line(error)}); {_ELSEWHERE}"
        ) from error
    raise CheckpointError(
        f"{path}: has format {version!r}, this version of pdecnn writes {FORMAT_VERSION}; "
        f"{_ELSEWHERE}"
    )


def part_tables(name: str, part: dict[str, Any]) -> list[Table]:
    """The tables of a part of the bench; what went other than wanted is said below the last."""
    return with_notes((_steps_tables if name == "steps" else _depth_tables)(part), part)


def with_notes(made: list[Table], part: dict[str, Any]) -> list[Table]:
    """The tables of a part, with what went other than wanted below the last."""
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
    repeats = f" Medians of {part['repeats']} repeats." if "repeats" in part else ""
    return (
        f"{part['version']}.{repeats} {describe_hardware(part)}; {software}; "
        f"{environment['date']}, commit {short_commit(environment)}; "
        f"measured in {part['measuring_seconds']:.0f} s."
    )


def describe_hardware(part: dict[str, Any]) -> str:
    """The device, and the processor beside it."""
    hardware = part["environment"]["hardware"]
    processor = processor_name(hardware)
    if hardware["gpu"] is None:
        return processor
    return f"{hardware['gpu']} with {hardware['gpu_bytes'] / 1e9:,.3g} GB beside {processor}"


def _steps_tables(part: dict[str, Any]) -> list[Table]:
    rows = [
        (
            row["network"].removesuffix("_cifar10"),
            how(row),
            str(row["batch_size"]),
            milliseconds(row["time"]),
            spread(row["time"]),
            _NOT_THERE if row["time"] is None else f"{row['images_per_second']:,.0f}",
            _NOT_THERE if row["ratio_to_plain"] is None else f"{row['ratio_to_plain']:.2f}",
        )
        for row in part["rows"]
    ]
    return [
        Table(
            f"Training steps of the CIFAR-10 networks, {part['precision']}",
            ("network", "step", "batch", "ms", "spread", "images/s", "x plain"),
            rows,
            "captured, eager: pdecnn's whole step, replayed as one CUDA graph or launched one by "
            "one: gathering and standardising a batch, augmentation, forward, backward, "
            "regulariser, finite check, SGD, projection, sums of the metrics. plain: eager torch, "
            "forward, cross entropy, backward and SGD on batches made before, nothing else; on a "
            "GPU in bfloat16 autocast with channels last (`torch.channels_last`), as ours. "
            "x plain: time over that of plain.",
            num_names=2,
        ),
    ]


def how(row: Row) -> str:
    """How a step ran, whatever was wanted."""
    if row["variant"] != CAPTURED or row["time"] is None:
        return str(row["variant"])
    if not row["captured"]:
        return "not captured"
    return "not compiled" if row["notes"] else CAPTURED


def _depth_tables(part: dict[str, Any]) -> list[Table]:
    """Memory and time by depth, a column for each backprop mode."""
    about = (
        f"{part['dynamics']}, one block of {part['channels']} channels, {part['image_size']}x"
        f"{part['image_size']} images, batch {part['batch_size']}"
    )
    memory_note = "Memory: what is saved for backward, weights left out."
    if part["memory"] == "peak":
        memory_note = (
            "Memory: the peak of a forward and backward pass, less weights, batch and the "
            "weights' gradients."
        )
    time_note = "The whole step, operator by operator; in brackets times `stored`. -: not timed."
    depths = {
        depth: {row["backprop"]: row for row in rows}
        for depth, rows in groupby(part["rows"], key=lambda row: row["num_steps"])
    }
    return [
        Table(
            f"{title}: {about}",
            ("steps", *BACKPROP_MODES),
            [
                (str(depth), *(cell(row[mode]) for mode in BACKPROP_MODES))
                for depth, row in depths.items()
            ],
            note,
        )
        for title, cell, note in (
            ("Memory in MB", megabytes, memory_note),
            ("Time of a training step in ms", _time_and_ratio, time_note),
        )
    ]


def _time_and_ratio(row: Row) -> str:
    """'1.39 (1.30)': milliseconds, and times `stored` where that is known."""
    if not row["timed"]:
        return _NOT_THERE
    ratio = row["ratio_to_stored"]
    known = ratio is not None and row["backprop"] != "stored"
    return milliseconds(row["time"]) + (f" ({ratio:.2f})" if known else "")


def megabytes(row: Row) -> str:
    """Of the activations."""
    used = row["activation_bytes"]
    if used is None:
        return _NO_MEMORY
    return f"{used / 1e6:,.0f}" if used >= 1e9 else f"{used / 1e6:,.4g}"


def milliseconds(time: dict[str, Any] | None) -> str:
    """The median."""
    return _NO_MEMORY if time is None else three_digits(1e3 * time["median_seconds"])


def spread(time: dict[str, Any] | None) -> str:
    """The lowest and the highest repeat."""
    if time is None:
        return _NOT_THERE
    ends = (time["lowest_seconds"], time["highest_seconds"])
    return " to ".join(three_digits(1e3 * seconds) for seconds in ends)


def three_digits(value: float) -> str:
    """Or more, of large numbers."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def depth_charts(part: dict[str, Any]) -> list[Chart]:
    """Memory and time against the number of steps; what did not fit is left out."""

    word = "peak activations" if part["memory"] == "peak" else "saved for backward"

    def chart(y_label: str, value: Callable[[Row], float | None]) -> Chart:
        return Chart(
            title=part["dynamics"],
            series=[
                Series(
                    label=mode,
                    xs=[row["num_steps"] for row in part["rows"] if row["backprop"] == mode],
                    ys=[value(row) for row in part["rows"] if row["backprop"] == mode],
                    colour=colour,
                    dashed=mode == "exact",  # it often lies on 'reversible'
                )
                for colour, mode in enumerate(BACKPROP_MODES)
            ],
            x_label="time steps of the block",
            y_label=y_label,
            may_be_log=True,
        )

    return [
        chart(
            f"{word} (MB)", lambda row: row["activation_bytes"] and row["activation_bytes"] / 1e6
        ),
        chart(
            "time of an eager training step (ms)",
            lambda row: row["time"] and 1e3 * row["time"]["median_seconds"],
        ),
    ]
