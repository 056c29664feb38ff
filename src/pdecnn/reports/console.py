"""How a run looks in a terminal, and in a log file."""

from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from pdecnn.learning.metrics import EpochReport
from pdecnn.learning.progress import Progress as TrainingProgress
from pdecnn.learning.trainer import Trainer
from pdecnn.runs.runs import Run
from pdecnn.runs.training import Listener

_REFRESH_SECONDS = 0.5
_LARGEST_BAR, _WIDTH_BESIDE_BAR = 20, 73


class ConsoleListener(Listener):
    """A live bar on a terminal that can draw it, one plain line an epoch elsewhere."""

    def __init__(self, *, to_stderr: bool = False) -> None:
        self.console = Console(stderr=to_stderr, highlight=False, markup=False, emoji=False)
        # A log, or a terminal that can move no cursor, has no width to wrap at.
        self.console.soft_wrap = not self.console.is_interactive
        self.trainer: Trainer | None = None
        self.bar: Progress | None = None
        self.last_refresh = 0.0
        self.begin_time = monotonic()
        self.begin_step = 0
        self.num_skipped = 0

    def begin(self, folder: Path, trainer: Trainer) -> None:
        """Say what is trained on what, and start the bar on a terminal."""
        self.trainer = trainer
        device = trainer.sums.device
        self.console.print(
            f"{folder}: {trainer.network.num_weights:,} weights, {len(trainer.train):,} training "
            f"and {len(trainer.validation):,} validation images, {trainer.config.epochs} epochs "
            f"on {device}{_ranks(trainer)}, seed {trainer.seed}"
        )
        self.begin_time, self.begin_step = monotonic(), trainer.progress.step
        if self.console.is_interactive:
            room = self.console.width - _WIDTH_BESIDE_BAR
            self.bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(bar_width=min(max(room, 1), _LARGEST_BAR)),
                TextColumn(
                    "loss {task.fields[loss]}  accuracy {task.fields[accuracy]} "
                    "(val. {task.fields[validation]})  {task.fields[speed]} images/s"
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
                epoch=trainer.progress.epoch + 1,
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
            epoch=progress.epoch + 1,
            loss=f"{sums[1] / count:.3f}",
            accuracy=f"{sums[4] / count:.1%}",
            speed=f"{images / (now - self.begin_time):,.0f}",
        )

    def epoch(self, report: EpochReport, timing: dict[str, Any]) -> None:
        """Show the validation accuracy, or print the epoch's line."""
        skipped = report.nonfinite_steps
        if self.bar is not None:
            shown = f"{report.validation_accuracy:.1%}"
            self.bar.update(self.bar.task_ids[0], validation=shown)
            if skipped > self.num_skipped:
                self.note(f"epoch {report.epoch}: {skipped} steps skipped so far")
            self.num_skipped = skipped
            return
        assert self.trainer is not None
        remaining = (self.trainer.config.epochs - report.epoch) * timing["seconds"]
        self.console.print(
            f"epoch {report.epoch:3d}  loss {report.data_loss:.4f}  accuracy "
            f"{report.accuracy:.1%}  validation {report.validation_accuracy:.1%}  "
            f"{timing['images_per_second']:,.0f} images/s  {remaining:,.0f} s left"
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
        test = summary["test"]
        loss = "not finite" if test["loss"] is None else f"{test['loss']:.3f}"
        self.console.print(
            f"test accuracy {test['accuracy']:.2%} (loss {loss}, "
            f"{test['num_images']:,} images) with the weights of epoch {summary['best_epoch']}, "
            f"the best of {summary['epochs']} by validation accuracy "
            f"({summary['best_validation_accuracy']:.2%})"
        )
        if figures:
            names = ", ".join(path.name for path in figures if path.suffix == ".png")
            self.console.print(f"figures in {figures[0].parent}: {names}")


def _ranks(trainer: Trainer) -> str:
    return f" with {trainer.ranks.size} ranks" if trainer.ranks.size > 1 else ""
