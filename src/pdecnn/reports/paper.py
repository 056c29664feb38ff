"""The tables and figures of Section 5 as files, and a page that shows them all."""

from pathlib import Path
from typing import Any

from pdecnn.errors import CheckpointError
from pdecnn.experiments.paper import QUICK_TRAINING, TITLES, Plan
from pdecnn.files import write_atomically
from pdecnn.reports.figures import without_matplotlib_notices
from pdecnn.reports.results import Result, read_result
from pdecnn.reports.table import Row, make_rows, to_csv, to_latex, to_markdown

RUNS = "runs"
PAGE = "README.md"
_QUICK = (
    f"Quick version: {QUICK_TRAINING['epochs']} epochs of small networks on scikit-learn's "
    "digits, which stand in for every data set. It shows that the whole works; its numbers are "
    "not to be compared with the paper's."
)
_CAPTIONS = {
    "figure1": "Four test images ({}) and the probabilities that each network gives.",
    "figure2": "Left: test accuracy against the part of the STL-10 training images that is used, "
    "without augmentation, at the best of each run by 1,000 other images. Right: validation "
    "accuracy after each epoch, as in Table 1. Bars and bands reach from the least to the most of "
    "the seeds.",
    "figure3": "Confusion matrices on the STL-10 test images, all seeds together: a row a network, "
    "a column an amount of training images, without augmentation.",
    "figure4": "Validation accuracy after each epoch ({}). Bands reach from the least to the most "
    "of the seeds.",
}


def draw_paper(plan: Plan, output: Path, failures: dict[str, str]) -> list[Path]:
    """Write what the finished runs in `output/runs` give, and return the files.

    What is missing is marked in its place; `failures` say why, by name of the run.
    """
    runs, contents = output / RUNS, dict[str, bytes]()
    title = f"{'digits in place of ' if plan.quick else ''}{{}}"
    rows = make_rows(plan, runs) if "table1" in plan.experiments else []
    if rows:
        contents["table1.md"] = _table_page(rows, title, plan).encode()
        contents["table1.csv"] = to_csv(rows).encode()
        comment = f"% {_QUICK}\n" if plan.quick else ""
        contents["table1.tex"] = (comment + to_latex(rows, title)).encode()
    with without_matplotlib_notices():
        from pdecnn.reports import style
    from pdecnn.reports.paper_figures import draw_target

    for target in plan.experiments:
        with style.journal_style():
            figure = None if target == "table1" else draw_target(target, plan, runs)
            contents |= {} if figure is None else style.render(target, figure)
    page = _page(plan, runs, rows, title, failures, set(contents))
    contents[PAGE] = page.encode()
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_atomically(output / name, content)
    except OSError as error:
        raise CheckpointError(
            f"{output}: cannot be written ({error.strerror}); make room or allow writing, then "
            f"run the same command again (the runs are intact)"
        ) from error
    return [output / name for name in contents]


def _table_page(rows: list[Row], title: str, plan: Plan) -> str:
    lines = ["# Table 1", ""]
    if plan.quick:
        lines += [f"**{_QUICK}**", ""]
    lines += [_explain_table(plan), "", to_markdown(rows, f"## {title}")]
    return "\n".join(lines)


def _explain_table(plan: Plan) -> str:
    seeds = (
        "one seed" if plan.num_seeds == 1 else f"{plan.num_seeds} seeds, mean ± standard deviation"
    )
    return (
        "Accuracy and cross entropy with the weights of the best validation accuracy, on the test "
        f"images and, as they are, on the training images; {seeds}. `resnet` is a general "
        "residual network of the same widths, which has two stencils where the others have one; "
        "narrowed, its channels are fewer, so that it comes nearest to the weight count of the "
        "parabolic network. Both are ours, not the paper's."
    )


def _page(
    plan: Plan,
    runs: Path,
    rows: list[Row],
    title: str,
    failures: dict[str, str],
    written: set[str],
) -> str:
    """Everything on one page, with what a published figure must carry."""
    lines = ["# The paper's numerical experiments, rebuilt", ""]
    if plan.quick:
        lines += [f"**{_QUICK}**", ""]
    results = {name: read_result(runs / name) for name in plan.runs}
    missing = [name for name, result in results.items() if result is None]
    if missing:
        lines += [f"**{len(missing)} of {len(results)} runs are missing:**", ""]
        lines += [f"- `{name}`: {failures.get(name, 'not finished')}" for name in missing]
        lines.append("")
    notes = [*plan.notes, *(f"changed: {key} = {value}" for key, value in plan.settings.items())]
    lines += [f"- {note}" for note in notes] + [""] * bool(notes)
    if rows:
        lines += ["## Table 1", "", _explain_table(plan), "", to_markdown(rows, f"### {title}")]
    for target in plan.experiments:
        if f"{target}.png" in written:
            names = dict.fromkeys(TITLES[one.dataset] for one in plan.experiments[target])
            caption = _CAPTIONS[target].format(", ".join(names))
            lines += [f"## Figure {target[-1]}", "", f"![{caption}]({target}.png)", "", caption, ""]
    lines += _run_list({name: result for name, result in results.items() if result is not None})
    return "\n".join(lines)


def _run_list(results: dict[str, Result]) -> list[str]:
    lines = ["## Runs", "", "Each has its whole config, environment and history in `runs/`.", ""]
    lines += ["| run | test accuracy % | best epoch | training time |", "|---|---|---|---|"]
    for name, result in results.items():
        summary = result.summary
        best = f"{summary['best_epoch']} of {summary['epochs']}"
        accuracy = f"{100 * summary['test']['accuracy']:.2f}"
        lines.append(f"| {name} | {accuracy} | {best} | {result.seconds:,.0f} s |")
    where = dict.fromkeys(_describe(result.environment) for result in results.values())
    return [*lines, "", *(f"- {text}" for text in where), ""]


def _describe(environment: dict[str, Any]) -> str:
    """Hardware, versions and commit in a line."""
    hardware, versions = environment["hardware"], environment["versions"]
    device = hardware["gpu"] or f"{hardware['processor']}, {hardware['cpu_cores']} cores"
    return (
        f"{device}; pdecnn {versions['pdecnn']}, commit {environment['commit']}, torch "
        f"{versions['torch']}, Python {versions['python']}"
    )
