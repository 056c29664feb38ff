"""The default attack is held against a far larger one: docs/results/attacks.json."""

import json
from pathlib import Path

from pdecnn.diagnostics.robustness import NUM_STEPS, RESTARTS
from pdecnn.runs.diagnosis import EPSILONS

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "attacks.json"
FOUND = json.loads(RESULTS.read_text())


def test_the_figures_are_those_of_the_default_budget():
    """Whoever changes it runs benchmarks/attacks.py again."""
    assert FOUND["budget"] == {"restarts": RESTARTS, "num_steps": NUM_STEPS}
    measured = {row["epsilon"] for row in FOUND["rows"] if row["norm"] == "linf"}
    assert measured == set(EPSILONS)


def test_no_accuracy_is_more_than_2_points_above_that_of_20_restarts_with_momentum():
    for row in FOUND["rows"]:
        assert len(row["momentum"]) == 20
        assert row["worst"] <= row["momentum"][-1] + 0.02, row
