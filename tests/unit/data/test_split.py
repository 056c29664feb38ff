"""Splits are exact, balanced, disjoint and a function of the seed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pdecnn.data.image_set import balanced_fraction, balanced_split
from pdecnn.errors import ConfigError

LABELS = torch.arange(10).repeat(37)


class_lists = st.lists(st.integers(0, 6), min_size=2, max_size=80)


@given(labels=class_lists, data=st.data(), seed=st.integers(0, 2**40))
def test_a_split_is_exact_disjoint_complete_and_balanced(labels, data, seed):
    labels = torch.tensor(labels)
    count = data.draw(st.integers(1, len(labels) - 1))
    kept, held_out = balanced_split(labels, count, seed=seed)
    assert len(held_out) == count
    assert torch.equal(torch.cat([kept, held_out]).sort().values, torch.arange(len(labels)))
    shares = torch.bincount(labels, minlength=7) * count / len(labels)
    taken = torch.bincount(labels[held_out], minlength=7)
    assert (taken - shares).abs().max() < 1


def test_both_parts_are_sorted_int64_indices():
    for part in balanced_split(LABELS, 0.2, seed=1):
        assert part.dtype == torch.int64
        assert torch.equal(part, part.sort().values)


def test_a_fraction_holds_out_that_share_of_every_class():
    labels = torch.arange(5).repeat_interleave(100)
    kept, held_out = balanced_split(labels, 0.2, seed=1)
    assert torch.bincount(labels[kept]).tolist() == [80] * 5
    assert torch.bincount(labels[held_out]).tolist() == [20] * 5


def test_a_fraction_rounds_half_up():
    assert len(balanced_split(torch.zeros(5, dtype=torch.int64), 0.5, seed=1)[1]) == 3


def test_a_split_depends_on_seed_and_purpose_only():
    first = balanced_split(LABELS, 74, seed=1)[1]
    torch.manual_seed(99)
    assert torch.equal(first, balanced_split(LABELS, 74, seed=1)[1])
    assert not torch.equal(first, balanced_split(LABELS, 74, seed=2)[1])
    assert not torch.equal(first, balanced_split(LABELS, 74, seed=1, purpose="test")[1])


def test_a_split_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    balanced_split(LABELS, 74, seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_the_choice_within_a_class_is_uniform():
    labels = torch.zeros(20, dtype=torch.int64)
    counts = torch.zeros(20)
    for seed in range(2000):
        counts[balanced_split(labels, 5, seed=seed)[1]] += 1
    assert (counts - 500).abs().max() < 6 * (2000 * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        (0, "holding out 0 of 370"),
        (370, "holding out 370 of 370 .* choose 1 to 369"),
        (-1, "holding out -1"),
        (0.0, r"in \(0, 1\), found 0.0"),
        (1.0, r"in \(0, 1\), found 1.0"),
        (float("nan"), "found nan"),
        (0.001, "holding out 0 of 370"),
    ],
)
def test_a_split_with_an_empty_part_is_refused(held_out, message):
    with pytest.raises(ConfigError, match=message):
        balanced_split(LABELS, held_out, seed=1)


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.8])
def test_a_fraction_is_exact_and_balanced(fraction):
    chosen = balanced_fraction(LABELS, fraction, seed=3)
    assert len(chosen) == int(370 * fraction + 0.5)
    assert len(chosen.unique()) == len(chosen)
    assert (torch.bincount(LABELS[chosen], minlength=10) - 37 * fraction).abs().max() < 1


@pytest.mark.parametrize("fraction", [1, 1.0])
def test_the_whole_fraction_is_all_images(fraction):
    assert torch.equal(balanced_fraction(LABELS, fraction, seed=3), torch.arange(370))


def test_smaller_fractions_of_equal_classes_lie_in_larger_ones():
    small = balanced_fraction(LABELS, 0.1, seed=3)
    large = balanced_fraction(LABELS, 0.4, seed=3)
    assert torch.isin(small, large).all()


@pytest.mark.parametrize(
    ("fraction", "message"),
    [
        (0, "found 0"),
        (1.1, "found 1.1"),
        (float("nan"), "found nan"),
        (0.001, "0.001 of 370 images is no image"),
    ],
)
def test_a_fraction_without_images_is_refused(fraction, message):
    with pytest.raises(ConfigError, match=message):
        balanced_fraction(LABELS, fraction, seed=3)
