"""The paper's Table 1 pins the architecture: weight counts to the digit."""

import pytest
import torch
from torch import nn

import pdecnn

# The six numbers of the paper and three of the baseline, which has twice the stencils.
WEIGHTS = {
    "parabolic_stl10": 618_554,
    "parabolic_cifar10": 502_570,
    "parabolic_cifar100": 652_484,
    "second_order_stl10": 618_554,
    "second_order_cifar10": 502_570,
    "second_order_cifar100": 652_484,
    "hamiltonian_stl10": 324_794,
    "hamiltonian_cifar10": 264_106,
    "hamiltonian_cifar100": 362_180,
    "resnet_stl10": 1_206_074,
    "resnet_cifar10": 979_498,
    "resnet_cifar100": 1_233_092,
}


# And those like them for data of one's own.
PAPERS = [
    n
    for n in pdecnn.list_models()
    if "stable" not in n
    and "segmentation" not in n
    and not n.endswith(("_tuned", "_denoising", "_sounds"))
]


@pytest.mark.parametrize("name", WEIGHTS)
def test_weight_counts_are_those_of_the_paper(name):
    network = pdecnn.create_model(name)
    assert network.num_weights == WEIGHTS[name]
    assert sum(weight.numel() for weight in network.parameters()) == WEIGHTS[name]


def test_every_model_of_the_paper_is_counted():
    others = ("digits", "images", "signals", "volumes", "tuned", "denoising", "sounds")
    others += ("segmentation",)
    assert sorted(WEIGHTS) == [
        n for n in pdecnn.list_models() if not n.endswith(others) and "stable" not in n
    ]


def test_a_frozen_weight_is_not_counted_as_trainable():
    network = pdecnn.create_model("parabolic_digits")
    total = network.num_weights
    network.classifier.requires_grad_(False)
    assert network.num_weights == total - 32 * 10 - 10


@pytest.mark.parametrize(
    ("dynamics", "weights_a_step"),
    [
        ("resnet", 2 * 16 * 16 * 9 + 2 * 16),
        ("parabolic", 16 * 16 * 9 + 2 * 16),
        ("second_order", 16 * 16 * 9 + 2 * 16),
        ("hamiltonian", 2 * (8 * 8 * 9 + 2 * 8)),
    ],
)
def test_weights_of_one_step(dynamics, weights_a_step):
    block = pdecnn.create_model(f"{dynamics}_stl10").blocks[0]
    assert sum(weight.numel() for weight in block.parameters()) == 3 * weights_a_step


def test_stages_are_those_of_section_5():
    network = pdecnn.create_model("parabolic_stl10")
    assert network.opening.convolution.stencil.shape == (16, 3, 3, 3)
    widths = [tuple(c.convolution.stencil.shape[:2]) for c in network.connectors]
    assert widths == [(32, 16), (64, 32), (128, 64), (128, 128)]
    assert [c.convolution.stencil_size for c in network.connectors] == [(1, 1)] * 4
    assert [c.pool for c in network.connectors] == [True, True, True, False]
    assert not any("convolution.bias" in name for name, _ in network.named_parameters())
    for norm in (m for m in network.modules() if isinstance(m, nn.BatchNorm2d)):
        assert (norm.eps, norm.momentum, norm.affine) == (1e-4, 0.1, True)
    sizes = [tuple(f.shape[2:]) for f in network.forward_intermediates(torch.zeros(2, 3, 96, 96))]
    assert sizes == [(96, 96), (48, 48), (24, 24), (12, 12)]


@pytest.mark.parametrize("name", PAPERS)
def test_the_recipe_is_the_default(name):
    config = pdecnn.create_model(name).config
    assert (config.num_steps, config.step_size) == (3, 1.0)
    assert (config.activation, config.normalization, config.epsilon) == ("relu", "tv", 1e-3)
    assert (config.backprop, config.share_weights) == ("stored", False)
    assert config.dimension == {"signals": 1, "volumes": 3}.get(name.rpartition("_")[2], 2)
