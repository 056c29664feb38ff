"""TensorBoard events beside the metrics, where TensorBoard is installed."""

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pdecnn.learning.metrics import EpochReport


class EventWriter:
    """Writes every figure of an epoch as a scalar; does nothing without TensorBoard."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._installed = find_spec("tensorboard") is not None
        self._writer: Any = None

    def write(self, report: EpochReport, timing: dict[str, Any]) -> None:
        """Add the figures of an epoch."""
        if not self._installed:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder))
        for name, value in (report._asdict() | timing).items():
            if name != "epoch" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, report.epoch)
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            with suppress(OSError):  # every write was flushed, and its failure reported
                self._writer.close()
