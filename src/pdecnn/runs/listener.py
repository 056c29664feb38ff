"""Who is told how a run goes; the default listener keeps silent."""

from pathlib import Path
from typing import Any

from pdecnn.learning.metrics import EpochReport
from pdecnn.learning.progress import Progress
from pdecnn.learning.trainer import Trainer
from pdecnn.runs.runs import Run


class Listener:
    """Receives the events of a run; subclasses show them."""

    def begin(self, folder: Path, trainer: Trainer) -> None:
        """Training begins or goes on."""

    def step(self, progress: Progress) -> None:
        """A batch is done."""

    def epoch(self, report: EpochReport, timing: dict[str, Any]) -> None:
        """An epoch is done and saved."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def end(self) -> None:
        """Training ended, for whatever reason."""

    def finished(self, run: Run, figures: list[Path]) -> None:
        """The run has its summary and its figures."""
