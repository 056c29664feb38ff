"""The page about levels says what was found, and of how many networks."""

import json
from pathlib import Path

import pytest

from benchmarks.multilevel_page import multilevel_page

ENVIRONMENT = {
    "date": "2026-01-01T00:00:00+00:00",
    "commit": "0123",
    "versions": {"torch": "2.0", "python": "3.11"},
    "hardware": {"gpu": "a GPU"},
}


def page(accuracies):
    """The page of published networks of these accuracies in %, a list a variant."""
    rows = [
        {
            "network": f"network{number}",
            "variant": variant,
            "test_accuracy": accuracy / 100,
            "tuned_test_accuracy": accuracy / 100,
            "images_per_second": 1.0,
        }
        for variant, values in accuracies.items()
        for number, accuracy in enumerate(values)
    ]
    return multilevel_page(
        {"published": {"quick": False, "environment": ENVIRONMENT, "coarsened": rows}}
    )


def test_the_published_page_is_that_of_the_stored_results():
    folder = Path(__file__).parents[3] / "docs" / "results"
    found = multilevel_page(json.loads((folder / "multilevel.json").read_bytes()))
    assert "of the last level,\nof equal ones the first.\n" in found
    assert found == (folder / "multilevel.md").read_text()


@pytest.mark.parametrize(
    ("galerkin", "words"),
    [
        ([60, 60, 40], "beats the stencils as they are (50.00): +3.33 points; it is better for 2"),
        ([49, 49, 60], "beats the stencils as they are (50.00): +2.67 points; it is better for 1"),
        ([51, 51, 30], "does not beat the stencils as they are (50.00): -6.00 points; it is "),
    ],
)
def test_one_network_that_decides_a_mean_is_seen(galerkin, words):
    others = {"full size": [90, 90, 90], "as it is": [50, 50, 50], "rediscretize": [20, 20, 20]}
    found = page({**others, "galerkin": galerkin, "smoothed": [30, 30, 30]})
    assert found.count(words) == 2
    assert "of 3 networks." in found
