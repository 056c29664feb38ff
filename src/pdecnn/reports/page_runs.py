"""All that the page shows of a run, read from its directory and measured once."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pdecnn.data.registry import OWN, needs_folder
from pdecnn.errors import ConfigError, DataError, DivergedError
from pdecnn.files import read_bytes
from pdecnn.learning.metrics import best_epoch
from pdecnn.reports.recorded import read_metrics, read_seconds, read_summary
from pdecnn.reports.robustness import RecordedAttack, read_attacks, read_certificate
from pdecnn.runs.config import RunConfig
from pdecnn.runs.diagnosis import Diagnosis, diagnose
from pdecnn.runs.evaluation import Examination, examine
from pdecnn.runs.preparation import Device, refuse_without_classes
from pdecnn.runs.runs import ENVIRONMENT, TIME_LIMIT, WEIGHTS, Run, Weights


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ShownRun:
    """What every page says of a run."""

    name: str
    """The folder's name, or its path where two have the same name."""
    place: int
    """From 0: its colour."""
    run: Run
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None
    """None: not finished."""
    attacks: list[RecordedAttack]
    """What `pdecnn attack` recorded for the weights that are shown."""

    @property
    def config(self) -> RunConfig:
        """Its settings."""
        return self.run.config

    @property
    def subject(self) -> str:
        """What its samples are, a `RunConfig.subject`."""
        return self.config.subject

    @property
    def seconds(self) -> float | None:
        """How long it trained; None: unknown."""
        return read_seconds(self.run, len(self.metrics))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PageRun(ShownRun):
    """A run with classes as the page shows it."""

    environment: dict[str, Any]
    """Where it ran; empty if that is not known."""
    weights: Weights
    examination: Examination | None = None
    """None: it has no such weights, or they are no numbers."""
    notice: str | None = None
    """What is wrong with its weights."""
    diagnosis: Diagnosis | None = None
    diagnosis_missing: str | None
    """Why there is no diagnosis."""
    certificate: dict[str, Any] | None
    """What `pdecnn certify` recorded for these weights."""
    data: Path | None
    """Where its data lie, if they are not built in."""
    num_images: int
    """How many of them are shown."""

    @property
    def test_images(self) -> tuple[str, str, Path | None] | None:
        """Equal for runs that were tested on the same images; None: it was not tested."""
        if self.examination is None:
            return None
        return self.examination.test_set, self.config.data.name, self.data

    @property
    def test(self) -> dict[str, Any] | None:
        """The figures of the test: measured, or those in the summary of a run without weights."""
        if self.examination is not None:
            found = self.examination.evaluation
            return {**found.to_dict(), "confusion": found.confusion}
        if self.summary is not None and self.weights == "best":
            stored: dict[str, Any] = self.summary["test"]
            return stored
        return None

    @property
    def class_names(self) -> list[str]:
        """Of the data; empty if neither weights nor a summary tell."""
        if self.examination is not None:
            return list(self.examination.class_names)
        return [] if self.summary is None else list(self.summary["class_names"])

    @property
    def best(self) -> dict[str, Any] | None:
        """The epoch whose weights are kept."""
        return None if self.best_place is None else self.metrics[self.best_place]

    @property
    def best_place(self) -> int | None:
        """Its place among the epochs."""
        if not self.metrics:
            return None
        return best_epoch(self.metrics, ties=self.config.training.ties)

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to train."""
        return self.summary is not None and self.summary["stopped"] != TIME_LIMIT


def read_page_runs(
    folders: Sequence[Path],
    *,
    data: Sequence[Path] = (),
    weights: Weights = "best",
    device: Device = "auto",
    num_images: int = 12,
    diagnosis: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> list[PageRun]:
    """Read, test and diagnose every run.

    `data` says where the data of the runs lie now: nothing, one place for all, or one for each.
    """
    if num_images < 0:
        raise ConfigError(f"--images must be at least 0, found {num_images}")
    if weights not in WEIGHTS:
        raise ConfigError(f"weights must be one of {', '.join(WEIGHTS)}, found {weights!r}")
    runs = [Run(folder) for folder in folders]
    for run in runs:
        refuse_without_classes(run.folder, run.config)
    places = _data_of(runs, data)
    found: list[PageRun] = []
    for place, (run, name, where) in enumerate(zip(runs, names_of(runs), places, strict=True)):
        folder = run.config.data.folder
        made = PageRun(
            name=name,
            place=place,
            run=run,
            data=where or (None if folder is None else Path(folder)),
            metrics=read_metrics(run),
            summary=read_summary(run),
            environment=_read_environment(run.folder / ENVIRONMENT),
            weights=weights,
            diagnosis_missing=f"The run holds no {weights} weights, so that there is nothing to "
            f"diagnose.",
            certificate=read_certificate(run.folder, weights),
            attacks=read_attacks(run.folder, weights, pairs=num_images > 0),
            num_images=num_images,
        )
        if (run.folder / weights).is_dir():
            _check_data(run, where)
            say(f"{name}: test {made.subject}s")
            options = {"data": where, "weights": weights, "device": device}
            made = replace(made, **_measured(made, options, say, diagnosis=diagnosis))
            made = _sharing_images(made, found)
        found.append(made)
    return found


def _measured(
    run: PageRun, options: dict[str, Any], say: Callable[[str], None], *, diagnosis: bool
) -> dict[str, Any]:
    """Test and diagnosis, or why they could not be made: what is recorded is worth a page too."""
    found: dict[str, Any] = {"diagnosis_missing": "Left out on request (--no-diagnosis)."}
    try:
        found["examination"] = examine(run.run, **options)
    except DivergedError as error:
        found["notice"] = str(error)
    if not diagnosis:
        return found
    try:
        made = diagnose(run.run, **options, say=lambda text: say(f"{run.name}: {text}"))
        return found | {"diagnosis": made, "diagnosis_missing": None}
    except DivergedError as error:
        say(f"{run.name}: no diagnosis: {error}")
        return found | {"diagnosis_missing": f"It could not be made: {error}."}


def _sharing_images(run: PageRun, others: Sequence[PageRun]) -> PageRun:
    """The run with the images of another that was tested on the same: one copy is enough."""
    for other in others:
        if run.examination and other.examination and run.test_images == other.test_images:
            images = other.examination.images
            return replace(run, examination=replace(run.examination, images=images))
    return run


def names_of(runs: Sequence[Run]) -> list[str]:
    """The names of the folders, or the paths of those that have one name; no run twice."""
    resolved = [run.folder.resolve() for run in runs]
    for k, path in enumerate(resolved):
        if path in resolved[:k]:
            raise ConfigError(f"{runs[k].folder}: given twice; pass each run once")
    names = [path.name for path in resolved]
    return [
        str(run.folder) if names.count(name) > 1 else name
        for run, name in zip(runs, names, strict=True)
    ]


def _check_data(run: Run, data: Path | None) -> None:
    """Say what to do where the data of a run has moved."""
    folder = run.config.data.folder
    if data is None and folder is not None and not Path(folder).exists():
        raise DataError(
            f"{run.folder}: its data was in {folder}, where nothing is now; pass --data with the "
            f"place where it is"
        )


def _data_of(runs: Sequence[Run], data: Sequence[Path]) -> list[Path | None]:
    """Where the data of each run lie, if the user said."""
    if not data:
        return [None] * len(runs)
    configs = [run.config.data for run in runs]
    if not any(needs_folder(config.name) for config in configs):
        raise ConfigError("the data of these runs is built in; leave out --data")
    if len(data) == 1:
        kinds = {
            (config.name, config.folder if config.name in OWN else None)
            for config in configs
            if needs_folder(config.name)
        }
        if len(kinds) > 1:
            names = ", ".join(sorted(str(folder or name) for name, folder in kinds))
            raise ConfigError(
                f"the runs have different data ({names}); give --data once for each run in their "
                f"order"
            )
        data = list(data) * len(runs)
    if len(data) != len(runs):
        raise ConfigError(
            f"--data is given {len(data)} times for {len(runs)} runs; give it once for all runs, "
            f"or once for each in their order"
        )
    # What is built in has no place.
    return [
        where if needs_folder(config.name) else None
        for where, config in zip(data, configs, strict=True)
    ]


def _read_environment(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return {}  # nothing depends on it; the page says "unknown"
    return values if isinstance(values, dict) else {}
