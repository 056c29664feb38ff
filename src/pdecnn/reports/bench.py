"""What `pdecnn bench` shows and writes: tables in the terminal, a page, JSON and a figure."""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from pdecnn.errors import DataError
from pdecnn.experiments.bench import PARTS
from pdecnn.files import write_atomically, write_json
from pdecnn.reports.bench_tables import Table, bench_tables, describe_hardware, describe_part

JSON_FILE, PAGE_FILE, FIGURE = "speed.json", "speed.md", "depth"

_INTRODUCTION = """# Speed and memory

Written by `pdecnn bench --output DIR`; every repeat of every measurement is in `speed.json`. Times
are medians over repeats in which all rows of a table were measured in turn, after a warm-up and
with the device synchronised; their lowest and highest repeat stand beside them. All inputs are
random images, never zeros, and change from step to step.
"""


def print_bench(result: dict[str, Any], console: Console | None = None) -> None:
    """All tables of a result, with what each was measured on."""
    if console is None:
        width = None if sys.stdout.isatty() else 100
        console = Console(width=width, highlight=False, markup=False, emoji=False)
    before = None
    for name, part in result["parts"].items():
        where = describe_hardware(part)
        if where != before:
            console.print(f"{describe_part(part)}\n")
        before = where
        for table in bench_tables(name, part):
            console.print(table.title, style="bold")
            console.print(_terminal_table(table))
            console.print(f"{table.note}\n", style="dim")


def write_bench(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write speed.json, speed.md and the depth figure; parts measured before are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = _merge(_read(folder / JSON_FILE), result)
    contents = {PAGE_FILE: bench_page(merged).encode()}
    depth = merged["parts"].get("depth")
    if depth is not None:
        from pdecnn.reports import style
        from pdecnn.reports.bench_figure import draw_depth

        with style.journal_style():
            contents |= style.render(FIGURE, draw_depth(depth))
    for name, content in contents.items():
        write_atomically(folder / name, content)
    write_json(folder / JSON_FILE, merged)
    return [folder / name for name in (JSON_FILE, *contents)]


def bench_page(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    sections = [_INTRODUCTION]
    for name, part in result["parts"].items():
        sections.append(f"## {_HEADINGS[name]}\n\n{describe_part(part)}\n")
        if name == "depth":
            sections.append(f"![Memory and time against the number of steps]({FIGURE}.png)\n")
        sections += [_markdown_table(table) for table in bench_tables(name, part)]
    return "\n".join(sections)


_HEADINGS = {
    "steps": "Training steps",
    "digits": "On a CPU",
    "depth": "Depth",
    "large": "Large inputs",
    "compile": "Compilation",
}


def _merge(before: dict[str, Any] | None, result: dict[str, Any]) -> dict[str, Any]:
    if before is None:
        return result
    if before.get("format_version") != result["format_version"]:
        return result
    parts = before["parts"] | result["parts"]
    return result | {"parts": {name: parts[name] for name in PARTS if name in parts}}


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_bytes())
        return {"format_version": values["format_version"], "parts": dict(values["parts"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not written by pdecnn bench ({error!r}); move it away or choose another "
            f"folder"
        ) from error


def _terminal_table(table: Table) -> RichTable:
    shown = RichTable(box=None, pad_edge=False)
    for k, name in enumerate(table.header):
        shown.add_column(name, justify="left" if k < table.num_names else "right")
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _markdown_table(table: Table) -> str:
    marks = ["---" if k < table.num_names else "--:" for k in range(len(table.header))]
    lines = [table.header, marks, *table.rows]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{table.title}**\n\n{body}\n\n{table.note}\n"
