"""Tables and figures of the paper from run directories alone, and what is missing is marked."""

import csv
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from pdecnn.errors import CheckpointError
from pdecnn.experiments import paper
from pdecnn.experiments.paper import Experiment, make_plan
from pdecnn.reports import draw_paper
from pdecnn.reports import paper as reports_paper
from pdecnn.reports.paper_figures import draw_target
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
    f"figure{number}.{suffix}" for number in range(1, 5) for suffix in ("png", "svg")
]


def accuracy_of(experiment, seed):
    percentage = experiment.percentage or 80
    return round(ACCURACY[experiment.dynamics] - 0.004 * (80 - percentage) + 0.02 * seed, 4)


def make_results(plan, runs, without=()):
    for several in plan.experiments.values():
        for experiment in several:
            for seed in range(plan.num_seeds):
                name = experiment.run_name(seed)
                if name in plan.runs and name not in without and not (runs / name).exists():
                    make_result(runs / name, plan.runs[name], accuracy_of(experiment, seed))


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
    return {path: path.read_bytes() for path in draw_paper(plan, output, {})}


def only_table(plan):
    """Figures take seconds."""
    return replace(plan, experiments={"table1": plan.experiments["table1"]})


def drawn(target, plan, output):
    with journal_style():
        figure = draw_target(target, plan, output / "runs")
        figure.draw_without_rendering()
    return figure


# ------------------------------------------------------------------ Table 1


def test_a_row_has_mean_and_deviation_beside_the_paper(plan, output):
    rows = make_rows(plan, output / "runs")
    assert [row.cells() for row in rows[:4:3]] == [
        ("parabolic", "1,234", "78.00 ± 1.41 (0.500)", "99.90 ± 0.00", "77.0 (0.711)", "2 of 2"),
        (
            "resnet, twice the stencils",
            "1,234",
            "71.00 ± 1.41 (0.500)",
            "99.90 ± 0.00",
            "-",
            "2 of 2",
        ),
    ]
    assert len(rows) == 15


def test_missing_runs_are_marked_in_the_table(plan, gaps):
    rows = {row.experiment: row.cells() for row in make_rows(plan, gaps / "runs")}
    assert rows[Experiment("parabolic", "stl10")] == (
        "parabolic", "missing", "missing", "missing", "77.0 (0.711)", "0 of 2",
    )  # fmt: skip
    assert rows[Experiment("resnet", "cifar100")][2] == "70.00 (0.500)"
    assert rows[Experiment("resnet", "cifar100")][5] == "1 of 2"


def test_markdown_has_a_table_a_data_set_with_aligned_columns(plan, output):
    text = to_markdown(make_rows(plan, output / "runs"), "## on {}")
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "## on STL-10",
        "## on CIFAR-10",
        "## on CIFAR-100",
    ]
    tables = text.split("## ")[1:]
    for table in tables:
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len(lines) == 2 + 5
        assert len({len(line) for line in lines}) == 1


def test_csv_has_the_numbers_unrounded(plan, gaps):
    rows = list(csv.DictReader(to_csv(make_rows(plan, gaps / "runs")).splitlines()))
    assert len(rows) == 15
    row = next(r for r in rows if (r["data_set"], r["network"]) == ("cifar10", "hamiltonian"))
    assert float(row["test_accuracy"]) == pytest.approx(0.79)
    assert float(row["test_accuracy_deviation"]) == pytest.approx(0.02 / 2**0.5)
    assert row["test_accuracy_by_seed"] == "0.78 0.8"
    assert (row["paper_weights"], row["paper_test_accuracy"]) == ("264106", "0.893")
    assert (rows[0]["seeds"], rows[0]["test_accuracy"], rows[0]["weights"]) == ("0", "", "")


def test_latex_is_a_tabular_with_everything_escaped(plan, output):
    lines = to_latex(make_rows(plan, output / "runs"), "{}").splitlines()
    assert lines[0] == r"\begin{tabular}{lrcccr}"
    assert lines[-1] == r"\end{tabular}"
    body = [line for line in lines if "&" in line]
    assert len(body) == 1 + 15
    assert all(line.count("&") == 5 and line.endswith(r" \\") for line in body)
    assert body[1].startswith(r"parabolic & 1,234 & 78.00 $\pm$ 1.41 (0.500) &")
    assert not any(letter in "".join(lines).replace(r"\%", "") for letter in "%_±")


def test_a_loss_that_is_not_finite_is_said(plan, tmp_path):
    experiment = plan.experiments["table1"][0]
    name = experiment.run_name(0)
    make_result(tmp_path / name, plan.runs[name], 0.5, loss=None)
    assert make_rows(plan, tmp_path)[0].cells()[2] == "50.00 (not finite)"


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


def test_curves_are_told_apart_without_colour(plan, output):
    for target in ("figure2", "figure4"):
        for axes in drawn(target, plan, output).axes:
            looks = [(line.get_linestyle(), line.get_marker()) for line in axes.lines]
            curves = {look for look in looks if look[1] in "os^"}
            assert curves == {("-", "o"), ("--", "s"), ("-.", "^")}


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
        f"{percentage}% of the images" for percentage in (10, 20, 40, 80)
    ]
    assert panels[3].get_title().endswith("\n78.0% correct")
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
    assert draw_target("figure4", plan, tmp_path) is None


# ------------------------------------------------------------------ all files


def test_all_files_are_written_and_their_bytes_never_change(plan, output, files):
    assert sorted(path.name for path in files) == sorted(FILES)
    for path, content in files.items():
        if path.suffix == ".png":
            assert content.startswith(b"\x89PNG")
        if path.suffix == ".svg":
            assert ElementTree.fromstring(content).tag.endswith("svg")
    assert {path: path.read_bytes() for path in draw_paper(plan, output, {})} == files


def test_the_page_carries_what_a_published_figure_must(output, files):
    page = files[output / "README.md"].decode()
    assert "| parabolic_stl10-seed0 | 77.00 | 100 of 100 | 150 s |" in page
    machine = "A processor, 4 cores; pdecnn 0.1.0, commit abc, torch 2.13.0, Python 3.12.1"
    assert page.count(machine) == 1
    assert "](figure3.png)" in page
    assert "missing" not in page
    assert "Quick" not in page


def test_the_page_says_what_failed(plan, gaps):
    draw_paper(only_table(plan), gaps, {"parabolic_stl10-seed1": "diverged at step 3"})
    page = (gaps / "README.md").read_text()
    assert "**5 of 78 runs are missing:**" in page
    assert "- `parabolic_stl10-seed1`: diverged at step 3\n" in page
    assert "- `parabolic_stl10-seed0`: not finished\n" in page


def test_the_quick_version_says_so_everywhere(tmp_path):
    plan = make_plan("all", quick=True, num_seeds=1, settings={"training.epochs": 2})
    make_results(plan, tmp_path / "runs")
    draw_paper(only_table(plan), tmp_path, {})
    for name in ("README.md", "table1.md", "table1.tex"):
        text = (tmp_path / name).read_text()
        assert "Quick version" in text, name
        assert "digits in place of CIFAR-100" in text, name
    assert "- changed: training.epochs = 2" in (tmp_path / "README.md").read_text()
    for target in ("figure1", "figure2", "figure3", "figure4"):
        title = "Quick version on digits, not the paper's experiment"
        assert title in words(drawn(target, plan, tmp_path))


def test_a_full_disk_is_told_in_a_sentence(plan, output, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reports_paper, "write_atomically", fail)
    with pytest.raises(CheckpointError, match=r"cannot be written \(No space left.*same command"):
        draw_paper(only_table(plan), output, {})


def test_every_network_has_a_name():
    assert set(LABELS) == set(paper.DYNAMICS) == set(ACCURACY)
