"""What every registered network does: any size, every gradient, features, head and copies."""

import copy
from contextlib import suppress

import pytest
import torch

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.networks.network import evaluation_mode
from tests.blocks import replica_of
from tests.unit.networks.registered import DYNAMICS, images_for, make, trained_a_little

MODELS = [
    f"{dynamics}_{data_set}"
    for dynamics in ("resnet", "parabolic", "hamiltonian", "second_order")
    for data_set in ("digits", "stl10", "cifar10", "cifar100")
]


@pytest.mark.parametrize("name", MODELS)
def test_smallest_and_odd_sizes(name):
    network = make(name).eval()
    smallest = network.config.smallest_size
    for size in [(smallest, smallest), (smallest + 1, smallest), (2 * smallest + 1, smallest + 3)]:
        with torch.no_grad():
            scores = network(images_for(network, *size))
        assert scores.shape == (2, network.num_classes)
        assert scores.isfinite().all(), size


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name):
    network = make(name)
    scores = network(images_for(network, 17, 16))
    (scores * torch.randn_like(scores)).sum().backward()
    for parameter_name, weight in network.named_parameters():
        assert weight.grad is not None, f"{parameter_name} has no gradient"
        assert weight.grad.isfinite().all(), f"{parameter_name} has a gradient that is not finite"
        assert weight.grad.abs().sum() > 0, f"{parameter_name} has a zero gradient"


@pytest.mark.parametrize("name", DYNAMICS)
@pytest.mark.parametrize("size", [(8, 8), (5, 11)])
def test_constant_images_stay_finite(name, size):
    network = make(name)
    scores = network(torch.zeros(2, 1, *size))
    scores.sum().backward()
    assert scores.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in network.parameters())


@pytest.mark.parametrize("dynamics", ["resnet", "parabolic", "hamiltonian", "second_order"])
@pytest.mark.parametrize(("dimension", "sizes"), [(1, [(2,), (9,)]), (3, [(2, 2, 2), (5, 3, 4)])])
def test_signals_and_volumes(dynamics, dimension, sizes):
    network = make(f"{dynamics}_digits", dimension=dimension, channels=(4, 6, 6))
    for size in sizes:
        network.zero_grad()
        scores = network(images_for(network, *size, batch=4))
        scores.square().sum().backward()
        assert scores.shape == (4, 10)
        for name, weight in network.named_parameters():
            assert weight.grad is not None, f"{name} has no gradient"
            assert weight.grad.isfinite().all(), f"{name} has a gradient that is not finite"


class TestBadImages:
    def test_without_pixels(self):
        with pytest.raises(ValueError, match="no pixels"):
            make("parabolic_digits")(torch.zeros(2, 1, 0, 8))

    @pytest.mark.parametrize("size", [(1, 8), (8, 1)])
    def test_too_small(self, size):
        with pytest.raises(ValueError, match=r"too small: 2 blocks .* at least 2 pixels"):
            make("parabolic_digits")(torch.zeros(2, 1, *size))

    def test_too_small_for_four_blocks(self):
        network = make("parabolic_stl10").eval()
        assert network(torch.zeros(1, 3, 8, 8)).shape == (1, 10)
        with pytest.raises(ValueError, match="at least 8 pixels"):
            network(torch.zeros(1, 3, 7, 8))

    @pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (1, 1, 8, 8, 8), (8,), ()])
    def test_wrong_rank(self, shape):
        with pytest.raises(ValueError, match=r"must have axes \(batch, channels, height, width\)"):
            make("parabolic_digits")(torch.zeros(shape))

    def test_wrong_channels(self):
        with pytest.raises(ValueError, match="needs features of 1 channels, found 3"):
            make("parabolic_digits")(torch.zeros(1, 3, 8, 8))

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
    def test_whole_numbers_are_sent_to_preprocessing(self, dtype):
        network = make("parabolic_digits").eval()
        images = torch.zeros(1, 1, 8, 8, dtype=dtype)
        with pytest.raises(ValueError, match=r"network\(network\.preprocess\(images\)\)$"):
            network(images)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
    def test_wrong_dtype(self, dtype):
        with pytest.raises(ValueError, match=f"features are {dtype} but the weights torch.float32"):
            make("parabolic_digits")(torch.zeros(1, 1, 8, 8, dtype=dtype))

    def test_wrong_device(self):
        with pytest.raises(ValueError, match="features are on meta but the weights on cpu"):
            make("parabolic_digits")(torch.zeros(1, 1, 8, 8, device="meta"))

    def test_wrong_features_for_the_head(self):
        network = make("parabolic_digits")
        for shape in [(2, 32), (2, 31, 4, 4), (2, 32, 4)]:
            for pre_logits in (True, False):
                with pytest.raises(ValueError, match=r"features must have|needs features of"):
                    network.forward_head(torch.zeros(shape), pre_logits)

    def test_intermediates_are_checked_too(self):
        with pytest.raises(ValueError, match="too small"):
            make("parabolic_digits").forward_intermediates(torch.zeros(1, 1, 1, 1))


def test_an_empty_batch_gives_no_scores():
    for name in DYNAMICS:
        assert make(name).eval()(torch.zeros(0, 1, 8, 8)).shape == (0, 10)


@pytest.mark.parametrize("name", DYNAMICS)
def test_features_and_head_make_the_network(name):
    network = trained_a_little(name).eval()
    images = images_for(network, 9, 8)
    features = network.forward_features(images)
    assert features.shape == (2, 32, 4, 4)
    assert torch.equal(network.forward_head(features), network(images))
    pooled = network.forward_head(features, pre_logits=True)
    torch.testing.assert_close(pooled, features.mean((2, 3)))
    weight, bias = network.classifier.weight, network.classifier.bias
    torch.testing.assert_close(pooled @ weight.T + bias, network(images))


@pytest.mark.parametrize("name", DYNAMICS)
def test_intermediates_are_the_features_after_each_block(name):
    network = trained_a_little(name).eval()
    images = images_for(network, 9, 8)
    first, second = network.forward_intermediates(images)
    assert first.shape == (2, 16, 9, 8)
    assert second.shape == (2, 32, 4, 4)
    assert torch.equal(first, network.blocks[0](network.opening(images)))
    assert torch.equal(second, network.blocks[1](network.connectors[0](first)))
    assert torch.equal(network.forward_head(network.connectors[1](second)), network(images))


def test_the_mean_over_pixels_makes_scores_invariant_to_inner_shifts():
    network = trained_a_little("parabolic_digits").eval()
    image = torch.zeros(1, 1, 64, 64)
    image[..., 28:32, 28:32] = images_for(network, 4, 4, batch=1)
    shifted = image.roll((2, 4), (2, 3))
    torch.testing.assert_close(network(image), network(shifted), rtol=1e-4, atol=1e-5)


def test_resetting_the_classifier():
    config = make("hamiltonian_digits").config
    names = pdecnn.Preprocessing(class_names=[str(i) for i in range(10)])
    network = pdecnn.Network(config, names).double()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    network.reset_classifier(4)
    assert network.num_classes == network.config.num_classes == 4
    assert network.preprocessing.class_names is None
    assert network(images_for(network, 8, 8)).shape == (2, 4)
    assert network.classifier.weight.dtype == torch.float64
    assert network.classifier.weight.requires_grad
    for name, tensor in network.named_parameters():
        if not name.startswith("classifier"):
            assert torch.equal(tensor, before[name]), name
    for bad in (-1, 2.0, True, None):
        with pytest.raises(ConfigError):
            network.reset_classifier(bad)
    assert network.num_classes == 4


@pytest.mark.parametrize("training", [True, False])
def test_a_new_classifier_is_in_the_mode_of_the_old(training):
    network = make("parabolic_digits").train(training)
    network.reset_classifier(4)
    assert {part.training for part in network.modules()} == {training}


def test_every_part_goes_back_to_the_mode_it_had_before_an_evaluation():
    """Of a network in evaluation mode, and of one with a part that is; after an error too."""
    network = make("parabolic_digits")
    for begin in (network.eval, network.train, network.opening.eval):
        begin()
        before = [part.training for part in network.modules()]
        with suppress(KeyError), evaluation_mode(network):
            assert not any(part.training for part in network.modules())
            raise KeyError
        assert [part.training for part in network.modules()] == before


@pytest.mark.slow
@pytest.mark.parametrize("name", DYNAMICS)
def test_compiles_as_one_graph(name):
    torch.compiler.reset()
    network = trained_a_little(name)
    plain = copy.deepcopy(network)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    images = images_for(network, 8, 8)
    results = [compiled(images), plain(images)]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
    for result in results:
        result.square().sum().backward()
    for (key, one), two in zip(network.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", DYNAMICS)
def test_channels_last_input_gives_the_same_scores(name):
    network = trained_a_little(name, in_channels=3).eval()
    images = images_for(network, 8, 9)
    last = images.to(memory_format=torch.channels_last)
    assert not last.is_contiguous()
    torch.testing.assert_close(network(last), network(images), rtol=1e-4, atol=1e-5)
    assert last.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", DYNAMICS)
def test_a_deep_copy_is_independent(name):
    network = trained_a_little(name).eval()
    twin = copy.deepcopy(network)
    images = images_for(network, 8, 8)
    before = network(images)
    assert torch.equal(twin(images), before)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.zero_()
    assert torch.equal(network(images), before)


def test_the_callers_images_are_untouched():
    for name in DYNAMICS:
        network = make(name)
        images = images_for(network, 8, 8)
        before = images.clone()
        network(images).sum().backward()
        assert torch.equal(images, before)


def test_a_network_of_data_parallel_says_what_to_use():
    network = replica_of(make("parabolic_digits"))
    with pytest.raises(ConfigError, match="DistributedDataParallel"):
        network(torch.zeros(2, 1, 8, 8))
