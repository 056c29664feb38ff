"""The memory of fields: its page follows from the stored figures, and these are as was wanted."""

from pathlib import Path

import pytest

from benchmarks import field_memory
from benchmarks.field_memory import EXACT, MOST_OF_LEVELS, MOST_OF_STEPS, NUM_LEVELS, NUM_STEPS

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ON_GPU, ON_CPU = field_memory.read(RESULTS)


def used_by(found):
    return {
        (row["dimension"], row["num_steps"], row["num_levels"]): row["activation_bytes"]
        for row in found["rows"]
        if row["backprop"] == EXACT
    }


def test_the_page_is_written_from_the_stored_figures():
    assert (RESULTS / "field-memory.md").read_text() == field_memory.page(ON_GPU, ON_CPU)


def test_on_a_gpu_neither_steps_nor_levels_cost_memory():
    """With most steps on one level alone: those on four were not measured there."""
    used, (few, *_, many), (one, *_, all_levels) = used_by(ON_GPU), NUM_STEPS, NUM_LEVELS
    assert ON_GPU["sizes"] == {"3": 128, "2": 2048}
    for dimension in (2, 3):
        assert used[dimension, many, one] <= MOST_OF_STEPS * used[dimension, few, one]
        assert used[dimension, few, all_levels] <= MOST_OF_LEVELS * used[dimension, few, one]
    deepest = [row for row in ON_GPU["rows"] if row["num_levels"] == all_levels]
    assert [row["recovered"] for row in deepest] == [True] * 5


def test_neither_steps_nor_levels_cost_memory_and_the_features_come_back():
    rows = [row for row in ON_CPU["rows"] if row["backprop"] == EXACT]
    used = used_by(ON_CPU)
    few, *_, many = NUM_STEPS
    one, *_, all_levels = NUM_LEVELS
    for dimension in (2, 3):
        for levels in (one, all_levels):
            more_steps = used[dimension, many, levels] / used[dimension, few, levels]
            assert more_steps <= MOST_OF_STEPS
        for steps in (few, many):
            more_levels = used[dimension, steps, all_levels] / used[dimension, steps, one]
            assert more_levels <= MOST_OF_LEVELS
    recovered = [row["recovered"] for row in rows if row["num_levels"] == all_levels]
    assert recovered == [True] * 2 * len(NUM_STEPS)


@pytest.mark.parametrize("found", [ON_GPU, ON_CPU], ids=["gpu", "cpu"])
def test_the_control_sees_what_is_stored(found):
    """Three times the steps keep three times as much more than steps that keep nothing."""
    exact = used_by(found)
    stored = {
        (row["dimension"], row["num_steps"]): row["activation_bytes"]
        for row in found["rows"]
        if row["backprop"] != EXACT
    }
    few, more, *_ = NUM_STEPS
    for dimension in (2, 3):
        kept = [stored[dimension, n] - exact[dimension, n, NUM_LEVELS[0]] for n in (few, more)]
        assert kept[1] / kept[0] == pytest.approx(more / few, rel=0.15)
