"""Table 1 from run directories alone: means beside the paper's numbers, gaps marked."""

import csv

import pytest

from pdecnn.reports.paper_results import LABELS, make_rows, to_csv, to_latex, to_markdown
from pdecnn.runs import paper
from pdecnn.runs.paper import Experiment
from tests.paper_results import ACCURACY, make_result, results_in


def test_a_row_has_mean_and_deviation_beside_the_paper(plan, output):
    rows = make_rows(plan, results_in(plan, output))
    assert [row.cells() for row in rows[:4:3]] == [
        (
            "parabolic",
            "1,234",
            "0.0001, 0.0004",
            "78.00 ± 1.41 (0.500 ± 0.014)",
            "99.90 ± 0.00",
            "77.0 (0.711)",
            "2 of 2",
        ),
        (
            "resnet, twice the stencils",
            "1,234",
            "0.0001, 0.0004",
            "71.00 ± 1.41 (0.500 ± 0.014)",
            "99.90 ± 0.00",
            "-",
            "2 of 2",
        ),
    ]
    assert len(rows) == 15
    assert rows[5].cells()[2] == "0.0002, 0.0002"


def test_missing_runs_are_marked_in_the_table(plan, gaps):
    rows = {row.experiment: row.cells() for row in make_rows(plan, results_in(plan, gaps))}
    assert rows[Experiment("parabolic", "stl10")] == (
        "parabolic", "missing", "0.0001, 0.0004", "missing", "missing", "77.0 (0.711)", "0 of 2",
    )  # fmt: skip
    assert rows[Experiment("resnet", "cifar100")][3] == "70.00 (0.490)"
    assert rows[Experiment("resnet", "cifar100")][6] == "1 of 2"


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
    weights = {(row["data_set"], row["smoothness_weight"], row["decay_weight"]) for row in rows}
    assert ("stl10", "0.0001", "0.0004") in weights
    assert len(weights) == 3


def test_latex_is_a_tabular_with_everything_escaped(plan, output):
    lines = to_latex(make_rows(plan, results_in(plan, output)), paper.TITLES).splitlines()
    assert lines[0] == r"\begin{tabular}{lrccccr}"
    assert lines[-1] == r"\end{tabular}"
    body = [line for line in lines if "&" in line]
    assert len(body) == 1 + 15
    assert all(line.count("&") == 6 and line.endswith(r" \\") for line in body)
    assert body[1].startswith(
        r"parabolic & 1,234 & 0.0001, 0.0004 & 78.00 $\pm$ 1.41 (0.500 $\pm$ 0.014) &"
    )
    assert not any(letter in "".join(lines).replace(r"\%", "") for letter in "%_±")


def test_a_loss_that_is_not_finite_is_said(plan, tmp_path):
    experiment = plan.experiments["table1"][0]
    name = experiment.run_name(0)
    make_result(tmp_path / "runs" / name, plan.runs[name], 0.5, loss=None)
    rows = make_rows(plan, results_in(plan, tmp_path))
    assert rows[0].cells()[3] == "50.00 (not finite)"


def test_every_network_has_a_name():
    assert set(LABELS) == set(paper.DYNAMICS) == set(ACCURACY)
