"""What commands print: the progress of a training, lists, tables of accuracies."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill, indent
from time import monotonic
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table as RichTable

from pdecnn.data.registry import PUBLISHED, needs_folder
from pdecnn.learning.checkpoint import Progress as TrainingProgress
from pdecnn.learning.metrics import EpochReport
from pdecnn.learning.tasks import AbstractTask
from pdecnn.learning.trainer import Trainer
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.registry import list_models
from pdecnn.pde.convolution import SUBJECTS
from pdecnn.pde.facts import declared
from pdecnn.pde.integrators import resolve_integrator
from pdecnn.pde.layers import resolve_layer
from pdecnn.runs.preparation import make_run_task
from pdecnn.runs.recipes import list_recipes, recipe
from pdecnn.runs.runs import Run
from pdecnn.runs.training import Listener
from pdecnn.settings import setting_text


def make_console() -> Console:
    """As wide as the terminal, and wide enough elsewhere; what is printed stays as it is."""
    width = None if sys.stdout.isatty() else 100
    return Console(width=width, highlight=False, markup=False, emoji=False)


class Table(NamedTuple):
    """A table and what must be known to read it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    num_names: int = 1
    """The columns on the left that are names; the others are numbers."""


def terminal_table(table: Table) -> RichTable:
    """A table without lines: names on the left, then numbers on the right of their columns."""
    shown = RichTable(box=None, pad_edge=False)
    for k, name in enumerate(table.header):
        shown.add_column(name, justify="left" if k < table.num_names else "right")
    for row in table.rows:
        shown.add_row(*row)
    return shown


def print_files(console: Console, files: Sequence[Path]) -> None:
    """Where everything lies."""
    if files:
        names = ", ".join(path.name for path in files if path.suffix != ".svg")
        console.print(f"\nin {files[0].parent}: {names}", soft_wrap=True)


_REFRESH_SECONDS = 0.5
_LARGEST_BAR, _WIDTH_BESIDE_BAR = 20, 77


class _TrainingConsole(Console):
    """Falls silent where its reader has gone, as in `pdecnn train | head`; rich would exit."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class ConsoleListener(Listener):
    """A live bar on a terminal that can draw it, one plain line an epoch elsewhere."""

    def __init__(self, *, to_stderr: bool = False) -> None:
        self.console = _TrainingConsole(
            stderr=to_stderr, highlight=False, markup=False, emoji=False
        )
        # A log, or a terminal that can move no cursor, has no width to wrap at.
        self.console.soft_wrap = not self.console.is_interactive
        self.trainer: Trainer | None = None
        self.bar: Progress | None = None
        self.last_refresh = 0.0
        self.begin_time = monotonic()
        self.begin_step = 0
        self.num_skipped = 0
        self.samples = "samples"

    def begin(self, folder: Path, trainer: Trainer) -> None:
        """Say what is trained on what, and start the bar on a terminal."""
        self.trainer = trainer
        self.samples = f"{trainer.network.subject}s"
        ranks = f" with {trainer.ranks.size} ranks" if trainer.ranks.size > 1 else ""
        held_out = "no" if trainer.validation is None else f"{len(trainer.validation):,}"
        self.console.print(
            f"{folder}: {trainer.network.num_weights:,} weights, {len(trainer.train):,} training "
            f"and {held_out} validation {self.samples}, {trainer.config.epochs} epochs "
            f"on {trainer.sums.device}{ranks}, seed {trainer.seed}"
        )
        self.begin_time, self.begin_step = monotonic(), trainer.progress.step
        if self.console.is_interactive:
            room = self.console.width - _WIDTH_BESIDE_BAR
            self.bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(bar_width=min(max(room, 1), _LARGEST_BAR)),
                TextColumn(
                    f"loss {{task.fields[loss]}}  {trainer.task.score} {{task.fields[accuracy]}} "
                    "(val. {task.fields[validation]})  {task.fields[speed]} "
                    f"{self.samples}/s"
                ),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self.bar.start()
            self.bar.add_task(
                "train",
                total=trainer.steps_per_epoch * trainer.config.epochs,
                completed=trainer.progress.step,
                epoch=_counted(trainer, trainer.progress.epoch + 1),
                loss="-",
                accuracy="-",
                validation="-",
                speed="-",
            )

    def step(self, progress: TrainingProgress) -> None:
        """Move the bar, twice a second at most: reading the sums waits for the device."""
        now = monotonic()
        if self.bar is None or self.trainer is None or now - self.last_refresh < _REFRESH_SECONDS:
            return
        self.last_refresh = now
        sums = self.trainer.sums.tolist()
        count = max(sums[5], 1.0)
        images = (progress.step - self.begin_step) * self.trainer.config.batch_size
        self.bar.update(
            self.bar.task_ids[0],
            completed=progress.step,
            epoch=_counted(self.trainer, progress.epoch + 1),
            loss=f"{sums[1] / count:.3f}",
            accuracy=self.trainer.task.format(sums[4] / count),
            speed=f"{images / (now - self.begin_time):,.0f}",
        )

    def epoch(self, report: EpochReport, timing: dict[str, Any]) -> None:
        """Show the validation accuracy, or print the epoch's line."""
        skipped = report.nonfinite_steps
        assert self.trainer is not None
        task = self.trainer.task
        if self.bar is not None:
            if report.validation_accuracy is not None:
                shown = task.format(report.validation_accuracy)
                self.bar.update(self.bar.task_ids[0], validation=shown)
            if skipped > self.num_skipped:
                self.note(f"epoch {report.epoch}: {skipped} steps skipped so far")
            self.num_skipped = skipped
            return
        accuracy = report.validation_accuracy
        remaining = (self.trainer.config.epochs - report.epoch) * timing["seconds"]
        self.console.print(
            f"epoch {_counted(self.trainer, report.epoch)}  loss {report.data_loss:.4f}  "
            f"{task.score} {task.format(report.accuracy)}  "
            + ("" if accuracy is None else f"validation {task.format(accuracy)}  ")
            + f"{timing['images_per_second']:,.0f} {self.samples}/s  {remaining:,.0f} s left"
            + (f"  {skipped} steps skipped" if skipped else "")
        )

    def note(self, text: str) -> None:
        """Print the line."""
        self.console.print(text)

    def end(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def finished(self, run: Run, figures: list[Path]) -> None:
        """Say how good the network is and where everything lies."""
        summary = run.summary
        if summary is None:
            return
        test, task = summary["test"], make_run_task(run.config)
        if self.console.is_interactive:  # where the bar is gone, and no epoch left its line
            self.console.print(_history(run.metrics, self.console, task))
        loss = "not finite" if test["loss"] is None else f"{test['loss']:.3f}"
        best = summary[f"best_validation_{task.score}"]
        self.console.print(
            f"test {task.score} {task.format(test[task.score], 2)} (loss {loss}, "
            f"{test['num_images']:,} {run.config.subject}s) with the weights of epoch "
            f"{summary['best_epoch']}, "
            + (
                "the last: no validation, no selection"
                if best is None
                else f"the best of {summary['epochs']} by validation {task.score} "
                f"({task.format(best, 2)})"
            )
        )
        if figures:
            names = ", ".join(path.name for path in figures if path.suffix == ".png")
            self.console.print(f"figures in {figures[0].parent}: {names}")
        folder = shlex.quote(str(run.folder))
        classes = f"pdecnn report {folder}, pdecnn explore {folder}"
        images = f"pdecnn predict {folder} IMAGE --output DIR"
        self.console.print(f"next: {classes if task.has_classes else images}")


_NUM_AXES_OF_SCORES = 2
_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
_MOST_BARS = 30


def _counted(trainer: Trainer, epoch: int) -> str:
    """'6/20'."""
    total = str(trainer.config.epochs)
    return f"{epoch:>{len(total)}}/{total}"


def _history(epochs: Sequence[dict[str, Any]], console: Console, task: AbstractTask) -> str:
    """A line of bars, from the lowest to the highest score, with both ends in numbers."""
    validated = f"validation_{task.score}"
    kind = task.score if epochs[-1][validated] is None else validated
    values = [epoch[kind] for epoch in epochs]
    groups = min(len(values), _MOST_BARS)
    shown = [values[(k + 1) * len(values) // groups - 1] for k in range(groups)]
    low, high = min(shown), max(shown)
    signs = _ASCII_BARS if console.options.ascii_only else _BARS
    scale = (len(signs) - 1) / (high - low) if high > low else 0.0
    bars = "".join(signs[round((value - low) * scale)] for value in shown)
    name = kind.replace("_", " ")
    first, last = task.format(values[0]), task.format(values[-1])
    return f"{name} {first} {bars} {last}, {len(values)} epochs"


def print_recipes() -> None:
    """All recipes by their data, what needs no data of one's own first, with their equations."""
    by_data: dict[str, list[str]] = {}
    for name in list_recipes():
        by_data.setdefault(recipe(name).data.name, []).append(name)
    table = RichTable("recipe", "equation", "epochs", "levels", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    table.columns[2].justify = "right"
    for data in sorted(by_data, key=lambda one: (needs_folder(one), one in PUBLISHED, one)):
        source = "to download" if data in PUBLISHED else "your own"
        table.add_row()
        table.add_row(f"{data}: {source if needs_folder(data) else 'built in'}", style="bold")
        for name in by_data[data]:
            config = recipe(name)
            training = config.training
            levels = [
                f"{', '.join(map(str, values))} {unit}"
                for values, unit in ((training.level_sizes, "px"), (training.level_steps, "steps"))
                if values is not None
            ]
            equation = _equation_words(config.network)
            table.add_row(name, equation, str(training.epochs), "; ".join(levels))
    console = make_console()
    console.print(table)
    console.print(
        "\nF(Y) = -K^T s(K Y): Y' = F(Y) is a heat equation, the others with F are waves; G is any "
        "layer. Train by `pdecnn train RECIPE`, with `--data DIR` unless the data are built in; "
        "`pdecnn data download NAME` fetches published ones. Settings: `pdecnn settings RECIPE`.",
        style="dim",
    )


def _equation_words(config: NetworkConfig) -> str:
    """'Y' = F(Z), Z' = -F(Y)' of what the integrator declares; G where the layer is not F_sym."""
    layer = "F" if declared(resolve_layer(config.layer), "symmetric") is True else "G"
    return ", ".join(
        f"{equation.unknown}{chr(39) * equation.order} = "
        f"{'-' if equation.sign < 0 else ''}{layer}({equation.argument})"
        for equation in resolve_integrator(config.integrator).equations
    )


def print_settings(found: dict[str, dict[str, Any]]) -> None:
    """Each setting with its type, range and default, and below what it means."""
    console = make_console()
    for key, row in found.items():
        default = "no default" if row["required"] else f"default {value_text(row['default'])}"
        value = f" = {value_text(row['value'])}" if "value" in row else ""
        console.print(f"{key}{value}", style="bold", soft_wrap=True)
        for text in (f"{setting_kind(row)}; {default}", row["meaning"]):
            console.print(indent(fill(text, console.width - 4), "    "), soft_wrap=True)


def setting_kind(row: dict[str, Any]) -> str:
    """What a setting takes: its type, and the words or the range allowed."""
    if isinstance(row["range"], list):
        return f"{row['type']}: {', '.join(row['range'])}"
    return f"{row['type']} in {row['range']}" if row["range"] else str(row["type"])


def value_text(value: Any) -> str:
    """A value as `--set` takes it, an empty list in a word."""
    return "none" if value == [] else setting_text(value)


_REMARKABLE_LOSS = 0.05


def print_level(run: Run, figures: dict[str, Any] | None) -> None:
    """Where a coarsened or refined run is and, if measured, how it compares."""
    network, pooling = run.config.network, run.config.data.pooling
    console, samples = make_console(), f"{run.config.subject}s"
    averaged = f", {samples} averaged by {pooling}" if pooling > 1 else ""
    console.print(
        f"{run.folder}: {network.num_steps} steps of {network.step_size} a block, mesh size "
        f"{network.mesh_size:g}{averaged}; train on with `pdecnn train --output {run.folder} "
        f"--resume`",
        soft_wrap=True,
    )
    if figures is None:
        has_classes = make_run_task(run.config).has_classes
        how = "--evaluate" if has_classes else f"`pdecnn evaluate {run.folder}`"
        console.print(f"How accurate it is was not measured: {how} does.", soft_wrap=True)
        return
    rows = [
        (
            name,
            f"{row['accuracy']:.2%}",
            "not finite" if row["loss"] is None else f"{row['loss']:.3f}",
            f"{row['images_per_second']:,.0f}",
            f"{row['num_weights']:,}",
        )
        for name, row in (("original", figures["original"]), ("new", figures))
    ]
    header = ("", "test accuracy", "loss", f"{samples}/s", "weights")
    console.print(terminal_table(Table("", header, rows)))
    lost = figures["original"]["accuracy"] - figures["accuracy"]
    if lost > _REMARKABLE_LOSS:
        console.print(
            f"It lost {100 * lost:.1f} points: the features of the original are not smooth enough "
            f"for this level. Train it on as said above before it is used.",
            soft_wrap=True,
        )


def print_export(exported: dict[str, Any]) -> None:
    """What an exported file takes and gives, and how near to torch it is."""
    inputs, outputs = (list(map(str, exported[f"{end}_axes"])) for end in ("input", "output"))
    axes = inputs[2:]
    cell = exported["multiple_of"]
    multiples = "" if cell == 1 else f" and a multiple of {cell}"
    size = exported["resized_to"]
    resized = "" if size is None else f"; resized to {' x '.join(map(str, size))}"
    sizes = f"; {' and '.join(axes)} at least {exported['smallest_size']}{multiples}{resized}"
    if isinstance(exported["input_axes"][-1], int):  # one size alone, which is said
        sizes = ""
    print(f"{exported['file']}: written and compared with torch")
    print(f"  takes   {exported['pixels']} pixels ({', '.join(inputs)}){sizes}")
    gives = "scores" if exported["class_names"] else "features"
    if len(outputs) > _NUM_AXES_OF_SCORES:
        gives = "scores of each pixel" if exported["class_names"] else f"{SUBJECTS[len(axes)]}s"
    print(f"  gives   {gives} ({', '.join(outputs)})")
    print(
        f"  differs by at most {exported['largest_relative_difference']:.1e} of the largest score "
        f"on {len(exported['compared_shapes'])} batches of random {SUBJECTS[len(axes)]}s"
    )


def print_models(counts: dict[str, int]) -> None:
    """A table of all networks, and which of them come trained."""
    trained = list_models(pretrained=True)
    table = RichTable("model", "weights", "pretrained", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for name, count in counts.items():
        is_trained = name in trained
        style = "bold" if is_trained else None
        table.add_row(name, f"{count:,}", "yes" if is_trained else "", style=style)
    console = make_console()
    console.print(table)
    console.print(
        "\npretrained: create_model(NAME, pretrained=True), or NAME for a command's RUN|MODEL.",
        style="dim",
    )


def print_published() -> None:
    """A table of the data sets that can be fetched."""
    header = ("name", "title", "images", "classes", "MB", "archive")
    rows = [
        (
            name,
            first.title,
            f"{first.num_train:,} + {first.num_test:,}",
            str(first.num_classes),
            f"{first.num_bytes / 1e6:,.0f}",
            first.archive,
        )
        for name, (first, *_) in PUBLISHED.items()
    ]
    make_console().print(terminal_table(Table("", header, rows, num_names=len(header))))


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
