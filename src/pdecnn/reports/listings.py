"""What commands other than training print: lists, coarsened runs, exported files, downloads."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from pdecnn.data.registry import PUBLISHED
from pdecnn.reports.terminal import make_console, number_table
from pdecnn.runs.recipes import list_recipes, recipe
from pdecnn.runs.runs import Run


def print_recipes() -> None:
    """A table of all recipes."""
    headings = ("recipe", "data", "epochs", "batch", "rates", "levels")
    table = Table(*headings, box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for name in list_recipes():
        config = recipe(name)
        training = config.training
        rates = ", ".join(f"{rate:g}" for rate in training.learning_rates)
        if len(training.learning_rates) > 3:
            rates = f"{training.learning_rates[0]:g} to {training.learning_rates[-1]:g}"
        levels = [
            f"{', '.join(map(str, values))} {unit}"
            for values, unit in ((training.level_sizes, "px"), (training.level_steps, "steps"))
            if values is not None
        ]
        numbers = (str(training.epochs), str(training.batch_size), rates)
        table.add_row(name, config.data.name, *numbers, "; ".join(levels))
    make_console().print(table)


def print_level(run: Run, figures: dict[str, Any] | None) -> None:
    """Where a coarsened or refined run is and, if measured, how it compares."""
    network, pooling = run.config.network, run.config.data.pooling
    console = make_console()
    averaged = f", images averaged by {pooling}" if pooling > 1 else ""
    console.print(
        f"{run.folder}: {network.num_steps} steps of {network.step_size} a block, mesh size "
        f"{network.mesh_size:g}{averaged}; train on with `pdecnn train --output {run.folder} "
        f"--resume`",
        soft_wrap=True,
    )
    if figures is None:
        return
    table = number_table("", "test accuracy", "loss", "images/s", "weights")
    for name, row in (("original", figures["original"]), ("new", figures)):
        table.add_row(
            name,
            f"{row['accuracy']:.2%}",
            "not finite" if row["loss"] is None else f"{row['loss']:.3f}",
            f"{row['images_per_second']:,.0f}",
            f"{row['num_weights']:,}",
        )
    console.print(table)


def print_export(exported: dict[str, Any]) -> None:
    """What an exported file takes and gives, and how near to torch it is."""
    batch, channels, *axes = exported["input_axes"]
    cell = exported["multiple_of"]
    multiples = "" if cell == 1 else f" and a multiple of {cell}"
    size = exported["resized_to"]
    resized = "" if size is None else f"; resized to {' x '.join(map(str, size))}"
    print(f"{exported['file']}: written and compared with torch")
    print(
        f"  takes   {exported['pixels']} pixels ({batch}, {channels}, {', '.join(axes)}); "
        f"{' and '.join(axes)} at least {exported['smallest_size']}{multiples}{resized}"
    )
    print(f"  gives   scores ({batch}, {len(exported['class_names'])})")
    print(
        f"  differs by at most {exported['largest_relative_difference']:.1e} of the largest score "
        f"on {len(exported['compared_shapes'])} batches of random images"
    )


def print_models(counts: dict[str, int]) -> None:
    """A table of all networks."""
    table = number_table("model", "weights")
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    make_console().print(table)


def print_published() -> None:
    """A table of the data sets that can be fetched."""
    table = Table("name", "title", "images", "classes", "MB", "archive", box=None, pad_edge=False)
    for name, (first, *_) in PUBLISHED.items():
        table.add_row(
            name,
            first.title,
            f"{first.num_train:,} + {first.num_test:,}",
            str(first.num_classes),
            f"{first.num_bytes / 1e6:,.0f}",
            first.archive,
        )
    make_console().print(table)


@contextmanager
def download_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while a data set is fetched; nothing where that is no terminal."""
    bar = Progress(
        TextColumn(f"fetching {name}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(name, total=PUBLISHED[name][0].num_bytes if name in PUBLISHED else None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
