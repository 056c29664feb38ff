"""What is published of the paper's experiments is what the stored runs give, cell by cell."""

import re
from pathlib import Path

import pytest

from benchmarks import publish_weights, published_runs
from pdecnn.reports.paper import draw_paper
from pdecnn.reports.paper_results import LABELS, make_rows, read_result, read_runs, spread
from pdecnn.runs.paper import PAPER_DYNAMICS, TITLES

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "docs" / "results" / "paper"
PRINTED = PAPER / "stl10-as-printed"
WEIGHTS = ROOT / "src" / "pdecnn" / "networks" / "weights"


def rows_of(plan, folder):
    results, reasons = read_runs(plan, folder / "runs")
    assert reasons == {}
    return make_rows(plan, results)


@pytest.fixture(scope="module")
def rows():
    return rows_of(published_runs.table_plan(), PAPER)


def lines_with(path, *words):
    return [line for line in path.read_text().splitlines() if all(word in line for word in words)]


def figures(row):
    """The mean with its deviation, and each seed, as pages have them."""
    mean, deviation = spread(row.test_accuracies)
    seeds = " ".join(f"{100 * value:.2f}" for value in row.test_accuracies)
    return f"{100 * mean:.2f} ± {100 * deviation:.2f}", seeds


def test_the_table_has_all_nine_cells_of_the_paper_from_three_seeds_each(rows):
    cells = {(row.experiment.dynamics, row.experiment.dataset) for row in rows if row.published}
    assert cells == {(dynamics, dataset) for dynamics in PAPER_DYNAMICS for dataset in TITLES}
    for row in rows:
        assert len(row.test_accuracies) == 3
        assert row.published is None or row.published.num_weights == row.num_weights


@pytest.mark.parametrize(("name", "folder"), [("table_plan", PAPER), ("printed_plan", PRINTED)])
def test_the_tables_are_those_of_the_stored_runs_to_the_byte(tmp_path, name, folder):
    (tmp_path / "runs").symlink_to(folder / "runs")
    drawn = draw_paper(getattr(published_runs, name)(), tmp_path, {})
    tables = [path for path in drawn.files if path.stem == "table1"]
    assert len(tables) == 3
    for path in tables:
        assert path.read_bytes() == (folder / path.name).read_bytes()


def test_the_page_and_the_readme_have_every_cell_with_its_seeds_and_the_paper_s(rows):
    for row in rows:
        label, title = LABELS[row.experiment.dynamics], TITLES[row.experiment.dataset]
        mean, seeds = figures(row)
        smoothness, decay = (f"{weight:.0e}".replace("e-0", "e-") for weight in row.regularization)
        words = [f"| {title} |", label.partition(",")[0], f"{row.num_weights:,}", mean, seeds]
        (line,) = lines_with(ROOT / "docs" / "results" / "paper.md", *words)
        assert f"| {smoothness}, {decay} " in line
        if row.published is None:
            continue
        paper = f"| {100 * row.published.test_accuracy:.1f}"
        assert f"{paper} ({row.published.test_loss:.3f}) |" in line
        recipe = f"`{row.experiment.dynamics}_{row.experiment.dataset}`"
        (line,) = lines_with(ROOT / "README.md", recipe, f"{row.num_weights:,}", mean, seeds)
        assert line.endswith(f"{paper} |")
        assert ("as printed" in line) == (row.regularization == (4e-4, 1e-4))


def test_the_page_has_the_printed_weights_of_the_regulariser_too(rows):
    for row in (*rows_of(published_runs.printed_plan(), PRINTED), rows[1]):
        assert row.regularization == (4e-4, 1e-4)
        page = ROOT / "docs" / "results" / "paper.md"
        assert lines_with(page, f"| {LABELS[row.experiment.dynamics]} | ", *figures(row))


@pytest.mark.parametrize("dynamics", PAPER_DYNAMICS)
def test_the_cards_of_the_published_weights_are_those_of_the_stored_runs(dynamics):
    name = f"{dynamics}_cifar10"
    card = publish_weights.card(read_result(PAPER / "runs" / f"{name}-seed0"), name)
    assert (WEIGHTS / name / "README.md").read_text() == card


def test_nothing_stored_names_a_folder_of_a_machine():
    for path in PAPER.rglob("runs/*/*.json*"):
        assert not re.search(r'"(/|~|[A-Z]:)', path.read_text()), path
