"""From a config to images and a network: data of one's own says what the network must fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import pdecnn
from pdecnn.errors import ConfigError, DataError
from pdecnn.runs.preparation import make_network, read_own, read_splits
from tests.image_folders import write_folder


def configure(recipe, folder, **settings):
    config = pdecnn.recipe(recipe).with_settings(
        {key.replace("__", "."): value for key, value in settings.items()}
    )
    return replace(config, data=replace(config.data, folder=str(folder)))


@pytest.fixture
def arrays(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(5, [[2], [30], [1]], (40, 3, 16))
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(40) % 5)
    return tmp_path / "data.npz"


def test_published_data_changes_no_network():
    config = pdecnn.recipe("hamiltonian_cifar10")
    assert read_own(config) == (config, None)


def test_the_network_takes_channels_and_classes_of_the_data(arrays):
    config, splits = read_own(configure("parabolic_signals", arrays))
    assert (config.network.in_channels, config.network.num_classes) == (3, 5)
    network = make_network(config, splits.train)
    assert network.num_classes == 5
    assert read_own(config)[0] == config


def test_what_was_set_is_compared_not_replaced(arrays):
    config, splits = read_own(configure("parabolic_signals", arrays, network__num_classes=7))
    assert config.network.num_classes == 7
    with pytest.raises(ConfigError, match="3 channels and 5 classes, the network 3 and 7"):
        make_network(config, splits.train)


@pytest.mark.parametrize("size", [8, 24])
def test_images_of_another_size_than_the_certified_one_are_refused_before_training(arrays, size):
    config, splits = read_own(
        configure("parabolic_stable_signals", arrays, network__certified_size=[size])
    )
    with pytest.raises(ConfigError, match=rf"size \(16,\) .*certified_size=\({size},\); set"):
        make_network(config, splits.train)


def test_the_data_set_is_standardised_channel_by_channel(arrays):
    config, splits = read_own(configure("parabolic_signals", arrays))
    train = splits.train
    network = make_network(config, train)
    features = network.preprocess(train.images).double()
    assert torch.allclose(features.mean((0, 2)), torch.zeros(3).double(), atol=1e-5)
    assert torch.allclose(features.std((0, 2), correction=0), torch.ones(3).double(), atol=1e-5)


def test_what_is_held_out_is_not_trained_on(arrays):
    splits = read_splits(configure("parabolic_signals", arrays).data, 0)
    parts = [{tuple(one.flatten().tolist()) for one in part.images} for part in splits]
    assert sum(map(len, parts)) == 40 == len(set().union(*parts))


def test_a_given_validation_part_is_used_as_it_is(tmp_path):
    for part, count in (("train", 20), ("val", 6), ("test", 4)):
        write_folder(tmp_path / part, count, seed=count)
    config = configure("parabolic_images", tmp_path, data__size=8)
    for seed in (0, 1):
        splits = read_splits(config.data, seed)
        assert [len(split) for split in splits] == [20, 6, 4]
    half = read_splits(replace(config.data, fraction=0.5), 0)
    assert [len(split) for split in half] == [10, 6, 4]
    with pytest.raises(ConfigError, match=r"leave out data\.validation_fraction, found 0\.1"):
        read_splits(replace(config.data, validation_fraction=0.1), 0)


def test_missing_data_is_asked_for_before_anything_is_made():
    for recipe in ("parabolic_images", "parabolic_volumes"):
        with pytest.raises(DataError, match="pass --data"):
            read_own(pdecnn.recipe(recipe))


def test_a_folder_that_is_taken_is_told_before_data_is_read(tmp_path):
    (tmp_path / "letter.txt").write_text("")
    with pytest.raises(ConfigError, match="holds other files"):
        pdecnn.train(configure("parabolic_images", tmp_path / "nothing"), output=tmp_path)
