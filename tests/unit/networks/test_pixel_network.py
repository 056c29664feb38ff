"""A network with its preprocessing in one module, and resizing by matrices."""

import pytest
import torch

import pdecnn
from pdecnn.networks.pixel_network import PixelNetwork, resize_by_matrices, resizing_matrix


def pixels_of(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize("backprop", pdecnn.BACKPROP_MODES)
@pytest.mark.parametrize("share_weights", [False, True])
def test_scores_are_those_of_the_network_bit_for_bit(backprop, share_weights):
    network = pdecnn.create_model(
        "hamiltonian_digits",
        channels=(4, 6, 6),
        num_steps=2,
        backprop=backprop,
        share_weights=share_weights,
    ).eval()
    pixels = pixels_of(3, 1, 8, 10)
    module = PixelNetwork(network)
    assert torch.equal(module(pixels), network(network.preprocess(pixels)))
    assert all(block.backprop == "stored" for block in module.network.blocks)
    assert all(block.backprop == backprop for block in network.blocks)


def test_the_network_is_left_as_it_was():
    network = pdecnn.create_model("parabolic_digits").train()
    module = PixelNetwork(network)
    assert not any(part.training for part in module.network.modules())
    assert all(part.training for part in network.modules())
    assert all(weight.requires_grad for weight in network.parameters())


@pytest.mark.parametrize("old", [1, 2, 3, 5, 8, 12, 16, 17, 100])
@pytest.mark.parametrize("new", [1, 2, 5, 8, 16])
def test_rows_of_a_resizing_matrix_are_weights_of_a_mean(old, new):
    matrix = resizing_matrix(old, new)
    assert matrix.shape == (new, old)
    assert (matrix >= 0).all()
    torch.testing.assert_close(matrix.sum(1), torch.ones(new))
    if old == new:
        assert torch.equal(matrix, torch.eye(new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((9,), (4,)),
        ((4,), (9,)),
        ((12, 8), (6, 4)),
        ((13, 7), (6, 11)),
        ((5, 16), (8, 8)),
        ((8, 8), (8, 8)),
        ((3, 9, 6), (5, 4, 6)),
    ],
)
def test_matrices_resize_as_the_preprocessing_does(old, new):
    pixels = pixels_of(2, 3, *old)
    wanted = pdecnn.Preprocessing(standardize="none", size=new).apply(pixels)
    torch.testing.assert_close(resize_by_matrices(pixels, new), wanted, rtol=1e-5, atol=1e-6)
