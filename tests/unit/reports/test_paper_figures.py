"""The paper's figures from run directories alone: readable, and what is missing is marked."""

import numpy as np
import pytest

from pdecnn.reports.paper import caption
from pdecnn.reports.paper_figures import draw_target
from pdecnn.reports.paper_results import LABELS
from pdecnn.reports.style import journal_style
from pdecnn.runs import paper
from pdecnn.runs.paper import make_plan
from tests.paper_results import ACCURACY, make_results, results_in
from tests.unit.reports.test_figures import texts, words

FIGURES = {}


def drawn(target, plan, output):
    """Drawn once, for tests that only look."""
    if (target, output) not in FIGURES:
        with journal_style():
            figure = draw_target(target, plan, results_in(plan, output))
            figure.draw_without_rendering()
        FIGURES[target, output] = figure
    return FIGURES[target, output]


@pytest.mark.parametrize("target", ["figure1", "figure2", "figure3", "figure4"])
def test_every_text_is_large_enough_and_inside_the_figure(plan, gaps, target):
    figure = drawn(target, plan, gaps)
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
    for target, text in expected.items():
        assert drawn(target, plan, output).get_suptitle() == text
    with journal_style():
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
