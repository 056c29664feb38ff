"""Networks from field to field: one state for the gradient through all levels, back to the bit."""

from copy import deepcopy

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from pdecnn.errors import ConfigError
from pdecnn.networks import Network, NetworkConfig, create_model
from tests.blocks import gradients_of, largest_relative_error, randomize_

AXES = {
    "parabolic": {"integrator": "forward_euler"},
    "hamiltonian": {"integrator": "verlet"},
    "second_order": {"integrator": "leapfrog"},
}
WAVES = ("hamiltonian", "second_order")
SIZES = {1: (8,), 2: (8, 4), 3: (4, 4, 4)}
every_dimension = pytest.mark.parametrize("dimension", [1, 2, 3])
every_wave = pytest.mark.parametrize("dynamics", WAVES)
both_poolings = pytest.mark.parametrize("pooling", ["space_to_depth", "haar"])


def make(dynamics: str, *, dimension: int = 2, seed: int = 0, **changes: object) -> Network:
    """Three levels, down and up again, with random weights that do not depend on the mode."""
    width, cells = 4, 2**dimension
    settings = {
        "channels": (width, width * cells, width * cells**2, width * cells, width, width),
        "in_channels": 2,
        "num_classes": 2,
        "num_steps": 2,
        "step_size": 0.25,
        "hidden_channels": 4,
        "activation": "tanh",
        "dimension": dimension,
        "opening": "linear",
        "connector": "invertible",
        "pooling": "space_to_depth",
        "classifier": "field",
        **AXES[dynamics],
    }
    return randomize_(Network(NetworkConfig(**settings | changes)), seed)


def images_for(network: Network, size: tuple[int, ...] | None = None, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    config = network.config
    shape = (2, config.in_channels, *(size or SIZES[config.dimension]))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(network.weight.dtype)


@pytest.mark.parametrize("dynamics", AXES)
@every_dimension
@pytest.mark.parametrize("boundary", ["zero", "reflect", "periodic"])
def test_every_pixel_has_an_answer_whatever_the_size(dynamics, dimension, boundary):
    network = make(dynamics, dimension=dimension, boundary=boundary, num_classes=3)
    for size in ((1,) * dimension, (5,) * dimension, SIZES[dimension]):
        images = images_for(network, size)
        assert network(images).shape == (2, 3, *size)
    assert network.padded_size((5,) * dimension) == (8,) * dimension


@every_wave
@every_dimension
@both_poolings
@pytest.mark.parametrize("boundary", ["zero", "reflect"])
def test_reversible_gradients_are_those_of_stored(dynamics, dimension, pooling, boundary):
    found, expected = (
        gradients_of(make(dynamics, **options, backprop=mode).double(), image)
        for options in [{"dimension": dimension, "pooling": pooling, "boundary": boundary}]
        for image in [images_for(make(dynamics, **options).double())]
        for mode in ("reversible", "stored")
    )
    error, name = largest_relative_error(found, expected)
    assert error <= 1e-10, f"{name}: {error}"


@pytest.mark.parametrize("dynamics", AXES)
def test_checkpointed_is_stored_bit_for_bit(dynamics):
    results = []
    for mode in ("stored", "checkpointed"):
        network = make(dynamics, backprop=mode)
        results.append(gradients_of(network, images_for(network)))
    for name, gradient in results[0].items():
        assert torch.equal(gradient, results[1][name]), name


@every_wave
@both_poolings
def test_exact_has_the_gradient_of_stored_on_its_grid_bit_for_bit(dynamics, pooling):
    results = []
    for mode in ("exact", "stored"):
        network = make(dynamics, pooling=pooling, backprop=mode, grid_bits=12)
        if mode == "stored":
            for block in network.blocks:
                block._grid_bits = 12
                block.backprop = "stored"
        results.append(gradients_of(network, images_for(network)))
    for name, gradient in results[0].items():
        assert torch.equal(gradient, results[1][name]), name


@every_wave
@every_dimension
@both_poolings
def test_exact_recovers_the_opened_features_to_the_last_bit(dynamics, dimension, pooling):
    network = make(dynamics, dimension=dimension, pooling=pooling, backprop="exact")
    with torch.no_grad():
        features = network.open(images_for(network))
        rounded = network.blocks[0].grid.round(features)
        recovered = network.reverse(network.propagate(features))
    assert torch.equal(recovered, rounded)


@every_wave
def test_with_an_opening_that_only_adds_channels_the_image_comes_back(dynamics):
    network = make(dynamics, opening="pad", backprop="exact")
    images = images_for(network)
    with torch.no_grad():
        recovered = network.reverse(network.propagate(network.open(images)))
    assert torch.equal(recovered[:, :2], network.blocks[0].grid.round(images))
    assert recovered[:, 2:].count_nonzero() == 0


def test_the_velocity_goes_through_the_levels():
    """Blocks of a wave equation that started anew would forget how fast features change."""
    network = make("second_order")
    images = images_for(network)
    with torch.no_grad():
        features = network.open(images)
        for block, connector in zip(network.blocks, network.connectors, strict=True):
            features = connector(block(features))
        assert not torch.allclose(features, network.forward_features(images), atol=1e-3)
        # With as many steps on one level alone it is one block.
        two = make("second_order", channels=(4, 4, 4))
        one = make("second_order", channels=(4, 4), num_steps=4)
        layers = [layer for block in two.blocks for layer in block.layers]
        for own, other in zip(one.blocks[0].layers, layers, strict=True):
            own.load_state_dict(other.state_dict())
        one.opening.load_state_dict(two.opening.state_dict())
        assert torch.equal(one.forward_features(images), two.forward_features(images))


@pytest.mark.parametrize("dynamics", AXES)
@both_poolings
@pytest.mark.parametrize("backprop", ["stored", "reversible", "exact"])
def test_intermediates_are_those_of_the_way_that_the_state_goes(dynamics, pooling, backprop):
    """The last of them closed is the answer, with the same gradient: no block started anew."""
    if dynamics == "parabolic":
        backprop = "stored"
    network = make(dynamics, pooling=pooling, backprop=backprop).double()
    images = images_for(network)
    found = network.forward_intermediates(images)
    assert [features.shape[1] for features in found] == list(network.config.channels[:-1])
    answer = network.close(network.connectors[-1](found[-1]), images)
    assert torch.equal(answer, network(images))
    weights = [weight for block in network.blocks for weight in block.parameters()]
    gradients = torch.autograd.grad(answer.square().sum(), weights)
    wanted = torch.autograd.grad(network(images).square().sum(), weights)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other)


def saved_numbers(network: Network) -> int:
    """How many numbers that are no weights autograd keeps between forward and backward."""
    weights = {weight.data_ptr() for weight in network.parameters()}
    sizes = []

    def pack(tensor):
        if tensor.data_ptr() not in weights:
            sizes.append(tensor.numel())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        features = network.propagate(network.open(images_for(network)))
    assert features[0].requires_grad
    return sum(sizes)


@every_wave
@pytest.mark.parametrize("backprop", ["reversible", "exact"])
def test_what_is_kept_does_not_grow_with_steps_nor_levels(dynamics, backprop):
    few, many = (saved_numbers(make(dynamics, backprop=backprop, num_steps=n)) for n in (2, 20))
    one_level = saved_numbers(make(dynamics, backprop=backprop, channels=(4, 4)))
    assert few == many == one_level
    stored = saved_numbers(make(dynamics, num_steps=20))
    assert stored > 50 * many


@every_wave
@pytest.mark.parametrize("backprop", ["reversible", "exact"])
def test_one_block_that_is_checkpointed_changes_no_gradient(dynamics, backprop):
    """As the drift guard leaves a network: reversing blocks around one that is not."""
    if backprop == "exact":
        network = make(dynamics, backprop="exact")
        network.blocks[1].backprop = "checkpointed"
        with pytest.raises(ConfigError, match="one grid"):
            network(images_for(network))
        return
    network = make(dynamics, backprop=backprop).double()
    expected = gradients_of(network, images_for(network))
    network.blocks[1].backprop = "checkpointed"
    error, name = largest_relative_error(gradients_of(network, images_for(network)), expected)
    assert error <= 1e-10, name


def test_a_residual_closing_takes_the_field_from_the_image():
    field, residual = make("parabolic"), make("parabolic", classifier="residual")
    images = images_for(field, (5, 7))
    assert torch.equal(residual(images), images - field(images))


def test_the_transpose_undoes_the_opening():
    network = make("parabolic", opening="pad", classifier="transpose")
    images = images_for(network, (5, 7))
    assert torch.equal(network.close(network.open(images), images), images)


def test_stable_steps_between_an_opening_and_its_transpose_expand_no_distance():
    network = make(
        "parabolic",
        step_size="stable",
        activation="relu",
        normalization="bias",
        opening="pad",
        classifier="transpose",
        certified_size=7,
    ).eval()
    one, two = images_for(network, (5, 7)), images_for(network, (5, 7), seed=2)
    for scale in (1.0, 1e-3):
        other = one + scale * two
        with torch.no_grad():
            change = (network(other) - network(one)).flatten(1).norm(dim=1)
        assert (change <= (other - one).flatten(1).norm(dim=1) * (1 + 1e-5)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": (4, 8, 4)}, "a power of 4"),
        ({"channels": (16, 4, 16)}, "none less than the first"),
        ({"pooling": "average"}, "pooling=space_to_depth"),
        ({"channels": (4, 16, 16)}, "the last of network.channels equal to the first"),
        ({"connector": "batch_norm", "pooling": "average"}, "connector=invertible"),
        (
            {"classifier": "residual", "num_classes": 3},
            "network.num_classes must be network.in_channels=2",
        ),
        ({"classifier": "transpose"}, "network.opening=pad"),
        ({"opening": "pad", "patch_size": 2, "channels": (8, 8)}, "patch_size=1"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make("parabolic", **changes)


def test_a_field_network_comes_back_from_its_folder(tmp_path):
    network = make("hamiltonian", boundary="reflect", backprop="exact").eval()
    network.save_pretrained(tmp_path)
    images = images_for(network)
    assert torch.equal(Network.from_pretrained(tmp_path).eval()(images), network(images))


@every_wave
def test_torch_func_follows_all_levels_or_refuses_in_one_line(dynamics):
    network = make(dynamics, backprop="reversible")
    images = images_for(network)
    expected = make(dynamics, backprop="stored")(images)
    torch.testing.assert_close(torch.func.vmap(lambda x: network(x[None])[0])(images), expected)
    with pytest.raises(ConfigError, match="need backprop='stored'"):
        torch.func.grad(lambda x: network(x).sum())(images)


def test_all_levels_are_one_compiled_graph():
    torch.compiler.reset()
    network = make("hamiltonian", backprop="exact")
    images = images_for(network)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(images), network(images))


def test_a_compiled_bound_knows_the_boundary():
    """Reflection can double a norm: a bound for zeros would let a step expand distances."""
    torch.compiler.reset()
    settings = {"channels": (4, 4), "num_steps": 1, "certified_size": (8, 8), "boundary": "reflect"}
    torch.manual_seed(0)
    network = create_model("parabolic_stable_denoising", **settings).eval()
    images = torch.rand(2, 1, 8, 8)
    found = torch.compile(network, fullgraph=True, backend="aot_eager")(images)
    torch.testing.assert_close(found, deepcopy(network)(images))
