"""What `pdecnn bench` shows: tables in the terminal, and a page."""

from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from pdecnn.reports.bench_tables import Table, bench_tables, describe_hardware, describe_part
from pdecnn.reports.terminal import make_console, number_table

FIGURE = "depth"
"""The file of the figure on the page, without its ending."""

_INTRODUCTION = """# Speed and memory

Written by `pdecnn bench --output DIR`; every repeat of every measurement is in `speed.json`. Times
are medians over repeats in which what is compared was measured in turn, after a warm-up and with
the device synchronised; their lowest and highest repeat stand beside them. All inputs are
random images, never zeros, and change from step to step.
"""


def print_bench(result: dict[str, Any], console: Console | None = None) -> None:
    """All tables of a result, with what each was measured on."""
    if console is None:
        console = make_console()
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


def _terminal_table(table: Table) -> RichTable:
    shown = number_table(*table.header, num_names=table.num_names)
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _markdown_table(table: Table) -> str:
    marks = ["---" if k < table.num_names else "--:" for k in range(len(table.header))]
    lines = [table.header, marks, *table.rows]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{table.title}**\n\n{body}\n\n{table.note}\n"
