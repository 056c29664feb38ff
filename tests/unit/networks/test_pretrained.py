"""A network as a folder comes back bit for bit, or stays as it was."""

import json
import os
import pickletools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import pdecnn
from pdecnn import files
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.files import MANIFEST
from pdecnn.networks.pretrained import CARD, CONFIG, WEIGHTS
from pdecnn.pde import activations
from tests.unit.networks.saved import FILES, NAMES, assert_same, make


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"backprop": "exact"},
        {"num_steps": (1, 4), "step_size": (0.5, 1e-3)},
        {"share_weights": True, "num_steps": 7},
        {"activation": "tanh", "normalization": "none", "epsilon": 1e-5},
        {"integrator": "leapfrog_second_order"},
    ],
)
def test_a_network_comes_back_bit_for_bit(tmp_path, overrides):
    network = make(**overrides).eval()
    network.save_pretrained(tmp_path / "a" / "b")
    loaded = pdecnn.Network.from_pretrained(str(tmp_path / "a" / "b")).eval()
    assert_same(network, loaded)
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(network(images), loaded(images))
    loaded.train()(images).sum().backward()
    assert all(weight.grad is not None for weight in loaded.parameters())


@pytest.mark.parametrize(
    "name", ["resnet_digits", "parabolic_digits", "hamiltonian_digits", "second_order_digits"]
)
def test_every_dynamics_comes_back(tmp_path, name):
    network = make(name)
    network.save_pretrained(tmp_path)
    assert_same(network, pdecnn.Network.from_pretrained(tmp_path))


@pytest.mark.parametrize("dimension", [1, 3])
def test_signals_and_volumes_come_back(tmp_path, dimension):
    config = replace(make().config, dimension=dimension)
    network = pdecnn.Network(config)
    network.save_pretrained(tmp_path)
    assert_same(network, pdecnn.Network.from_pretrained(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_dtype_comes_back(tmp_path, dtype):
    network = make().to(dtype)
    network.save_pretrained(tmp_path)
    assert_same(network, pdecnn.Network.from_pretrained(tmp_path))


def test_mixed_dtypes_come_back(tmp_path):
    network = make()
    network.blocks.double()
    network.opening.bfloat16()
    network.save_pretrained(tmp_path)
    loaded = pdecnn.Network.from_pretrained(tmp_path)
    assert_same(network, loaded)
    assert loaded.blocks[0].layers[0].dtype == torch.float64


def test_channels_last_weights_come_back(tmp_path):
    network = make().to(memory_format=torch.channels_last)
    network.save_pretrained(tmp_path)
    assert_same(network, pdecnn.Network.from_pretrained(tmp_path))


def test_unusual_numbers_come_back(tmp_path):
    network = make()
    with torch.no_grad():
        network.classifier.bias.copy_(torch.tensor([float("inf"), -0.0, 1e-45, 3.4e38]))
    network.save_pretrained(tmp_path)
    bias = pdecnn.Network.from_pretrained(tmp_path).classifier.bias
    assert torch.equal(bias.view(torch.int32), network.classifier.bias.view(torch.int32))


def test_loading_uses_up_no_random_numbers(folder):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    pdecnn.Network.from_pretrained(folder)
    assert torch.equal(torch.rand(3), expected)


def test_a_reset_classifier_comes_back(folder):
    network = pdecnn.Network.from_pretrained(folder)
    network.reset_classifier(7)
    network.save_pretrained(folder)
    assert_same(network, pdecnn.Network.from_pretrained(folder))


def test_weights_that_cannot_be_saved_leave_the_old_folder_alone(folder):
    network = make()
    network.opening.to("meta")
    with pytest.raises(NotImplementedError):
        network.save_pretrained(folder)
    assert_same(make(), pdecnn.Network.from_pretrained(folder))


def test_saving_over_an_old_folder(folder):
    other = make("parabolic_digits", num_classes=4)
    other.save_pretrained(folder)
    assert_same(other, pdecnn.Network.from_pretrained(folder))
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, CARD, MANIFEST])


@pytest.mark.parametrize("failing", [CONFIG, WEIGHTS, CARD, MANIFEST])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_promise_5_a_save_that_fails_leaves_the_old_folder(folder, monkeypatch, failing, error):
    write = files._write_new

    def write_until(path, content):
        if path.name == failing:
            raise error
        write(path, content)

    monkeypatch.setattr(files, "_write_new", write_until)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(type(error)):
        make(step_size=0.25).save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("killed_at", [CONFIG, WEIGHTS, CARD, MANIFEST])
def test_a_save_killed_between_renames_never_loads_as_a_mixture(folder, monkeypatch, killed_at):
    rename = os.replace

    def rename_until(source, target):
        if Path(target) == folder / killed_at:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", rename_until)
    with pytest.raises(KeyboardInterrupt):
        make(step_size=0.25).save_pretrained(folder)
    if killed_at == MANIFEST:  # all the rest is there
        assert_same(make(step_size=0.25), pdecnn.Network.from_pretrained(folder))
    else:
        with pytest.raises(CheckpointError, match=CONFIG):
            pdecnn.Network.from_pretrained(folder)


class TestActivations:
    @pytest.fixture(autouse=True)
    def own_activations(self, monkeypatch):
        monkeypatch.setattr(activations, "_ACTIVATIONS", dict(activations._ACTIVATIONS))

    def test_a_registered_one_comes_back(self, tmp_path):
        sine = pdecnn.register_activation(pdecnn.Activation(name="sine", function=torch.sin))
        network = make(activation=sine)
        network.save_pretrained(tmp_path)
        loaded = pdecnn.Network.from_pretrained(tmp_path)
        assert loaded.config.activation == "sine"
        assert loaded.blocks[0].layers[0].activation is sine
        images = torch.rand(2, 1, 8, 8)
        assert torch.equal(loaded.eval()(images), network.eval()(images))

    def test_one_that_is_no_longer_registered_is_named(self, tmp_path):
        pdecnn.register_activation(pdecnn.Activation(name="sine", function=torch.sin))
        make(activation="sine").save_pretrained(tmp_path)
        del activations._ACTIVATIONS["sine"]
        with pytest.raises(CheckpointError, match="unknown activation 'sine'"):
            pdecnn.Network.from_pretrained(tmp_path)

    def test_a_plain_callable_is_refused_and_nothing_is_written(self, tmp_path):
        with pytest.raises(ConfigError, match="register it first"):
            make(activation=torch.sin).save_pretrained(tmp_path / "new")
        assert not (tmp_path / "new").exists()

    def test_a_plain_callable_leaves_the_old_folder_alone(self, folder):
        with pytest.raises(ConfigError, match="register it first"):
            make(activation=torch.sin).save_pretrained(folder)
        assert_same(make(), pdecnn.Network.from_pretrained(folder))


def test_the_files_of_a_folder(original):
    assert sorted(path.name for path in original.iterdir()) == sorted([*FILES, CARD, MANIFEST])
    config = json.loads((original / CONFIG).read_text())
    assert config["library_name"] == "pdecnn"
    assert config["format_version"] == 1
    assert config["network"]["integrator"] == "verlet"
    assert config["preprocessing"]["class_names"] == list(NAMES)
    tensors = load_file(original / WEIGHTS)
    assert tensors.keys() == make().state_dict().keys()


def test_saving_onto_a_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("precious")
    for folder in (path, path / "below"):
        with pytest.raises(CheckpointError, match="is, or lies in, a file; pass a folder"):
            make().save_pretrained(folder)
    assert path.read_text() == "precious"


def test_no_file_is_a_pickle(original):
    for path in original.iterdir():
        content = path.read_bytes()
        assert not content.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK"))
        with pytest.raises(Exception):  # noqa: B017, PT011
            list(pickletools.genops(content))
