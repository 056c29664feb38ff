"""The tables and figures of Section 5 as files: each with a page, and one page that shows all."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pdecnn.errors import CheckpointError, system_errors_as
from pdecnn.files import write_all, write_atomically
from pdecnn.reports.figures import without_matplotlib_notices
from pdecnn.reports.paper_text import caption, explain_table, notices, title
from pdecnn.reports.provenance import device_name
from pdecnn.reports.results import Result, read_runs
from pdecnn.reports.table import make_rows, to_csv, to_latex, to_markdown
from pdecnn.runs.paper import TARGETS, Plan

RUNS = "runs"
PAGE = "README.md"
_RUNS_HEADING = "## Runs"
_FIGURE_SUFFIXES = (".png", ".svg")


class Drawn(NamedTuple):
    """What was written, and which runs it lacks."""

    files: list[Path]
    failures: dict[str, str]
    """By name of the run, why it has no result."""


def draw_paper(plan: Plan, output: Path, failures: dict[str, str]) -> Drawn:
    """Write what the finished runs in `output/runs` give.

    What is missing is marked in its place; `failures` say why, by name of the run, where that is
    known already. Every run of the plan has a result or is among those returned.
    """
    results, reasons = read_runs(plan, output / RUNS)
    failures = reasons | failures
    contents, stale = dict[str, bytes](), list[str]()
    with without_matplotlib_notices():
        from pdecnn.reports import style
    from pdecnn.reports.paper_figures import draw_target

    for target in plan.experiments:
        if target == "table1":
            body = _table(plan, results, contents)
        else:
            with style.journal_style():
                figure = draw_target(target, plan, results)
                contents |= {} if figure is None else style.render(target, figure)
            if figure is None:
                stale += [f"{target}{suffix}" for suffix in _FIGURE_SUFFIXES]
            body = _figure(target, plan, drawn=figure is not None)
        page = _page(target, plan, body, results, failures)
        contents[f"{target}.md"] = page.encode()
    with system_errors_as(
        CheckpointError,
        f"{output}: cannot be written",
        "make room or allow writing, then run the same command again (the runs are intact)",
    ):
        output.mkdir(parents=True, exist_ok=True)
        write_all(output, contents)
        for name in stale:  # of runs that are there no more
            (output / name).unlink(missing_ok=True)
        contents[PAGE] = _whole_page(output).encode()
        write_atomically(output / PAGE, contents[PAGE])
    return Drawn([output / name for name in contents], failures)


def _table(plan: Plan, results: dict[str, Result], contents: dict[str, bytes]) -> list[str]:
    """Table 1 in all its forms; returned is what stands on its page."""
    rows = make_rows(plan, results)
    name = {one.dataset: title(one.dataset, plan) for one in plan.experiments["table1"]}
    comments = "".join(f"% {text}\n" for text in [*notices(plan), explain_table(plan)])
    contents["table1.csv"] = to_csv(rows, plan.settings).encode()
    contents["table1.tex"] = (comments + to_latex(rows, name)).encode()
    return [explain_table(plan), "", to_markdown(rows, name)]


def _figure(target: str, plan: Plan, *, drawn: bool) -> list[str]:
    said = caption(target, plan)
    if not drawn:
        return ["Not drawn: no run of it is finished.", ""]
    return [f"![{said}]({target}.png)", "", said, ""]


def _page(
    target: str,
    plan: Plan,
    body: list[str],
    results: dict[str, Result],
    failures: dict[str, str],
) -> str:
    """A table or figure with what it must carry when it is published."""
    lines = [f"# {_heading(target)}", ""]
    for text in notices(plan):
        lines += [f"**{text}**", ""]
    names = dict.fromkeys(
        name for one in plan.experiments[target] for name in plan.run_names(target, one)
    )
    missing = [name for name in names if name not in results]
    if missing:
        lines += [f"**{len(missing)} of {len(names)} runs are missing:**", ""]
        lines += [f"- `{name}`: {failures[name]}" for name in missing] + [""]
    lines += [*body, *_run_list({name: results[name] for name in names if name in results})]
    return "\n".join(lines)


def _run_list(results: dict[str, Result]) -> list[str]:
    lines = [_RUNS_HEADING, "", "Each has its config, environment and history in `runs/`.", ""]
    lines.append("| run | test accuracy % | best epoch | precision | training time |")
    lines.append("|---|---:|---:|---|---:|")
    for name, result in results.items():
        summary = result.summary
        best = f"{summary['best_epoch']} of {summary['epochs']}"
        accuracy = f"{100 * summary['test']['accuracy']:.2f}"
        time = "unknown" if result.seconds is None else f"{result.seconds:,.0f} s"
        lines.append(f"| {name} | {accuracy} | {best} | {result.precision} | {time} |")
    where = dict.fromkeys(_describe(result) for result in results.values())
    return [*lines, "", *(f"- {text}" for text in where), ""]


def _describe(result: Result) -> str:
    """Hardware, versions and commit in a line."""
    environment, shared = result.environment, result.num_parallel
    device, versions = device_name(environment["hardware"]), environment["versions"]
    if shared is not None:
        device += f", {shared} run{'s' * (shared > 1)} at a time"
    return (
        f"{device}; pdecnn {versions['pdecnn']}, commit {environment['commit']}, torch "
        f"{versions['torch']}, Python {versions['python']}"
    )


def _whole_page(output: Path) -> str:
    """All pages of the folder but for their runs, whichever command they are of."""
    lines = ["# The paper's numerical experiments, rebuilt", ""]
    pages = {name: output / f"{name}.md" for name in TARGETS}
    there = {name: path for name, path in pages.items() if path.is_file()}
    for path in there.values():
        text = path.read_text(encoding="utf-8", errors="replace").partition(_RUNS_HEADING)[0]
        lines.append(re.sub(r"^#", "##", text, flags=re.MULTILINE))
    lines += ["## Runs", "", f"Runs, hardware and versions: {_links(there)}.", ""]
    left_out = [name for name in pages if name not in there]
    if left_out:
        commands = ", ".join(f"`pdecnn reproduce {name}`" for name in left_out)
        lines += [f"Not here: {commands}.", ""]
    return "\n".join(lines)


def _links(names: Iterable[str]) -> str:
    return ", ".join(f"[{_heading(name)}]({name}.md)" for name in names)


def _heading(target: str) -> str:
    """'figure4' -> 'Figure 4'."""
    return f"{target[:-1].capitalize()} {target[-1]}"
