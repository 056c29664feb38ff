"""Opening, connector and classifier against PyTorch's own layers."""

import pytest
import torch
from torch import nn

from pdecnn import Classifier, ConfigError, Connector, Opening

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
POOLS = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
SIZES = {1: (9,), 2: (9, 6), 3: (5, 4, 3)}


def reference(stage, dimension):
    convolution = stage.convolution
    twin = CONVOLUTIONS[dimension](
        convolution.in_channels,
        convolution.out_channels,
        convolution.stencil_size,
        padding=convolution.padding,
        bias=False,
    )
    twin.weight.data = convolution.stencil.data
    return nn.Sequential(twin, NORMS[dimension](convolution.out_channels, eps=1e-4), nn.ReLU())


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("training", [True, False])
def test_opening(dimension, training):
    opening = Opening(3, 5, dimension=dimension).train(training)
    images = torch.randn(4, 3, *SIZES[dimension])
    expected = reference(opening, dimension).train(training)(images)
    torch.testing.assert_close(opening(images), expected)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_connector_with_and_without_pooling(dimension):
    features = torch.randn(4, 3, *SIZES[dimension])
    for pool in (True, False):
        connector = Connector(3, 5, dimension=dimension, pool=pool)
        expected = reference(connector, dimension)(features)
        if pool:
            expected = POOLS[dimension](2)(expected)
        torch.testing.assert_close(connector(features), expected)


def test_pooling_drops_the_last_row_and_column_of_an_odd_size():
    connector = Connector(2, 2).eval()
    features = torch.randn(1, 2, 5, 7)
    changed = features.clone()
    changed[..., 4, :] = 9
    changed[..., 6] = 9
    assert connector(features).shape == (1, 2, 2, 3)
    assert torch.equal(connector(features), connector(changed))


@pytest.mark.parametrize("spatial", [(1,), (4, 3), (2, 3, 2)])
def test_classifier_is_affine_on_the_mean_over_pixels(spatial):
    classifier = Classifier(6, 4)
    features = torch.randn(3, 6, *spatial)
    pooled = features.mean(tuple(range(2, features.dim())))
    torch.testing.assert_close(Classifier(features.shape[1], 2).pool(features), pooled)
    expected = nn.functional.linear(pooled, classifier.weight, classifier.bias)
    torch.testing.assert_close(classifier(features), expected)


@pytest.mark.parametrize("shape", [(2, 3, 1, 4), (2, 3, 4, 1)])
def test_features_too_small_for_pooling_are_refused(shape):
    with pytest.raises(ValueError, match="at least 2 pixels in each dimension, found shape"):
        Connector(3, 5)(torch.randn(shape))
    assert Connector(3, 5, pool=False)(torch.randn(shape)).shape == (2, 5, *shape[2:])


@pytest.mark.parametrize("shape", [(2, 5, 4, 4), (2, 6), (6,)])
def test_features_that_do_not_fit_the_classifier_are_refused(shape):
    with pytest.raises(ValueError, match=r"shape \(batch, 6, \.\.\.\), found") as caught:
        Classifier(6, 4)(torch.zeros(shape))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("wrong", [0, -1, 3.0, "3", True, None])
def test_wrong_numbers_are_refused(wrong):
    with pytest.raises(ConfigError, match="channels must be a whole number"):
        Classifier(wrong, 3)
    if wrong != 0:  # none: it passes the features on
        with pytest.raises(ConfigError, match="num_classes must be a whole number"):
            Classifier(3, wrong)
    for stage in (Opening, Connector):
        with pytest.raises(ConfigError, match="out_channels must be a whole number"):
            stage(3, wrong)


def test_only_the_classifier_has_a_bias_outside_the_norms():
    assert [name for name, _ in Opening(3, 4).named_parameters()] == [
        "convolution.stencil",
        "normalization.weight",
        "normalization.bias",
    ]
    assert [name for name, _ in Classifier(3, 4).named_parameters()] == ["weight", "bias"]
