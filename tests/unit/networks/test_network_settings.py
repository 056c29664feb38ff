"""Every setting of a network reaches it, and its weights begin as they should."""

from dataclasses import fields, replace

import pytest
import torch
from torch import nn

import pdecnn
from pdecnn.errors import ConfigError
from tests.unit.networks.registered import DYNAMICS, make


@pytest.mark.parametrize("config", ["parabolic_digits", None, {"channels": (4, 4)}])
def test_what_is_no_config_is_refused(config):
    with pytest.raises(ConfigError, match=r"takes a NetworkConfig, found .* create_model"):
        pdecnn.Network(config)


def all_layers(network):
    return [layer for block in network.blocks for layer in block.layers]


def the_one(values):
    """What all of them are."""
    (value,) = set(values)
    return value


# For each setting a value and where it is found in the network.
REACHED = {
    "channels": (
        (6, 8, 10),
        lambda n: (*(b.layers[0].channels for b in n.blocks), n.classifier.channels),
    ),
    "in_channels": (5, lambda n: n.opening.convolution.in_channels),
    "num_classes": (7, lambda n: n.classifier.num_classes),
    "layer": ("residual", lambda n: the_one(type(x).__name__ for x in all_layers(n))[:8].lower()),
    "integrator": ("runge_kutta_4", lambda n: the_one(b.integrator.name for b in n.blocks)),
    "num_steps": ((2, 5), lambda n: tuple(b.num_steps for b in n.blocks)),
    "step_size": ((0.5, 0.25), lambda n: tuple(b.step_size for b in n.blocks)),
    "train_step_size": (
        True,
        lambda n: all(hasattr(layer, "log_factor") for layer in all_layers(n)),
    ),
    "hidden_channels": (
        (2, 3),
        lambda n: tuple(the_one(x.hidden_channels for x in b.layers) for b in n.blocks),
    ),
    "activation": ("tanh", lambda n: the_one(x.activation.name for x in all_layers(n))),
    "normalization": ("none", lambda n: the_one(x.normalization_name for x in all_layers(n))),
    "epsilon": (0.5, lambda n: the_one(x.normalization.epsilon for x in all_layers(n))),
    "backprop": ("checkpointed", lambda n: the_one(b.backprop for b in n.blocks)),
    "grid_bits": (20, lambda n: the_one(b.exact_bits for b in n.blocks)),
    "dimension": (
        3,
        lambda n: the_one(p.dimension for p in n.modules() if isinstance(p, pdecnn.Convolution)),
    ),
    "share_weights": (True, lambda n: the_one(len(b.layers) == 1 for b in n.blocks)),
    "opening": ("pad", lambda n: {"PaddedOpening": "pad"}.get(type(n.opening).__name__)),
    "patch_size": (2, lambda n: getattr(n.opening, "patch_size", None)),
    "connector": (
        "bounded",
        lambda n: the_one(type(x).__name__ for x in n.connectors).removesuffix("Connector").lower(),
    ),
    "pooling": ("haar", lambda n: the_one(getattr(x, "pooling", None) for x in n.connectors)),
    "classifier": (
        "unit_rows",
        lambda n: {"UnitRowsClassifier": "unit_rows"}.get(type(n.classifier).__name__),
    ),
    "boundary": (
        "reflect",
        lambda n: the_one(p.boundary for p in n.modules() if getattr(p, "padding", 0) == (1, 1)),
    ),
    "certified_size": ((8, 8), lambda n: n.config.certified_size),
    # It changes no number of the network, but what its stencils mean and the box around them.
    "mesh_size": (0.5, lambda n: n.config.mesh_size),
}


def test_every_setting_is_looked_for_in_the_network():
    assert list(REACHED) == [field.name for field in fields(pdecnn.NetworkConfig)]


@pytest.mark.parametrize("name", REACHED)
def test_every_setting_reaches_the_network(name):
    value, find = REACHED[name]
    plain = pdecnn.NetworkConfig(channels=(4, 4, 4))
    if name in ("patch_size", "pooling"):  # of parts that the paper's network does not have
        plain = replace(plain, channels=(12, 12, 12), opening="pad", connector="bounded")
    assert find(pdecnn.Network(plain)) != value
    assert find(pdecnn.Network(replace(plain, **{name: value}))) == value


@pytest.mark.parametrize(
    "preprocessing",
    [
        pdecnn.Preprocessing(class_names=("one", "two")),
        pdecnn.Preprocessing(standardize="dataset", mean=(0.5,) * 3, std=(0.5,) * 3),
        pdecnn.Preprocessing(size=(8,)),
    ],
)
def test_a_preprocessing_of_another_network_is_refused(preprocessing):
    with pytest.raises(ConfigError, match="the preprocessing's"):
        pdecnn.Network(make("parabolic_digits").config, preprocessing)


class TestInitialisation:
    def test_deviation_and_clamp_of_every_convolution(self):
        network = make("resnet_stl10", channels=(64, 128, 128))
        for name, part in network.named_modules():
            if not isinstance(part, pdecnn.Convolution):
                continue
            points = part.stencil[0, 0].numel()
            deviation = (2 / (points * part.out_channels)) ** 0.5
            largest = part.stencil.abs().max().item()
            assert largest <= 2 * deviation * (1 + 1e-6), name
            assert largest > 1.9 * deviation, name
            # A normal number clamped at two deviations has the standard deviation 0.9593.
            spread = part.stencil.std(correction=0).item() / deviation
            assert abs(spread - 0.9593) < 4 / part.stencil.numel() ** 0.5, name
            assert abs(part.stencil.mean().item()) < 4 * deviation / part.stencil.numel() ** 0.5

    @pytest.mark.parametrize("name", DYNAMICS)
    def test_all_steps_of_a_block_are_equal(self, name):
        for block in make(name, num_steps=4).blocks:
            width = block.integrator.layers_per_step
            assert len(block.layers) == 4 * width
            for index, layer in enumerate(block.layers):
                first = block.layers[index % width]
                for one, two in zip(layer.parameters(), first.parameters(), strict=True):
                    assert torch.equal(one, two)
                    assert index < width or one is not two

    def test_the_two_layers_of_a_hamiltonian_step_differ(self):
        layers = make("hamiltonian_digits").blocks[0].layers
        assert not torch.equal(layers[0].convolution.stencil, layers[1].convolution.stencil)

    @pytest.mark.parametrize("name", DYNAMICS)
    def test_scales_are_one_and_biases_zero(self, name):
        network = make(name)
        norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
        affine = [m.affine for m in network.modules() if isinstance(m, pdecnn.TotalVariationNorm)]
        assert len(norms) == 3
        assert len(affine) == (12 if name.startswith("hamiltonian") else 6)
        for norm in norms:
            assert torch.equal(norm.weight, torch.ones_like(norm.weight))
            assert torch.equal(norm.bias, torch.zeros_like(norm.bias))
        for part in affine:
            assert torch.equal(part.scale, torch.ones_like(part.scale))
            assert torch.equal(part.bias, torch.zeros_like(part.bias))

    def test_classifier(self):
        classifier = make("parabolic_cifar100").classifier
        assert torch.equal(classifier.bias, torch.zeros(100))
        largest = classifier.weight.abs().max()
        assert 0.199 < largest <= torch.tensor(0.2)
        assert abs(classifier.weight.std() - 0.09593) < 0.002

    @pytest.mark.parametrize("name", DYNAMICS)
    def test_weights_come_from_the_seed_of_torch(self, name):
        one, two, other = make(name), make(name), make(name, seed=1)
        for key, tensor in one.state_dict().items():
            assert torch.equal(tensor, two.state_dict()[key]), key
        assert not torch.equal(one.classifier.weight, other.classifier.weight)
        assert not torch.equal(one.opening.convolution.stencil, other.opening.convolution.stencil)
