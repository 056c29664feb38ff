"""What tuned training gives: the page and its figure follow from the stored runs."""

from pathlib import Path

from benchmarks import tuned_page

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RUNS = RESULTS / "tuned" / "runs"


def test_the_page_is_written_from_the_stored_runs():
    found = tuned_page.written(RESULTS)
    assert (RESULTS / "tuned.md").read_text() == found["tuned.md"].decode()
    for name in found:
        assert (RESULTS / name).exists()


def test_nothing_stored_names_a_folder_of_a_machine():
    for path in RUNS.rglob("*.json"):
        assert '"/' not in path.read_text(), path
