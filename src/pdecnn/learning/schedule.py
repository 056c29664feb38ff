"""The learning rate as a function of the step: piecewise constant, linear or cosine."""

from dataclasses import dataclass
from itertools import accumulate
from math import cos, pi

from pdecnn.checks import check_number, is_finite_number
from pdecnn.errors import ConfigError, unknown_name

SCHEDULES = ("piecewise", "linear", "cosine")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate changes over a training."""

    schedule: str = "piecewise"
    """'piecewise': constant in phases; 'linear' and 'cosine': from the first rate to 0 after a
    linear warm-up."""
    learning_rates: tuple[float, ...] = (0.1, 0.02, 0.004)
    """The rate of each phase; 'linear' and 'cosine' take one, their peak."""
    phases: tuple[float, ...] = (60, 20, 20)
    """The lengths of the phases relative to each other; scaled to the number of epochs, each
    lasting at least one where there are enough."""
    warmup: float = 0.0
    """The share of the training over which the rate rises from 0; for 'linear' and 'cosine'."""

    def __post_init__(self) -> None:
        for name in ("learning_rates", "phases"):
            object.__setattr__(self, name, positive_numbers(name, getattr(self, name)))
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        warmup = check_number("warmup", self.warmup, smallest=0, below=1)
        object.__setattr__(self, "warmup", warmup)
        if self.schedule == "piecewise":
            if self.warmup:
                raise ConfigError("warmup belongs to the schedules 'linear' and 'cosine'")
            if len(self.phases) != len(self.learning_rates):
                raise ConfigError(
                    f"each phase needs a rate: found {len(self.phases)} phases and "
                    f"{len(self.learning_rates)} learning_rates"
                )

    def learning_rate(self, step: int, *, steps_per_epoch: int, epochs: int) -> float:
        """The rate of a step, counted from 0."""
        if self.schedule == "piecewise":
            return self._piecewise(step // steps_per_epoch, epochs)
        progress = (step + 1) / (steps_per_epoch * epochs)
        peak = self.learning_rates[0]
        if progress < self.warmup:
            return peak * progress / self.warmup
        remaining = (progress - self.warmup) / (1 - self.warmup)
        if self.schedule == "linear":
            return peak * max(0.0, 1 - remaining)
        return peak * (1 + cos(pi * min(1.0, remaining))) / 2

    def _piecewise(self, epoch: int, epochs: int) -> float:
        ends = phase_ends(self.phases, epochs)
        return next(
            (r for r, end in zip(self.learning_rates, ends, strict=True) if epoch < end),
            self.learning_rates[-1],
        )


def phase_ends(phases: tuple[float, ...], epochs: int) -> list[int]:
    """The epoch after the last of each phase, the phases being scaled to so many epochs."""
    whole, num_phases = sum(phases), len(phases)
    ends: list[int] = []
    for k, total in enumerate(accumulate(phases)):
        end = round(epochs * (total / whole))
        if epochs >= num_phases:  # room for each phase: at least one epoch, and one for later
            begin = ends[-1] if ends else 0
            end = min(max(end, begin + 1), epochs - (num_phases - 1 - k))
        ends.append(end)
    return ends


def positive_numbers(name: str, value: object) -> tuple[float, ...]:
    """The value as a tuple; one number is a list of one."""
    numbers = [value] if is_finite_number(value) else value
    if not isinstance(numbers, list | tuple) or not numbers:
        raise ConfigError(f"{name} must be a list of numbers, found {value!r}")
    if not all(is_finite_number(number) and number > 0 for number in numbers):
        raise ConfigError(f"{name} must be positive numbers, found {value!r}")
    if not is_finite_number(sum(numbers)):
        raise ConfigError(f"{name} are too large, found {value!r}")
    return tuple(float(number) for number in numbers)
