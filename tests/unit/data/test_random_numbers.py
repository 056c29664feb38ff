"""Random numbers are a function of their keys, the same everywhere, and look random."""

import pytest
import torch

from pdecnn.data.augmentation import (
    MAX_BOUND,
    cpu_generator,
    random_bits,
    stable_seed,
    uniform_integers,
)

MASK = 2**64 - 1


def splitmix64(seed, count):
    """The published algorithm in Python's integers."""
    outputs = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        bits = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
        outputs.append(bits ^ (bits >> 31))
    return outputs


def as_unsigned(bits):
    return [value & MASK for value in bits.tolist()]


def test_the_reference_gives_the_published_numbers():
    assert splitmix64(1234567, 3) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_counters_walk_the_splitmix64_sequence():
    assert as_unsigned(random_bits(counters=torch.arange(50))) == splitmix64(0, 50)


def test_keys_start_sequences_of_their_own():
    start = splitmix64(0, 8)[7]
    assert as_unsigned(random_bits(7, counters=torch.arange(50))) == splitmix64(start, 50)


@pytest.mark.parametrize("epoch", [0, 1, 159, 2**62, -3])
def test_an_epoch_in_a_tensor_gives_the_same_bits(epoch):
    counters = torch.arange(100)
    as_int = random_bits(5, epoch, counters=counters)
    assert torch.equal(as_int, random_bits(5, torch.tensor(epoch), counters=counters))


def test_the_result_has_the_shape_of_the_counters():
    counters = torch.arange(24).view(2, 3, 4)
    bits = random_bits(1, counters=counters)
    assert bits.shape == (2, 3, 4)
    assert bits.dtype == torch.int64
    assert torch.equal(bits.flatten(), random_bits(1, counters=counters.flatten()))


def test_large_keys_do_not_overflow():
    random_bits(2**63 - 1, -(2**63), counters=torch.tensor([2**63 - 1, -(2**63)]))


def test_every_bit_is_fair_and_keys_are_independent():
    num_draws = 40_000
    first = random_bits(3, 0, counters=torch.arange(num_draws))
    second = random_bits(3, 1, counters=torch.arange(num_draws))
    shifts = torch.arange(64)[:, None]
    ones = ((first >> shifts) & 1).double().mean(1)
    changed = (((first ^ second) >> shifts) & 1).double().mean(1)
    six_sigma = 6 * 0.5 / num_draws**0.5
    assert (ones - 0.5).abs().max() < six_sigma
    assert (changed - 0.5).abs().max() < six_sigma


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 13])
def test_integers_are_uniform(bound):
    num_draws = 60_000
    draws = uniform_integers(bound, 11, 4, counters=torch.arange(num_draws))
    counts = torch.bincount(draws, minlength=bound).double()
    assert len(counts) == bound
    expected = num_draws / bound
    assert (counts - expected).abs().max() <= 6 * expected**0.5


def test_the_largest_bound_stays_in_range():
    draws = uniform_integers(MAX_BOUND, counters=torch.arange(10_000))
    assert 0 <= draws.min() < 2**20
    assert MAX_BOUND - 2**20 < draws.max() < MAX_BOUND


@pytest.mark.parametrize("bound", [0, -1, MAX_BOUND + 1])
def test_an_impossible_bound_is_refused(bound):
    with pytest.raises(AssertionError, match=f"found {bound}"):
        uniform_integers(bound, counters=torch.arange(3))


def test_nothing_waits_for_the_device():
    # Meta tensors have no values: any operation that waits for one would raise.
    epoch = torch.zeros((), dtype=torch.int64, device="meta")
    counters = torch.zeros(7, dtype=torch.int64, device="meta")
    assert uniform_integers(5, 1, epoch, counters=counters).shape == (7,)


def test_stable_seeds_are_63_bits_and_differ_by_part_and_border():
    parts = [(0,), (1,), (0, 0), ("0",), (0, "order"), ("a", "b"), ("ab",), ("a,b",), ("b", "a")]
    seeds = [stable_seed(*part) for part in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_stable_seeds_never_change():
    assert stable_seed(0, 1, "order") == 1314866371737174458


def test_stable_seeds_are_the_same_in_every_process():
    """Written down: no hash of Python's own, which another process salts otherwise."""
    assert stable_seed(7, "flip") == 8494979091877110326
    assert stable_seed("order", 0) != stable_seed("order0")


def test_a_cpu_generator_starts_from_the_stable_seed():
    assert cpu_generator(3, "split").initial_seed() == stable_seed(3, "split")
