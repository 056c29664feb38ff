"""A small network to save, and its config to be changed on the disk."""

import json

import torch

import pdecnn
from pdecnn.networks.pretrained import CONFIG, WEIGHTS
from tests.manifests import write_manifest

FILES = (CONFIG, WEIGHTS)
NAMES = ("zero", "one", "zwei ✓", 'with "quotes"')


def make(name="hamiltonian_digits", **overrides):
    torch.manual_seed(0)
    overrides = {"num_classes": 4, "channels": (4, 6, 6), **overrides}
    config = pdecnn.create_model(name, **overrides).config
    network = pdecnn.Network(config, pdecnn.Preprocessing(class_names=NAMES, size=(8, 8)))
    network(torch.randn(4, 1, *(8,) * config.dimension))  # statistics away from their start
    return network


def edit_config(folder, change):
    values = json.loads((folder / CONFIG).read_text())
    change(values)
    # By hand: our own writer refuses what is no JSON, such as an infinity.
    (folder / CONFIG).write_text(json.dumps(values))
    write_manifest(folder, FILES)


def assert_same(one, two):
    assert one.config == two.config
    assert one.preprocessing == two.preprocessing
    first, second = one.state_dict(), two.state_dict()
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype, name
        assert torch.equal(tensor, second[name]), name
