"""A network config is frozen, checked, and the same after a trip through JSON."""

import json
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.networks.config import NetworkConfig
from pdecnn.pde import BACKPROP_MODES, INTEGRATORS, activations

REVERSIBLE = [integrator.name for integrator in INTEGRATORS if integrator.reversible]
POSITIVE = st.floats(min_value=1e-6, max_value=1e6)


@st.composite
def configs(draw):
    num_blocks = draw(st.integers(1, 4))
    integrator = draw(st.sampled_from([integrator.name for integrator in INTEGRATORS]))
    reversible = integrator in REVERSIBLE

    backprop = draw(st.sampled_from(BACKPROP_MODES if reversible else BACKPROP_MODES[:2]))

    def one_or_per_block(values):
        per_block = st.lists(values, min_size=num_blocks, max_size=num_blocks)
        return draw(st.one_of(values, per_block, per_block.map(tuple)))

    return NetworkConfig(
        channels=[2 * draw(st.integers(1, 50)) for _ in range(num_blocks + 1)],
        in_channels=draw(st.integers(1, 9)),
        num_classes=draw(st.integers(1, 1000)),
        layer=draw(st.sampled_from(["symmetric", "residual"])),
        integrator=integrator,
        num_steps=one_or_per_block(st.integers(1, 1000)),
        step_size=one_or_per_block(POSITIVE),
        activation=draw(st.sampled_from(activations.list_activations())),
        normalization=draw(
            st.sampled_from(["none", "tv"] if reversible else ["none", "tv", "batch"])
        ),
        epsilon=draw(POSITIVE),
        backprop=backprop,
        # For the smallest steps drawn here no grid is chosen.
        grid_bits=draw(st.integers(1, 22) if backprop == "exact" else st.none()),
        dimension=draw(st.integers(1, 3)),
        share_weights=draw(st.booleans()),
    )


@given(config=configs())
def test_a_config_survives_json(config):
    assert NetworkConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@given(config=configs())
def test_a_config_is_hashable_and_replace_checks_again(config):
    assert hash(config) == hash(replace(config))
    assert replace(config, num_classes=7).num_classes == 7
    with pytest.raises(ConfigError):
        replace(config, num_classes=-1)


@given(config=configs())
def test_values_per_block_are_as_many_as_blocks(config):
    assert len(config.block_num_steps) == len(config.block_step_sizes) == config.num_blocks
    assert config.smallest_size == 2 ** (config.num_blocks - 1)


def test_a_config_cannot_be_changed():
    config = NetworkConfig(channels=(4, 4))
    with pytest.raises(FrozenInstanceError):
        config.num_classes = 3
    # Python's slots and frozen together raise either, by version.
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        config.nonsense = 3


def test_lists_become_tuples():
    config = NetworkConfig(channels=[4, 8, 8], num_steps=[1, 2], step_size=[0.5, 1])
    assert config.channels == (4, 8, 8)
    assert config.num_steps == (1, 2)
    assert config.step_size == (0.5, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("channels", (4,)),
        ("channels", "44"),
        ("integrator", "euler"),
        ("integrator", pdecnn.Verlet()),
        ("num_steps", (1, 2)),
        ("step_size", (1.0, 1.0)),
        ("step_size", torch.tensor(1.0)),
        ("activation", "rely"),
        ("activation", torch.nn.PReLU()),
        ("activation", None),
        ("backprop", "revesible"),
        ("backprop", "exact"),
    ],
)
def test_a_bad_setting_is_refused_in_one_line(name, value):
    with pytest.raises(ConfigError, match=name) as caught:
        NetworkConfig(**{"channels": (4, 8, 16, 16)} | {name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "nearest"),
    [
        ("layer", "symetric", "symmetric"),
        ("integrator", "verlett", "verlet"),
        ("activation", "rely", "relu"),
        ("normalization", "batchnorm", "batch"),
        ("backprop", "checkpoint", "checkpointed"),
    ],
)
def test_a_misspelt_name_gets_the_nearest(name, value, nearest):
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        NetworkConfig(channels=(4, 4), **{name: value})


@pytest.mark.parametrize("name", ["in_channels", "num_classes", "num_steps"])
def test_a_count_that_is_too_large_is_told_so(name):
    with pytest.raises(ConfigError, match=f"{name} must be a whole number of at most 2147483647"):
        NetworkConfig(channels=(4, 4), **{name: 2**31})


def test_odd_channels_are_refused_for_hamiltonian_blocks_only():
    with pytest.raises(ConfigError, match="even; found 5"):
        NetworkConfig(channels=(4, 5, 8), integrator="verlet")
    assert NetworkConfig(channels=(4, 6, 5), integrator="verlet").channels[-1] == 5
    assert NetworkConfig(channels=(3, 5, 7), integrator="leapfrog").num_blocks == 2


@pytest.mark.parametrize("integrator", ["forward_euler", "runge_kutta_4"])
@pytest.mark.parametrize("backprop", ["reversible", "exact"])
def test_reversal_of_what_cannot_be_reversed_is_refused(integrator, backprop):
    with pytest.raises(ConfigError, match="needs a reversible integrator"):
        NetworkConfig(channels=(4, 4), integrator=integrator, backprop=backprop)


def test_an_unknown_key_gets_the_nearest():
    with pytest.raises(ConfigError, match="'num_step'; did you mean 'num_steps'"):
        NetworkConfig.from_dict({"channels": [4, 4], "num_step": 3})


def test_a_plain_callable_works_but_cannot_be_written():
    config = NetworkConfig(channels=(4, 4), activation=torch.sin)
    with pytest.raises(ConfigError, match="register it first"):
        config.to_dict()


def test_a_callable_that_only_has_a_registered_name_cannot_be_written():
    def relu(values):
        return values

    for activation in (relu, pdecnn.Activation(name="relu", function=torch.tanh)):
        with pytest.raises(ConfigError, match="register it first"):
            NetworkConfig(channels=(4, 4), activation=activation).to_dict()


def test_a_registered_activation_is_written_by_name(monkeypatch):
    monkeypatch.setattr(activations, "_ACTIVATIONS", dict(activations._ACTIVATIONS))
    sine = pdecnn.register_activation(pdecnn.Activation(name="sine", function=torch.sin))
    assert NetworkConfig(channels=(4, 4), activation=sine).to_dict()["activation"] == "sine"
    assert NetworkConfig(channels=(4, 4), activation="sine").to_dict()["activation"] == "sine"
