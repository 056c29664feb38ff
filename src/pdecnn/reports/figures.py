"""The figures of a run, drawn from its directory alone."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pdecnn.errors import CheckpointError, system_errors_as
from pdecnn.files import write_all
from pdecnn.reports.recorded import read_metrics, read_summary
from pdecnn.reports.results import read_predictions
from pdecnn.runs.runs import Run

FIGURES = "figures"


def draw_run_figures(run: Run) -> list[Path]:
    """Draw what the run holds, each figure as PNG and SVG, and return the files.

    A run has a convergence figure after its first epoch; the confusion matrix and the predictions
    (Figure 1) once it is finished. The same run gives the same bytes.
    """
    # Here and not above: commands that draw nothing need not wait for matplotlib.
    with without_matplotlib_notices():
        from pdecnn.reports import style
    from pdecnn.reports.confusion import draw_confusion
    from pdecnn.reports.convergence import draw_convergence
    from pdecnn.reports.predictions import draw_predictions

    contents: dict[str, bytes] = {}
    metrics, summary = read_metrics(run), read_summary(run)
    predictions = None
    if summary is not None:
        predictions = read_predictions(run, len(summary["class_names"]))
    with style.journal_style():
        if metrics:
            config = run.config
            title, ties = f"{config.recipe}, seed {config.seed}", config.training.ties
            contents |= style.render("convergence", draw_convergence(metrics, title, ties=ties))
        if summary is not None and predictions is not None:
            names = summary["class_names"]
            contents |= style.render("confusion", draw_confusion(summary["test"], names))
            contents |= style.render("predictions", draw_predictions(predictions, names))
    return _write(run.folder / FIGURES, contents)


def _write(folder: Path, contents: dict[str, bytes]) -> list[Path]:
    with system_errors_as(
        CheckpointError,
        f"{folder}: the figures cannot be written",
        "make room or allow writing (the run itself is intact)",
    ):
        if contents:
            folder.mkdir(exist_ok=True)
        return write_all(folder, contents)


@contextmanager
def without_matplotlib_notices() -> Iterator[None]:
    """Its first import may tell of font caches and folders: no concern of who trains a network."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
