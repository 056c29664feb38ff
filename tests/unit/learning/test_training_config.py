"""Every setting has the recipe's default, and settings that do not fit together are refused."""

from dataclasses import FrozenInstanceError, replace

import pytest

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.learning import ObjectiveConfig, OptimizerConfig, TrainingConfig
from pdecnn.learning.levels import LevelsConfig
from pdecnn.learning.training_config import ScheduleConfig
from tests.unit.learning.trainings import field_names

# The recipe of Sec. 5 and docs/paper-map.md; the rest of the settings are off.
RECIPE = {
    "loss": "cross_entropy",
    "class_weights": None,
    "label_smoothing": 0.0,
    "margin_offset": 0.0,
    "temperature": 1.0,
    "smoothness": "tv",
    "smoothness_weight": 2e-4,
    "decay_weight": 2e-4,
    "smoothing": 1e-3,
    "mixup": None,
    "cutmix": None,
    "schedule": "piecewise",
    "learning_rates": (0.1, 0.02, 0.004),
    "phases": (60, 20, 20),
    "warmup": 0.0,
    "optimizer": "sgd",
    "momentum": 0.9,
    "momentum_convention": "rate_inside",
    "betas": (0.9, 0.999),
    "weight_decay": 0.0,
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
    "batch_norm_statistics": "running",
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


def test_the_defaults_are_the_recipe():
    config = TrainingConfig()
    assert {name: getattr(config, name) for name in field_names(TrainingConfig)} == RECIPE


def test_stl10_has_weights_of_its_own():
    training = pdecnn.recipe("parabolic_stl10").training
    assert (training.smoothness_weight, training.decay_weight) == (1e-4, 4e-4)
    assert replace(training, smoothness_weight=2e-4, decay_weight=2e-4) == TrainingConfig()


def test_cifar10_is_the_default():
    assert pdecnn.recipe("hamiltonian_cifar10").training == TrainingConfig()


def test_the_settings_are_those_of_its_parts_and_its_own():
    parts = [*field_names(ObjectiveConfig), *field_names(ScheduleConfig)]
    parts += [*field_names(OptimizerConfig), *field_names(LevelsConfig)]
    assert set(parts) < set(field_names(TrainingConfig))
    assert len(parts) == len(set(parts))


def test_accumulation_must_divide_the_batch():
    with pytest.raises(
        ConfigError, match=r"accumulation=4 does not divide training\.batch_size=125"
    ):
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizer": "adamw", "momentum": 0.95},
            "momentum has no use with training.optimizer=adamw",
        ),
        ({"optimizer": "adamw", "momentum_convention": "rate_outside"}, "convention has no use"),
        ({"optimizer": "muon", "momentum_convention": "rate_outside"}, "convention has no use"),
        ({"optimizer": "nesterov", "momentum_convention": "rate_outside"}, "convention has no use"),
        ({"optimizer": "nesterov", "momentum": 0}, "nesterov needs training.momentum above 0"),
        (
            {"optimizer": "nesterov", "betas": (0.9, 0.99)},
            "training.betas has no use with training.optimizer=nesterov, found 0.9,0.99; leave it "
            "out, or where the recipe has it pass --set training.betas=0.9,0.999",
        ),
        ({"betas": (0.8, 0.99)}, "betas has no use with training.optimizer=sgd, found 0.8,0.99"),
        ({"optimizer": "adamw", "betas": (0.9,)}, "betas must be two numbers, found 1"),
        ({"optimizer": "adamw", "betas": (0.9, 1.0)}, r"betas must be a number in \[0, 1\)"),
        ({"optimizer": "adam"}, "unknown training.optimizer 'adam'; did you mean 'adamw'"),
        ({"weight_decay": -1}, "weight_decay must be a number of at least 0"),
    ],
)
def test_what_an_optimizer_would_ignore_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**settings)


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
