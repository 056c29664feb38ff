"""What all that is shown in a terminal shares."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table


def make_console() -> Console:
    """As wide as the terminal, and wide enough elsewhere; what is printed stays as it is."""
    width = None if sys.stdout.isatty() else 100
    return Console(width=width, highlight=False, markup=False, emoji=False)


def number_table(*header: str, num_names: int = 1) -> Table:
    """A table without lines: names on the left, then numbers on the right of their columns."""
    table = Table(box=None, pad_edge=False)
    for k, name in enumerate(header):
        table.add_column(name, justify="left" if k < num_names else "right")
    return table


def print_files(console: Console, files: Sequence[Path]) -> None:
    """Where everything lies."""
    if files:
        names = ", ".join(path.name for path in files if path.suffix != ".svg")
        console.print(f"\nin {files[0].parent}: {names}", soft_wrap=True)
