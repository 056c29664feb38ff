"""Tables and figures of the paper from run directories alone, and what is missing is marked."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from pdecnn.errors import CheckpointError
from pdecnn.experiments import paper
from pdecnn.experiments.paper import Experiment, make_plan
from pdecnn.files import write_json
from pdecnn.reports import draw_paper
from pdecnn.reports import paper as reports_paper
from pdecnn.reports.paper_figures import draw_target
from pdecnn.reports.paper_text import caption, explain_table
from pdecnn.reports.results import read_runs
from pdecnn.reports.style import journal_style
from pdecnn.reports.table import LABELS, make_rows, to_csv, to_latex, to_markdown
from tests.paper_results import make_result
from tests.unit.reports.test_figures import texts, words

ACCURACY = {
    "parabolic": 0.77,
    "hamiltonian": 0.78,
    "second_order": 0.74,
    "resnet": 0.7,
    "resnet_narrow": 0.69,
}
FILES = ["table1.md", "table1.csv", "table1.tex", "README.md"] + [
    f"figure{number}.{suffix}" for number in range(1, 5) for suffix in ("md", "png", "svg")
]


def accuracy_of(experiment, seed):
    percentage = experiment.percentage or 80
    return round(ACCURACY[experiment.dynamics] - 0.004 * (80 - percentage) + 0.02 * seed, 4)


def make_results(plan, runs, without=()):
    for several in plan.experiments.values():
        for experiment in several:
            for seed in range(plan.num_seeds):
                name = plan.trained[experiment].run_name(seed)
                if name in plan.runs and name not in without and not (runs / name).exists():
                    accuracy, loss = accuracy_of(experiment, seed), 0.49 + 0.02 * seed
                    make_result(runs / name, plan.runs[name], accuracy, loss=loss)


@pytest.fixture(scope="module")
def plan():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "find_dataset", lambda name, folder: folder / name)
        return make_plan("all", data=paper.Path("data"), num_seeds=2)


@pytest.fixture(scope="module")
def output(plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduction")
    make_results(plan, folder / "runs")
    return folder


@pytest.fixture(scope="module")
def gaps(plan, tmp_path_factory):
    """All but one seed of an experiment, and all seeds of two others."""
    folder = tmp_path_factory.mktemp("gaps")
    without = {"resnet_cifar100-seed1"}
    for name in ("hamiltonian_stl10-40percent", "parabolic_stl10"):
        without |= {f"{name}-seed0", f"{name}-seed1"}
    make_results(plan, folder / "runs", without)
    return folder


@pytest.fixture(scope="module")
def files(plan, output):
    """Everything that is written, by path."""
    return {path: path.read_bytes() for path in draw_paper(plan, output, {}).files}


def only(target, plan, **changes):
    """One target alone, as figures take seconds."""
    return replace(plan, experiments={target: plan.experiments[target]}, **changes)


def only_table(plan):
    return only("table1", plan)


def results_in(plan, output):
    return read_runs(plan, output / "runs")[0]


def drawn(target, plan, output):
    with journal_style():
        figure = draw_target(target, plan, results_in(plan, output))
        figure.draw_without_rendering()
    return figure


# ------------------------------------------------------------------ Table 1


def test_a_row_has_mean_and_deviation_beside_the_paper(plan, output):
    rows = make_rows(plan, results_in(plan, output))
    assert [row.cells() for row in rows[:4:3]] == [
        (
            "parabolic",
            "1,234",
            "78.00 ± 1.41 (0.500 ± 0.014)",
            "99.90 ± 0.00",
            "77.0 (0.711)",
            "2 of 2",
        ),
        (
            "resnet, twice the stencils",
            "1,234",
            "71.00 ± 1.41 (0.500 ± 0.014)",
            "99.90 ± 0.00",
            "-",
            "2 of 2",
        ),
    ]
    assert len(rows) == 15


def test_missing_runs_are_marked_in_the_table(plan, gaps):
    rows = {row.experiment: row.cells() for row in make_rows(plan, results_in(plan, gaps))}
    assert rows[Experiment("parabolic", "stl10")] == (
        "parabolic", "missing", "missing", "missing", "77.0 (0.711)", "0 of 2",
    )  # fmt: skip
    assert rows[Experiment("resnet", "cifar100")][2] == "70.00 (0.490)"
    assert rows[Experiment("resnet", "cifar100")][5] == "1 of 2"


def test_markdown_has_a_table_a_data_set_with_aligned_columns(plan, output):
    text = to_markdown(make_rows(plan, results_in(plan, output)), paper.TITLES)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "## STL-10",
        "## CIFAR-10",
        "## CIFAR-100",
    ]
    tables = text.split("## ")[1:]
    for table in tables:
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len(lines) == 2 + 5
        assert len({len(line) for line in lines}) == 1


def test_csv_has_the_numbers_unrounded(plan, gaps):
    text = to_csv(make_rows(plan, results_in(plan, gaps)), plan.settings)
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 15
    row = next(r for r in rows if (r["data_set"], r["network"]) == ("cifar10", "hamiltonian"))
    assert float(row["test_accuracy"]) == pytest.approx(0.79)
    assert float(row["test_accuracy_deviation"]) == pytest.approx(0.02 / 2**0.5)
    assert row["test_accuracy_by_seed"] == "0.78 0.8"
    assert (row["paper_weights"], row["paper_test_accuracy"]) == ("264106", "0.893")
    assert (rows[0]["seeds"], rows[0]["test_accuracy"], rows[0]["weights"]) == ("0", "", "")
    assert [row["trained_on"] for row in rows] == [row["data_set"] for row in rows]
    assert {row["changed_settings"] for row in rows} == {""}


def test_latex_is_a_tabular_with_everything_escaped(plan, output):
    lines = to_latex(make_rows(plan, results_in(plan, output)), paper.TITLES).splitlines()
    assert lines[0] == r"\begin{tabular}{lrcccr}"
    assert lines[-1] == r"\end{tabular}"
    body = [line for line in lines if "&" in line]
    assert len(body) == 1 + 15
    assert all(line.count("&") == 5 and line.endswith(r" \\") for line in body)
    assert body[1].startswith(r"parabolic & 1,234 & 78.00 $\pm$ 1.41 (0.500 $\pm$ 0.014) &")
    assert not any(letter in "".join(lines).replace(r"\%", "") for letter in "%_±")


def test_a_loss_that_is_not_finite_is_said(plan, tmp_path):
    experiment = plan.experiments["table1"][0]
    name = experiment.run_name(0)
    make_result(tmp_path / "runs" / name, plan.runs[name], 0.5, loss=None)
    rows = make_rows(plan, results_in(plan, tmp_path))
    assert rows[0].cells()[2] == "50.00 (not finite)"


def test_the_table_explains_its_numbers(plan, output, files):
    for name in ("table1.md", "table1.tex", "README.md"):
        text = files[output / name].decode()
        assert "2 seeds, mean ± sample standard deviation" in text, name
        assert "parabolic network: STL-10 11-23-46-92-92, CIFAR-10 23-46-80-80," in text, name
    alone = make_plan("table1", quick=True, num_seeds=1, dynamics=["parabolic"])
    assert "one seed." in explain_table(alone)
    assert "resnet" not in explain_table(alone)


# ------------------------------------------------------------------ figures


@pytest.mark.parametrize("target", ["figure1", "figure2", "figure3", "figure4"])
@pytest.mark.parametrize("folder", ["output", "gaps"])
def test_every_text_is_large_enough_and_inside_the_figure(plan, folder, target, request):
    figure = drawn(target, plan, request.getfixturevalue(folder))
    for text in texts(figure):
        assert text.get_fontsize() >= 8, text
        box, page = text.get_window_extent(), figure.bbox
        assert page.x0 - 1 <= box.x0 <= box.x1 <= page.x1 + 1, text
        assert page.y0 - 1 <= box.y0 <= box.y1 <= page.y1 + 1, text


def test_figure_1_has_four_images_and_the_three_networks_beside_each(plan, output):
    figure = drawn("figure1", plan, output)
    assert len(figure.axes) == 4 * (1 + 3)
    titles = [axes.get_title(loc="left") for axes in figure.axes[:4]]
    assert titles[0] == "true: airplane"
    assert [title[:-2] for title in titles[1:]] == ["parabolic", "hamiltonian", "second order"]
    bars = figure.axes[1].patches
    assert len(bars) == 10
    assert sum(bar.get_width() for bar in bars) == pytest.approx(1, abs=1e-5)


def test_figure_1_marks_a_missing_network(plan, gaps):
    figure = drawn("figure1", plan, gaps)
    assert words(figure).count("missing") == 4
    assert figure.axes[1].get_title() == "parabolic"


def test_figure_2_has_the_mean_over_the_seeds(plan, output):
    left, right = drawn("figure2", plan, output).axes
    percentages = np.arange(10, 90, 10)
    for container, dynamics in zip(left.containers, paper.PAPER_DYNAMICS, strict=True):
        line, _, (bars,) = container
        expected = ACCURACY[dynamics] - 0.004 * (80 - percentages) + 0.01
        assert line.get_ydata() == pytest.approx(expected)
        assert np.abs(line.get_xdata() - percentages).max() < 1
        heights = [np.ptp(segment[:, 1]) for segment in bars.get_segments()]
        assert heights == pytest.approx([0.02] * 8)
    curves = [line for line in right.lines if len(line.get_xdata()) == 100]
    assert len(curves) == 3
    assert right.get_ylabel() == "validation accuracy"


def curves(axes):
    """The lines through the means; not the bars, the changes of rate and the legend's."""
    lines = [line for line in axes.lines if len(line.get_xdata()) > 2]
    return [line for line in lines if line.get_linestyle() != "None"]


@pytest.mark.parametrize("target", ["figure2", "figure4"])
def test_curves_are_told_apart_without_colour(plan, output, target):
    figure = drawn(target, plan, output)
    legend = {text.get_text(): line for text, line in zip(*legend_entries(figure), strict=True)}
    for axes in figure.axes:
        shown = curves(axes)
        assert len(shown) == 3
        for look in ("linestyle", "marker"):
            assert len({getattr(line, f"get_{look}")() for line in shown}) == 3, look
        for line, dynamics in zip(shown, paper.PAPER_DYNAMICS, strict=True):
            entry = legend[LABELS[dynamics]]
            for look in ("linestyle", "marker", "color"):
                assert getattr(line, f"get_{look}")() == getattr(entry, f"get_{look}")()


def legend_entries(figure):
    (legend,) = figure.legends
    return legend.get_texts(), legend.get_lines()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_points_of_figure_2_lie_around_their_amount(tmp_path, number):
    chosen = paper.PAPER_DYNAMICS[:number]
    plan = make_plan("figure2", quick=True, num_seeds=1, dynamics=chosen)
    make_results(plan, tmp_path / "runs")
    left = drawn("figure2", plan, tmp_path).axes[0]
    places = [container[0].get_xdata() for container in left.containers]
    assert np.mean(places, axis=0) == pytest.approx([10, 20, 40, 80])
    assert len({place[0] for place in places}) == number


@pytest.mark.parametrize(
    ("quick", "titles"),
    [
        (False, ["Without augmentation", "With augmentation"]),
        (True, ["Without augmentation", "Without augmentation"]),
    ],
)
def test_figure_2_says_what_was_augmented(plan, output, tmp_path, quick, titles):
    if quick:
        plan, output = make_plan("figure2", quick=True, num_seeds=1), tmp_path
        make_results(plan, tmp_path / "runs")
    figure = drawn("figure2", plan, output)
    assert [axes.get_title(loc="left") for axes in figure.axes] == titles
    said = "epoch, without augmentation" if quick else "epoch, with augmentation"
    assert said in caption("figure2", plan)


def test_every_figure_names_its_data_and_seeds(plan, output, tmp_path):
    expected = {
        "figure1": "STL-10: test images, seed 0",
        "figure2": "STL-10: 2 seeds",
        "figure3": "STL-10: test images, 2 seeds",
    }
    quick = make_plan("figure3", quick=True, num_seeds=1)
    make_results(quick, tmp_path / "runs")
    with journal_style():
        for target, text in expected.items():
            figure = draw_target(target, plan, results_in(plan, output))
            assert figure.get_suptitle() == text
        small = draw_target("figure3", quick, results_in(quick, tmp_path))
    assert small.get_suptitle().startswith("Digits in place of STL-10: test images, one seed\n")


def test_figure_2_has_a_gap_and_says_what_is_missing(plan, gaps):
    figure = drawn("figure2", plan, gaps)
    line, _, _ = figure.axes[0].containers[1]
    assert np.isnan(line.get_ydata()).tolist() == [p == 40 for p in range(10, 90, 10)]
    assert "hamiltonian (2 of 18 missing)" in words(figure)
    assert "parabolic (2 of 18 missing)" in words(figure)
    assert "second order" in words(figure)


def test_figure_3_sums_the_seeds(plan, output):
    figure = drawn("figure3", plan, output)
    panels = figure.axes[:12]
    assert [axes.get_title().split("\n")[0] for axes in panels[:4]] == [
        f"{percentage}% of the" for percentage in (10, 20, 40, 80)
    ]
    assert panels[3].get_title() == "80% of the\ntraining images\n78.0% correct"
    assert panels[8].get_ylabel() == "second order: true"
    shares = panels[3].images[0].get_array().filled(0)
    assert shares.diagonal() == pytest.approx(np.full(10, 0.78))
    assert shares.sum(1) == pytest.approx(np.ones(10))


def test_figure_3_marks_a_missing_matrix(plan, gaps):
    figure = drawn("figure3", plan, gaps)
    assert words(figure).count("missing") == 1
    assert [len(axes.images) for axes in figure.axes[:12]] == [1] * 6 + [0] + [1] * 5


def test_figure_4_has_a_panel_a_data_set_and_the_changes_of_rate(plan, output):
    first, second = drawn("figure4", plan, output).axes
    assert first.get_title(loc="left") == "CIFAR-10 (2 seeds)"
    assert second.get_title(loc="left") == "CIFAR-100 (2 seeds)"
    for axes, changes in ((first, [60.5, 80.5]), (second, [60.5, 100.5, 140.5, 180.5])):
        rates = [line.get_xdata()[0] for line in axes.lines if list(line.get_ydata()) == [0, 1]]
        assert rates == changes


def test_a_figure_without_a_single_run_is_not_drawn(plan, tmp_path):
    assert draw_target("figure4", plan, {}) is None
    draw_paper(only("figure4", plan), tmp_path, {})
    assert "Not drawn: no run of it is finished." in (tmp_path / "figure4.md").read_text()
    assert not (tmp_path / "figure4.png").exists()


# ------------------------------------------------------------------ all files


def test_all_files_are_written_and_their_bytes_never_change(plan, output, files):
    assert sorted(path.name for path in files) == sorted(FILES)
    for path, content in files.items():
        if path.suffix == ".png":
            assert content.startswith(b"\x89PNG")
        if path.suffix == ".svg":
            assert ElementTree.fromstring(content).tag.endswith("svg")
    assert {path: path.read_bytes() for path in draw_paper(plan, output, {}).files} == files


def test_each_page_carries_what_a_published_figure_must(plan, output, files):
    machine = "- A processor, 4 cores; pdecnn 0.1.0, commit abc, torch 2.13.0, Python 3.12.1\n"
    for target in plan.experiments:
        page = files[output / f"{target}.md"].decode()
        assert page.startswith(f"# {target[:-1].capitalize()} {target[-1]}\n")
        assert page.count(machine) == 1
        assert page.count("-seed") == len(runs_of(target, plan))
        assert "missing" not in page
        assert "Quick" not in page
        if target != "table1":
            assert f"![{caption(target, plan)}]({target}.png)" in page
    table = files[output / "table1.md"].decode()
    assert "| parabolic_stl10-seed0 | 77.00 | 100 of 100 | float32 | 150 s |" in table


def runs_of(target, plan):
    return {name for one in plan.experiments[target] for name in plan.run_names(target, one)}


def test_the_page_says_how_many_runs_shared_the_device(plan, tmp_path):
    names = sorted(runs_of("figure1", plan))
    for number, name in enumerate(names, start=1):
        make_result(tmp_path / "runs" / name, plan.runs[name], 0.5)
        conditions = {"runs_at_a_time": number} if number < 3 else {}
        write_json(tmp_path / "runs" / name / "conditions.json", conditions)
    draw_paper(only("table1", plan), tmp_path, {})
    page = (tmp_path / "table1.md").read_text()
    assert "- A processor, 4 cores, 1 run at a time; pdecnn" in page
    assert "- A processor, 4 cores, 2 runs at a time; pdecnn" in page
    assert "- A processor, 4 cores; pdecnn" in page


def test_the_page_says_what_failed(plan, gaps):
    failures = draw_paper(only_table(plan), gaps, {"parabolic_stl10-seed1": "diverged"}).failures
    assert failures == {
        "parabolic_stl10-seed0": "not finished",
        "parabolic_stl10-seed1": "diverged",
        "resnet_cifar100-seed1": "not finished",
        "hamiltonian_stl10-40percent-seed0": "not finished",
        "hamiltonian_stl10-40percent-seed1": "not finished",
    }
    for name in ("README.md", "table1.md"):
        page = (gaps / name).read_text()
        assert "**3 of 30 runs are missing:**" in page
        assert "- `parabolic_stl10-seed1`: diverged\n" in page
        assert "- `parabolic_stl10-seed0`: not finished\n" in page


def test_a_target_alone_leaves_the_rest_of_the_page(plan, output, files):
    draw_paper(only("figure4", plan, num_seeds=1), output, {})
    page = (output / "README.md").read_text()
    for target in plan.experiments:
        assert f"## {target[:-1].capitalize()} {target[-1]}\n" in page
        assert f"]({target}.md)" in page
    before = files[output / "README.md"].decode()
    assert page != before
    assert page.partition("## Figure 4")[0] == before.partition("## Figure 4")[0]
    draw_paper(only("figure4", plan), output, {})
    assert (output / "README.md").read_bytes() == files[output / "README.md"]


def test_the_page_says_what_is_not_there(plan, gaps, tmp_path):
    make_results(only("figure4", plan), tmp_path / "runs")
    draw_paper(only("figure4", plan), tmp_path, {})
    page = (tmp_path / "README.md").read_text()
    assert "Not here: `pdecnn reproduce table1`, `pdecnn reproduce figure1`," in page
    assert "figure4`" not in page


def test_a_figure_of_runs_that_are_gone_does_not_stay(plan, tmp_path):
    plan = only("figure1", plan)
    make_results(plan, tmp_path / "runs")
    draw_paper(plan, tmp_path, {})
    assert (tmp_path / "figure1.png").exists()
    (tmp_path / "runs").rename(tmp_path / "moved")
    draw_paper(plan, tmp_path, {})
    assert not list(tmp_path.glob("figure1.[ps]*"))
    assert "Not drawn: no run of it is finished." in (tmp_path / "README.md").read_text()


SETTINGS = {"training.epochs": 2, "data.fraction": 0.5}
CHANGED = "Changed in every run: training.epochs = 2, data.fraction = 0.5"


def test_the_quick_version_says_so_everywhere(tmp_path):
    plan = make_plan("all", quick=True, num_seeds=1, settings=SETTINGS)
    make_results(plan, tmp_path / "runs")
    draw_paper(only_table(plan), tmp_path, {})
    for name in ("README.md", "table1.md", "table1.tex"):
        text = (tmp_path / name).read_text()
        assert "Quick version: 2 epochs of networks with " in text, name
        assert "digits in place of CIFAR-100" in text, name
        assert CHANGED in text, name
    rows = list(csv.DictReader((tmp_path / "table1.csv").read_text().splitlines()))
    assert {row["trained_on"] for row in rows} == {"digits"}
    assert {row["changed_settings"] for row in rows} == {"training.epochs = 2; data.fraction = 0.5"}
    for target in ("figure1", "figure2", "figure3", "figure4"):
        with journal_style():
            said = draw_target(target, plan, results_in(plan, tmp_path)).get_suptitle()
        assert "Quick version on digits, not the paper's experiment" in said
        assert CHANGED in said
        # Wherever it names a data set it says what was there in its place.
        text = caption(target, plan)
        names = text.count("STL-10") + text.count("CIFAR-10")
        assert names == text.count("digits in place of ")
        assert "1,000" not in text


def test_changed_settings_are_told_without_the_quick_version_too(monkeypatch, tmp_path):
    monkeypatch.setattr(paper, "find_dataset", lambda name, folder: folder / name)
    plan = make_plan(
        "all", data=tmp_path, num_seeds=1, datasets=["cifar10"], settings={"training.momentum": 0.8}
    )
    make_results(plan, tmp_path / "runs")
    draw_paper(only_table(plan), tmp_path, {})
    said = "Changed in every run: training.momentum = 0.8"
    for name in ("README.md", "table1.md", "table1.tex"):
        assert said in (tmp_path / name).read_text(), name
    with journal_style():
        for target in ("figure1", "figure4"):
            figure = draw_target(target, plan, results_in(plan, tmp_path))
            assert said in figure.get_suptitle()


def test_a_long_list_of_settings_stays_inside_the_figure(tmp_path):
    settings = {"training.learning_rates": [0.1, 0.02, 0.004], "training.phases": [0.6, 0.2, 0.2]}
    settings |= {"data.standardize": "dataset", "training.label_smoothing": 0.1}
    plan = make_plan("figure4", quick=True, num_seeds=1, settings=settings)
    make_results(plan, tmp_path / "runs")
    figure = drawn("figure4", plan, tmp_path)
    assert "label_smoothing = 0.1" in figure.get_suptitle()
    for text in texts(figure):
        box, page = text.get_window_extent(), figure.bbox
        assert page.x0 - 1 <= box.x0 <= box.x1 <= page.x1 + 1, text


# ------------------------------------------------------------------ damaged runs


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without(*keys):
    def remove(path):
        values = json.loads(path.read_bytes())
        inner = values
        for key in keys[:-1]:
            inner = inner[key]
        del inner[keys[-1]]
        write_json(path, values)

    return remove


DAMAGE = [
    ("environment.json", cut, "environment.json: damaged"),
    ("environment.json", Path.unlink, "environment.json: damaged"),
    ("environment.json", without("hardware"), "environment.json: damaged (it lacks hardware.gpu)"),
    ("summary.json", without("num_weights"), "summary.json: damaged (it lacks num_weights)"),
    ("summary.json", without("test", "confusion"), "(it lacks test.confusion)"),
    ("summary.json", without("class_names"), "(it lacks class_names)"),
    ("summary.json", cut, "summary.json: cannot be read"),
    ("training_evaluation.json", cut, "not finished"),
    ("training_evaluation.json", lambda path: path.write_text("null"), "not finished"),
    ("predictions.safetensors", cut, "predictions.safetensors: cannot be read"),
    ("predictions.safetensors", Path.unlink, "predictions.safetensors: cannot be read"),
    ("metrics.jsonl", cut, "metrics.jsonl: "),
    ("metrics.jsonl", Path.unlink, "metrics.jsonl: damaged (0 of 4 epochs)"),
    ("metrics.jsonl", lambda path: path.write_text("{}\n" * 4), "it lacks validation_accuracy"),
    ("config.json", cut, "config.json: cannot be read"),
]


@pytest.mark.parametrize(("name", "damage", "reason"), DAMAGE)
def test_a_damaged_run_is_named_and_the_rest_is_drawn(tmp_path, name, damage, reason):
    plan = make_plan("table1", quick=True, num_seeds=1, datasets=["stl10"])
    make_results(plan, tmp_path / "runs")
    damaged = "hamiltonian_stl10-seed0"
    damage(tmp_path / "runs" / damaged / name)
    failures = draw_paper(plan, tmp_path, {}).failures
    assert list(failures) == [damaged]
    assert reason in failures[damaged]
    assert "\n" not in failures[damaged]
    assert f"- `{damaged}`: {failures[damaged]}" in (tmp_path / "README.md").read_text()
    rows = list(csv.DictReader((tmp_path / "table1.csv").read_text().splitlines()))
    assert [row["seeds"] for row in rows] == ["1", "0", "1", "1", "1"]


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, cut, lambda path: path.write_text('{"epoch": 1, "seconds": 2}\n' * 3)],
)
def test_a_damaged_time_is_unknown(tmp_path, damage):
    plan = make_plan("table1", quick=True, num_seeds=1, datasets=["stl10"])
    make_results(plan, tmp_path / "runs")
    damage(tmp_path / "runs" / "hamiltonian_stl10-seed0" / "timing.jsonl")
    assert draw_paper(plan, tmp_path, {}).failures == {}
    page = (tmp_path / "table1.md").read_text()
    assert "| hamiltonian_stl10-seed0 | 78.00 | 4 of 4 | float32 | unknown |" in page
    assert "| parabolic_stl10-seed0 | 77.00 | 4 of 4 | float32 | 6 s |" in page


@pytest.mark.parametrize("target", ["figure1", "figure2", "figure3", "figure4"])
def test_figures_are_drawn_without_a_damaged_run(tmp_path, target):
    plan = make_plan(target, quick=True, num_seeds=1)
    make_results(plan, tmp_path / "runs")
    for path in (tmp_path / "runs").glob("hamiltonian_*-seed0/environment.json"):
        cut(path)
    results, failures = read_runs(plan, tmp_path / "runs")
    assert set(failures) == {name for name in plan.runs if "hamiltonian" in name}
    with journal_style():
        assert "missing" in " ".join(words(draw_target(target, plan, results)))


def test_a_full_disk_is_told_in_a_sentence(plan, output, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reports_paper, "write_atomically", fail)
    with pytest.raises(CheckpointError, match=r"cannot be written \(No space left.*same command"):
        draw_paper(only_table(plan), output, {})


def test_every_network_has_a_name():
    assert set(LABELS) == set(paper.DYNAMICS) == set(ACCURACY)
