"""Memory of fields: what is measured without a GPU, and the page of it."""

import json

import pytest

from benchmarks import field_memory


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    arguments = ["measure", "--output", str(folder), "--device", "cpu", "--steps", "1", "3"]
    field_memory.main(arguments)
    return json.loads((folder / "field-memory.json").read_bytes())


def test_memory_grows_with_what_is_stored_alone(found):
    """The control: where every step is kept the same measurement sees it."""
    used = {}
    for row in found["rows"]:
        key = row["dimension"], row["backprop"], row["num_steps"], row["num_levels"]
        used[key] = row["activation_bytes"]
    for dimension in (2, 3):
        few = used[dimension, "exact", 1, 1]
        assert used[dimension, "exact", 3, 1] <= 1.1 * few
        assert used[dimension, "exact", 3, 4] <= 1.2 * few
        assert used[dimension, "stored", 3, 1] > 1.5 * used[dimension, "stored", 1, 1]


def test_the_opened_features_come_back_through_all_levels(found):
    tried = [row["recovered"] for row in found["rows"] if row["recovered"] is not None]
    assert tried == [True] * 4


def test_the_page_says_each_ratio_beside_what_was_wanted(found):
    text = field_memory.page(found)
    assert text.count("(wanted: at most 1.1)") == text.count("(wanted: at most 1.2)") == 4
    assert "| 3 | " in text
    assert "to the last bit" in text
