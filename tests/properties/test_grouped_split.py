"""A split of groups: none on both sides, near the share that was asked for, alike every time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pdecnn.data import balanced_split
from pdecnn.data.image_set import hold_out_test
from pdecnn.errors import DataError


@st.composite
def grouped_labels(draw):
    """Groups of unequal sizes, each with samples of the first class and perhaps of others."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=3, max_size=20))
    num_classes = draw(st.integers(1, 4))
    labels, groups = [], []
    for group, size in enumerate(sizes):
        others = st.lists(st.integers(0, num_classes - 1), min_size=size - 1, max_size=size - 1)
        labels += [0, *draw(others)]
        groups += [7 * group] * size
    order = torch.tensor(draw(st.permutations(range(len(labels)))))
    return torch.tensor(labels)[order], torch.tensor(groups)[order]


@given(grouped_labels(), st.floats(0.2, 0.5), st.integers(0, 99))
def test_no_group_is_on_both_sides_and_the_share_is_near(sample, fraction, seed):
    labels, groups = sample
    try:
        kept, held_out = balanced_split(labels, fraction, seed=seed, groups=groups)
    except DataError as error:  # some class has too few groups: then no split leaves it in both
        assert "takes all samples of a class" in str(error)  # noqa: PT017
        return
    assert torch.equal(torch.cat([kept, held_out]).sort().values, torch.arange(len(labels)))
    assert not set(groups[kept].tolist()) & set(groups[held_out].tolist())
    assert set(labels.tolist()) == set(labels[kept].tolist())
    largest = int(groups.bincount().max())
    assert abs(len(held_out) - fraction * len(labels)) <= largest
    again = balanced_split(labels, fraction, seed=seed, groups=groups)
    assert torch.equal(again[1], held_out)


@given(st.integers(0, 99))
def test_with_many_groups_each_class_has_its_share(seed):
    groups = torch.arange(60).repeat_interleave(5)
    labels = (groups % 3 + torch.arange(300) % 2) % 3
    _, held_out = balanced_split(labels, 0.2, seed=seed, groups=groups)
    assert len(held_out) == 60
    assert (labels[held_out].bincount() - 20).abs().max() <= 6


def test_groups_of_one_are_split_to_the_sample():
    labels = torch.arange(40) % 2
    kept, held_out = hold_out_test(labels, torch.arange(40))
    assert (len(kept), len(held_out)) == (32, 8)


def test_one_group_cannot_be_split():
    with pytest.raises(DataError, match="cannot be held out of 1 group: at least 2 are needed"):
        hold_out_test(torch.arange(10) % 2, torch.zeros(10, dtype=torch.int64))


def test_groups_that_are_classes_cannot_be_split():
    labels = torch.arange(30) % 3
    with pytest.raises(DataError, match=r"takes all samples of a class: .*a group is a class"):
        hold_out_test(labels, labels)
