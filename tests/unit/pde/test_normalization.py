"""The total variation norm: its formula, its behaviour at zero, and narrow dtypes."""

import pytest
import torch
from torch import nn

from pdecnn.errors import ConfigError
from pdecnn.pde import SymmetricLayer, TotalVariationNorm
from pdecnn.pde.normalization import ChannelAffine, make_normalization
from tests.blocks import make_features, randomize_, relative_error


def naive_tv_norm(features, epsilon, scale, bias):
    """Eq. 9 pixel by pixel."""
    normalized = torch.empty_like(features)
    flat, out = features.flatten(2), normalized.flatten(2)
    for image in range(flat.shape[0]):
        for pixel in range(flat.shape[2]):
            values = flat[image, :, pixel]
            root = (sum(float(v) ** 2 for v in values) + epsilon) ** 0.5
            out[image, :, pixel] = scale * values / root + bias
    return out.reshape(features.shape)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_formula(dimension):
    norm = randomize_(TotalVariationNorm(4, epsilon=0.01).double(), 1)
    features = make_features(dimension=dimension)
    with torch.no_grad():
        expected = naive_tv_norm(features, 0.01, norm.affine.scale, norm.affine.bias)
        torch.testing.assert_close(norm(features), expected, rtol=1e-13, atol=1e-14)


def test_the_sum_is_over_channels_not_their_mean():
    norm = TotalVariationNorm(100, epsilon=1e-12, affine=False)
    assert norm(torch.ones(1, 100, 1, 1)).flatten()[0] == pytest.approx(0.1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_value_and_gradient_at_zero_are_finite(dtype):
    norm = TotalVariationNorm(3, epsilon=1e-3)
    features = torch.zeros(2, 3, 4, 4, dtype=dtype, requires_grad=True)
    normalized = norm(features)
    assert normalized.dtype == dtype
    assert torch.equal(normalized, torch.zeros_like(normalized))
    normalized.sum().backward()
    torch.testing.assert_close(
        features.grad, torch.full_like(features, 1e-3**-0.5), rtol=1e-2, atol=0
    )
    assert all(parameter.grad.isfinite().all() for parameter in norm.parameters())


def test_large_float16_values_do_not_overflow():
    norm = TotalVariationNorm(64, affine=False)
    features = torch.full((1, 64, 2, 2), 6e4, dtype=torch.float16, requires_grad=True)
    normalized = norm(features)
    assert normalized.dtype == torch.float16
    torch.testing.assert_close(normalized, torch.full_like(normalized, 0.125))
    normalized.sum().backward()
    assert features.grad.isfinite().all()


LARGE = [
    *((torch.float32, magnitude) for magnitude in (1e13, 1e18, 1e25, 1e36)),
    *((torch.bfloat16, magnitude) for magnitude in (1e18, 1e25, 1e36)),
    *((torch.float64, magnitude) for magnitude in (1e50, 1e110, 1e160, 1e300)),
]


@pytest.mark.parametrize(("dtype", "magnitude"), LARGE)
def test_large_values_keep_their_direction_and_its_gradient(dtype, magnitude):
    """N(y) = y/|y| and dN = (1 - n n^T) dy/|y|, though the squares of y overflow."""
    direction = make_features(channels=8).to(dtype)
    features = (magnitude * direction).requires_grad_()
    normalized = TotalVariationNorm(8, affine=False)(features)
    outer = make_features(channels=8, seed=7).to(dtype)
    (gradient,) = torch.autograd.grad(normalized, features, outer)
    scaled, outer = features.detach().double() / magnitude, outer.double()
    length = scaled.norm(dim=1, keepdim=True)
    unit = scaled / length
    expected = (outer - unit * (outer * unit).sum(1, keepdim=True)) / length
    rounding = 4 * torch.finfo(dtype).eps
    assert relative_error(normalized.detach(), unit) <= rounding
    assert relative_error(gradient.double() * magnitude, expected) <= rounding


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_ordinary_values_have_the_bits_of_the_plain_formula(dtype):
    norm = TotalVariationNorm(8, affine=False)
    outer = make_features(channels=8, seed=7).to(dtype)
    for magnitude in (0.0, 1e-30, 1e-4, 1.0, 300.0, 4e4, 1e8):
        features = (magnitude * make_features(channels=8)).to(dtype).requires_grad_()
        if not features.isfinite().all():
            continue
        wide = features.to(torch.promote_types(dtype, torch.float32))
        plain = wide * torch.rsqrt((wide * wide).sum(1, keepdim=True) + norm.epsilon)
        normalized = norm(features)
        assert torch.equal(normalized, plain.to(dtype))
        gradients = [
            torch.autograd.grad(values, features, outer) for values in (normalized, plain.to(dtype))
        ]
        assert torch.equal(*(gradient for (gradient,) in gradients))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_ordinary_values_have_the_same_bits_beside_ones_too_large_to_square(dtype):
    """A CPU looks whether there are any; others compute as if there were."""
    norm = TotalVariationNorm(8)
    features, outer = (
        make_features(channels=8).to(dtype),
        make_features(channels=8, seed=7).to(dtype),
    )
    found = []
    for beside in (1.0, 1e30):
        batch = torch.cat([features, beside * features]).requires_grad_()
        normalized = norm(batch)[: len(features)]
        (gradient,) = torch.autograd.grad(normalized, batch, outer)
        found.append((normalized, gradient[: len(features)]))
    (alone, its), (together, theirs) = found
    assert torch.equal(alone, together)
    assert torch.equal(its, theirs)


def test_compiled_code_asks_for_no_device():
    """Its graph is one of tensors, whatever a compiler makes of other questions."""
    calls = []

    def backend(graph, inputs):
        calls.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    norm, features = TotalVariationNorm(8), make_features(channels=8)
    found = torch.compile(norm, backend=backend, fullgraph=True)(features)
    assert torch.equal(found, norm(features))
    assert "amax" in calls
    assert not any("getattr" in call for call in calls)


def test_values_beyond_the_largest_number_give_nan():
    features = torch.ones(1, 2, 1, 1)
    features[0, 0] = float("inf")
    assert TotalVariationNorm(2)(features).isnan().all()


def test_small_float16_values_do_not_lose_epsilon():
    norm = TotalVariationNorm(1, epsilon=1e-8, affine=False)  # below float16's smallest number
    normalized = norm(torch.zeros(1, 1, 1, 1, dtype=torch.float16))
    assert torch.equal(normalized, torch.zeros_like(normalized))


def test_bfloat16_sums_are_taken_in_float32():
    """In bfloat16 a running sum of ones would stop at 256."""
    channels = 1025
    features = torch.ones(1, channels, 1, 1, dtype=torch.bfloat16)
    normalized = TotalVariationNorm(channels, affine=False)(features)
    assert normalized.dtype == torch.bfloat16
    expected = (features.float() / (channels + 1e-3) ** 0.5).bfloat16()
    assert torch.equal(normalized, expected)


def test_bfloat16_weights_keep_the_dtype():
    norm = randomize_(TotalVariationNorm(4), 0).bfloat16()
    assert norm(make_features(dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert randomize_(TotalVariationNorm(4), 0)(make_features(dtype=torch.bfloat16)).dtype == (
        torch.bfloat16
    )


def test_channels_last_is_kept_and_changes_nothing():
    norm = randomize_(TotalVariationNorm(4).double(), 0)
    features = make_features()
    last = features.to(memory_format=torch.channels_last)
    normalized = norm(last)
    assert normalized.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(normalized, norm(features), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("affine", [True, False])
def test_gradcheck(affine):
    norm = randomize_(TotalVariationNorm(3, affine=affine).double(), 0)
    features = make_features(channels=3, size=(2, 2), requires_grad=True)
    assert torch.autograd.gradcheck(norm, features)
    assert torch.autograd.gradcheck(norm, 1e-2 * features.detach().requires_grad_())


@pytest.mark.parametrize("epsilon", [0.0, -1e-3, float("nan")])
def test_epsilon_must_be_positive(epsilon):
    with pytest.raises(ConfigError, match=f"epsilon must be a positive number, found {epsilon}"):
        TotalVariationNorm(3, epsilon=epsilon)
    with pytest.raises(ConfigError, match="epsilon"):
        SymmetricLayer(3, epsilon=epsilon)


@pytest.mark.parametrize("channels", [0, -1, 3.0, "3", True])
@pytest.mark.parametrize("affine", [True, False])
def test_what_is_no_number_of_channels_is_refused(channels, affine):
    with pytest.raises(ConfigError, match="channels must be a whole number"):
        TotalVariationNorm(channels, affine=affine)


def test_normalizations_by_name():
    def make(name, **options):
        return make_normalization(
            name, 3, **{"dimension": 2, "epsilon": 1e-3, "affine": None, **options}
        )

    assert isinstance(make("tv"), TotalVariationNorm)
    assert make("tv").affine is not None
    assert make("tv", affine=False).affine is None
    assert isinstance(make("none"), nn.Identity)
    assert isinstance(make("none", affine=True), ChannelAffine)
    assert isinstance(make("batch"), nn.BatchNorm2d)
    assert isinstance(make("batch", dimension=1), nn.BatchNorm1d)
    assert isinstance(make("batch", dimension=3), nn.BatchNorm3d)
    assert make("batch").eps == 1e-4
    assert make("batch").momentum == 0.1
    assert make("batch", affine=False).weight is None


@pytest.mark.parametrize(
    ("name", "nearest"), [("TV", None), ("batchnorm", "batch"), ("nome", "none"), ("tvv", "tv")]
)
def test_an_unknown_normalization_is_refused_with_the_nearest_name(name, nearest):
    with pytest.raises(ConfigError, match=f"unknown normalization '{name}'") as caught:
        SymmetricLayer(3, normalization=name)
    expected = "batch, bias, none, tv" if nearest is None else f"did you mean '{nearest}'?"
    assert expected in str(caught.value)
