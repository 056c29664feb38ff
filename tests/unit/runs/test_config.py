"""A run config survives JSON, and settings change exactly what they name."""

import json
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pdecnn.runs.config as config_module
from pdecnn.data.augmentation import Augmentation
from pdecnn.errors import ConfigError
from pdecnn.runs.config import (
    FORMAT_VERSION,
    NONE,
    REMOVED,
    assignment,
    describe_settings,
    differing_keys,
    parse_assignment,
    run_config_from_dict,
)
from pdecnn.runs.recipes import list_recipes, recipe

# One range of valid values for each of these keys; any choice of keys must fit together.
VALUES = {
    "seed": st.integers(0, 2**70),
    "network.num_steps": st.integers(1, 9),
    "network.step_size": st.floats(1e-6, 10),
    "network.epsilon": st.floats(1e-12, 1),
    "network.activation": st.sampled_from(["relu", "tanh"]),
    "network.share_weights": st.booleans(),
    "network.backprop": st.sampled_from(["stored", "checkpointed"]),
    "data.folder": st.none() | st.text(min_size=1).filter(lambda text: text not in NONE),
    "data.size": st.none() | st.integers(1, 500),
    "data.fraction": st.floats(0, 1, exclude_min=True),
    "data.validation_fraction": st.floats(0.01, 0.99),
    "data.flip": st.booleans(),
    "data.padding": st.floats(0, 0.5),
    "data.standardize": st.sampled_from(["image", "dataset", "none"]),
    "training.epochs": st.integers(1, 10**6),
    "training.learning_rates": st.lists(st.floats(1e-9, 1e9), min_size=3, max_size=3),
    "training.class_weights": st.none() | st.lists(st.floats(0, 9), min_size=10, max_size=10),
    "training.label_smoothing": st.floats(0, 0.99),
    "training.patience": st.none() | st.integers(1, 99),
    "training.time_limit_seconds": st.none() | st.floats(1e-3, 1e9),
    "training.average_decay": st.none() | st.floats(0.01, 0.99),
    "training.precision": st.sampled_from(["float32", "bfloat16"]),
    "training.box": st.sampled_from(["stencils", "all", "none"]),
    "training.ties": st.sampled_from(["loss", "first"]),
}
settings_strategy = st.fixed_dictionaries({}, optional=VALUES)
# Each of these recipes can take all of the settings above.
recipes = st.sampled_from(["hamiltonian_cifar10", "parabolic_cifar10", "resnet_cifar10"])


@given(name=recipes, settings=settings_strategy)
def test_a_config_survives_json(name, settings):
    config = recipe(name).with_settings(settings)
    read = run_config_from_dict(json.loads(json.dumps(config.to_dict())))
    assert read == config
    assert read.to_dict() == config.to_dict()
    assert differing_keys(config, read) == []


@given(name=recipes, settings=settings_strategy)
def test_settings_change_what_they_name_and_nothing_else(name, settings):
    before = recipe(name)
    after = before.with_settings(settings)
    assert set(differing_keys(before, after)) <= set(settings)
    assert after.recipe == name
    values = after.to_dict()
    for key, value in settings.items():
        group, _, field = key.partition(".")
        assert (values[group][field] if field else values[group]) == value
    # What was set may be set again, and in any order.
    assert after.with_settings(settings) == after
    assert before.with_settings(dict(reversed(settings.items()))) == after
    assert before == recipe(name)


def test_a_missing_setting_means_what_it_meant_in_the_version_that_wrote_the_file():
    values = recipe("hamiltonian_digits").to_dict()
    assert values["training"].pop("ties") == "loss"
    assert run_config_from_dict(values).training.ties == "loss"
    del values["format_version"]  # as before there was one
    assert run_config_from_dict(values).training.ties == "first"
    assert "ties" not in values["training"]


def test_a_setting_that_an_old_file_has_means_what_it_says():
    values = recipe("hamiltonian_digits").to_dict()
    said = {"ties": "loss", "optimizer": "muon", "weight_decay": 0.1, "mixup": 0.4}
    values["training"] |= said
    values["data"] |= {"cutout": 3, "padding": 0.1, "padding_mode": "reflect"}
    for version in range(FORMAT_VERSION + 1):
        config = run_config_from_dict(values | {"format_version": version})
        assert {name: getattr(config.training, name) for name in said} == said
        assert (config.data.cutout, config.data.padding_mode) == (3, "reflect")


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("hamiltonian_cifar10_tuned", "ties", "first"),
        ("hamiltonian_denoising", "evaluation_batch_size", 4),
    ],
)
def test_what_meant_nothing_to_a_run_of_before_does_not_close_it(name, setting, value):
    values = recipe(name).to_dict()
    assert values["training"][setting] != value
    values["training"][setting] = value
    for version in range(FORMAT_VERSION + 1):
        found = run_config_from_dict(values | {"format_version": version})
        assert found.training == recipe(name).training


def test_of_several_changes_of_a_default_the_first_after_the_file_counts(monkeypatch):
    monkeypatch.setattr(config_module, "FORMAT_VERSION", 3)
    before = {1: {"training.epochs": 11}, 2: {"training.epochs": 22}, 3: {"data.padding": 0.25}}
    monkeypatch.setattr(config_module, "_BEFORE", before)
    values = recipe("hamiltonian_digits").to_dict()
    del values["training"]["epochs"], values["data"]["padding"]
    found = {}
    for version in (0, 1, 2, 3):
        config = run_config_from_dict(values | {"format_version": version})
        found[version] = (config.training.epochs, config.data.padding)
    assert found == {0: (11, 0.25), 1: (22, 0.25), 2: (100, 0.25), 3: (100, 1 / 16)}


@pytest.mark.parametrize("version", [-1, 99, "1", None, True, 1.5, [], 10**400])
def test_a_config_of_a_version_to_come_is_refused(version):
    with pytest.raises(ConfigError, match="format version"):
        run_config_from_dict(changed(format_version=version))


def test_todays_defaults_are_those_of_the_format_version():
    """Whoever changes a default, or adds a setting, raises FORMAT_VERSION and fills _BEFORE."""
    defaults = {
        group: {
            field.name: list(field.default) if isinstance(field.default, tuple) else field.default
            for field in fields(cls)
            if field.default is not MISSING
        }
        for group, cls in config_module._CLASSES.items()
    }
    recorded = json.loads((Path(__file__).parent / "defaults.json").read_text())
    assert recorded["format_version"] == FORMAT_VERSION
    for group, values in defaults.items():
        assert values == {k: v for k, v in recorded[group].items() if k in values}
        removed = {f"{group}.{name}" for name in recorded[group].keys() - values.keys()}
        assert removed <= REMOVED.keys()


@pytest.mark.parametrize(
    "name", ["../../dir/x", "/tmp/x", "a/b", "..", "", "a\0b", "a\nb", "x" * 300]
)
def test_a_recipe_is_a_name_never_a_path(name):
    with pytest.raises(ConfigError, match="plain name"):
        run_config_from_dict(changed(recipe=name))


def test_every_recipe_survives_json():
    for name in list_recipes():
        assert run_config_from_dict(json.loads(json.dumps(recipe(name).to_dict()))) == recipe(name)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("training.epoch", "training.epochs"),
        ("training.learning_rate", "training.learning_rates"),
        ("epochs", "training.epochs"),
        ("fraction", "data.fraction"),
        ("data.fractoin", "data.fraction"),
        ("network.channel", "network.channels"),
        ("sead", "seed"),
        ("training.lr", "training.learning_rates"),
    ],
)
def test_an_unknown_setting_gets_the_nearest_key(key, nearest):
    with pytest.raises(ConfigError, match=f"unknown setting '{key}'; did you mean '{nearest}'"):
        recipe("hamiltonian_digits").with_settings({key: 1})


@pytest.mark.parametrize("word", ["none", "None", "null"])
def test_none_is_typed_as_files_and_meanings_say_it(word):
    """data.channels=null, as config.json has it, was no whole number."""
    keys = (*(key for key, row in describe_settings().items() if "none" in row["type"].split()),)
    assert {"data.channels", "data.group", "training.clip_norm", "task.loss"} < set(keys)
    for key in keys:
        config = recipe("hamiltonian_digits").with_settings(
            dict([parse_assignment(f"{key}={word}")])
        )
        assert assignment(config, key) == f"{key}=none"


@pytest.mark.parametrize("key", ["", "recipe", "network", "training", "zzz", "a.b.c", "training."])
def test_what_is_no_setting_is_refused(key):
    with pytest.raises(ConfigError, match="unknown setting"):
        recipe("hamiltonian_digits").with_settings({key: 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", -1),
        ("seed", 0.5),
        ("seed", True),
        ("seed", "none"),
        ("data.name", "cifar11"),
        ("data.folder", "somewhere"),
        ("data.channels", 1),
        ("data.stream", True),
        ("data.size", 0),
        ("data.fraction", 0),
        ("data.fraction", 1.5),
        ("data.fraction", float("nan")),
        ("data.validation_fraction", -0.1),
        ("data.validation_fraction", 1),
        ("data.padding", -0.1),
        ("data.padding", float("nan")),
        ("data.standardize", "both"),
        ("data.flip", 1),
        ("data.flip", "sometimes"),
        ("data.padding_mode", "circular"),
        ("data.cutout", -1),
        ("data.trivial_augment", "yes"),
        ("training.mixup", 0),
        ("training.cutmix", 11),
        ("training.batch_norm_statistics", "exact"),
        ("data.padding_mode", "reflect"),  # of nothing: digits are not padded
        ("training.epochs", 0),
        ("training.epochs", 1.5),
        ("training.batch_size", 0),
        ("training.accumulation", 3),
        ("training.learning_rates", [0.1]),
        ("training.learning_rates", [0.1, 0.1, -0.1]),
        ("training.learning_rates", [0.1, 0.1, float("inf")]),
        ("training.learning_rates", []),
        ("training.patience", 0),
        ("training.time_limit_seconds", 0),
        ("training.time_limit_seconds", float("nan")),
        ("training.average_decay", 1),
        ("training.precision", "float8"),
        ("training.max_nonfinite_steps", -1),
        ("training.box", "sphere"),
        ("network.channels", [16]),
        ("network.channels", [16, 0, 16]),
        ("network.channels", [15, 32, 32]),
        ("network.channels", 16),
        ("network.num_steps", [1, 2, 3]),
        ("network.step_size", -1),
        ("network.integrator", "magic"),
        ("network.activation", "magic"),
        ("network.activation", 3),
        ("network.backprop", "magic"),
        ("network.share_weights", "yes"),
    ],
)
def test_a_value_out_of_range_is_refused(key, value):
    with pytest.raises(ConfigError) as error:
        recipe("hamiltonian_digits").with_settings({key: value})
    assert "\n" not in str(error.value)


def test_augmentation_is_what_the_data_settings_say():
    config = recipe("hamiltonian_cifar10").with_settings(
        {"data.flip": "alternate", "data.padding": 0.125, "data.padding_mode": "reflect"}
    )
    assert config.data.augmentation() == Augmentation(
        flip="alternate", padding=0.125, padding_mode="reflect"
    )
    assert recipe("hamiltonian_cifar10").data.augmentation() == Augmentation()


def test_images_have_no_more_pixels_than_files_may_have():
    config = recipe("hamiltonian_images").with_settings({"data.size": 7071})
    with pytest.raises(ConfigError, match="at most 7,071 for images, found 100,000"):
        config.with_settings({"data.size": 100_000})


def changed(**changes):
    return recipe("hamiltonian_digits").to_dict() | changes


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        {},
        "text",
        changed(extra=1),
        {k: v for k, v in changed().items() if k != "seed"},
        changed(seed="0"),
        changed(seed=-1),
        changed(recipe=None),
        changed(network=None),
        changed(data=[]),
        changed(training={"epoch": 5}),
        changed(network={}),
        changed(network={"channels": "16"}),
        changed(data={"fraction": 0.5}),
        changed(data={"name": "digits", "fraction": "half"}),
    ],
)
def test_a_damaged_config_is_one_kind_of_error(values):
    with pytest.raises(ConfigError):
        run_config_from_dict(values)


@pytest.mark.parametrize(
    ("key", "default", "other"),
    [("divide_to_fit", True, False), ("max_rollbacks", 0, 2)],
)
def test_a_setting_that_is_gone_is_ignored_at_its_default_and_refused_otherwise(
    key, default, other
):
    config = recipe("parabolic_digits")
    values = config.to_dict()
    values["training"][key] = default
    assert run_config_from_dict(values) == config
    assert config.with_settings({f"training.{key}": default}) == config
    values["training"][key] = other
    for refused in (
        lambda: run_config_from_dict(values),
        lambda: config.with_settings({f"training.{key}": other}),
    ):
        with pytest.raises(ConfigError, match=rf"training\.{key} was removed.* training\."):
            refused()
