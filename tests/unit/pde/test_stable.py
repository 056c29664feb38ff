"""Stable steps: dt follows the weights, and in evaluation no distance ever grows (Theorem 1)."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn.errors import ConfigError
from pdecnn.pde import Block, StableLayer, follow_weights_
from pdecnn.pde.stable import BoundedConvolution, orthonormalized
from tests.blocks import randomize_
from tests.dense import dense_convolution

SIZES = {1: (7,), 2: (5, 4), 3: (3, 4, 2)}


def make(dimension=2, *, channels=3, hidden=4, seed=0, scale=1.0, **options):
    torch.manual_seed(seed)
    options.setdefault("size", SIZES[dimension])
    layer = StableLayer(channels, hidden_channels=hidden, dimension=dimension, **options)
    return randomize_(layer, seed, deviation=scale)


def dense_norm(layer):
    convolution = deepcopy(layer.convolution).double()
    return float(torch.linalg.matrix_norm(dense_convolution(convolution, layer.norm.size), 2))


@settings(max_examples=40)
@given(
    dimension=st.sampled_from((1, 2, 3)),
    activation=st.sampled_from(("relu", "tanh", "identity")),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from((1e-3, 1.0, 1e3)),
    dtype=st.sampled_from((torch.float32, torch.float64)),
)
def test_a_step_in_evaluation_never_expands_a_distance(dimension, activation, seed, scale, dtype):
    layer = make(dimension, activation=activation, seed=seed, scale=scale).to(dtype).eval()
    norm = dense_norm(layer)
    assert layer.factor * norm**2 <= 2
    block = Block([layer], "forward_euler", num_steps=3).double()
    generator = torch.Generator().manual_seed(seed)
    pair = torch.randn((2, 3, *SIZES[dimension]), generator=generator, dtype=torch.float64)
    with torch.no_grad():
        first, second = block(pair)
    assert float((first - second).norm()) <= float((pair[0] - pair[1]).norm()) * (1 + 1e-12)


def test_a_step_is_nearly_as_large_as_it_may_be():
    """The bound is that of a circular convolution: close on images much larger than a stencil."""
    layer = make(1, size=(40,)).eval()
    assert 1.6 < layer.factor * dense_norm(layer) ** 2 <= 2


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_power_iterations_lead_to_the_norm_from_below(dimension):
    layer = make(dimension, activation="tanh").double()
    norm = dense_norm(layer)
    first = float(layer.norm(layer.convolution).detach())
    for _ in range(300):
        layer.follow_()
    last = float(layer.norm(layer.convolution).detach())
    assert first < last <= norm * (1 + 1e-12)
    assert last == pytest.approx(norm, rel=1e-2)


def test_a_forward_pass_does_not_move_the_vector():
    layer = make()
    before = layer.norm.vector.clone()
    features = torch.randn(2, 3, 5, 4)
    first = layer(features)
    assert torch.equal(layer(features), first)
    assert torch.equal(layer.norm.vector, before)
    layer.follow_()
    assert not torch.equal(layer.norm.vector, before)


def test_a_step_that_is_not_accepted_changes_nothing():
    layer = make()
    before = deepcopy(layer.state_dict())
    layer.follow_(torch.tensor(False))
    assert all(torch.equal(layer.state_dict()[name], tensor) for name, tensor in before.items())
    taken, plain = deepcopy(layer), deepcopy(layer)
    taken.follow_(torch.tensor(True))
    plain.follow_()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(taken.state_dict()[name], tensor)


def test_the_size_of_a_homogeneous_layer_means_nothing():
    """Of relu: K and b times c give the same F; follow_ keeps theta's length."""
    layer = make(scale=0.3).double().eval()
    scaled = deepcopy(layer)
    with torch.no_grad():
        for weight in scaled.parameters():
            weight *= 7
    features = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(scaled(features), layer(features), rtol=1e-6, atol=1e-9)
    scaled.follow_()
    assert float(scaled.convolution.stencil.detach().norm()) == pytest.approx(3**0.5)
    torch.testing.assert_close(scaled(features), layer(features), rtol=1e-6, atol=1e-9)


def test_the_gradient_in_training_has_the_step_in_it():
    layer = make(2, channels=2, hidden=2, size=(3, 3), activation="tanh").double()
    features = torch.randn(1, 2, 3, 3, dtype=torch.float64)

    def value(stencil):
        given = {"convolution.stencil": stencil}
        return torch.func.functional_call(layer, given, (features,))

    stencil = layer.convolution.stencil.detach().requires_grad_()
    assert torch.autograd.gradcheck(value, (stencil,))


@pytest.mark.parametrize("change", ["in place", "data", "load_state_dict", "exchange", "half"])
def test_the_bound_follows_the_weights_however_they_change(change):
    layer = make().eval()
    before = layer.factor
    stencil = layer.convolution.stencil
    with torch.no_grad():
        if change == "in place":
            stencil *= 2
        elif change == "data":  # leaves no trace: seen when the mode is set
            stencil.data *= 2
            layer.eval()
        elif change == "load_state_dict":
            layer.load_state_dict(layer.state_dict() | {"convolution.stencil": 2 * stencil})
        elif change == "exchange":
            layer.convolution.stencil = torch.nn.Parameter(2 * stencil)
        else:
            layer.bfloat16()
            stencil = layer.convolution.stencil
            stencil *= 2
    assert layer.factor == pytest.approx(before / 4, rel=0.2)
    assert layer.factor * dense_norm(layer) ** 2 <= 2


def test_compiled_code_has_the_bounds_of_the_weights_it_meets():
    layer = make().eval()
    compiled = torch.compile(layer, backend="eager")
    features = torch.randn(1, 3, 5, 4)
    with torch.no_grad():
        for factor in (1.0, 3.0):
            layer.convolution.stencil *= factor
            torch.testing.assert_close(compiled(features), layer(features))


def test_a_type_that_rounds_the_bound_down_does_not_lengthen_the_step():
    for seed in range(8):
        layer = make(seed=seed).eval()
        assert layer.factor > 0
        norm, convolution = layer.bfloat16().norm, layer.convolution
        assert float(norm(convolution)) >= convolution.norm_bound(norm.size)


def test_a_copy_in_float64_has_the_same_steps():
    layer = make().eval()
    assert deepcopy(layer).double().factor == pytest.approx(layer.factor, rel=1e-7)


def test_all_steps_of_zero_do_nothing():
    layer = make().eval()
    with torch.no_grad():
        layer.convolution.stencil.zero_()
    features = torch.randn(1, 3, 5, 4)
    assert torch.equal(layer(features), torch.zeros_like(features))
    layer.train().follow_()
    assert torch.isfinite(layer(features)).all()


def test_a_block_lists_its_steps():
    layers = [make(seed=seed).eval() for seed in (0, 1)]
    block = Block(layers, "forward_euler")
    assert block.step_sizes == tuple(layer.factor for layer in layers)
    assert len(set(block.step_sizes)) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"normalization": "tv"}, "without normalisation"),
        ({"normalization": "batch"}, "without normalisation"),
        ({"activation": torch.sin}, "slopes are known"),
    ],
)
def test_what_theorem_1_does_not_cover_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        StableLayer(3, size=(5, 4), **options)


@pytest.mark.parametrize(("in_channels", "out_channels"), [(3, 5), (5, 3), (4, 4)])
@pytest.mark.parametrize("stencil_size", [1, 3])
def test_a_bounded_convolution_never_expands_a_distance(in_channels, out_channels, stencil_size):
    part = BoundedConvolution(in_channels, out_channels, size=(4, 5), stencil_size=stencil_size)
    randomize_(part, 3, deviation=2.0)
    part.double().eval()
    features = torch.eye(in_channels * 20, dtype=torch.float64).view(-1, in_channels, 4, 5)
    with torch.no_grad():
        matrix = part(features).flatten(1)
    assert 0.5 < float(torch.linalg.matrix_norm(matrix, 2)) <= 1


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_a_matrix_goes_back_to_an_orthonormal_one(shape):
    torch.manual_seed(0)
    start = torch.nn.init.orthogonal_(torch.empty(shape, dtype=torch.float64))
    found = orthonormalized(start + 0.01 * torch.randn(shape, dtype=torch.float64))
    values = torch.linalg.svdvals(found)
    torch.testing.assert_close(values, torch.ones_like(values), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 3.0, 1e6])
def test_a_matrix_far_from_orthonormal_comes_back_all_the_same(scale):
    torch.manual_seed(0)
    matrix = scale * torch.randn(3, 5, dtype=torch.float64)
    for _ in range(20):
        matrix = orthonormalized(matrix)
    values = torch.linalg.svdvals(matrix)
    torch.testing.assert_close(values, torch.ones_like(values))


def test_the_first_step_of_a_training_is_as_stable_as_the_others():
    """A random vector sees little of K: features grew 10^5-fold in a first pass."""
    torch.manual_seed(0)
    block = Block([StableLayer(16, size=(8, 8)) for _ in range(10)], "forward_euler")
    features = torch.randn(1, 16, 8, 8)
    assert float(block(features).detach().norm()) < 1.5 * float(features.norm())


def test_all_parts_of_a_module_follow():
    parts = torch.nn.ModuleList([make(), BoundedConvolution(3, 3, size=(4, 4))])
    before = [part.norm.vector.clone() for part in parts]
    follow_weights_(parts)
    for part, vector in zip(parts, before, strict=True):
        assert not torch.equal(part.norm.vector, vector)


@pytest.mark.parametrize("again", [False, True])
def test_a_checkpointed_block_of_stable_layers_never_run_has_the_gradient_of_a_stored_one(again):
    """Steps computed again met the buffers of before the bounds were known, and gave NaN."""
    found = []
    for backprop in ("stored", "checkpointed"):
        torch.manual_seed(0)
        layers = [StableLayer(4, size=(6, 6)) for _ in range(4)]
        block = Block(layers, "forward_euler", backprop=backprop).eval()
        features = torch.randn(2, 4, 6, 6, requires_grad=True)
        for _ in range(2 if again else 1):
            features.grad = None
            block(features).square().sum().backward()
        found.append(features.grad)
    torch.testing.assert_close(*found)


def test_smaller_images_with_mirrored_edges_are_stable_too():
    """The norm of K grows with the image where zeros are outside, not so where it is mirrored."""
    layer = StableLayer(
        1, size=(3,), stencil_size=5, dimension=1, boundary="reflect", normalization="none"
    )
    layer = layer.double().eval()
    with torch.no_grad():
        layer.convolution.stencil.copy_(torch.tensor([[[-2.0, 0.0, 1.0, 0.0, -2.0]]]))
    for size in (2, 3):
        norm = torch.linalg.matrix_norm(dense_convolution(layer.convolution, (size,)), ord=2)
        assert layer.factor * float(norm) ** 2 <= 2


def test_smaller_images_that_are_repeated_are_stable_too():
    """The symbol of a difference is largest at a quarter, which 4 points have and 6 have not."""
    layer = StableLayer(1, size=(6,), dimension=1, boundary="periodic", normalization="none")
    layer = layer.double().eval()
    with torch.no_grad():
        layer.convolution.stencil.copy_(torch.tensor([[[-1.0, 0.0, 1.0]]]))
    for size in range(1, 7):
        norm = torch.linalg.matrix_norm(dense_convolution(layer.convolution, (size,)), ord=2)
        assert layer.factor * float(norm) ** 2 <= 2
