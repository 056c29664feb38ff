"""The grid of mode 'exact': chosen for the steps, given, saved, and 12 bits in files of before."""

import json

import pytest
import torch

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.networks import registry
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.pretrained import CONFIG
from pdecnn.pde import Grid
from tests.unit.networks.saved import edit_config, make

SMALL_STEPS = {"num_steps": 2, "step_size": 1e-3}


def saved_bits(folder):
    return json.loads((folder / CONFIG).read_text())["network"]["grid_bits"]


def grids(network):
    return [block.grid for block in network.blocks]


def forget_grid(folder):
    """The folder as it was written before networks had `grid_bits`."""
    edit_config(folder, lambda values: values["network"].pop("grid_bits"))


@pytest.mark.parametrize(
    ("overrides", "bits"),
    [
        ({}, 12),
        (SMALL_STEPS, 16),
        ({"step_size": (1.0, 1e-3)}, 16),
        ({"grid_bits": 20}, 20),
        (SMALL_STEPS | {"grid_bits": 12}, 12),
        ({"step_size": 1e-9, "grid_bits": 22}, 22),
    ],
)
def test_a_network_saves_the_grid_that_was_chosen_or_given(overrides, bits, tmp_path):
    network = make(backprop="exact", **overrides)
    assert grids(network) == [Grid(bits)] * 2
    network.save_pretrained(tmp_path)
    assert network.config.grid_bits == saved_bits(tmp_path) == bits
    assert grids(pdecnn.Network.from_pretrained(tmp_path)) == [Grid(bits)] * 2


def test_a_network_without_a_grid_saves_none_and_chooses_later(tmp_path):
    make(**SMALL_STEPS).save_pretrained(tmp_path)
    assert saved_bits(tmp_path) is None
    network = pdecnn.Network.from_pretrained(tmp_path)
    assert grids(network) == [None, None]
    network.blocks[0].backprop = "exact"
    assert grids(network) == [Grid(16), None]


def test_given_bits_are_those_of_exact_alone():
    for backprop in ("stored", "checkpointed", "reversible"):
        network = make(backprop=backprop, grid_bits=20)
        assert grids(network) == [None, None]
        network.blocks[1].backprop = "exact"
        assert grids(network) == [None, Grid(20)]


def test_a_change_of_the_steps_comes_before_the_choice(monkeypatch):
    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))

    @pdecnn.register_model
    def exact_wave():
        return NetworkConfig(channels=(4, 4), integrator="leapfrog", backprop="exact")

    assert grids(pdecnn.create_model("exact_wave")) == [Grid(12)]
    assert grids(pdecnn.create_model("exact_wave", step_size=1e-3)) == [Grid(16)]


def test_steps_too_small_for_a_grid_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"step_size=1e-06 .* set grid_bits"):
        NetworkConfig(channels=(4, 4), integrator="verlet", step_size=1e-6, backprop="exact")
    NetworkConfig(channels=(4, 4), integrator="verlet", step_size=1e-6)


# ------------------------------------------------------------- files without `grid_bits`


def test_a_file_of_before_has_the_grid_of_before():
    values = {"channels": [4, 4], "integrator": "verlet", "step_size": 1e-6, "backprop": "exact"}
    assert grids(pdecnn.Network(NetworkConfig.from_dict(values))) == [Grid(12)]


@pytest.mark.parametrize("backprop", ["stored", "exact"])
def test_a_network_saved_before_computes_the_same_bits(backprop, tmp_path):
    torch.manual_seed(1)
    images = torch.randn(2, 1, 8, 8)
    before = make(backprop="exact", grid_bits=12, **SMALL_STEPS).eval()
    make(backprop=backprop, **SMALL_STEPS).save_pretrained(tmp_path)
    forget_grid(tmp_path)
    network = pdecnn.Network.from_pretrained(tmp_path).eval()
    assert grids(network) == [Grid(12) if backprop == "exact" else None] * 2
    for block in network.blocks:
        block.backprop = "exact"
    before.load_state_dict(network.state_dict())
    assert torch.equal(network(images), before(images))


# ------------------------------------------------------------------------ with `pretrained=`


@pytest.mark.parametrize(
    ("saved", "forgotten", "bits"),
    [
        ({"backprop": "exact"}, False, 16),
        ({"backprop": "exact", "grid_bits": 14}, False, 14),
        ({"backprop": "exact"}, True, 12),
        ({}, False, 16),
        ({}, True, 12),
    ],
)
def test_pretrained_brings_its_grid(saved, forgotten, bits, tmp_path):
    network = make(**SMALL_STEPS, **saved)
    network.save_pretrained(tmp_path)
    if forgotten:
        forget_grid(tmp_path)
    options = {"num_classes": 4, "channels": (4, 6, 6), "pretrained": tmp_path, **SMALL_STEPS}
    exact = pdecnn.create_model("hamiltonian_digits", backprop="exact", **options)
    assert grids(exact) == [Grid(bits)] * 2
    assert exact.config.grid_bits == bits
    assert grids(pdecnn.create_model("hamiltonian_digits", **options)) == [None, None]
    finer = pdecnn.create_model("hamiltonian_digits", backprop="exact", grid_bits=18, **options)
    assert grids(finer) == [Grid(18)] * 2
    chosen = pdecnn.create_model("hamiltonian_digits", backprop="exact", grid_bits=None, **options)
    assert grids(chosen) == [Grid(16)] * 2


@pytest.mark.parametrize(
    "name", ["parabolic_cifar10", "hamiltonian_cifar10", "second_order_cifar10"]
)
def test_published_weights_keep_their_grid(name):
    config = pdecnn.create_model(name, pretrained=True).config
    assert (config.backprop, config.grid_bits) == ("stored", 12)


# --------------------------------------------------------------------------- on other levels


def test_the_grid_is_chosen_anew_for_other_steps():
    network = make(backprop="exact", step_size=0.02)
    finer = pdecnn.refine_in_time(network, 2)
    assert grids(finer) == [Grid(13)] * 2
    assert finer.config.grid_bits == 13
    assert pdecnn.coarsen_in_time(finer, 2).config == network.config


def test_on_another_mesh_the_grid_stays():
    network = make(backprop="exact", grid_bits=20)
    assert grids(pdecnn.refine_in_space(network)) == [Grid(20)] * 2


def test_a_grid_may_be_said_for_other_steps():
    network = make(backprop="exact", grid_bits=20)
    finer = pdecnn.refine_in_time(network, 2, grid_bits=network.config.grid_bits)
    assert grids(finer) == [Grid(20)] * 2
    assert grids(pdecnn.coarsen_in_time(finer, 2, grid_bits=9)) == [Grid(9)] * 2


def test_refining_beyond_all_grids_is_refused_by_name():
    network = make(backprop="exact", share_weights=True, step_size=1e-4)
    with pytest.raises(ConfigError, match="set grid_bits"):
        pdecnn.refine_in_time(network, 2)
