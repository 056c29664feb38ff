"""Variants are timed in turn, and what does not fit into memory is a result."""

import pytest
import torch

from pdecnn.runs.timing import (
    Timing,
    free_memory,
    is_out_of_memory,
    time_in_turn,
)

DEVICE = torch.device("cpu")


def ticking(interval):
    """A clock that goes on by the same time whenever it is read."""
    ticks = (interval * k for k in range(1000))
    return lambda: next(ticks)


def test_variants_are_timed_in_turn_after_a_warm_up():
    calls = []
    variants = {name: lambda name=name: calls.append(name) for name in "abc"}
    timings = time_in_turn(
        variants, device=DEVICE, num_repeats=3, repeat_seconds=0.5, clock=ticking(1.0)
    )
    assert "".join(calls) == "aaabbbccc" + "abc" + "bca" + "cab"
    assert all(timing == Timing((1.0, 1.0, 1.0), 1) for timing in timings.values())


def test_short_calls_are_repeated_until_they_fill_the_time():
    timing = time_in_turn(
        {0: int}, device=DEVICE, num_repeats=2, repeat_seconds=0.35, clock=ticking(0.1)
    )[0]
    assert timing.calls == 4
    assert timing.seconds == pytest.approx((0.025, 0.025))


def test_what_does_not_fit_into_memory_is_a_result():
    def too_large():
        raise torch.OutOfMemoryError("CUDA out of memory")

    timings = time_in_turn(
        {"fits": int, "does not": too_large}, device=DEVICE, num_repeats=5, repeat_seconds=0
    )
    assert timings["does not"] is None
    assert len(timings["fits"].seconds) == 5


def error_of(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever torch raises
        call()
    return caught.value


def test_lack_of_memory_is_told_by_its_kind_or_its_words():
    real = error_of(lambda: torch.empty(2**50))
    assert type(real) is RuntimeError
    assert is_out_of_memory(real)
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"),
        RuntimeError("[enforce fail] not enough memory: you tried to allocate 8 bytes"),
    ):
        assert is_out_of_memory(error), error


def test_memory_in_the_words_of_another_error_is_not_lack_of_it():
    overlap = error_of(lambda: torch.zeros(1).expand(3).add_(torch.ones(3)))
    assert "single memory location" in str(overlap)
    for error in (
        overlap,
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("out of resource: shared memory, Required: 278528"),
        RuntimeError("Pin memory thread exited unexpectedly"),
        ValueError("memory_format"),
        RuntimeError("something else"),
    ):
        assert not is_out_of_memory(error), error


def test_memory_is_freed_without_compiling_everything_again(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.compiler, "reset", lambda: pytest.fail("the compiler was reset"))
    free_memory()


def test_one_call_a_repeat_is_not_timed_beforehand():
    calls = []
    timings = time_in_turn(
        {name: lambda name=name: calls.append(name) for name in "ab"},
        device=DEVICE,
        num_repeats=5,
        repeat_seconds=0,
        num_warm_ups=1,
    )
    assert "".join(calls) == "a" + "b" + "abbaabbaab"
    assert timings["a"].calls == 1


def test_other_errors_are_not_taken_for_lack_of_memory():
    with pytest.raises(ZeroDivisionError):
        time_in_turn({0: lambda: 1 / 0}, device=DEVICE, num_repeats=5, repeat_seconds=0)


def test_a_timing_has_median_spread_and_a_ratio_of_pairs():
    mine, other = Timing((2.0, 3.0, 40.0), 7), Timing((1.0, 2.0, 20.0), 7)
    assert mine.ratio(other) == 2.0
    assert mine.to_dict() == {
        "median_seconds": 3.0,
        "lowest_seconds": 2.0,
        "highest_seconds": 40.0,
        "repeats": 3,
        "calls_per_repeat": 7,
        "seconds": [2.0, 3.0, 40.0],
    }
