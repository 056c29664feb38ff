"""Which runs a table or figure needs: the paper's recipes, shared where they are the same."""

from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest

import pdecnn
from pdecnn.errors import ConfigError, DataError
from pdecnn.runs import paper
from pdecnn.runs.paper import (
    NARROW,
    PUBLISHED,
    TARGETS,
    TITLES,
    Dataset,
    Experiment,
    TargetName,
    count_weights,
    make_plan,
    narrowed,
)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder in which every data set is found."""
    monkeypatch.setattr(paper, "find_dataset", lambda name, folder: folder / name)
    return tmp_path


def test_the_words_that_it_takes_are_its_types():
    assert get_args(TargetName) == (*TARGETS, "all")
    assert get_args(Dataset) == tuple(TITLES)


def test_table_1_is_the_recipes_with_every_seed(data):
    plan = make_plan("table1", data=data, num_seeds=2)
    assert len(plan.runs) == 5 * 3 * 2
    for dynamics in ("parabolic", "hamiltonian", "second_order", "resnet"):
        for dataset in TITLES:
            expected = pdecnn.recipe(f"{dynamics}_{dataset}")
            for seed in range(2):
                config = plan.runs[f"{dynamics}_{dataset}-seed{seed}"]
                assert config.data.folder == str(data / dataset)
                assert replace(config, data=expected.data, seed=0) == expected
                assert replace(config.data, folder=None) == expected.data
                assert config.seed == seed


def test_runs_with_the_first_seed_come_first(data):
    seeds = [config.seed for config in make_plan("all", data=data).runs.values()]
    assert seeds == sorted(seeds)
    assert Counter(seeds) == {0: 39, 1: 39, 2: 39}  # 15 of the table, 24 with less data


@pytest.mark.parametrize(("dataset", "most_off"), [("stl10", 0.01), ("cifar10", 1e-3)])
def test_the_narrowed_baseline_has_as_many_weights_as_the_parabolic_network(
    data, dataset, most_off
):
    plan = make_plan("table1", data=data, datasets=[dataset], num_seeds=1)
    config = plan.runs[f"{NARROW}_{dataset}-seed0"]
    target = pdecnn.create_model(f"parabolic_{dataset}").num_weights
    assert pdecnn.Network(config.network).num_weights == pytest.approx(target, rel=most_off)
    full = pdecnn.recipe(f"resnet_{dataset}")
    assert replace(config.network, channels=full.network.channels) == full.network
    scales = [n / w for n, w in zip(config.network.channels, full.network.channels, strict=True)]
    assert max(scales) - min(scales) < 0.04
    assert config.training == full.training


def test_no_other_scale_comes_nearer(data):
    full = pdecnn.create_model("resnet_digits").config
    target = count_weights(pdecnn.create_model("parabolic_digits").config)
    found = abs(count_weights(narrowed(full, target)) - target)
    for parts in range(500, 1001, 10):
        widths = tuple(round(width * parts / 1000) for width in full.channels)
        assert abs(count_weights(replace(full, channels=widths)) - target) >= found


def test_the_published_weight_counts_are_ours():
    for (dynamics, dataset), published in PUBLISHED.items():
        config = pdecnn.recipe(f"{dynamics}_{dataset}").network
        assert published.num_weights == count_weights(config)
    assert len(PUBLISHED) == 9


def test_figure_2_trains_on_10_to_80_percent_without_augmentation(data):
    plan = make_plan("figure2", data=data, num_seeds=1)
    assert len(plan.runs) == 3 * 8 + 3
    for percentage in range(10, 90, 10):
        config = plan.runs[f"parabolic_stl10-{percentage}percent-seed0"]
        # Of 5,000 images 1,000 are for validation, whatever is trained on.
        assert config.data.validation_fraction == 0.2
        assert 4000 * config.data.fraction == pytest.approx(50 * percentage)
        assert (config.data.flip, config.data.padding) == (False, 0.0)
        assert config.training == pdecnn.recipe("parabolic_stl10").training
    whole = plan.runs["parabolic_stl10-seed0"]
    assert (whole.data.fraction, whole.data.flip) == (1.0, True)


def test_targets_share_their_runs(data):
    table = make_plan("table1", data=data).runs
    everything = make_plan("all", data=data).runs
    runs = {target: make_plan(target, data=data).runs for target in paper.TARGETS}
    assert runs["figure1"].items() <= table.items()
    assert runs["figure4"].items() <= table.items()
    assert runs["figure3"].items() <= runs["figure2"].items()
    assert set(everything) == set().union(*runs.values())
    assert list(runs["figure1"]) == [
        "parabolic_stl10-seed0",
        "hamiltonian_stl10-seed0",
        "second_order_stl10-seed0",
    ]


def test_experiments_of_equal_configs_share_their_runs(data):
    plan = make_plan("figure3", quick=True)
    # The digits are not augmented: 80 % of them are the run of the table.
    name = "hamiltonian_digits-for-stl10"
    assert f"{name}-seed0" in plan.runs
    assert f"{name}-80percent-seed0" not in plan.runs
    part = Experiment("hamiltonian", "stl10", 80)
    assert plan.run_names("figure3", part) == [f"{name}-seed0", f"{name}-seed1"]
    assert plan.config(part) == plan.runs[f"{name}-seed0"]
    for several in (make_plan("figure2", quick=True), make_plan("all", quick=True)):
        assert plan.runs.items() <= several.runs.items()
    assert "hamiltonian_stl10-80percent-seed0" in make_plan("figure3", data=data).runs
    for settings in ({}, {"data.flip": False, "data.padding": 0.0}):
        runs = make_plan("all", data=data, settings=settings).runs
        assert ("hamiltonian_stl10-80percent-seed0" in runs) == (not settings)
        configs = [replace(config, recipe="any") for config in runs.values()]
        assert all(configs.count(config) == 1 for config in configs)


def test_the_part_of_the_training_images_follows_the_settings(data):
    settings = {"data.fraction": 0.5, "data.validation_fraction": 0.1}
    plan = make_plan("figure3", data=data, settings=settings)
    shares = [plan.percentage(one) for one in plan.experiments["figure3"][::3]]
    assert shares == pytest.approx([100 * 0.5 * 0.9 * share for share in (1 / 8, 1 / 4, 1 / 2, 1)])


def test_what_is_not_chosen_is_left_out_with_a_note(data):
    plan = make_plan("all", data=data, datasets=["cifar10"], dynamics=["hamiltonian", "resnet"])
    assert plan.experiments == {
        "table1": (Experiment("hamiltonian", "cifar10"), Experiment("resnet", "cifar10")),
        "figure1": (Experiment("hamiltonian", "cifar10"),),
        "figure4": (Experiment("hamiltonian", "cifar10"),),
    }
    assert [note.split()[0] for note in plan.notes] == ["figure2", "figure3"]
    assert len(plan.runs) == 2 * 3


@pytest.mark.parametrize(
    ("target", "choice"),
    [
        ("figure2", {"datasets": ["cifar10"]}),
        ("figure1", {"datasets": ["cifar100"]}),
        ("figure4", {"dynamics": ["resnet"]}),
    ],
)
def test_a_figure_of_which_nothing_is_left_is_refused(data, target, choice):
    with pytest.raises(ConfigError, match=f"{target} shows .* nothing is left of it"):
        make_plan(target, data=data, **choice)


def test_data_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"STL-10 is needed; pass --data DIR .* --quick"):
        make_plan("all")
    with pytest.raises(DataError, match=r"neither cifar-100.* leave cifar100 out with --datasets"):
        make_plan("table1", data=tmp_path, datasets=["cifar100"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets": ["cifar-10"]}, "unknown data set 'cifar-10'; did you mean 'cifar10'"),
        ({"dynamics": ["parabolik"]}, "unknown dynamics 'parabolik'; did you mean 'parabolic'"),
        ({"num_seeds": 0}, "seeds must be at least 1, found 0"),
        ({"data": "folder"}, "leave out --data or --quick"),
        ({"settings": {"seed": 3}}, "seed cannot be set here"),
        ({"settings": {"data.folder": "x"}}, "data.folder cannot be set here"),
        ({"settings": {"training.epoch": 3}}, "did you mean 'training.epochs'"),
    ],
)
def test_bad_choices_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make_plan("all", quick=True, **options)


def test_an_unknown_target_gets_the_nearest():
    with pytest.raises(ConfigError, match="unknown target 'figure5'; did you mean 'figure4'"):
        make_plan("figure5", quick=True)


def test_the_quick_version_is_small_on_digits_with_the_recipe_of_each_data_set():
    plan = make_plan("all", quick=True)
    assert len(plan.runs) == 2 * (15 + 9)
    for config in plan.runs.values():
        recipe = pdecnn.recipe(config.recipe).training
        assert (config.data.name, config.data.folder) == ("digits", None)
        assert config.training.learning_rates == recipe.learning_rates
        assert config.training.decay_weight == recipe.decay_weight
        assert config.training.epochs <= 5
        assert count_weights(config.network) < 15_000


def test_settings_change_every_run():
    settings = {"training.epochs": 3, "data.fraction": 0.5, "network.channels": (8, 12, 16)}
    plan = make_plan("all", quick=True, settings=settings)
    assert {config.training.epochs for config in plan.runs.values()} == {3}
    whole = plan.runs["parabolic_digits-for-cifar10-seed0"]
    assert whole.data.fraction == 0.5
    part = plan.runs["parabolic_digits-for-stl10-10percent-seed0"]
    assert part.data.fraction == 0.5 * 10 / 80
    assert whole.network.channels == (8, 12, 16)
    assert plan.runs[f"{NARROW}_digits-for-cifar10-seed0"].network.channels[2] < 16
