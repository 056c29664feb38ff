"""Batches: every sample in its turn, the order a function of (seed, epoch)."""

import pytest
import torch

from pdecnn.data.image_set import epoch_order, evaluation_batches, training_batches
from pdecnn.errors import ConfigError


def test_an_order_visits_every_sample_once():
    order = epoch_order(101, seed=3, epoch=4)
    assert order.dtype == torch.int64
    assert torch.equal(order.sort().values, torch.arange(101))


def test_an_order_is_a_function_of_seed_and_epoch():
    first = epoch_order(101, seed=3, epoch=4)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert torch.equal(first, epoch_order(101, seed=3, epoch=4))
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(first, epoch_order(101, seed=3, epoch=5))
    assert not torch.equal(first, epoch_order(101, seed=4, epoch=4))
    # Seed and epoch are separate parts, not a sum.
    assert not torch.equal(first, epoch_order(101, seed=4, epoch=3))


def test_an_order_never_changes():
    assert epoch_order(10, seed=0, epoch=0).tolist() == [2, 9, 4, 1, 6, 3, 8, 5, 0, 7]


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "num_batches"),
    [(101, 25, 4), (100, 25, 4), (99, 25, 3), (25, 25, 1), (7, 1, 7)],
)
def test_training_batches_are_rows_of_the_order(num_samples, batch_size, num_batches):
    batches = training_batches(num_samples, batch_size, seed=3, epoch=4)
    assert batches.shape == (num_batches, batch_size)
    order = epoch_order(num_samples, seed=3, epoch=4)
    assert torch.equal(batches.flatten(), order[: num_batches * batch_size])


def test_the_batch_size_does_not_change_the_order():
    small = training_batches(96, 4, seed=3, epoch=4).flatten()
    assert torch.equal(small, training_batches(96, 12, seed=3, epoch=4).flatten())


def test_a_dropped_sample_has_its_turn_in_another_epoch():
    epochs = [training_batches(101, 25, seed=3, epoch=epoch) for epoch in range(3)]
    assert torch.equal(torch.cat(epochs).unique(), torch.arange(101))


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "lengths"),
    [(10, 4, [4, 4, 2]), (8, 4, [4, 4]), (3, 4, [3]), (0, 4, [])],
)
def test_evaluation_batches_cover_all_samples_in_order(num_samples, batch_size, lengths):
    samples = torch.arange(num_samples)
    parts = [samples[batch] for batch in evaluation_batches(num_samples, batch_size)]
    assert [len(part) for part in parts] == lengths
    assert torch.equal(torch.cat([samples[:0], *parts]), samples)


def test_a_batch_larger_than_the_training_set_is_refused():
    with pytest.raises(ConfigError, match="batch size of 125 exceeds the 100 training samples"):
        training_batches(100, 125, seed=0, epoch=0)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_size_below_one_is_refused(batch_size):
    with pytest.raises(ConfigError, match=f"at least 1, found {batch_size}"):
        training_batches(100, batch_size, seed=0, epoch=0)
    with pytest.raises(ConfigError, match=f"at least 1, found {batch_size}"):
        evaluation_batches(100, batch_size)
