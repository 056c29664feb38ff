"""The head and the foot of the page: what came of each run, what can be compared, all settings."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pdecnn.data.registry import OWN
from pdecnn.reports.html import Markup, definitions, details, table, tag
from pdecnn.reports.page_runs import PageRun, ShownRun
from pdecnn.reports.recorded import short_commit
from pdecnn.runs.config import GROUPS
from pdecnn.runs.runs import TIME_LIMIT

_STOPPED = {
    "completed": "finished",
    "early_stopping": "finished early: validation did not improve any more",
    TIME_LIMIT: "not finished: stopped at its time limit",
}


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
    runs: Sequence[ShownRun],
    facts: Sequence[dict[str, str | None]],
    *,
    always: str,
    warnings: Sequence[Markup] = (),
) -> Markup:
    """What differs as a table, with one fact `always` among it; then what the runs share."""
    several = len(runs) > 1
    differing = [
        name for name in facts[0] if name == always or len({fact[name] for fact in facts}) > 1
    ]
    shared = [(name, value) for name, value in facts[0].items() if name not in differing]
    if not several:
        config, folder = runs[0].config, runs[0].run.folder
        definition = definitions([*shared, ("recipe", config.recipe), ("run", str(folder))])
        return tag("div", warnings, definition)
    rows = [
        (swatched(run), *(fact[name] or "-" for name in differing))
        for run, fact in zip(runs, facts, strict=True)
    ]
    num_names = 1 + sum(name in _WORDS for name in differing)
    caption = "The runs side by side"
    return tag(
        "div",
        table(("run", *differing), rows, num_names=num_names, caption=caption),
        warnings,
        tag("p", "All runs", class_="shared"),
        definitions(shared),
    )


def swatched(run: ShownRun) -> Markup:
    """The name of a run with its colour."""
    swatch = tag("span", class_=f"swatch c{run.place % 6}", aria_hidden="true")
    return tag("span", swatch, run.name, class_="run", title=str(run.run.folder))


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
    parts = (run.environment.get(key) for key in ("hardware", "versions"))
    hardware, versions = (part if isinstance(part, dict) else {} for part in parts)
    num_weights = None if run.summary is None else run.summary["num_weights"]
    num_weights = num_weights if run.diagnosis is None else run.diagnosis.num_weights
    num_ranks = run.run.num_ranks
    levels = f" in {training.num_levels} levels" if training.num_levels > 1 else ""
    return {
        "data": _data(run),
        "network": network_words(run),
        "status": status(run),
        "test accuracy": f"{test['accuracy']:.2%}" if test else "not tested",
        "test loss": written(test["loss"], "{:.4f}") if test else None,
        "balanced accuracy": f"{test['balanced_accuracy']:.2%}" if test else None,
        "best validation": _best(run),
        "steps a block": ", ".join(dict.fromkeys(map(str, network.block_num_steps))),
        "channels": ", ".join(map(str, network.channels)),
        "weights": None if num_weights is None else f"{num_weights:,}",
        "epochs": f"{len(run.metrics)} of {training.epochs}{levels}",
        "time": duration(run.seconds),
        "processes": str(num_ranks) if num_ranks > 1 else None,
        "seed": str(config.seed),
        "hardware": str(hardware.get("gpu") or hardware.get("processor") or "unknown"),
        "versions": f"pdecnn {versions.get('pdecnn', '?')}, torch {versions.get('torch', '?')}",
        "commit": short_commit(run.environment),
    }


def network_words(run: ShownRun) -> str:
    """Its layers and its integrator."""
    network = run.config.network
    return f"{network.layer} layers, {network.resolved_integrator.name.replace('_', ' ')}"


def _limits(runs: Sequence[PageRun]) -> list[str]:
    """What must not be compared, in sentences."""
    said = []
    tested = {  # as far as is known
        run.examination.test_set
        if run.examination
        else repr((run.config.data.name, run.class_names))
        for run in runs
        if run.test is not None
    }
    different = len(tested) > 1
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


def written(value: float | None, form: str) -> str:
    """A number; files have none where it was not finite."""
    return "not finite" if value is None else form.format(value)


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


def draw_config(runs: Sequence[ShownRun]) -> Markup:
    """What differs, of several runs; and every setting, which `--set` takes by its name."""
    configs = [dict(_settings(run.config.to_dict())) for run in runs]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    rows = [(key, [config.get(key) for config in configs]) for key in keys]
    header = ["setting", *(["value"] if len(runs) == 1 else [run.name for run in runs])]
    groups = []
    for group in ("", *GROUPS):
        chosen = [row for row in rows if row[0].rpartition(".")[0] == group]
        title = group.capitalize() or "Run"
        groups.append(tag("div", tag("h3", title), _table(header, chosen, title), class_="group"))
    every = details("All settings", tag("div", groups, class_="groups"))
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


def _table(header: list[str], rows: list[tuple[str, list[Any]]], caption: str) -> Markup:
    cells = [
        (
            tag("code", key),
            *(tag("span" if one == values[0] else "strong", _text(one)) for one in values),
        )
        for key, values in rows
    ]
    return table(header, cells, num_names=len(header), caption=caption, class_="settings")


def _text(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def _settings(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if key in GROUPS:
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield key, value
