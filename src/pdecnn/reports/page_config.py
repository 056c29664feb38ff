"""The settings of the runs on the page, in columns, with what differs marked."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pdecnn.reports.page_html import Markup, details, table, tag
from pdecnn.reports.page_runs import PageRun
from pdecnn.runs.config import GROUPS


def draw_config(runs: Sequence[PageRun]) -> Markup:
    """What differs, of several runs; and every setting, which `--set` takes by its name."""
    configs = [dict(_settings(run.config.to_dict())) for run in runs]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    rows = [(key, [config.get(key) for config in configs]) for key in keys]
    header = ["setting", *(["value"] if len(runs) == 1 else [run.name for run in runs])]
    if len(runs) == 1:
        return tag("div", _grouped(header, rows), class_="groups")
    differing = [row for row in rows if any(value != row[1][0] for value in row[1])]
    said = f"{len(differing)} of {len(rows)} settings differ."
    return tag(
        "div",
        tag("p", said if differing else "The runs have the same settings."),
        _table(header, differing, "Settings that differ") if differing else None,
        details("All settings", _grouped(header, rows)),
    )


def _grouped(header: list[str], rows: list[tuple[str, list[Any]]]) -> Iterator[Markup]:
    """A table for each group: the run, its network, data and training."""
    for group in ("", *GROUPS):
        chosen = [row for row in rows if row[0].rpartition(".")[0] == group]
        title = group.capitalize() or "Run"
        yield tag("div", tag("h4", title), _table(header, chosen, title), class_="group")


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
