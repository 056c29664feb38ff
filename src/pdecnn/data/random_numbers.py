"""Random numbers that are a function of their keys, for the augmentation of Section 5.

A generator with a state gives a sample numbers that depend on who drew before it. Here every
number is the hash of (seed, epoch, sample index, ...): no state, hence the same augmentation
for any batch size, any number of workers and after any restart.
"""

import hashlib
import json

import torch
from torch import Tensor

# The constants of SplitMix64 (Steele, Lea & Flood 2014).
_INCREMENT = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
MAX_BOUND = 2**31


def stable_seed(*parts: int | str) -> int:
    """A seed of 63 bits from these parts: the same in every process and on every machine.

    Any change of a part, or of the borders between parts, gives an unrelated seed.
    """
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def cpu_generator(*parts: int | str) -> torch.Generator:
    """A generator on the CPU that starts from `stable_seed(*parts)`."""
    return torch.Generator().manual_seed(stable_seed(*parts))


def random_bits(*keys: int | Tensor, counters: Tensor) -> Tensor:
    """64 random bits (int64) for every counter: SplitMix64 of the keys, then of the counter.

    A key is an int or a 0-dim int64 tensor; both give the same bits. The result has the shape
    and device of the counters. No host synchronisation and a fixed number of operations.
    """
    state = torch.zeros((), dtype=torch.int64, device=counters.device)
    for key in (*keys, counters):
        # With key k this is output number k of the SplitMix64 sequence that starts at `state`.
        state = _mix(state + _advance(key))
    return state


def uniform_integers(bound: int, *keys: int | Tensor, counters: Tensor) -> Tensor:
    """An integer in 0 .. bound - 1 for every counter, each with probability 1/bound.

    No probability is off by more than 2^-32.
    """
    assert 1 <= bound <= MAX_BOUND, f"bound must be in 1 to {MAX_BOUND}, found {bound}"
    # Multiply and shift: no rejection loop, and the product stays below 2^63.
    high = _shift_right(random_bits(*keys, counters=counters), 32)
    return (high * bound) >> 32


def _advance(key: int | Tensor) -> int | Tensor:
    if isinstance(key, Tensor):
        return (key + 1) * _signed(_INCREMENT)
    return _signed((key + 1) * _INCREMENT)


def _mix(bits: Tensor) -> Tensor:
    """SplitMix64's output function, one to one on 64 bits."""
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        bits = (bits ^ _shift_right(bits, shift)) * _signed(factor)
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: Tensor, shift: int) -> Tensor:
    # torch repeats the sign bit when it shifts int64; the mask takes those copies away.
    return (bits >> shift) & ((1 << (64 - shift)) - 1)


def _signed(number: int) -> int:
    """The int64 with the same lowest 64 bits."""
    return (number + 2**63) % 2**64 - 2**63
