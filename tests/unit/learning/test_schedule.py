"""The learning rate of every step: the paper's phases exactly, and the smooth schedules."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdecnn.errors import ConfigError
from pdecnn.learning.training_config import ScheduleConfig
from tests.unit.learning.trainings import field_names

CIFAR100 = ScheduleConfig(
    learning_rates=(0.1, 0.02, 0.004, 0.0008, 0.00016), phases=(60, 40, 40, 40, 20)
)
smooth = pytest.mark.parametrize("schedule", ["linear", "cosine"])


def rates_by_epoch(config, epochs, steps_per_epoch=7):
    """The rate of each epoch; all its steps must have it."""
    rates = []
    for epoch in range(epochs):
        steps = range(epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch)
        found = {
            config.learning_rate(step, steps_per_epoch=steps_per_epoch, epochs=epochs)
            for step in steps
        }
        assert len(found) == 1
        rates.append(found.pop())
    return rates


def rates_by_step(config, num_steps, epochs=10):
    steps_per_epoch = num_steps // epochs
    return [
        config.learning_rate(step, steps_per_epoch=steps_per_epoch, epochs=epochs)
        for step in range(num_steps)
    ]


def test_the_default_is_the_papers_schedule():
    assert rates_by_epoch(ScheduleConfig(), 100) == [0.1] * 60 + [0.02] * 20 + [0.004] * 20


def test_cifar100_has_the_papers_five_phases():
    expected = [0.1] * 60 + [0.02] * 40 + [0.004] * 40 + [0.0008] * 40 + [0.00016] * 20
    assert rates_by_epoch(CIFAR100, 200) == expected


def test_the_recipes_use_these_schedules():
    import pdecnn

    for name in pdecnn.list_recipes():
        newer = ("stable", "tuned", "denoising", "sounds", "segmentation", "large_digits")
        if any(word in name for word in newer):  # linear or cosine, see test_recipes.py
            continue
        training = pdecnn.recipe(name).training
        config = CIFAR100 if "cifar100" in name else ScheduleConfig()
        found = {field: getattr(training, field) for field in field_names(ScheduleConfig)}
        assert ScheduleConfig(**found) == config, name
        epochs = {"cifar100": 200, "digits": 20, "images": 30, "signals": 15, "volumes": 15}
        data_set = name.removesuffix("_multilevel").rpartition("_")[2]
        assert training.epochs == epochs.get(data_set, 100)


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (1, [0.1]),
        (2, [0.1, 0.02]),
        (3, [0.1, 0.02, 0.004]),
        (4, [0.1, 0.1, 0.02, 0.004]),
        (5, [0.1, 0.1, 0.1, 0.02, 0.004]),
        (10, [0.1] * 6 + [0.02] * 2 + [0.004] * 2),
        (30, [0.1] * 18 + [0.02] * 6 + [0.004] * 6),
    ],
)
def test_phases_scale_with_the_number_of_epochs(epochs, expected):
    assert rates_by_epoch(ScheduleConfig(), epochs, steps_per_epoch=1) == expected


@given(
    epochs=st.integers(1, 60),
    phases=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6),
)
def test_phases_come_in_order_and_none_is_missing_where_there_is_room(epochs, phases):
    rates = [0.1 / 2**k for k in range(len(phases))]
    config = ScheduleConfig(learning_rates=tuple(rates), phases=tuple(phases))
    found = rates_by_epoch(config, epochs, steps_per_epoch=1)
    assert found == sorted(found, reverse=True)
    assert set(found) <= set(rates)
    if epochs >= len(phases):
        assert set(found) == set(rates)


@given(epochs=st.integers(1, 300))
def test_phases_are_as_long_as_asked_for_to_within_an_epoch(epochs):
    found = rates_by_epoch(ScheduleConfig(), epochs, steps_per_epoch=1)
    for rate, share in ((0.1, 0.6), (0.02, 0.2), (0.004, 0.2)):
        assert abs(found.count(rate) - epochs * share) <= 1


def test_phases_are_relative_to_each_other():
    one = ScheduleConfig(phases=(60, 20, 20))
    two = ScheduleConfig(phases=(0.6, 0.2, 0.2))
    assert rates_by_epoch(one, 50) == rates_by_epoch(two, 50)


def test_a_rate_after_the_end_is_the_last_one():
    assert ScheduleConfig().learning_rate(1000, steps_per_epoch=1, epochs=100) == 0.004


def test_one_number_is_a_list_of_one():
    config = ScheduleConfig(learning_rates=0.02, phases=1)
    assert (config.learning_rates, config.phases) == ((0.02,), (1,))
    assert rates_by_epoch(config, 4) == [0.02] * 4


def test_linear_is_its_formula():
    config = ScheduleConfig(schedule="linear", learning_rates=(0.4,), warmup=0.2)
    found = rates_by_step(config, 100)
    rise = [0.4 * (k + 1) / 20 for k in range(20)]
    fall = [0.4 * (1 - (k + 1) / 80) for k in range(80)]
    assert found == pytest.approx(rise + fall, abs=1e-14)


def test_cosine_is_its_formula():
    config = ScheduleConfig(schedule="cosine", learning_rates=(0.4,), warmup=0.2)
    found = rates_by_step(config, 100)
    rise = [0.4 * (k + 1) / 20 for k in range(20)]
    fall = [0.2 * (1 + math.cos(math.pi * (k + 1) / 80)) for k in range(80)]
    assert found == pytest.approx(rise + fall, abs=1e-14)


@smooth
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.5, 0.999])
def test_smooth_schedules_end_at_zero_stay_positive_and_do_not_jump(schedule, warmup):
    config = ScheduleConfig(schedule=schedule, learning_rates=(0.1,), warmup=warmup)
    found = rates_by_step(config, 10_000)
    assert found[-1] == pytest.approx(0, abs=1e-15)
    assert all(rate > 0 for rate in found[:-1])
    assert max(found) <= 0.1 * (1 + 1e-12)
    assert max(found) == pytest.approx(0.1, rel=0.11 if warmup == 0.999 else 1e-3)
    slope = max(1 / warmup if warmup else 0, math.pi / (1 - warmup))
    largest = 0.1 * slope / 10_000 * (1 + 1e-9)
    assert all(abs(b - a) <= largest for a, b in pairwise(found))


@smooth
def test_smooth_schedules_rise_then_fall(schedule):
    config = ScheduleConfig(schedule=schedule, learning_rates=(0.1,), warmup=0.3)
    found = rates_by_step(config, 100)
    assert found[:30] == sorted(found[:30])
    assert found[29:] == sorted(found[29:], reverse=True)
    assert found.index(max(found)) == 29


@smooth
def test_smooth_schedules_never_go_below_zero_after_the_end(schedule):
    config = ScheduleConfig(schedule=schedule, warmup=0.1)
    assert config.learning_rate(500, steps_per_epoch=10, epochs=10) == pytest.approx(0, abs=1e-15)


@smooth
def test_smooth_schedules_take_the_first_rate_as_peak_and_no_phases(schedule):
    config = ScheduleConfig(schedule=schedule, learning_rates=(0.3, 0.1), phases=(1, 2, 3))
    assert config.learning_rate(0, steps_per_epoch=1000, epochs=10) == pytest.approx(0.3, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rates": (0.1, 0.2)}, "3 training.phases and 2 training.learning_rates"),
        ({"learning_rates": 0.1}, "3 training.phases and 1 training.learning_rates"),
        ({"phases": (1e308, 1e308, 1)}, "phases must be a number in"),
        ({"learning_rates": (1e39, 1, 1)}, "learning_rates must be a number in"),
        ({"warmup": 0.1}, "warmup has no use with training.schedule=piecewise"),
    ],
)
def test_bad_schedules_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ScheduleConfig(**settings)
