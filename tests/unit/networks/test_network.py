"""What every registered network does: any size, every gradient, every mode, both ways."""

import copy
from dataclasses import fields, replace

import pytest
import torch
from torch import nn

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.pde import Block, Grid

MODELS = [
    f"{dynamics}_{data_set}"
    for dynamics in ("resnet", "parabolic", "hamiltonian", "second_order")
    for data_set in ("digits", "stl10", "cifar10", "cifar100")
]
DYNAMICS = ["resnet_digits", "parabolic_digits", "hamiltonian_digits", "second_order_digits"]
HYPERBOLIC = ["hamiltonian_digits", "second_order_digits"]


def make(name, *, seed=0, **overrides):
    torch.manual_seed(seed)
    return pdecnn.create_model(name, **overrides)


def images_for(network, *spatial, batch=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    weight = network.classifier.weight
    shape = (batch, network.config.in_channels, *spatial)
    return torch.randn(shape, generator=generator).to(weight.dtype)


def trained_a_little(name, **overrides):
    """Statistics and norm weights away from their start, so that no pre-activation is at 0."""
    network = make(name, **overrides)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=generator)
    network(images_for(network, 8, 8, batch=8))
    return network


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


@pytest.mark.parametrize("name", DYNAMICS)
def test_checkpointed_is_stored_bit_for_bit(name):
    stored, other = trained_a_little(name), trained_a_little(name, backprop="checkpointed")
    other.load_state_dict(stored.state_dict())
    images = images_for(stored, 8, 8)
    results = []
    for network in (stored, other):
        scores = network(images)
        scores.square().sum().backward()
        results.append([scores, *(weight.grad for weight in network.parameters())])
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("name", ["parabolic_digits", "resnet_digits"])
def test_checkpointing_counts_the_statistics_of_batch_norm_once(name):
    networks = [make(name, normalization="batch", backprop=b) for b in ("stored", "checkpointed")]
    for network in networks:
        network(images_for(network, 8, 8)).square().sum().backward()
    stored, other = (network.state_dict() for network in networks)
    for key, tensor in stored.items():
        assert torch.equal(tensor, other[key]), key


@pytest.mark.parametrize("name", HYPERBOLIC)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_reversible_is_stored(name, dtype, tolerance):
    stored = trained_a_little(name, activation="tanh").to(dtype)
    other = make(name, activation="tanh", backprop="reversible").to(dtype)
    other.load_state_dict(stored.state_dict())
    images = images_for(stored, 8, 8)
    scores = [network(images) for network in (stored, other)]
    assert torch.equal(*scores)
    for result in scores:
        result.square().sum().backward()
    pairs = zip(stored.named_parameters(), other.named_parameters(), strict=True)
    for (parameter_name, one), (_, two) in pairs:
        error = (one.grad - two.grad).norm() / one.grad.norm()
        assert error < tolerance, f"{parameter_name}: {error}"


@pytest.mark.parametrize("name", HYPERBOLIC)
def test_exact_is_stored_within_the_grid(name):
    stored = trained_a_little(name).eval()
    exact = make(name, backprop="exact").eval()
    exact.load_state_dict(stored.state_dict())
    images = images_for(stored, 8, 8)
    scores = stored(images)
    difference = (exact(images) - scores).abs().max()
    assert 0 < difference < 0.02 * scores.abs().max()


@pytest.mark.parametrize("name", HYPERBOLIC)
def test_exact_has_the_gradient_of_stored_on_the_same_grid(name):
    exact = trained_a_little(name, backprop="exact")
    stored = copy.deepcopy(exact)
    stored.blocks = nn.ModuleList(
        Block(block.layers, block.integrator, step_size=block.step_size, grid_bits=12)
        for block in stored.blocks
    )
    images = images_for(stored, 8, 8)
    for network in (exact, stored):
        network.zero_grad()
        network(images).square().sum().backward()
    pairs = zip(exact.named_parameters(), stored.named_parameters(), strict=True)
    for (parameter_name, one), (_, two) in pairs:
        assert torch.equal(one.grad, two.grad), parameter_name


@pytest.mark.parametrize(
    "name", [f"{d}_{s}" for d in ("hamiltonian", "second_order") for s in ("digits", "cifar10")]
)
@pytest.mark.parametrize("backprop", ["stored", "reversible", "exact"])
def test_reverse_after_propagate_is_the_identity(name, backprop):
    network = make(name, backprop=backprop)
    for block, width in zip(network.blocks, network.config.channels, strict=False):
        features = torch.randn(2, width, 6, 7)
        with torch.no_grad():
            back = block.reverse(block.propagate(features))
        if backprop == "exact":
            assert torch.equal(back, Grid().round(features))
        else:
            assert (back - features).norm() < 1e-5 * features.norm()


@pytest.mark.parametrize("name", ["parabolic_digits", "resnet_digits"])
def test_parabolic_blocks_cannot_be_reversed(name):
    block = make(name).blocks[0]
    with pytest.raises(ConfigError, match="cannot be undone"):
        block.reverse(block.propagate(torch.randn(1, 16, 4, 4)))


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
    for bad in (0, -1, 2.0, True, None):
        with pytest.raises(ConfigError):
            network.reset_classifier(bad)
    assert network.num_classes == 4


@pytest.mark.parametrize("training", [True, False])
def test_a_new_classifier_is_in_the_mode_of_the_old(training):
    network = make("parabolic_digits").train(training)
    network.reset_classifier(4)
    assert {part.training for part in network.modules()} == {training}


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
    "activation": ("tanh", lambda n: the_one(x.activation.name for x in all_layers(n))),
    "normalization": ("none", lambda n: the_one(x.normalization_name for x in all_layers(n))),
    "epsilon": (0.5, lambda n: the_one(x.normalization.epsilon for x in all_layers(n))),
    "backprop": ("checkpointed", lambda n: the_one(b.backprop for b in n.blocks)),
    "dimension": (
        3,
        lambda n: the_one(p.dimension for p in n.modules() if isinstance(p, pdecnn.Convolution)),
    ),
    "share_weights": (True, lambda n: the_one(len(b.layers) == 1 for b in n.blocks)),
    # It changes no number of the network, but what its stencils mean and the box around them.
    "mesh_size": (0.5, lambda n: n.config.mesh_size),
}


def test_every_setting_is_looked_for_in_the_network():
    assert list(REACHED) == [field.name for field in fields(pdecnn.NetworkConfig)]


@pytest.mark.parametrize("name", REACHED)
def test_every_setting_reaches_the_network(name):
    value, find = REACHED[name]
    plain = pdecnn.NetworkConfig(channels=(4, 4, 4))
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


@pytest.mark.parametrize(
    ("name", "backprop"),
    [(name, backprop) for name in DYNAMICS for backprop in ("stored", "checkpointed")]
    + [(name, backprop) for name in HYPERBOLIC for backprop in ("reversible", "exact")],
)
def test_autocast_to_bfloat16(name, backprop):
    network = trained_a_little(name, backprop=backprop)
    images = images_for(network, 8, 8)
    with torch.no_grad():
        expected = network(images)
    with torch.autocast("cpu", torch.bfloat16):
        scores = network(images)
    scores.float().square().sum().backward()
    torch.testing.assert_close(scores.float(), expected, rtol=0.1, atol=0.1)
    for parameter_name, weight in network.named_parameters():
        assert weight.grad is not None, f"{parameter_name} has no gradient"
        assert weight.grad.dtype == torch.float32
        assert weight.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", DYNAMICS)
def test_channels_last_input_gives_the_same_scores(name):
    network = trained_a_little(name, in_channels=3).eval()
    images = images_for(network, 8, 9)
    last = images.to(memory_format=torch.channels_last)
    assert not last.is_contiguous()
    torch.testing.assert_close(network(last), network(images), rtol=1e-4, atol=1e-5)
    assert last.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", HYPERBOLIC)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("backprop", ["stored", "checkpointed", "reversible", "exact"])
def test_no_gradients_wanted(name, context, backprop):
    network = trained_a_little(name, backprop=backprop).eval()
    images = images_for(network, 8, 8)
    with context():
        scores = network(images)
    assert not scores.requires_grad
    torch.testing.assert_close(scores, network(images).detach())


@pytest.mark.parametrize("name", HYPERBOLIC)
@pytest.mark.parametrize("backprop", ["reversible", "exact"])
def test_second_derivatives_through_reversal_are_refused(name, backprop):
    network = make(name, backprop=backprop)
    images = images_for(network, 8, 8).requires_grad_()
    with pytest.raises(RuntimeError, match="use backprop='stored' or 'checkpointed'"):
        torch.autograd.grad(network(images).square().sum(), images, create_graph=True)


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
