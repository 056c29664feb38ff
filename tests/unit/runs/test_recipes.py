"""The recipes carry the numbers of the paper's Section 5, or those of its authors' code."""

from dataclasses import replace
from itertools import product

import pytest

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.runs.recipes import DEFAULT_RECIPE, list_recipes, recipe

DYNAMICS = ("hamiltonian", "parabolic", "resnet", "second_order")
# Epochs at each rate, alpha_1 and alpha_2: for STL-10 those of the code, printed the other way.
PAPER = {
    "stl10": (dict(zip((0.1, 0.02, 0.004), (60, 20, 20), strict=True)), 1e-4, 4e-4),
    "cifar10": (dict(zip((0.1, 0.02, 0.004), (60, 20, 20), strict=True)), 2e-4, 2e-4),
    "cifar100": (
        dict(zip((0.1, 0.02, 0.004, 0.0008, 0.00016), (60, 40, 40, 40, 20), strict=True)),
        2e-4,
        2e-4,
    ),
}


def test_there_is_a_recipe_for_every_dynamics_and_data_set():
    plain = [f"{d}_{s}" for d in DYNAMICS for s in (*PAPER, "digits")]
    own = [f"{d}_{s}" for d in DYNAMICS for s in ("images", "signals", "volumes")]
    multilevel = [f"{name}_multilevel" for name in plain]
    data_sets = ("digits", "cifar10", "large_cifar10", "images", "signals", "volumes")
    stable = [f"parabolic_stable_{data_set}" for data_set in data_sets]
    tuned = [f"{d}_{s}_tuned" for d in DYNAMICS for s in (*PAPER, "images") if d != "resnet"]
    denoising = [f"{d}_denoising" for d in (*DYNAMICS, "parabolic_stable") if d != "resnet"]
    sounds = [f"{d}_sounds" for d in DYNAMICS if d != "resnet"]
    segmenting = [
        f"{d}_{s}"
        for d in DYNAMICS
        for s in ("segmentation", "segmentation_volumes")
        if d != "resnet"
    ]
    large = [f"{d}_large_digits" for d in DYNAMICS if d != "resnet"]
    assert list_recipes() == sorted(
        [*plain, *own, *multilevel, *stable, *tuned, *denoising, *sounds, *segmenting, *large]
    )
    assert list_recipes("*_stl10") == [f"{dynamics}_stl10" for dynamics in DYNAMICS]
    assert list_recipes("nothing*") == []
    assert DEFAULT_RECIPE == "hamiltonian_digits"


def test_stable_recipes_train_for_margins_and_keep_distances():
    for name in set(list_recipes("*stable*")) - {"parabolic_stable_denoising"}:
        config = recipe(name)
        training = config.training
        assert config.network.step_size == "stable"
        assert config.data.standardize == "mean"
        assert (training.schedule, training.optimizer, training.box) == ("linear", "adamw", "none")
        assert training.margin_offset > 0
        assert training.smoothness_weight == training.decay_weight == 0
        assert (config.data.validation_fraction == 0) == (config.data.name in ("cifar10", "digits"))


@pytest.mark.parametrize("name", list_recipes("*_tuned"))
def test_tuned_recipes_train_as_people_do_today(name):
    config = recipe(name)
    data, training = config.data, config.training
    assert config.network.integrator == recipe(name.removesuffix("_tuned")).network.integrator
    assert training.optimizer in ("nesterov", "muon")
    assert training.schedule in ("linear", "cosine")
    assert training.warmup > 0
    assert training.batch_norm_statistics == "reestimated"
    assert (data.flip, data.padding_mode) == ("alternate", "reflect")
    # On data of one's own the best epoch is chosen: it may have validation images of its own.
    assert (data.validation_fraction == 0) == (data.name != "images")
    number = {"cifar10": 50_000, "cifar100": 50_000, "stl10": 5_000}.get(data.name)
    assert number is None or number % training.batch_size == 0


@pytest.mark.parametrize("dynamics", ["parabolic", "hamiltonian", "second_order"])
def test_tuned_networks_for_cifar10_have_no_more_weights_than_they_may(dynamics):
    most = 270_000 if dynamics == "hamiltonian" else 503_000
    assert pdecnn.create_model(f"{dynamics}_cifar10_tuned").num_weights <= most


def test_multilevel_recipes_are_the_plain_ones_in_levels():
    levels = {
        "digits": {"level_steps": (2, 4, 8), "level_epochs": (40, 40, 20)},
        "stl10": {"level_sizes": (24, 48, 96), "level_epochs": (30, 30, 40)},
        "cifar10": {"level_sizes": (16, 32), "level_epochs": (50, 50)},
        "cifar100": {"level_sizes": (16, 32), "level_epochs": (50, 50)},
    }
    for dynamics, (data_set, expected) in product(DYNAMICS, levels.items()):
        config, plain = (
            recipe(f"{dynamics}_{data_set}_multilevel"),
            recipe(f"{dynamics}_{data_set}"),
        )
        assert config.recipe == f"{dynamics}_{data_set}_multilevel"
        assert config.training == replace(plain.training, **expected)
        assert config.data == plain.data
        network = replace(config.network, num_steps=3, step_size=1.0)
        assert network == plain.network
        final_time = config.network.num_steps * config.network.step_size
        assert final_time == (1 if data_set == "digits" else 3)


def test_large_digits_take_many_small_steps_with_constant_weights():
    for name in list_recipes("*_large_digits"):
        config = recipe(name)
        assert config.data == replace(recipe("hamiltonian_digits").data, size=32)
        assert min(config.network.num_steps) >= 6
        assert config.network.step_size == 0.25
        assert config.network.share_weights
        assert config.network.normalization == "none"


@pytest.mark.parametrize(
    "name", [n for n in list_recipes() if not n.endswith(("_multilevel", "_large_digits"))]
)
def test_a_recipe_trains_the_model_of_its_name(name):
    config = recipe(name)
    assert config.recipe == name
    created = pdecnn.create_model(name).config  # a network chooses a grid where it needs one
    assert config.network == replace(created, grid_bits=config.network.grid_bits)
    kind = name.removesuffix("_tuned").rpartition("_")[2]
    data_sets = {"signals": "arrays", "volumes": "arrays", "denoising": "pictures"}
    wanted = "segmented" if "segmentation" in name else data_sets.get(kind, kind)
    assert config.data.name == wanted
    assert config.seed == 0


@pytest.mark.parametrize("data_set", PAPER)
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_the_paper_s_runs_have_the_paper_s_numbers(dynamics, data_set):
    phases, smoothness_weight, decay_weight = PAPER[data_set]
    config = recipe(f"{dynamics}_{data_set}")
    training = config.training
    assert training.epochs == sum(phases.values())
    steps = 7
    rates = [
        training.learning_rate(epoch * steps, steps_per_epoch=steps, epochs=training.epochs)
        for epoch in range(training.epochs)
    ]
    assert rates == [rate for rate, epochs in phases.items() for _ in range(epochs)]
    assert (training.smoothness_weight, training.decay_weight) == (smoothness_weight, decay_weight)
    assert training.smoothness == "tv"
    assert training.smoothing == 1e-3
    assert training.loss == "cross_entropy"
    assert training.batch_size == 125
    assert training.momentum == 0.9
    assert training.momentum_convention == "rate_inside"
    assert (training.box, training.box_bound) == ("stencils", 1.0)
    assert training.precision == "auto"
    assert config.data.flip
    assert config.data.padding == 1 / 16
    assert config.data.standardize == "image"
    assert config.data.validation_fraction == 0.2
    assert config.data.fraction == 1
    assert config.network.epsilon == 1e-3
    assert config.network.num_steps == 3
    assert config.network.step_size == 1


def test_signals_and_volumes_are_shifted_but_not_mirrored():
    for dynamics in DYNAMICS:
        for kind, dimension in (("signals", 1), ("volumes", 3)):
            config = recipe(f"{dynamics}_{kind}")
            assert config.network.dimension == dimension
            assert not config.data.flip
            assert config.data.padding > 0
            assert config.data.standardize == "dataset"


def test_digits_are_neither_flipped_nor_cropped():
    for dynamics in DYNAMICS:
        data = recipe(f"{dynamics}_digits").data
        assert not data.flip
        assert data.padding == 0
        assert data.folder is None


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("hamiltonian_digit", "hamiltonian_digits"), ("parabolic_cifar", "parabolic_cifar10")],
)
def test_an_unknown_recipe_gets_the_nearest_name(name, nearest):
    with pytest.raises(ConfigError, match=f"unknown recipe '{name}'; did you mean '{nearest}'"):
        recipe(name)


def test_the_public_names_are_the_same_functions():
    assert pdecnn.recipe is recipe
    assert pdecnn.list_recipes is list_recipes
