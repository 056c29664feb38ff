"""The tables and figures of Section 5 as files: each with a page, and one page that shows all."""

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pdecnn.errors import CheckpointError, system_errors_as
from pdecnn.files import write_all, write_atomically
from pdecnn.reports.paper_results import (
    Result,
    changed,
    is_augmented,
    make_rows,
    read_runs,
    seeds,
    title,
    to_csv,
    to_latex,
    to_markdown,
)
from pdecnn.reports.recorded import TIES, device_name
from pdecnn.runs.paper import (
    NARROW,
    TARGETS,
    Dataset,
    Dynamics,
    Plan,
    TargetName,
    count_weights,
    make_plan,
)
from pdecnn.runs.preparation import Device
from pdecnn.runs.queue import run_queue

log = logging.getLogger(__name__)


def notices(plan: Plan) -> list[str]:
    """What keeps the numbers from being compared with the paper's."""
    said = []
    if plan.quick:
        configs = plan.runs.values()
        epochs = _range(config.training.epochs for config in configs)
        weights = _range(count_weights(config.network) for config in configs)
        said.append(
            f"Quick version: {epochs} epochs of networks with {weights} weights on scikit-learn's "
            f"digits, which stand in for every data set. It shows that the whole works; its "
            f"numbers are not to be compared with the paper's."
        )
    return [*said, f"{changed(plan)}."] if plan.settings else said


def explain_table(plan: Plan) -> str:
    """What the numbers of Table 1 are."""
    # One rule for all runs, or they are not of the plan.
    ties = TIES[next(iter(plan.runs.values())).training.ties]
    spread = "" if plan.num_seeds == 1 else ", mean ± sample standard deviation"
    text = (
        "Accuracy and cross entropy with the weights of the best validation accuracy "
        f"({ties}), on the test images and, as they are, on the training images; "
        f"{seeds(plan)}{spread}."
    )
    shown = [one.dynamics for one in plan.experiments["table1"]]
    if "resnet" in shown or NARROW in shown:
        text += (
            " `resnet`, ours and not the paper's, is a general residual network of the same "
            "widths, which has two stencils where the others have one."
        )
    if NARROW in shown:
        widths = ", ".join(
            f"{title(one.dataset, plan)} {'-'.join(map(str, plan.config(one).network.channels))}"
            for one in plan.experiments["table1"]
            if one.dynamics == NARROW
        )
        text += (
            " Narrowed, its channels are fewer, so that it comes nearest to the weight count of "
            f"the parabolic network: {widths}."
        )
    return text


def caption(target: str, plan: Plan) -> str:
    """What a figure shows."""
    experiments = plan.experiments[target]
    names = ", ".join(dict.fromkeys(title(one.dataset, plan) for one in experiments))
    several = plan.num_seeds > 1
    reach = f" reach from the least to the most of the {plan.num_seeds} seeds." if several else ""
    if target == "figure1":
        return f"Test images ({names}) and the probabilities that each network gives, seed 0."
    if target == "figure2":
        whole = [one for one in experiments if one.percentage is None]
        augmentation = "with" if is_augmented(plan, whole) else "without"
        held_out = plan.config(whole[0]).data.validation_fraction
        return (
            f"Left: test accuracy against the part of the training images ({names}) that is "
            f"trained on, without augmentation, at the best epoch of each run by the "
            f"{100 * held_out:g} % held out for validation. Right: validation accuracy after each "
            f"epoch, {augmentation} augmentation, as in Table 1."
            f"{reach and f' Bars and bands{reach}'}"
        )
    if target == "figure3":
        together = f", {plan.num_seeds} seeds together" if several else ""
        return (
            f"Confusion matrices on the test images ({names}){together}: a row a network, a column "
            f"the part of the training images that is trained on, without augmentation."
        )
    return f"Validation accuracy after each epoch ({names}).{reach and f' Bands{reach}'}"


def _range(values: Iterable[int]) -> str:
    numbers = sorted(set(values))
    low, high = f"{numbers[0]:,}", f"{numbers[-1]:,}"
    return low if low == high else f"{low} to {high}"


RUNS, PAGE = "runs", "README.md"
_RUNS_HEADING = "## Runs"


class Drawn(NamedTuple):
    """What was written, and which runs it lacks."""

    files: list[Path]
    failures: dict[str, str]
    """By name of the run, why it has no result."""


def reproduce(
    target: TargetName,
    output: str | Path | None = None,
    *,
    data: str | Path | None = None,
    datasets: Sequence[Dataset] = (),
    dynamics: Sequence[Dynamics] = (),
    num_seeds: int | None = None,
    quick: bool = False,
    settings: dict[str, Any] | None = None,
    num_parallel: int | None = None,
    device: Device = "auto",
) -> Drawn:
    """Rebuild a table or figure of the paper, or 'all': train what is missing, then draw.

    In `output`, or in reproduction (reproduction-quick); runs that are there go on or are kept.
    Returns the files, and what went wrong by the name of the run.
    """
    plan = make_plan(
        target,
        data=None if data is None else Path(data),
        datasets=datasets,
        dynamics=dynamics,
        num_seeds=num_seeds,
        quick=quick,
        settings=settings or {},
    )
    folder = Path(output or ("reproduction-quick" if quick else "reproduction"))
    for note in plan.notes:
        log.info(note)
    failures = run_queue(plan.runs, folder / "runs", device=device, num_parallel=num_parallel)
    drawn = draw_paper(plan, folder, failures)
    log.info("in %s: %s", folder, ", ".join(path.name for path in drawn.files))
    return drawn


def draw_paper(plan: Plan, output: Path, failures: dict[str, str]) -> Drawn:
    """Write what the finished runs in `output/runs` give.

    What is missing is marked in its place; `failures` say why, by name of the run, where that is
    known already. Every run of the plan has a result or is among those returned.
    """
    results, reasons = read_runs(plan, output / RUNS)
    failures = reasons | failures
    contents, stale = dict[str, bytes](), list[str]()
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
                stale += [f"{target}.png", f"{target}.svg"]
            said = caption(target, plan)
            body = [f"![{said}]({target}.png)", "", said, ""]
            body = ["Not drawn: no run of it is finished.", ""] if figure is None else body
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
    links = ", ".join(f"[{_heading(name)}]({name}.md)" for name in there)
    lines += [_RUNS_HEADING, "", f"Runs, hardware and versions: {links}.", ""]
    left_out = [name for name in pages if name not in there]
    if left_out:
        commands = ", ".join(f"`pdecnn reproduce {name}`" for name in left_out)
        lines += [f"Not here: {commands}.", ""]
    return "\n".join(lines)


def _heading(target: str) -> str:
    """'figure4' -> 'Figure 4'."""
    return f"{target[:-1].capitalize()} {target[-1]}"
