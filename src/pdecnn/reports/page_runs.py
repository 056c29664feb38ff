"""All that the page shows of a run, read from its directory and measured once."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pdecnn.data.registry import OWN, needs_folder
from pdecnn.errors import ConfigError, DataError, DivergedError
from pdecnn.learning.metrics import best_epoch
from pdecnn.reports.attack import RecordedAttack, read_attacks
from pdecnn.reports.certificate import read_certificate
from pdecnn.reports.recorded import read_metrics, read_seconds, read_summary
from pdecnn.runs.config import DataConfig, RunConfig
from pdecnn.runs.diagnosis import Diagnosis, diagnose
from pdecnn.runs.environment import Device
from pdecnn.runs.evaluation import Examination, examine
from pdecnn.runs.preparation import refuse_without_classes
from pdecnn.runs.runs import (
    ENVIRONMENT,
    TIME_LIMIT,
    WEIGHTS,
    Run,
    Weights,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRun:
    """A run as the page shows it."""

    name: str
    """The folder's name, or its path where two have the same name."""
    place: int
    """From 0: its colour."""
    folder: Path
    config: RunConfig
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None
    """None: not finished."""
    environment: dict[str, Any]
    """Where it ran; empty if that is not known."""
    seconds: float | None
    num_ranks: int
    weights: Weights
    examination: Examination | None
    """None: it has no such weights, or they are no numbers."""
    notice: str | None
    """What is wrong with its weights."""
    diagnosis: Diagnosis | None
    diagnosis_missing: str | None
    """Why there is no diagnosis."""
    certificate: dict[str, Any] | None
    """What `pdecnn certify` recorded for these weights."""
    attacks: list[RecordedAttack]
    """What `pdecnn attack` recorded for them."""
    data: Path | None
    """Where its data lie, if they are not built in."""
    num_images: int
    """How many of them are shown."""

    @property
    def subject(self) -> str:
        """What its samples are, a `RunConfig.subject`."""
        return self.config.subject

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
    for place, (run, name) in enumerate(zip(runs, names_of(runs), strict=True)):
        metrics, summary = read_metrics(run), read_summary(run)
        measured: dict[str, Any] = {
            "examination": None,
            "notice": None,
            **_without_diagnosis(weights),
        }
        if (run.folder / weights).is_dir():
            where: dict[str, Any] = {"data": places[place], "weights": weights, "device": device}
            _check_data(run, places[place])
            say(f"{name}: test {run.config.subject}s")
            measured |= _examined(run, where)
            measured |= (
                _diagnosed(run, partial(_say_of, say, name), where) if diagnosis else _LEFT_OUT
            )
        made = PageRun(
            name=name,
            place=place,
            folder=run.folder,
            data=places[place] or _path(run.config.data.folder),
            config=run.config,
            metrics=metrics,
            summary=summary,
            environment=_read_environment(run.folder / ENVIRONMENT),
            seconds=read_seconds(run, len(metrics)),
            num_ranks=run.num_ranks,
            weights=weights,
            certificate=read_certificate(run.folder, weights),
            attacks=read_attacks(run.folder, weights, pairs=num_images > 0),
            num_images=num_images,
            **measured,
        )
        found.append(_sharing_images(made, found))
    return found


_LEFT_OUT = {
    "diagnosis": None,
    "diagnosis_missing": "Left out on request (--no-diagnosis).",
}


def _examined(run: Run, where: dict[str, Any]) -> dict[str, Any]:
    """The test, or why none could be made: what is recorded is worth a page all the same."""
    try:
        return {"examination": examine(run, **where)}
    except DivergedError as error:
        return {"notice": str(error)}


def _without_diagnosis(weights: Weights) -> dict[str, Any]:
    missing = f"The run holds no {weights} weights, so that there is nothing to diagnose."
    return {"diagnosis": None, "diagnosis_missing": missing}


def _diagnosed(run: Run, say: Callable[[str], None], where: dict[str, Any]) -> dict[str, Any]:
    """The diagnosis, or why none could be made: what was tested is worth a page all the same."""
    try:
        return {"diagnosis": diagnose(run, **where, say=say), "diagnosis_missing": None}
    except DivergedError as error:
        say(f"no diagnosis: {error}")
        return {"diagnosis": None, "diagnosis_missing": f"It could not be made: {error}."}


def _sharing_images(run: PageRun, others: Sequence[PageRun]) -> PageRun:
    """The run with the images of another that was tested on the same: one copy is enough."""
    for other in others:
        if run.examination and other.examination and run.test_images == other.test_images:
            images = other.examination.images
            return replace(run, examination=replace(run.examination, images=images))
    return run


def _path(folder: str | None) -> Path | None:
    return None if folder is None else Path(folder)


def _say_of(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"{name}: {text}")


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
        _check_shared(configs)
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


def _check_shared(configs: Sequence[DataConfig]) -> None:
    """Refuse one place for data of several kinds."""
    kinds = {
        (config.name, config.folder if config.name in OWN else None)
        for config in configs
        if needs_folder(config.name)
    }
    if len(kinds) > 1:
        names = ", ".join(sorted(str(folder or name) for name, folder in kinds))
        raise ConfigError(
            f"the runs have different data ({names}); give --data once for each run in their order"
        )


def _read_environment(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}  # nothing depends on it; the page says "unknown"
    return values if isinstance(values, dict) else {}
