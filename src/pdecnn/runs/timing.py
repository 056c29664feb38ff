"""Times that can be trusted: warmed up, synchronised, repeated, variants in turn."""

import statistics
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from math import ceil
from time import perf_counter
from typing import Any, TypeVar

import torch

from pdecnn.learning.memory import free_memory, is_out_of_memory

Call = Callable[[], object]
Clock = Callable[[], float]
Name = TypeVar("Name", bound=Hashable)

_MOST_CALLS = 1000


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a call, once for each repeat."""

    seconds: tuple[float, ...]
    """One number a repeat: the mean over the calls of that repeat."""
    calls: int
    """Calls a repeat."""

    @property
    def median(self) -> float:
        """The median over the repeats."""
        return statistics.median(self.seconds)

    def ratio(self, other: "Timing") -> float:
        """How many times longer than `other`: the median over the repeats, each with its own.

        Repeats of both were made in turn, so a slow spell of the machine cancels.
        """
        pairs = zip(self.seconds, other.seconds, strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "median_seconds": self.median,
            "lowest_seconds": min(self.seconds),
            "highest_seconds": max(self.seconds),
            "repeats": len(self.seconds),
            "calls_per_repeat": self.calls,
            "seconds": list(self.seconds),
        }


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def time_in_turn(
    variants: Mapping[Name, Call],
    *,
    device: torch.device,
    num_repeats: int,
    repeat_seconds: float,
    num_warm_ups: int = 2,
    clock: Clock = perf_counter,
) -> dict[Name, Timing | None]:
    """Time the variants side by side; None for one that does not fit into memory.

    Each is called a few times first, so that compilation and caches stay out of the figures.
    Then every repeat times all variants, each by as many calls as take about `repeat_seconds`,
    one if that is 0, and begins with another variant, so that none profits from its place.
    """
    stopwatch = _Stopwatch(device, clock)
    calls = {
        name: _number_of_calls(call, stopwatch, repeat_seconds, num_warm_ups)
        for name, call in variants.items()
    }
    names = [name for name, number in calls.items() if number]
    seconds: dict[Name, list[float]] = {name: [] for name in names}
    for repeat in range(num_repeats):
        first = repeat % max(len(names), 1)
        for name in names[first:] + names[:first]:
            elapsed = stopwatch.seconds(variants[name], calls[name])
            seconds[name].append(elapsed / calls[name])
    return {
        name: Timing(tuple(seconds[name]), number) if number else None
        for name, number in calls.items()
    }


@dataclass(frozen=True, slots=True)
class _Stopwatch:
    device: torch.device
    clock: Clock

    def seconds(self, call: Call, number: int) -> float:
        """Of so many calls, from an idle device to an idle device."""
        synchronize(self.device)
        begin = self.clock()
        for _ in range(number):
            call()
        synchronize(self.device)
        return self.clock() - begin


def _number_of_calls(
    call: Call, stopwatch: _Stopwatch, repeat_seconds: float, num_warm_ups: int
) -> int:
    """Warm up; how many calls make a repeat, 0 if memory does not suffice for one."""
    # Caught there and freed here: while the error lives, so do the tensors of its frames.
    number = _calls_or_none(call, stopwatch, repeat_seconds, num_warm_ups)
    if number is None:
        free_memory()
    return number or 0


def _calls_or_none(
    call: Call, stopwatch: _Stopwatch, repeat_seconds: float, num_warm_ups: int
) -> int | None:
    try:
        stopwatch.seconds(call, num_warm_ups)
        if repeat_seconds == 0:
            return 1
        once = stopwatch.seconds(call, 1)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None
    return min(max(ceil(repeat_seconds / once), 1), _MOST_CALLS)
