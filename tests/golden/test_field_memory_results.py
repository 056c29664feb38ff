"""The memory of fields: its page follows from the stored figures, and these are as was wanted."""

import json
from pathlib import Path

from benchmarks import field_memory
from benchmarks.field_memory import EXACT, MOST_OF_LEVELS, MOST_OF_STEPS, NUM_LEVELS, NUM_STEPS

RESULTS = Path(__file__).parents[2] / "docs" / "results"
FOUND = json.loads((RESULTS / "field-memory.json").read_bytes())


def test_the_page_is_written_from_the_stored_figures():
    assert (RESULTS / "field-memory.md").read_text() == field_memory.page(FOUND)


def test_neither_steps_nor_levels_cost_memory_and_the_features_come_back():
    rows = [row for row in FOUND["rows"] if row["backprop"] == EXACT]
    used = {
        (row["dimension"], row["num_steps"], row["num_levels"]): row["activation_bytes"]
        for row in rows
    }
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


def test_the_control_sees_what_is_stored():
    used = {
        (row["dimension"], row["num_steps"]): row["activation_bytes"]
        for row in FOUND["rows"]
        if row["backprop"] != EXACT
    }
    for dimension in (2, 3):
        assert used[dimension, NUM_STEPS[1]] > 2 * used[dimension, NUM_STEPS[0]]
