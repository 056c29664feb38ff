"""The head and the foot of the page: what came of each run, what can be compared, all settings."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from pdecnn.data.registry import OWN
from pdecnn.reports.html import Markup, definitions, details, table, tag
from pdecnn.reports.page_runs import PageRun
from pdecnn.reports.recorded import short_commit
from pdecnn.runs.config import GROUPS, RunConfig
from pdecnn.runs.runs import TIME_LIMIT

_STOPPED = {
    "completed": "finished",
    "early_stopping": "finished early: validation did not improve any more",
    TIME_LIMIT: "not finished: stopped at its time limit",
}


class Shown(Protocol):
    """What every page says of a run."""

    @property
    def name(self) -> str:
        """The folder's name, or its path where two have the same name."""

    @property
    def place(self) -> int:
        """From 0: its colour."""

    @property
    def folder(self) -> Path:
        """Where it is."""

    @property
    def config(self) -> RunConfig:
        """Its settings."""


def draw_summary(runs: Sequence[PageRun]) -> Markup:
    """What came of the runs: what they share once, what differs as a table, and warnings."""
    several = len(runs) > 1
    warnings = [
        tag("p", tag("b", f"{run.name}: ") if several else None, text, class_="warning")
        for run in runs
        for text in _remarks(run)
    ]
    if several:
        warnings += [tag("p", text, class_="warning") for text in _limits(runs)]
    facts = draw_facts(
        runs, [_facts(run) for run in runs], always="test accuracy", warnings=warnings
    )
    return tag("div", None if several else _hero(runs[0]), facts)


def draw_facts(
    runs: Sequence[Shown],
    facts: Sequence[dict[str, str | None]],
    *,
    always: str,
    warnings: Sequence[Markup] = (),
) -> Markup:
    """What differs as a table, with one fact `always` among it; then what the runs share."""
    several = len(runs) > 1
    differing = [name for name in facts[0] if name == always or not _shared(facts, name)]
    shared = [(name, value) for name, value in facts[0].items() if name not in differing]
    if not several:
        shared += [("recipe", runs[0].config.recipe), ("run", str(runs[0].folder))]
    return tag(
        "div",
        _table_of(runs, facts, differing) if several else None,
        warnings,
        tag("p", "All runs", class_="shared") if several else None,
        definitions(shared),
    )


def _shared(facts: Sequence[dict[str, str | None]], name: str) -> bool:
    return all(one[name] == facts[0][name] for one in facts)


def _table_of(
    runs: Sequence[Shown], facts: Sequence[dict[str, str | None]], differing: Sequence[str]
) -> Markup:
    """A row a run, a column for each fact in which they differ."""
    rows = [
        (swatched(run), *(fact[name] or "-" for name in differing))
        for run, fact in zip(runs, facts, strict=True)
    ]
    num_names = 1 + sum(name in _WORDS for name in differing)
    header = ("run", *differing)
    return table(header, rows, num_names=num_names, caption="The runs side by side")


def swatched(run: Shown) -> Markup:
    """The name of a run with its colour."""
    swatch = tag("span", class_=f"swatch c{run.place % 6}", aria_hidden="true")
    return tag("span", swatch, run.name, class_="run", title=str(run.folder))


def status(run: PageRun) -> str:
    """Whether the run is finished, in words."""
    if run.summary is not None:
        stopped = str(run.summary["stopped"])
        return _STOPPED.get(stopped, f"finished: {stopped}")
    done, all_epochs = len(run.metrics), run.config.training.epochs
    return f"not finished: {done} of {all_epochs} epochs"


def _hero(run: PageRun) -> Markup | None:
    test = run.test
    if test is None:
        return None
    correct = sum(row[k] for k, row in enumerate(test["confusion"]))
    tested = f"{correct:,} of {test['num_images']:,} {run.subject}s"
    said = f"test accuracy: {tested}, {run.weights} weights"
    return tag("p", tag("strong", f"{test['accuracy']:.2%}"), " ", tag("span", said), class_="hero")


def _remarks(run: PageRun) -> Iterator[str]:
    """Where the numbers come from, if that is not what one expects."""
    if not run.is_finished:
        yield f"{status(run)}."
    if run.notice is not None:
        left = "" if run.summary is None else " The figures are those it was left with."
        yield f"{run.notice}.{left}"
    elif run.examination is None and run.summary is None:
        yield f"It has no {run.weights} weights yet."
    elif run.examination is None:
        yield f"No {run.weights} weights are in the run: the figures are those it was left with."
    elif run.summary is not None and run.weights == "best":
        before, now = run.summary["test"]["accuracy"], run.examination.evaluation.accuracy
        if before != now:
            yield (
                f"At its end the run itself measured {before:.2%}; the figures here were measured "
                f"anew, on another device or with other versions."
            )


_WORDS = ("data", "network", "status")
"""Facts that are no numbers: first in the table."""


def _facts(run: PageRun) -> dict[str, str | None]:
    """All that is said of a run in a word or two, under the same names for every run."""
    config, test = run.config, run.test or {}
    network, training = config.network, config.training
    hardware = _part(run.environment, "hardware")
    versions = _part(run.environment, "versions")
    levels = f" in {training.num_levels} levels" if training.num_levels > 1 else ""
    return {
        "data": _data(run),
        "network": network_words(config),
        "status": status(run),
        "test accuracy": _percent(test.get("accuracy")) or "not tested",
        "test loss": _loss(test) if test else None,
        "balanced accuracy": _percent(test.get("balanced_accuracy")),
        "best validation": _best(run),
        "steps a block": ", ".join(dict.fromkeys(map(str, network.block_num_steps))),
        "channels": ", ".join(map(str, network.channels)),
        "weights": _num_weights(run),
        "epochs": f"{len(run.metrics)} of {training.epochs}{levels}",
        "time": duration(run.seconds),
        "processes": str(run.num_ranks) if run.num_ranks > 1 else None,
        "seed": str(config.seed),
        "hardware": str(hardware.get("gpu") or hardware.get("processor") or "unknown"),
        "versions": f"pdecnn {versions.get('pdecnn', '?')}, torch {versions.get('torch', '?')}",
        "commit": short_commit(run.environment),
    }


def network_words(config: RunConfig) -> str:
    """Its layers and its integrator."""
    integrator = config.network.resolved_integrator.name.replace("_", " ")
    return f"{config.network.layer} layers, {integrator}"


def _limits(runs: Sequence[PageRun]) -> list[str]:
    """What must not be compared, in sentences."""
    said = []
    different = len({_tested_on(run) for run in runs if run.test is not None}) > 1
    if different:
        names = "; ".join(f"{run.name}: {_data(run)}" for run in runs)
        said.append(
            f"The runs have different test sets, so that accuracies and losses cannot be compared "
            f"({names})."
        )
    folders = {run.config.data.folder for run in runs if run.config.data.name in OWN}
    if len(folders) > 1 and not different:
        places = ", ".join(sorted(map(str, folders)))
        said.append(
            f"The runs were trained on data in different places ({places}): their test labels "
            f"are the same, but their {runs[0].subject}s may not be."
        )
    fractions = {(run.config.seed, run.config.data.validation_fraction) for run in runs}
    splits = {(seed, fraction) for seed, fraction in fractions if fraction}
    if len(splits) > 1 and not different:
        said.append(
            f"The runs hold out different validation {runs[0].subject}s (by their seeds or "
            f"fractions): validation accuracies differ for that alone."
        )
    return said


def _tested_on(run: PageRun) -> str:
    """Equal for runs that were tested on the same images, as far as is known."""
    if run.examination is not None:
        return run.examination.test_set
    return repr((run.config.data.name, run.class_names))


def duration(seconds: float | None) -> str:
    """45 s, 2 min 5 s or 3 h 20 min."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _part(values: dict[str, Any], key: str) -> dict[str, Any]:
    part = values.get(key)
    return part if isinstance(part, dict) else {}


def _loss(test: dict[str, Any]) -> str:
    return "not finite" if test["loss"] is None else f"{test['loss']:.4f}"


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.2%}"


def _best(run: PageRun) -> str | None:
    if run.best is None:
        return None
    accuracy, epoch = run.best["validation_accuracy"], run.best["epoch"]
    if accuracy is None:
        return f"none, the weights are those of epoch {epoch}"
    return f"{accuracy:.2%} in epoch {epoch}"


def _data(run: PageRun) -> str:
    data, classes = run.config.data, run.config.network.num_classes
    words = [f"{data.name}, {classes} classes"]
    if data.fraction < 1:
        words.append(f"{data.fraction:.0%} of the training {run.subject}s")
    return ", ".join(words)


def _num_weights(run: PageRun) -> str | None:
    if run.diagnosis is not None:
        return f"{run.diagnosis.num_weights:,}"
    return None if run.summary is None else f"{run.summary['num_weights']:,}"


def draw_config(runs: Sequence[Shown]) -> Markup:
    """What differs, of several runs; and every setting, which `--set` takes by its name."""
    configs = [dict(_settings(run.config.to_dict())) for run in runs]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    rows = [(key, [config.get(key) for config in configs]) for key in keys]
    header = ["setting", *(["value"] if len(runs) == 1 else [run.name for run in runs])]
    every = details("All settings", tag("div", _grouped(header, rows), class_="groups"))
    if len(runs) == 1:
        return every
    differing = [row for row in rows if any(value != row[1][0] for value in row[1])]
    said = f"{len(differing)} of {len(rows)} settings differ."
    return tag(
        "div",
        tag("p", said if differing else "The runs have the same settings."),
        _table(header, differing, "Settings that differ") if differing else None,
        every,
    )


def _grouped(header: list[str], rows: list[tuple[str, list[Any]]]) -> Iterator[Markup]:
    """A table for each group: the run, its network, data and training."""
    for group in ("", *GROUPS):
        chosen = [row for row in rows if row[0].rpartition(".")[0] == group]
        title = group.capitalize() or "Run"
        yield tag("div", tag("h3", title), _table(header, chosen, title), class_="group")


def _table(header: list[str], rows: list[tuple[str, list[Any]]], caption: str) -> Markup:
    cells = [
        (tag("code", key), *(_value(value, differs=value != values[0]) for value in values))
        for key, values in rows
    ]
    return table(header, cells, num_names=len(header), caption=caption, class_="settings")


def _value(value: Any, *, differs: bool) -> Markup:
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    return tag("strong" if differs else "span", text)


def _settings(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if key in GROUPS:
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield key, value
