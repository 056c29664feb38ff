"""F and F_sym against dense matrices, their Jacobians, channels, and the input they refuse."""

import pytest
import torch

from pdecnn.errors import ConfigError
from pdecnn.pde import ResidualLayer, SymmetricLayer
from tests.blocks import SIZES, make_features, randomize_
from tests.dense import dense_convolution, jacobian

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "identity": lambda x: x}


def make_layer(layer_class, channels=3, *, seed=0, **options):
    return randomize_(layer_class(channels, **options).double(), seed)


def normalized_in_words(layer, filtered):
    """N(filtered) written out, filtered of shape (batch, channels, pixels)."""
    if layer.normalization_name == "none":
        return filtered
    affine = layer.normalization.affine
    root = (filtered.square().sum(1, keepdim=True) + 1e-3).sqrt()
    return affine.scale[:, None] * filtered / root + affine.bias[:, None]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("normalization", ["none", "tv"])
@pytest.mark.parametrize(("dimension", "hidden_channels"), [(1, 2), (2, 5), (2, None), (3, 1)])
def test_formulas_against_dense_matrices(dimension, hidden_channels, normalization, activation):
    size = SIZES[dimension]
    features = make_features(channels=3, dimension=dimension)
    options = {
        "dimension": dimension,
        "hidden_channels": hidden_channels,
        "normalization": normalization,
        "activation": activation,
    }
    for layer_class in (SymmetricLayer, ResidualLayer):
        layer = make_layer(layer_class, **options)
        inner = dense_convolution(layer.convolution, size)
        outer = (
            -inner.T
            if layer_class is SymmetricLayer
            else dense_convolution(layer.output_convolution, size)
        )
        filtered = (features.flatten(1) @ inner.T).reshape(2, layer.hidden_channels, -1)
        activated = ACTIVATIONS[activation](normalized_in_words(layer, filtered))
        expected = (activated.flatten(1) @ outer.T).reshape(features.shape)
        torch.testing.assert_close(layer(features), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("dimension", "hidden_channels"), [(1, 4), (2, 2), (3, None)])
@pytest.mark.parametrize("affine", [False, True])
def test_without_normalisation_the_symmetric_jacobian_is_symmetric_negative_semidefinite(
    activation, dimension, hidden_channels, affine
):
    layer = make_layer(
        SymmetricLayer,
        2,
        dimension=dimension,
        hidden_channels=hidden_channels,
        activation=activation,
        normalization="none",
        affine=affine,
    )
    if affine:
        with torch.no_grad():
            layer.normalization.scale.abs_()
    matrix = jacobian(layer, make_features(channels=2, batch=1, dimension=dimension)[0])
    torch.testing.assert_close(matrix, matrix.T, rtol=1e-12, atol=1e-12)
    eigenvalues = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    assert eigenvalues.max() <= 1e-12 * eigenvalues.abs().max()
    assert eigenvalues.min() < -1e-3


def test_with_the_tv_norm_relu_and_bias_the_jacobian_is_not_monotone():
    """So nothing is guaranteed of the paper's own layer (docs/paper-map.md, Theorem 1)."""
    layer = make_layer(SymmetricLayer, 4, activation="relu", seed=3)
    matrix = jacobian(layer, make_features(batch=1)[0])
    assert torch.linalg.eigvalsh((matrix + matrix.T) / 2).max() > 1e-3


@pytest.mark.parametrize("layer_class", [SymmetricLayer, ResidualLayer])
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_one_channel_can_meet_one_hidden_channel_an_axis(layer_class, dimension):
    layer = make_layer(layer_class, 1, hidden_channels=dimension, dimension=dimension)
    assert layer.convolution.stencil.shape[:2] == (dimension, 1)
    features = make_features(channels=1, dimension=dimension)
    assert layer(features).shape == features.shape
    assert layer.pre_activation(features).shape[1] == dimension


def test_anisotropic_stencils():
    layer = make_layer(SymmetricLayer, 2, stencil_size=(1, 5))
    assert layer.convolution.stencil.shape == (2, 2, 1, 5)
    assert layer(make_features(channels=2)).shape == (2, 2, 5, 4)


@pytest.mark.parametrize("layer_class", [SymmetricLayer, ResidualLayer])
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_batch_norm(layer_class, dimension):
    layer = make_layer(layer_class, 2, normalization="batch", dimension=dimension)
    features = make_features(channels=2, dimension=dimension)
    norm = layer.normalization
    filtered = layer.convolution(features)
    axes = [0, *range(2, 2 + dimension)]
    shape = (1, -1, *(1,) * dimension)
    centred = filtered - filtered.mean(axes, keepdim=True)
    root = (filtered.var(axes, unbiased=False, keepdim=True) + 1e-4).sqrt()
    expected = centred / root * norm.weight.view(shape) + norm.bias.view(shape)
    torch.testing.assert_close(layer.pre_activation(features), expected)
    assert layer(features).shape == features.shape
    assert int(norm.num_batches_tracked) == 2
    layer.eval()
    assert not torch.allclose(layer.pre_activation(features), expected)


def test_what_a_step_of_each_dynamics_weighs():
    def count(layer):
        return sum(parameter.numel() for parameter in layer.parameters())

    assert count(SymmetricLayer(32)) == 9 * 32**2 + 2 * 32
    assert count(ResidualLayer(32)) == 2 * 9 * 32**2 + 2 * 32
    assert count(SymmetricLayer(32, normalization="none")) == 9 * 32**2


@pytest.mark.parametrize("layer_class", [SymmetricLayer, ResidualLayer])
@pytest.mark.parametrize("channels_last_weights", [False, True])
def test_channels_last_features_give_the_same_numbers(layer_class, channels_last_weights):
    layer = make_layer(layer_class, 4)
    features = make_features()
    expected = layer(features)
    if channels_last_weights:
        layer = layer.to(memory_format=torch.channels_last)
    found = layer(features.to(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match=r"^channels must be a whole number .*, found 2.0"):
        SymmetricLayer(2.0)
    with pytest.raises(ConfigError, match=r"hidden_channels must be a whole number .*, found 0"):
        SymmetricLayer(2, hidden_channels=0)
    with pytest.raises(ConfigError, match=r"odd and positive in each of 2 dimensions.*found 4"):
        ResidualLayer(2, stencil_size=4)
    with pytest.raises(ConfigError, match="1, 2 or 3, found 5"):
        SymmetricLayer(2, dimension=5)


@pytest.mark.parametrize(
    ("epsilon", "normalization"), [("1e-3", "tv"), (float("inf"), "none"), (-5, "batch"), (0, "tv")]
)
def test_a_wrong_epsilon_is_refused_whatever_the_normalisation(epsilon, normalization):
    with pytest.raises(ConfigError, match="epsilon must be a positive number, found"):
        SymmetricLayer(4, epsilon=epsilon, normalization=normalization)


def test_autocast_accepts_float32_features_and_gives_bfloat16():
    layer = SymmetricLayer(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.randn(1, 3, 5, 5)).dtype == torch.bfloat16
        assert layer(torch.randn(1, 3, 5, 5).bfloat16()).dtype == torch.bfloat16
