"""Memory of fields: what is measured without a GPU, and the page of it."""

import json

import pytest

import pdecnn
from benchmarks import field_memory


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    arguments = ["measure", "--output", str(folder), "--device", "cpu", "--steps", "1", "3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(field_memory.SIZES, "cpu", {3: 16, 2: 32})
        field_memory.main(arguments)
    return json.loads((folder / "field-memory-cpu.json").read_bytes())


def test_memory_grows_with_what_is_stored_alone(found):
    """The control: where every step is kept the same measurement sees it."""
    used = {}
    for row in found["rows"]:
        key = row["dimension"], row["backprop"], row["num_steps"], row["num_levels"]
        used[key] = row["activation_bytes"]
    for dimension in (2, 3):
        for levels in (1, 4):
            assert used[dimension, "exact", 3, levels] <= 1.1 * used[dimension, "exact", 1, levels]
        # On four, images as small as here are less than the stencils of one step.
        assert used[dimension, "exact", 1, 3] <= 1.2 * used[dimension, "exact", 1, 1]
        assert used[dimension, "stored", 3, 1] > 1.15 * used[dimension, "stored", 1, 1]


def test_the_opened_features_come_back_through_all_levels(found):
    tried = [row["recovered"] for row in found["rows"] if row["recovered"] is not None]
    assert tried == [True] * 4


def test_the_page_says_each_ratio_beside_what_was_wanted(found):
    text = field_memory.page(found)
    assert text.count("(wanted: at most 1.1)") == text.count("(wanted: at most 1.2)") == 4
    assert "| 3 | " in text
    assert "to the last bit" in text
    assert "not measured: 10 steps on 1 level" in text


@pytest.mark.parametrize("backprop", ["exact", "stored"])
def test_what_grows_with_the_steps_are_the_states_that_are_kept(backprop):
    """Where none are kept, only what is known of each weight: a few hundred bytes a step."""
    batch = field_memory.random_batch(2, 32)

    def peak(num_steps):
        config = field_memory.Case(2, num_steps, 1, backprop).config()
        return field_memory.peak_bytes(pdecnn.Network(config), batch)

    a_step = (peak(9) - peak(5)) / 4
    assert (a_step < 1000) if backprop == "exact" else (a_step > 2 * 8 * 32 * 32 * 4)
