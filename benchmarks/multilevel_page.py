"""The page and figure of `benchmarks.multilevel`: training in levels, coarsened networks."""

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.multilevel_figure import draw_courses
from benchmarks.provenance import measured_on
from pdecnn.errors import ConfigError
from pdecnn.files import write_all, write_json
from pdecnn.networks.multilevel import INTERPOLATIONS
from pdecnn.reports import style
from pdecnn.reports.recorded import TIES

JSON_FILE, PAGE_FILE = "multilevel.json", "multilevel.md"
TITLES = {
    "digits": "Digits",
    "cifar10": "CIFAR-10",
    "rediscretized": "CIFAR-10 in re-discretised levels",
    "smooth": "CIFAR-10 learned from smooth images",
    "published": "The published CIFAR-10 networks",
}
POINTS, SAVING = 0.5, 0.25
_SINGLE = "single"
_VARIANTS = {
    "full size": "full-size images",
    "as it is": "half size, stencils as they are",
    "rediscretize": "half size, re-discretised",
    "galerkin": "half size, Galerkin",
    "smoothed": "full size, images averaged and interpolated back",
}
_AT_HALF_SIZE = ("as it is", "rediscretize", "galerkin")


def write_multilevel(dataset: str, result: dict[str, Any], folder: Path) -> list[Path]:
    """Write the result of a data set beside those of others, the page and the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JSON_FILE
    results = json.loads(path.read_bytes()) if path.exists() else {}
    if result["quick"] and not results.get(dataset, result)["quick"]:
        raise ConfigError(
            f"{path}: holds a full measurement, which a quick one must not replace; choose another "
            f"--output"
        )
    results = {name: part for name, part in (results | {dataset: result}).items() if name in TITLES}
    write_json(path, results)
    contents = {PAGE_FILE: multilevel_page(results).encode()}
    if dataset not in _COARSENED:
        contents |= _figure(dataset, result["runs"])
    return [path, *write_all(folder, contents)]


def _figure(dataset: str, runs: list[dict[str, Any]]) -> dict[str, bytes]:

    with style.journal_style():
        return style.render(figure_name(dataset), draw_courses(runs))


def figure_name(dataset: str) -> str:
    """The stem of the figure's file."""
    return f"multilevel-{dataset}"


def multilevel_page(results: dict[str, Any]) -> str:
    """All results as a page."""
    lines = [
        f"# Multilevel{_headline(results)}",
        "",
        "Training from coarse to fine images beside training at full size, and networks",
        "coarsened to half the size after training. Written by `benchmarks.multilevel`; every",
        "run with its config is in `multilevel.json`. Accuracies in % are those of the",
        "test images, with the weights of the best validation accuracy of the last level,",
        f"{_ties(results)}.",
        "",
        "Half-size images are standardised at full size, then averaged. A coarsened network",
        "approximates the original one on images averaged and interpolated back, the last row of",
        "its table.",
        "",
    ]
    for dataset in TITLES:
        if dataset in results:
            lines += _section(dataset, results[dataset])
    return "\n".join(lines)


def _headline(results: dict[str, Any]) -> str:
    """What the digits' levels save, where they were measured."""
    runs = results.get("digits", {}).get("runs", ())
    levels = [run for run in runs if run["name"] != _SINGLE]
    single = [run for run in runs if run["name"] == _SINGLE]
    if not (levels and single):
        return ""
    saved = 1 - _mean(levels, "seconds") / _mean(single, "seconds")
    return f": {saved:.0%} less time on the digits"


def _ties(results: dict[str, Any]) -> str:
    """Which of equal epochs it is."""
    runs = [run for result in results.values() for run in result.get("runs", ())]
    rules = {run["config"]["training"].get("ties", "first") for run in runs}
    return TIES[rules.pop()] if len(rules) == 1 else "of equal ones as each config has it"


def _section(dataset: str, result: dict[str, Any]) -> list[str]:
    rows = result["coarsened"]
    lines = [f"## {TITLES[dataset]}", ""]
    if result["quick"]:
        lines += ["**Quick version: tiny networks, only to see that everything runs.**", ""]
    if dataset in _COARSENED:
        environment = result["environment"]
        lines += [_COARSENED[dataset](result), f"{measured_on(environment)}{_load(environment)}."]
        lines.append("")
        groups = _by_dynamics(rows) if dataset == "smooth" else {"": rows}
        for title, mine in groups.items():
            lines += [f"### {title}", ""] if title else []
            lines += [*_coarsening_table(mine), "", *_coarsening_verdicts(mine), ""]
        return lines
    runs = result["runs"]
    lines += [_conditions(result), ""]
    lines += ["### Training", "", *_training_table(runs), "", *_verdicts(runs), ""]
    lines += [f"![Validation accuracy over work and time]({figure_name(dataset)}.png)", ""]
    lines += ["### Coarsening", "", *_coarsening_table(rows), "", *_coarsening_verdicts(rows), ""]
    if "refined" in result:
        lines += ["### Refining in time", "", *_refinement_table(result["refined"]), ""]
    return lines


def _training_table(runs: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| training | epochs | mean | by seed | TFLOP | seconds | without compiling |",
        "|---|---|--:|---|--:|--:|--:|",
    ]
    for name in _names(runs):
        mine = [run for run in runs if run["name"] == name]
        accuracies = [100 * run["test_accuracy"] for run in mine]
        lines.append(
            f"| {_described(mine[0])} | {mine[0]['epochs']} | {statistics.mean(accuracies):.2f} | "
            f"{_each(accuracies)} | {_tera(_mean(mine, 'work'))} | "
            f"{_mean(mine, 'seconds'):.1f} | {_mean(mine, 'steady_seconds'):.1f} |"
        )
    return lines


def _verdicts(runs: list[dict[str, Any]]) -> list[str]:
    """What was aimed at, and whether it holds, in numbers."""
    single = [run for run in runs if run["name"] == _SINGLE]
    lines = []
    for name in _names(runs):
        if name == _SINGLE:
            continue
        mine = [run for run in runs if run["name"] == name]
        gain = 100 * (_mean(mine, "test_accuracy") - _mean(single, "test_accuracy"))
        saved = {
            key: 1 - _mean(mine, key) / _mean(single, key)
            for key in ("seconds", "steady_seconds", "work")
        }
        near = gain >= -POINTS
        lines.append(
            f"- **{_described(mine[0])}**: {gain:+.2f} points against a single level, in "
            f"{saved['seconds']:.0%} less time ({saved['steady_seconds']:.0%} without compiling, "
            f"{saved['work']:.0%} less work). Aim: within {POINTS} points, at least {SAVING:.0%} "
            f"less time. {_holds('Accuracy', near)}; {_holds('time', saved['seconds'] >= SAVING)}; "
            f"{_holds('time without compiling', saved['steady_seconds'] >= SAVING)}."
        )
    return lines


def _coarsening_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| network | mean | each | after an epoch | each | images/s |",
        "|---|--:|---|--:|---|--:|",
    ]
    for variant, title in _VARIANTS.items():
        mine = [row for row in rows if row["variant"] == variant]
        before = [100 * row["test_accuracy"] for row in mine]
        after = [100 * row["tuned_test_accuracy"] for row in mine if "tuned_test_accuracy" in row]
        tuned = f"{statistics.mean(after):.2f} | {_each(after)}" if after else "| "
        speeds = [row["images_per_second"] for row in mine if "images_per_second" in row]
        speed = f"{statistics.mean(speeds):,.0f}" if speeds else ""
        lines.append(
            f"| {title} | {statistics.mean(before):.2f} | {_each(before)} | {tuned} | {speed} |"
        )
    return lines


def _coarsening_verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """Means compared, and in how many networks it is so: one that failed can decide a mean."""
    lines = []
    for key, when in (
        ("test_accuracy", "Without retraining"),
        ("tuned_test_accuracy", "After one epoch"),
    ):
        found = {
            variant: [100 * row[key] for row in rows if row["variant"] == variant]
            for variant in _AT_HALF_SIZE
        }
        kept = found.pop("as it is")
        best = max(found, key=lambda variant: statistics.mean(found[variant]))
        mean, kept_mean = statistics.mean(found[best]), statistics.mean(kept)
        word = "beats" if mean > kept_mean else "does not beat"
        wins = sum(mine > other for mine, other in zip(found[best], kept, strict=True))
        lines.append(
            f"- {when} the better coarsening ({best}, {mean:.2f}) {word} the stencils as they are "
            f"({kept_mean:.2f}): {mean - kept_mean:+.2f} points; it is better for {wins} of "
            f"{len(kept)} networks."
        )
    return lines


def _refinement_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "Twice as many steps of half the size without retraining, one seed: only small steps are",
        "near a limit. Three steps of 1, as the paper has them, are not.",
        "",
        "| dynamics | steps | as trained | constant weights | change | linear weights | change |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        before = 100 * row["test_accuracy"]
        cells = [f"{100 * row[way]:.2f} | {100 * row[way] - before:+.2f}" for way in INTERPOLATIONS]
        lines.append(
            f"| {row['dynamics']} | {row['num_steps']} x {row['step_size']:g} | {before:.2f} | "
            f"{' | '.join(cells)} |"
        )
    return lines


def _rediscretized(result: dict[str, Any]) -> str:
    runs = result["runs"]
    seeds = ", ".join(str(run["seed"]) for run in runs)
    return (
        f"`{runs[0]['recipe']}`, {_described(runs[0])}: between levels the PDE's coefficients are "
        f"kept instead of the stencils' entries. Seeds {seeds}, in this order. One epoch more is "
        f"at half size with the last rate of the recipe."
    )


def _smooth(result: dict[str, Any]) -> str:
    config = result["runs"][0]["config"]
    channels = "-".join(map(str, config["network"]["channels"]))
    seeds = ", ".join(map(str, dict.fromkeys(run["seed"] for run in result["runs"])))
    return (
        f"Recipes `*_cifar10` with channels {channels}, {config['training']['epochs']} epochs on "
        f"{config['data']['fraction']:.0%} of the images, each averaged to half the size and "
        f"interpolated back; seeds {seeds}, in this order. Tested, and trained one epoch more at "
        f"half size with the last rate of the recipe, on the images as they are."
    )


def _published(result: dict[str, Any]) -> str:
    return (
        f"`create_model(..., pretrained=True)`: {_networks(result)}, in this order, trained at 32 "
        f"px. One epoch more is at 16 px with the last rate of the recipe, seed 0. Test images in "
        f"float32."
    )


_COARSENED: dict[str, Callable[[dict[str, Any]], str]] = {
    "rediscretized": _rediscretized,
    "smooth": _smooth,
    "published": _published,
}
"""Results about coarsening alone, and what is said about their networks."""


def _by_dynamics(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["network"].partition("-seed")[0], []).append(row)
    return groups


def _networks(result: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(row["network"] for row in result["coarsened"]))


def _conditions(result: dict[str, Any]) -> str:
    environment, runs = result["environment"], result["runs"]
    training = runs[0]["config"]["training"]
    seeds = sorted({run["seed"] for run in runs})
    jobs = max(run["runs_at_a_time"] for run in runs)
    return (
        f"`{runs[0]['recipe']}` with and without its levels, seeds {', '.join(map(str, seeds))}, "
        f"{training['precision']}, {jobs} run(s) at a time{_load(environment)}. "
        f"{measured_on(environment)}. Seconds are those of training and validation; "
        f"without compiling: the first epoch of a level counted as its median one."
    )


def _load(environment: dict[str, Any]) -> str:
    """What else the processors did, which slows a device too."""
    load = environment.get("load_average")
    return "" if load is None else f", load average {load:.1f} at the end"


def _described(run: dict[str, Any]) -> str:
    if run["level_epochs"] is None:
        return "single level"
    words = [
        f"{' → '.join(map(str, run[key]))} {unit}"
        for key, unit in (("level_sizes", "px"), ("level_steps", "steps"))
        if run[key] is not None
    ]
    if run["level_stencils"] != "keep":
        words.append("re-discretised")
    shares = ":".join(f"{length:g}" for length in run["level_epochs"])
    return f"{', '.join(words)}, epochs {shares}"


def _names(runs: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(run["name"] for run in runs))


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float:
    return statistics.mean(float(row[key]) for row in rows)


def _tera(operations: float) -> str:
    number = operations / 1e12
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _each(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _holds(what: str, holds: bool) -> str:
    return f"{what} {'holds' if holds else 'does not hold'}"
