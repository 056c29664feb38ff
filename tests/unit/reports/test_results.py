"""A damaged run is named in a sentence, and all the rest is drawn."""

import csv
import json
from pathlib import Path

import pytest

from pdecnn.files import write_json
from pdecnn.reports.paper import draw_paper
from pdecnn.reports.paper_figures import draw_target
from pdecnn.reports.paper_results import read_runs
from pdecnn.reports.style import journal_style
from pdecnn.runs.paper import make_plan
from tests.paper_results import make_results
from tests.unit.reports.test_figures import words


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


def with_value(value, *keys):
    def change(path):
        values = json.loads(path.read_bytes())
        inner = values
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        write_json(path, values)

    return change


DAMAGE = [
    ("environment.json", without("hardware"), "environment.json: damaged (it lacks hardware.gpu)"),
    ("summary.json", without("test", "confusion"), "(it lacks test.confusion)"),
    ("summary.json", with_value(89.6, "test", "accuracy"), "(test.accuracy is 89.6)"),
    ("training_evaluation.json", cut, "not finished"),
    ("predictions.safetensors", cut, "predictions.safetensors: cannot be read"),
    ("metrics.jsonl", Path.unlink, "metrics.jsonl: damaged (0 of 4 epochs)"),
    ("metrics.jsonl", lambda path: path.write_text("{}\n" * 4), "it lacks validation_accuracy"),
    ("config.json", cut, "config.json: cannot be read"),
]


@pytest.mark.parametrize(("name", "damage", "reason"), DAMAGE)
def test_a_damaged_run_is_named_and_the_rest_is_drawn(tmp_path, name, damage, reason):
    plan = make_plan("table1", quick=True, num_seeds=1, datasets=["stl10"])
    make_results(plan, tmp_path / "runs")
    damaged = "hamiltonian_digits-for-stl10-seed0"
    damage(tmp_path / "runs" / damaged / name)
    failures = draw_paper(plan, tmp_path, {}).failures
    assert list(failures) == [damaged]
    assert reason in failures[damaged]
    assert "\n" not in failures[damaged]
    assert f"- `{damaged}`: {failures[damaged]}" in (tmp_path / "README.md").read_text()
    rows = list(csv.DictReader((tmp_path / "table1.csv").read_text().splitlines()))
    assert [row["seeds"] for row in rows] == ["1", "0", "1", "1", "1"]


def test_a_run_of_other_settings_is_named_and_not_averaged(tmp_path):
    """One that was trained by an earlier version of its recipe."""
    plan = make_plan("table1", quick=True, num_seeds=2, datasets=["stl10"], dynamics=["parabolic"])
    make_results(plan, tmp_path / "runs")
    older = tmp_path / "runs" / "parabolic_digits-for-stl10-seed1" / "config.json"
    with_value(4e-4, "training", "smoothness_weight")(older)
    failures = draw_paper(plan, tmp_path, {}).failures
    assert list(failures) == ["parabolic_digits-for-stl10-seed1"]
    assert "other settings (training.smoothness_weight=0.0004)" in str(failures)
    (row,) = csv.DictReader((tmp_path / "table1.csv").read_text().splitlines())
    assert (row["seeds"], row["smoothness_weight"]) == ("1", "0.0001")


def test_a_run_kept_without_images_is_missing_in_figure_1_alone(tmp_path):
    plan = make_plan("all", quick=True, num_seeds=1, datasets=["stl10"])
    make_results(plan, tmp_path / "runs")
    run = tmp_path / "runs" / "hamiltonian_digits-for-stl10-seed0"
    (run / "predictions.safetensors").unlink()
    results, failures = read_runs(plan, tmp_path / "runs")
    assert failures == {}
    with journal_style():
        assert "missing" in " ".join(words(draw_target("figure1", plan, results)))
        assert "missing" not in " ".join(words(draw_target("figure3", plan, results)))
    none = {name: result._replace(predictions={}) for name, result in results.items()}
    assert draw_target("figure1", plan, none) is None


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, cut, lambda path: path.write_text('{"epoch": 1, "seconds": 2}\n' * 3)],
)
def test_a_damaged_time_is_unknown(tmp_path, damage):
    plan = make_plan("table1", quick=True, num_seeds=1, datasets=["stl10"])
    make_results(plan, tmp_path / "runs")
    damage(tmp_path / "runs" / "hamiltonian_digits-for-stl10-seed0" / "timing.jsonl")
    assert draw_paper(plan, tmp_path, {}).failures == {}
    page = (tmp_path / "table1.md").read_text()
    assert "| hamiltonian_digits-for-stl10-seed0 | 78.00 | 4 of 4 | float32 | unknown |" in page
    assert "| parabolic_digits-for-stl10-seed0 | 77.00 | 4 of 4 | float32 | 6 s |" in page


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
