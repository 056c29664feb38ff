"""Every setting has the recipe's default and refuses what it cannot be."""

import json
import math
from dataclasses import FrozenInstanceError, replace

import numpy
import pytest

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.learning import ObjectiveConfig, OptimizerConfig, TrainingConfig
from pdecnn.learning.levels import LevelsConfig
from pdecnn.learning.schedule import ScheduleConfig
from tests.unit.learning.trainings import field_names

HUGE = 10**400
NO_NUMBERS = [
    "1", "", b"1", True, False, [], [1], (0.5,), {}, object(), 1j,
    math.nan, math.inf, -math.inf, HUGE, -HUGE,
]  # fmt: skip
NO_COUNTS = [*NO_NUMBERS, 1.0, 2.5, -1]
NAMES = {
    "loss": "cross_entropi",
    "smoothness": "tvv",
    "momentum_convention": "rate_insid",
    "box": "stencil",
    "schedule": "piecewize",
    "level_stencils": "keeep",
    "precision": "aut",
    "reversal_guard": "swich",
    "ties": "los",
}
# The recipe of Sec. 5 and docs/paper-map.md; the rest of the settings are off.
RECIPE = {
    "loss": "cross_entropy",
    "class_weights": None,
    "label_smoothing": 0.0,
    "smoothness": "tv",
    "smoothness_weight": 2e-4,
    "decay_weight": 2e-4,
    "smoothing": 1e-3,
    "schedule": "piecewise",
    "learning_rates": (0.1, 0.02, 0.004),
    "phases": (60, 20, 20),
    "warmup": 0.0,
    "momentum": 0.9,
    "momentum_convention": "rate_inside",
    "box": "stencils",
    "box_bound": 1.0,
    "clip_norm": None,
    "average_decay": None,
    "epochs": 100,
    "batch_size": 125,
    "accumulation": 1,
    "precision": "auto",
    "capture": True,
    "freeze": (),
    "evaluation_batch_size": 250,
    "patience": None,
    "ties": "loss",
    "num_threads": None,
    "time_limit_seconds": None,
    "max_nonfinite_steps": 0,
    "deterministic": False,
    "reversal_guard": "switch",
    "reversal_tolerance": 0.1,
    "reversal_interval": 5,
    "level_epochs": None,
    "level_sizes": None,
    "level_steps": None,
    "level_stencils": "keep",
}
NUMBERS = {
    # name: (values in range, values out of range)
    "label_smoothing": ([0, 0.0, 0.999], [-1e-9, 1, 1.5]),
    "smoothness_weight": ([0, 0.0, 1e300], [-1e-300]),
    "decay_weight": ([0, 0.0, 1e300], [-1e-300]),
    "smoothing": ([1e-30, 1], [0, 0.0, -1.0, 1e-40]),
    "momentum": ([0, 0.0, 0.999], [-0.1, 1, 1.0, 2]),
    "box_bound": ([1e-300, 1, 1e300], [0, 0.0, -1]),
    "clip_norm": ([None, 1e-300, 1], [0, 0.0, -1]),
    "average_decay": ([None, 0.5, 1e-9], [0, 0.0, 1, 1.0, -0.5]),
    "time_limit_seconds": ([None, 1, 0.5], [0, 0.0, -1]),
    "reversal_tolerance": ([1e-300, 1, 1e300], [0, 0.0, -1]),
}
COUNTS = {
    "epochs": ([1, 10**6], [0]),
    "batch_size": ([1, 10**6], [0]),
    "accumulation": ([1, 5, 125], [0]),
    "evaluation_batch_size": ([1, 10**6], [0]),
    "max_nonfinite_steps": ([0, 10**6], []),
    "patience": ([None, 1, 10**6], [0]),
    "num_threads": ([None, 1, 10**6], [0]),
    "reversal_interval": ([1, 10**6], [0]),
}

SWITCHES = ("capture", "deterministic")


def short(value):
    return repr(value)[:12]


def cases(table, kind, more=()):
    return [
        pytest.param(name, value, id=f"{name}-{short(value)}")
        for name, ranges in table.items()
        for value in [*ranges[kind], *more]
        if not (value is None and kind == 1 and None in ranges[0])
    ]


def test_the_defaults_are_the_recipe():
    config = TrainingConfig()
    assert {name: getattr(config, name) for name in field_names(TrainingConfig)} == RECIPE


def test_stl10_has_weights_of_its_own():
    training = pdecnn.recipe("parabolic_stl10").training
    assert (training.smoothness_weight, training.decay_weight) == (1e-4, 4e-4)
    assert replace(training, smoothness_weight=2e-4, decay_weight=2e-4) == TrainingConfig()


def test_cifar10_is_the_default():
    assert pdecnn.recipe("hamiltonian_cifar10").training == TrainingConfig()


def test_every_setting_is_tested_here():
    tested = {*NUMBERS, *COUNTS, *NAMES, "class_weights", "learning_rates", "phases", "warmup"}
    tested |= {*SWITCHES, "freeze", "level_epochs", "level_sizes", "level_steps"}
    assert tested == set(field_names(TrainingConfig)) == set(RECIPE)


def test_the_settings_are_those_of_its_parts_and_its_own():
    parts = [*field_names(ObjectiveConfig), *field_names(ScheduleConfig)]
    parts += [*field_names(OptimizerConfig), *field_names(LevelsConfig)]
    assert set(parts) < set(field_names(TrainingConfig))
    assert len(parts) == len(set(parts))


@pytest.mark.parametrize(("name", "value"), [*cases(NUMBERS, 0), *cases(COUNTS, 0)])
def test_values_in_range_are_taken(name, value):
    assert getattr(TrainingConfig(**{name: value}), name) == value


@pytest.mark.parametrize("number", [numpy.float32, numpy.int64, int])
def test_numbers_of_numpy_are_stored_as_pythons(number):
    names = [name for name, (values, _) in NUMBERS.items() if 1 in values]
    names += [*COUNTS] if number is not numpy.float32 else []
    config = TrainingConfig(**{name: number(1) for name in names}, class_weights=[number(1)] * 3)
    stored = {name: getattr(config, name) for name in names}
    assert json.loads(json.dumps(stored)) == dict.fromkeys(names, 1)
    assert config.class_weights == (1.0, 1.0, 1.0)
    assert type(config.class_weights[0]) is type(config.box_bound) is float
    schedule = ScheduleConfig(learning_rates=[number(1)], phases=number(1))
    assert {type(value) for value in schedule.learning_rates + schedule.phases} == {float}


@pytest.mark.parametrize(
    ("name", "value"), [*cases(NUMBERS, 1, NO_NUMBERS), *cases(COUNTS, 1, NO_COUNTS)]
)
def test_values_out_of_range_and_other_types_are_refused(name, value):
    with pytest.raises(ConfigError, match=name) as caught:
        TrainingConfig(**{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in [*NUMBERS, *COUNTS] if RECIPE[name] is not None])
def test_none_is_refused_where_a_number_is_needed(name):
    with pytest.raises(ConfigError, match=name):
        TrainingConfig(**{name: None})


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [*NO_NUMBERS[:3], None, 0, 1, "true"])
def test_switches_are_true_or_false(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be true or false"):
        TrainingConfig(**{name: value})
    assert not getattr(TrainingConfig(**{name: False}), name)


@pytest.mark.parametrize("name", NAMES)
def test_a_misspelt_name_is_answered_with_the_right_ones(name):
    with pytest.raises(
        ConfigError, match=rf"{name}.*(did you mean|known are) '?{RECIPE[name][:4]}"
    ):
        TrainingConfig(**{name: NAMES[name]})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value", [None, 3, True, 0.5, ["tv"], {}, math.nan, HUGE, b"tv"], ids=short
)
def test_a_name_must_be_a_text(name, value):
    with pytest.raises(ConfigError, match="unknown"):
        TrainingConfig(**{name: value})


@pytest.mark.parametrize(
    "value",
    ["12", 1.0, {}, set(), (), (1, -1), (1, "1"), (1, None), (1, True), (1, math.nan), (1, HUGE)],
    ids=short,
)
def test_bad_class_weights_are_refused(value):
    with pytest.raises(ConfigError, match="class_weights"):
        TrainingConfig(class_weights=value)


def test_accumulation_must_divide_the_batch():
    with pytest.raises(ConfigError, match="accumulation=4 does not divide batch_size=125"):
        TrainingConfig(accumulation=4)
    assert TrainingConfig(accumulation=5).accumulation == 5


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (ObjectiveConfig, {"label_smoothing": "x"}),
        (OptimizerConfig, {"momentum": "x"}),
        (ScheduleConfig, {"warmup": "x"}),
        (LevelsConfig, {"level_sizes": (4, 8)}),
    ],
)
def test_the_parts_check_themselves(cls, settings):
    with pytest.raises(ConfigError):
        cls(**settings)


def test_a_config_is_frozen_and_keyword_only():
    with pytest.raises(FrozenInstanceError):
        TrainingConfig().epochs = 3
    with pytest.raises(TypeError):
        TrainingConfig("cross_entropy")
    with pytest.raises(TypeError):
        TrainingConfig(epoch=3)


def test_replace_checks_too():
    with pytest.raises(ConfigError):
        replace(TrainingConfig(), epochs=0)


def test_parts_to_freeze_are_given_by_name():
    assert TrainingConfig(freeze=("blocks", "opening")).freeze == ("blocks", "opening")
    with pytest.raises(ConfigError, match="unknown part to freeze 'classifier'"):
        TrainingConfig(freeze=("classifier",))
