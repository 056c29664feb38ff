"""Stable networks: parts that expand no distance, settings that fit, saved whole."""

from dataclasses import replace

import pytest
import torch

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.networks.bounded import UnitRowsClassifier, haar, pool, space_to_depth
from tests.dense import dense_matrix
from tests.unit.networks.registered import make

STABLE = ["digits", "signals", "volumes", "images"]
SIZES = {"digits": (8, 8), "signals": (64,), "volumes": (16, 16, 16), "images": (64, 64)}
SHAPES = [(2, 6), (3, 4, 6), (2, 4, 2, 4)]


def images_for(name, batch=2, seed=0):
    network = make(f"parabolic_stable_{name}").eval()
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, network.config.in_channels, *SIZES[name])
    return network, torch.rand(shape, generator=generator)


@pytest.mark.parametrize("shape", SHAPES)
def test_space_to_depth_keeps_every_number(shape):
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(1, *shape)
    found = space_to_depth(values, 2)
    dimension = len(shape) - 1
    assert found.shape == (1, shape[0] * 2**dimension, *(n // 2 for n in shape[1:]))
    assert torch.equal(found.flatten().sort().values, values.flatten())
    # The first channels are the first pixel's cell.
    first = values[0, 0][(slice(0, 2),) * dimension].flatten()
    pixel = found[0].flatten(1)[: 2**dimension, 0]
    assert torch.equal(pixel, first)


def test_pixels_that_fill_no_cell_are_dropped():
    assert space_to_depth(torch.zeros(1, 1, 5, 7), 2).shape == (1, 4, 2, 3)


@pytest.mark.parametrize("shape", SHAPES)
def test_haar_is_orthonormal_and_begins_with_the_mean(shape):
    matrix = dense_matrix(haar, shape)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(len(matrix), dtype=torch.float64))
    dimension = len(shape) - 1
    ones = haar(torch.ones(1, *shape, dtype=torch.float64))
    cells = ones.view(shape[0], 2**dimension, -1)
    torch.testing.assert_close(cells[:, 0], torch.full_like(cells[:, 0], 2 ** (dimension / 2)))
    assert float(cells[:, 1:].abs().max()) == 0


@pytest.mark.parametrize("pooling", ["average", "space_to_depth", "haar"])
@pytest.mark.parametrize("shape", SHAPES)
def test_pooling_has_norm_1(pooling, shape):
    matrix = dense_matrix(lambda features: pool(features, pooling), shape)
    assert float(torch.linalg.matrix_norm(matrix, 2)) == pytest.approx(1)


@pytest.mark.parametrize("size", [None, (3, 2)])
def test_no_score_changes_by_more_than_the_features(size):
    torch.manual_seed(0)
    classifier = UnitRowsClassifier(4, 5, size=size).double()
    shape = (4, 3, 2)
    with torch.no_grad():
        zero = classifier(torch.zeros(1, *shape, dtype=torch.float64))
    matrix = dense_matrix(lambda features: classifier(features) - zero, shape)
    torch.testing.assert_close(matrix.norm(dim=1), torch.ones(5, dtype=torch.float64))


def test_a_flat_classifier_refuses_other_sizes():
    with pytest.raises(ValueError, match=r"takes features of size \(3, 2\).*classifier=unit_rows"):
        UnitRowsClassifier(4, 5, size=(3, 2))(torch.zeros(1, 4, 2, 2))


@pytest.mark.parametrize("name", STABLE)
def test_a_whole_stable_network_expands_no_distance(name):
    network, images = images_for(name)
    with torch.no_grad():
        first, second = network.forward_features(images)
    assert 0 < float((first - second).norm()) <= float((images[0] - images[1]).norm())


@pytest.mark.parametrize("name", STABLE)
def test_stable_networks_are_saved_and_read_whole(name, tmp_path):
    network, images = images_for(name)
    network.save_pretrained(tmp_path / "saved")
    again = pdecnn.Network.from_pretrained(tmp_path / "saved").eval()
    assert again.config == network.config
    assert torch.equal(again(images), network(images))


def test_stable_networks_have_the_weights_they_may_have():
    counts = {
        name: pdecnn.create_model(f"parabolic_stable_{name}").num_weights
        for name in ("cifar10", "large_cifar10")
    }
    assert counts == {"cifar10": 491_882, "large_cifar10": 1_544_762}
    assert counts["cifar10"] <= 503_000
    assert counts["large_cifar10"] <= 1_600_000


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"integrator": "verlet"}, "forward Euler with symmetric layers"),
        ({"layer": "residual"}, "forward Euler with symmetric layers"),
        ({"normalization": "tv"}, "without normalisation"),
        ({"certified_size": None}, "need network.certified_size"),
        ({"certified_size": (8, 8, 8)}, "one number or 2"),
        ({"step_size": "fast"}, "unknown network.step_size"),
        ({"opening": "convolution", "patch_size": 2}, "patch_size belongs to"),
        ({"in_channels": 17}, "do not fit into 16"),
        ({"connector": "batch_norm"}, "is for network.connector=bounded"),
        ({"channels": (16, 32)}, "last two of network.channels must be equal"),
        ({"channels": (16,) * 6, "hidden_channels": 8}, "too small for 5 blocks"),
        ({"backprop": "reversible"}, "cannot be undone"),
        ({"activation": torch.sin}, "slopes are known"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        pdecnn.Network(replace(make("parabolic_stable_digits").config, **settings))


@pytest.mark.parametrize("opening", ["pad", "bounded"])
def test_both_openings_expand_no_distance(opening):
    config = replace(make("parabolic_stable_digits").config, opening=opening, patch_size=2)
    torch.manual_seed(0)
    part = pdecnn.Network(config).double().eval().opening
    matrix = dense_matrix(part, (1, 8, 8))
    assert 0.5 < float(torch.linalg.matrix_norm(matrix, 2)) <= 1


def test_frozen_steps_are_the_same_network_with_numbers_for_steps():
    network, images = images_for("digits")
    frozen = pdecnn.freeze_steps(network)
    assert frozen.config.step_size == 1.0
    assert frozen.blocks[0].step_sizes == (1.0,) * 3
    torch.testing.assert_close(frozen(images), network(images), rtol=1e-4, atol=1e-5)
    assert pdecnn.refine_in_time(frozen, 2).config.block_num_steps == (6,)


def test_levels_of_stable_networks_are_refused_with_the_reason():
    network = make("parabolic_stable_digits")
    for change in (pdecnn.refine_in_time, pdecnn.coarsen_in_time):
        with pytest.raises(ConfigError, match="freeze_steps"):
            change(network, 3)
    for change in (pdecnn.refine_in_space, pdecnn.coarsen_in_space):
        with pytest.raises(ConfigError, match="bounded for images of at most"):
            change(network)


def test_steps_of_tanh_cannot_be_frozen_nor_numbers():
    network = make("parabolic_stable_digits", activation="tanh")
    with pytest.raises(ConfigError, match="as of relu"):
        pdecnn.freeze_steps(network)
    with pytest.raises(ConfigError, match="numbers already"):
        pdecnn.freeze_steps(make("parabolic_digits"))


@pytest.mark.parametrize("name", STABLE[:2])
def test_weights_put_in_the_place_of_meta_ones_have_their_bounds(name):
    network, images = images_for(name)
    with torch.device("meta"):
        empty = make(f"parabolic_stable_{name}")
    empty.load_state_dict(network.state_dict(), assign=True)
    assert torch.equal(empty.eval()(images), network(images))
