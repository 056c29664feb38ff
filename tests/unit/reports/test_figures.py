"""Figures come from the run directory alone, are the same bytes each time, and can be read."""

import os
import subprocess
import sys
from functools import partial
from xml.etree import ElementTree

import matplotlib
import pytest
import torch
from matplotlib.text import Text
from safetensors.torch import save_file

from pdecnn.errors import CheckpointError
from pdecnn.files import write_json
from pdecnn.reports.charts import Chart, Series
from pdecnn.reports.run_figures import (
    draw_confusion,
    draw_convergence,
    draw_predictions,
    draw_run_figures,
)
from pdecnn.reports.style import journal_style, render, short_name
from pdecnn.runs import recipe
from pdecnn.runs.runs import PREDICTIONS, create_run

CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
MANY = [f"class number {k} of a hundred" for k in range(100)]
NAMES = [
    f"{figure}.{suffix}"
    for figure in ("convergence", "confusion", "predictions")
    for suffix in ("png", "svg")
]

by_loss = partial(draw_convergence, ties="loss")


def make_metrics(epochs, rate=lambda epoch: 0.1):
    return [
        {
            "epoch": epoch,
            "learning_rate": rate(epoch),
            "data_loss": 2.3 / epoch,
            "validation_loss": 2.3 / epoch**0.5,
            "accuracy": 1 - 0.9 / epoch,
            "validation_accuracy": round(1 - 0.9 / epoch**0.5, 1),
        }
        for epoch in range(1, epochs + 1)
    ]


def make_test(counts):
    accuracy = float(counts.trace() / counts.sum())
    return {
        "accuracy": accuracy,
        "loss": 0.5,
        "balanced_accuracy": accuracy,
        "per_class": dict.fromkeys(CIFAR, accuracy),
        "num_images": int(counts.sum()),
        "confusion": counts.tolist(),
    }


def make_predictions(num_classes, *shape):
    images = torch.randint(256, (6, *shape), dtype=torch.uint8)
    labels = torch.arange(6) % num_classes
    probabilities = (3 * torch.randn(6, num_classes)).softmax(1)
    return {"images": images, "labels": labels, "probabilities": probabilities}


def as_arrays(predictions):
    return {name: value.numpy() for name, value in predictions.items()}


def drawn(draw, *arguments):
    with journal_style():
        return draw(*arguments)


def texts(figure):
    """All that can be read: ticks beyond the ends of an axis are not drawn."""
    beyond = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            # An axis may share the labels of another and have none of its own.
            for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False):
                if not (axes.axison and low <= place <= high):
                    beyond.add(label)
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    return [text for text in found if text not in beyond]


def words(figure):
    return [text.get_text() for text in texts(figure)]


@pytest.fixture
def unfinished(tmp_path):
    run = create_run(tmp_path / "run", recipe("second_order_digits"), {})
    run.write_metrics(make_metrics(3))
    return run


@pytest.fixture
def finished(unfinished):
    counts = 5 * torch.eye(10, dtype=torch.int64)
    summary = {
        "stopped": "completed",
        "epochs": 3,
        "best_epoch": 3,
        "best_validation_accuracy": 0.5,
        "num_weights": 1234,
        "class_names": CIFAR,
        "test": make_test(counts),
    }
    write_json(unfinished.folder / "summary.json", summary)
    save_file(make_predictions(10, 3, 32, 32), unfinished.folder / PREDICTIONS)
    return unfinished


def test_a_finished_run_has_three_figures_whose_bytes_never_change(finished):
    paths = draw_run_figures(finished)
    assert [path.name for path in paths] == NAMES
    assert sorted(os.listdir(finished.folder / "figures")) == sorted(NAMES)
    first = [path.read_bytes() for path in paths]
    for png, svg in zip(first[::2], first[1::2], strict=True):
        assert png.startswith(b"\x89PNG")
        assert b"Software" not in png
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert b"<dc:date>" not in svg
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True, "savefig.bbox": "tight"}):
        before = dict(matplotlib.rcParams)
        second = [path.read_bytes() for path in draw_run_figures(finished)]
        assert dict(matplotlib.rcParams) == before
    assert first == second


def test_an_unfinished_run_has_only_its_convergence(unfinished):
    assert [path.name for path in draw_run_figures(unfinished)] == NAMES[:2]


def test_a_run_without_an_epoch_has_no_figures(unfinished):
    unfinished.write_metrics([])
    assert draw_run_figures(unfinished) == []
    assert not (unfinished.folder / "figures").exists()


@pytest.mark.parametrize("content", [None, b"no tensors"])
def test_missing_or_damaged_predictions_are_named(finished, content):
    path = finished.folder / PREDICTIONS
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"predictions\.safetensors: cannot be read"):
        draw_run_figures(finished)
    assert not (finished.folder / "figures").exists()


def test_a_full_disk_is_told_in_a_sentence(unfinished, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pdecnn.reports.run_figures.write_all", fail)
    with pytest.raises(CheckpointError, match=r"cannot be written \(No space left.*intact"):
        draw_run_figures(unfinished)


def test_matplotlib_is_imported_to_draw_only_and_pyplot_never(unfinished, tmp_path):
    program = (
        "import sys, pdecnn.cli.application, pdecnn.reports.page, pdecnn.reports.terminal\n"
        "from pdecnn.runs.runs import Run\n"
        "pdecnn.reports.page.report([sys.argv[1]], sys.argv[2])\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from pdecnn.reports.run_figures import draw_run_figures\n"
        "assert len(draw_run_figures(Run(sys.argv[1]))) == 2\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, unfinished.folder, tmp_path / "page.html"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


ALL_KINDS = {
    "one epoch": (by_loss, make_metrics(1), "run"),
    "200 epochs": (by_loss, make_metrics(200, lambda e: 0.2 ** (e // 40)), "run"),
    "20 classes": (draw_confusion, make_test(torch.full((20, 20), 12345)), MANY[:20]),
    "100 classes": (draw_confusion, make_test(torch.full((100, 100), 1000)), MANY),
    "2 classes": (draw_confusion, make_test(torch.eye(2).long()), ["no", "yes"]),
    "colours": (draw_predictions, as_arrays(make_predictions(10, 3, 32, 32)), CIFAR),
    "100 names": (draw_predictions, as_arrays(make_predictions(100, 3, 32, 32)), MANY),
    "signals": (draw_predictions, as_arrays(make_predictions(2, 2, 50)), ["no", "yes"]),
    "volumes": (draw_predictions, as_arrays(make_predictions(3, 1, 9, 9, 9)), ["a", "b", "c"]),
}


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_text_is_large_enough_and_inside_the_figure(kind):
    with journal_style():
        figure = drawn(*ALL_KINDS[kind])
        figure.draw_without_rendering()
    for text in texts(figure):
        assert text.get_fontsize() >= 8, text
        box, page = text.get_window_extent(), figure.bbox
        assert box.x0 >= page.x0 - 1, text
        assert box.y0 >= page.y0 - 1, text
        assert box.x1 <= page.x1 + 1, text
        assert box.y1 <= page.y1 + 1, text


def test_a_class_may_have_any_name():
    names = ["$x$", "猫", "a_b^c", "\\frac", "x" * 80]
    with journal_style():
        render("confusion", draw_confusion(make_test(torch.eye(5).long()), names))


def test_a_long_name_keeps_both_ends():
    assert short_name("automobile") == "automobile"
    assert short_name("a" * 40 + "z") == "aaaaaaaaa…aaaaaaaz"


@pytest.mark.parametrize(("ties", "best"), [("first", 3), ("loss", 4)])
def test_the_best_epoch_of_the_last_level_is_starred(ties, best):
    metrics = make_metrics(6)
    accuracies, losses = [0.95, 0.7, 0.9, 0.9, 0.8, 0.9], [0.1, 0.1, 0.6, 0.5, 0.1, None]
    for entry, accuracy, loss in zip(metrics, accuracies, losses, strict=True):
        entry |= {"validation_accuracy": accuracy, "validation_loss": loss}
        entry["level"] = int(entry["epoch"] > 1)
    figure = drawn(partial(draw_convergence, ties=ties), metrics, "run")
    for axes in figure.axes:
        (star,) = [line for line in axes.lines if line.get_marker() == "*"]
        assert list(star.get_xdata()) == [best]
    assert f"best epoch: {best} (validation 90.00%)" in words(figure)


def test_a_change_of_rate_is_a_line_and_a_steady_change_a_sentence():
    figure = drawn(by_loss, make_metrics(9, lambda e: 0.1 if e < 4 else 0.02), "run")
    for axes in figure.axes:
        assert [list(line.get_xdata()) for line in axes.lines[3:]] == [[3.5, 3.5]]
    assert "learning rate: 0.1 → 0.02" in words(figure)
    figure = drawn(by_loss, make_metrics(9, lambda e: 0.1 / e), "run")
    assert all(len(axes.lines) == 3 for axes in figure.axes)
    assert "learning rate: 0.1 to 0.0111, changing steadily" in words(figure)


@pytest.mark.parametrize("value", [None, 0.0, 1e-30])
def test_any_loss_can_be_drawn(value):
    metrics = make_metrics(4)
    metrics[0]["validation_loss"] = metrics[-1]["data_loss"] = value
    drawn(by_loss, metrics, "run").draw_without_rendering()


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_equal_accuracies_are_inside_the_panel(value):
    metrics = make_metrics(2)
    for entry in metrics:
        entry["accuracy"] = entry["validation_accuracy"] = value
    bottom, top = drawn(by_loss, metrics, "run").axes[0].get_ylim()
    assert bottom < value < top
    assert top - bottom > 0.05


def chart_of(*ys, **options):
    series = [Series(label="a", xs=range(len(ys)), ys=ys, colour=0)]
    return Chart(title="t", series=series, x_label="x", y_label="y", **options)


@pytest.mark.parametrize("ys", [(1.0, 0.98, 0.95), (0.59, 1.0), (-3.0, -2.9), (1e6, 1.05e6)])
def test_an_axis_shows_the_change_rather_than_a_line_at_its_top(ys):
    low, high = chart_of(*ys).y_range
    assert low < min(ys) < max(ys) < high
    assert max(ys) - min(ys) > 0.5 * (high - low)


def test_an_axis_begins_at_zero_where_that_is_near_and_rounding_stays_small():
    assert chart_of(0.1, 0.9).y_range[0] == 0
    low, high = chart_of(1.0, 1.0 + 1e-15).y_range
    assert high - low > 0.01
    low, high = chart_of(0.0, 0.0).y_range
    assert low <= 0 < high


def test_rows_are_true_classes_and_columns_predicted_ones():
    counts = torch.tensor([[8, 2, 0], [0, 9, 0], [0, 0, 0]])
    figure = drawn(draw_confusion, make_test(counts), ["cat", "dog", "fox"])
    axes = figure.axes[0]
    assert {text.get_text(): text.get_position() for text in axes.texts} == {
        "8": (0, 0),
        "2": (1, 0),
        "9": (1, 1),
    }
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("true class", "predicted class")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog", "fox"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cat", "dog", "fox"]
    assert axes.get_title() == "Test accuracy 89.47%: 17 of 19"


def test_many_classes_have_no_counts_but_a_list_of_the_commonest_errors():
    counts = 50 * torch.eye(100, dtype=torch.int64)
    counts[7, 3], counts[90, 91] = 12, 4
    names = [f"name{k}" for k in range(100)]
    figure = drawn(draw_confusion, make_test(counts), names)
    matrix, beside, _ = figure.axes
    assert not matrix.texts
    space = "\N{FIGURE SPACE}"
    expected = f"12  name7 (7) → name3 (3)\n{space}4  name90 (90) → name91 (91)"
    assert beside.texts[0].get_text() == expected
    counts = torch.eye(100, dtype=torch.int64)
    assert "none" in words(drawn(draw_confusion, make_test(counts), names))


def test_a_wrong_prediction_is_hatched_and_marked():
    predictions = as_arrays(make_predictions(3, 1, 8, 8))
    predictions["probabilities"][:2] = [[0.9, 0.1, 0.0], [0.7, 0.3, 0.0]]
    figure = drawn(draw_predictions, predictions, ["cat", "dog", "fox"])
    right, right_bars, wrong, wrong_bars = figure.axes[:4]
    assert right.get_title(loc="left") == "true: cat ✓"
    assert wrong.get_title(loc="left") == "true: dog ✗"
    assert not any(bar.get_hatch() for bar in right_bars.patches)
    assert [bool(bar.get_hatch()) for bar in wrong_bars.patches] == [True, False, False]
    assert [label.get_fontweight() for label in wrong_bars.get_yticklabels()] == [
        "normal",
        "bold",
        "normal",
    ]


def test_of_many_classes_the_five_largest_are_shown_with_the_true_one_among_them():
    predictions = as_arrays(make_predictions(100, 1, 8, 8))
    predictions["probabilities"][:] = 0
    predictions["probabilities"][:, 50:56] = [0.3, 0.2, 0.2, 0.1, 0.1, 0.1]
    predictions["labels"][0], predictions["labels"][1] = 51, 99
    figure = drawn(draw_predictions, predictions, [str(k) for k in range(100)])
    rows = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes[1:4:2]]
    assert rows == [["50", "51", "52", "53", "54"], ["50", "51", "52", "53", "99"]]


def test_a_volume_is_shown_by_its_middle_slice():
    predictions = as_arrays(make_predictions(3, 1, 5, 4, 4))
    figure = drawn(draw_predictions, predictions, ["a", "b", "c"])
    shown = figure.axes[0].images[0].get_array()
    assert (shown == predictions["images"][0, 0, 2]).all()
