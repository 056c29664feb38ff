"""timm's manners: networks without classes, features alone, images of other channels."""

import inspect
from dataclasses import replace

import pytest
import torch

import pdecnn
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.networks.registry import stencils_for

WAVE = "hamiltonian_cifar10"


@pytest.fixture(scope="module")
def published():
    return pdecnn.create_model(WAVE, pretrained=True).eval()


def test_the_classifier_and_the_features_it_meets():
    network = pdecnn.create_model("parabolic_digits")
    assert network.get_classifier() is network.classifier
    assert network.num_features == 32
    assert torch.nn.Linear(network.num_features, 4)(
        network.forward_head(network.forward_features(torch.rand(2, 1, 8, 8)), pre_logits=True)
    ).shape == (2, 4)


@pytest.mark.parametrize("name", ["parabolic_digits", "parabolic_stable_digits"])
def test_without_classes_a_network_returns_its_features(name):
    network = pdecnn.create_model(name, num_classes=0).eval()
    images = torch.rand(3, 1, 8, 8)
    features = network(images)
    assert features.shape == (3, network.num_features)
    pooled = network.forward_head(network.forward_features(images), pre_logits=True)
    assert torch.equal(features, pooled)
    network.reset_classifier(5)
    assert network(images).shape == (3, 5)


@pytest.mark.parametrize("name", ["parabolic_digits", "parabolic_stable_digits"])
def test_without_classes_every_weight_that_is_trained_has_a_gradient(name):
    network = pdecnn.create_model(name, num_classes=0)
    network(torch.rand(3, 1, 8, 8)).sum().backward()
    for key, weight in network.named_parameters():
        assert (weight.grad is not None) == weight.requires_grad, key
    network.reset_classifier(5)
    assert all(weight.requires_grad for weight in network.parameters())


def test_tools_that_look_at_all_attributes_get_through():
    for name in ("parabolic_digits", "parabolic_stable_digits", "hamiltonian_denoising"):
        assert dict(inspect.getmembers(pdecnn.create_model(name)))["num_weights"] > 0


def test_the_trained_classifier_is_a_linear_map_of_those_features(published):
    images = published.preprocess(torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8))
    bare = pdecnn.create_model(WAVE, pretrained=True, num_classes=0).eval()
    assert bare.preprocessing.class_names is None
    weight, bias = published.classifier.weight, published.classifier.bias
    torch.testing.assert_close(bare(images) @ weight.T + bias, published(images))
    emptied = pdecnn.create_model(WAVE, pretrained=True).eval()
    emptied.reset_classifier(0)
    assert torch.equal(emptied(images), bare(images))


def test_a_network_without_classes_is_saved_and_read(tmp_path):
    network = pdecnn.create_model("second_order_digits", num_classes=0).eval()
    network.save_pretrained(tmp_path)
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(pdecnn.Network.from_pretrained(tmp_path).eval()(images), network(images))
    assert "Output: 32 features" in (tmp_path / "README.md").read_text()
    with pytest.raises(ConfigError, match=r"no classes to predict .*reset_classifier"):
        pdecnn.predict(tmp_path, images)


def test_a_network_without_classes_is_not_certified():
    network = pdecnn.create_model("parabolic_stable_digits", num_classes=0).eval()
    with pytest.raises(ConfigError, match="no classes"):
        pdecnn.certify(network, torch.rand(2, 1, 8, 8), torch.zeros(2, dtype=torch.long))


def test_a_run_without_classes_is_refused(tmp_path):
    config = pdecnn.recipe("parabolic_digits")
    config = replace(config, network=replace(config.network, num_classes=0))
    with pytest.raises(ConfigError, match=r"set network\.in_channels and network\.num_classes"):
        pdecnn.train(config, output=tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "size", "reduction"),
    [
        ("hamiltonian_cifar10", 32, [1, 2, 4]),
        ("parabolic_stable_cifar10", 32, [2, 4]),
        ("parabolic_signals", 16, [1, 2, 4]),
    ],
)
def test_features_alone_come_with_their_channels_and_sizes(name, size, reduction):
    network = pdecnn.create_model(name, features_only=True).eval()
    config = network.network.config
    images = torch.rand(2, config.in_channels, *(size,) * config.dimension)
    features = network(images)
    assert network.feature_info.channels() == [part.shape[1] for part in features]
    assert network.feature_info.reduction() == reduction
    assert [size // part.shape[-1] for part in features] == reduction
    assert len(network.feature_info) == len(features)
    assert network.feature_info[0]["num_chs"] == features[0].shape[1]


def test_features_alone_are_those_of_the_whole_network(published):
    network = pdecnn.create_model(WAVE, pretrained=True, features_only=True).eval()
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    found = network(network.preprocess(images))
    expected = published.forward_intermediates(published.preprocess(images))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_every_weight_of_features_alone_that_is_trained_gets_a_gradient():
    network = pdecnn.create_model("parabolic_digits", features_only=True)
    network(torch.rand(2, 1, 8, 8))[-1].sum().backward()
    trained = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    assert [name for name, weight in trained.items() if weight.grad is None] == []
    assert "network.connectors.0.convolution.stencil" in trained


@pytest.mark.parametrize("in_channels", [1, 2, 4, 5, 7])
def test_a_grey_image_gets_the_same_scores_in_any_number_of_equal_channels(published, in_channels):
    grey = torch.randint(0, 256, (2, 1, 32, 32), dtype=torch.uint8)
    network = pdecnn.create_model(WAVE, pretrained=True, in_channels=in_channels).eval()
    assert network.config.in_channels == in_channels
    found = network(network.preprocess(grey.expand(-1, in_channels, -1, -1)))
    expected = published(published.preprocess(grey.expand(-1, 3, -1, -1)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_more_channels_repeat_the_stencils_and_share_them():
    stencil = torch.randn(2, 3, 3, 3)
    found = stencils_for(4, stencil)
    assert torch.equal(found[:, :3], torch.stack([stencil[:, 0] / 2, *stencil.unbind(1)[1:]], 1))
    assert torch.equal(found[:, 3], stencil[:, 0] / 2)
    torch.testing.assert_close(stencils_for(2, stencil)[:, 1], stencil.mean(1) * 1.5)


def test_means_and_deviations_follow_the_channels(tmp_path):
    statistics = {"mean": (0.1, 0.2, 0.3), "std": (1.0, 2.0, 3.0)}
    config = pdecnn.create_model("parabolic_digits", in_channels=3).config
    preprocessing = pdecnn.Preprocessing(standardize="dataset", **statistics)
    pdecnn.Network(config, preprocessing).save_pretrained(tmp_path)

    def statistics_of(in_channels):
        network = pdecnn.create_model(
            "parabolic_digits", pretrained=tmp_path, in_channels=in_channels
        )
        assert network.preprocess(torch.rand(1, in_channels, 8, 8)).isfinite().all()
        return network.preprocessing.mean, network.preprocessing.std

    assert statistics_of(4) == ((0.1, 0.2, 0.3, 0.1), (1.0, 2.0, 3.0, 1.0))
    mean, std = statistics_of(1)
    assert mean == pytest.approx((0.2,))
    assert std == pytest.approx((2.0,))


def test_an_opening_without_stencils_is_not_made_for_other_channels(tmp_path):
    pdecnn.create_model("parabolic_stable_digits").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="another architecture: in_channels is 1"):
        pdecnn.create_model("parabolic_stable_digits", pretrained=tmp_path, in_channels=2)
