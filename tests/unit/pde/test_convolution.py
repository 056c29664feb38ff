"""K and K^T on known cases, its norm, and the input it refuses."""

import numpy
import pytest
import torch

from pdecnn.errors import ConfigError
from pdecnn.pde import Convolution
from pdecnn.pde.convolution import check_features
from tests.blocks import SIZES, make_features, randomize_
from tests.dense import dense_convolution


def test_k_is_a_cross_correlation_with_zeros_outside():
    convolution = Convolution(1, 1, dimension=1)
    with torch.no_grad():
        convolution.stencil.copy_(torch.tensor([[[1.0, 10.0, 100.0]]]))
    signal = torch.tensor([[[1.0, 2.0, 3.0]]])
    with torch.no_grad():
        assert convolution(signal).tolist() == [[[210.0, 321.0, 32.0]]]
        assert convolution.adjoint(signal).tolist() == [[[12.0, 123.0, 230.0]]]


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("stencil_size", [1, 3, 5, 7])
def test_the_image_size_is_kept(dimension, stencil_size):
    convolution = Convolution(2, 3, stencil_size=stencil_size, dimension=dimension)
    for size in ((1,) * dimension, SIZES[dimension]):
        features = torch.randn(2, 2, *size)
        filtered = convolution(features)
        assert filtered.shape == (2, 3, *size)
        assert convolution.adjoint(filtered).shape == features.shape


def test_an_n_point_fft_would_not_bound_the_norm_but_norm_bound_does():
    """On n points the circular convolution can be the smaller one (docs/paper-map.md, norm)."""
    convolution = Convolution(1, 1, dimension=1, dtype=torch.float64)
    with torch.no_grad():
        convolution.stencil.copy_(torch.tensor([[[1.0, 0.0, -1.0]]]))
    size = (2,)
    norm = float(torch.linalg.matrix_norm(dense_convolution(convolution, size), ord=2))
    units = torch.eye(2, dtype=torch.float64)
    circular = units.roll(1, dims=0) - units.roll(-1, dims=0)
    assert torch.linalg.matrix_norm(circular, ord=2) < norm
    assert convolution.norm_bound(size) >= norm


def test_norm_bound_is_sharp_on_large_images():
    convolution = randomize_(Convolution(3, 2, dimension=1, dtype=torch.float64), 0)
    norm = float(torch.linalg.matrix_norm(dense_convolution(convolution, (200,)), ord=2))
    assert convolution.norm_bound((200,)) <= 1.01 * norm


def test_norm_estimate_converges_and_is_repeatable():
    convolution = randomize_(Convolution(3, 2, dtype=torch.float64), 1)
    norm = float(torch.linalg.matrix_norm(dense_convolution(convolution, (6, 5)), ord=2))
    assert convolution.norm_estimate((6, 5), num_iterations=2000) == pytest.approx(norm, rel=1e-8)
    assert convolution.norm_estimate((6, 5)) == convolution.norm_estimate((6, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_norms_of_narrow_weights_are_computed_in_float64(dtype):
    convolution = randomize_(Convolution(3, 2, dtype=dtype), 2)
    wide = Convolution(3, 2, dtype=torch.float64)
    wide.load_state_dict(convolution.state_dict())
    assert convolution.norm_bound((4, 4)) == wide.norm_bound((4, 4))
    assert convolution.norm_estimate((4, 4)) == wide.norm_estimate((4, 4))


def test_the_norm_of_zero_is_zero():
    convolution = Convolution(2, 2)
    torch.nn.init.zeros_(convolution.stencil)
    assert convolution.norm_bound((3, 3)) == 0
    assert convolution.norm_estimate((3, 3)) == 0


def test_initial_weights_follow_the_recipe():
    convolution = Convolution(50, 40, stencil_size=3)
    deviation = (2 / (9 * 40)) ** 0.5
    assert convolution.stencil.abs().max() <= 2 * deviation
    # Clamping at two standard deviations takes the standard deviation to 0.959 of itself.
    assert float(convolution.stencil.detach().std()) == pytest.approx(0.959 * deviation, rel=0.02)


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("operator", ["forward", "adjoint"])
@pytest.mark.parametrize("last", ["features", "stencil"])
def test_thin_volumes_in_bfloat16_give_a_stencil_its_gradient(operator, channels, last):
    """Of channels that lie last oneDNN makes numbers that it has never written."""
    convolution = Convolution(channels, channels, dimension=3)
    features = torch.randn(2, channels, 2, 4, 3)
    (wanted,) = torch.autograd.grad(
        getattr(convolution, operator)(features).sum(), [convolution.stencil]
    )
    if last == "features":
        features = features.contiguous(memory_format=torch.channels_last_3d)
    else:
        convolution.to(memory_format=torch.channels_last_3d)
    with torch.autocast("cpu", torch.bfloat16):
        outcome = getattr(convolution, operator)(features).sum()
    (found,) = torch.autograd.grad(outcome, [convolution.stencil])
    assert (found - wanted).norm() < 0.02 * wanted.norm()


def test_channels_last_features_give_the_same_numbers():
    convolution = Convolution(4, 4)
    features = make_features(dtype=torch.float32)
    last = features.to(memory_format=torch.channels_last)
    torch.testing.assert_close(convolution(last), convolution(features))
    torch.testing.assert_close(convolution.adjoint(last), convolution.adjoint(features))


@pytest.mark.parametrize(
    "stencil_size",
    [2, 4, 0, -1, -3, 3.0, None, True, "3", "33", (3, 2), (3,), (3, 3, 3), (3, 3.0), (3, None)],
)
def test_stencils_without_a_centre_are_refused(stencil_size):
    with pytest.raises(ConfigError, match="odd") as caught:
        Convolution(1, 1, stencil_size=stencil_size)
    assert repr(stencil_size) in str(caught.value)


@pytest.mark.parametrize("dimension", [0, 4, "2", 2.0, True, None])
def test_other_dimensions_are_refused(dimension):
    with pytest.raises(ConfigError, match=r"1, 2 or 3, found") as caught:
        Convolution(1, 1, dimension=dimension)
    assert repr(dimension) in str(caught.value)


@pytest.mark.parametrize("channels", [0, -1, 3.0, "3", True, None, 2**31])
def test_what_is_no_number_of_channels_is_refused(channels):
    with pytest.raises(ConfigError, match=r"^in_channels must be a whole number"):
        Convolution(channels, 1)
    with pytest.raises(ConfigError, match=r"^out_channels must be a whole number"):
        Convolution(1, channels)


def test_numbers_of_numpy_are_taken():
    three = numpy.int64(3)
    convolution = Convolution(three, three, stencil_size=three, dimension=numpy.int64(1))
    assert convolution.stencil.shape == (3, 3, 3)
    assert {type(n) for n in (convolution.in_channels, *convolution.stencil_size)} == {int}
    assert convolution(torch.zeros(1, 3, 4)).shape == (1, 3, 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_autocast_is_advised_only_where_it_helps(dtype):
    weight = torch.zeros(2, 2, 3, 3)
    with pytest.raises(ValueError, match=r"convert them with \.to\(torch\.float32\)$"):
        check_features(torch.zeros(1, 2, 5, 5, dtype=dtype), 2, 2, weight)
    with pytest.raises(ValueError, match=r"or compute under torch\.autocast$"):
        check_features(torch.zeros(1, 2, 5, 5, dtype=torch.float16), 2, 2, weight)


def test_an_empty_batch_is_no_mistake():
    assert Convolution(2, 3)(torch.zeros(0, 2, 5, 5)).shape == (0, 3, 5, 5)


@pytest.mark.parametrize("size", [(4,), (4, 4, 4), (0, 4), (), 8, None, (4, 4.0), (4, True), "44"])
def test_norms_refuse_wrong_sizes(size):
    convolution = Convolution(1, 1)
    for norm in (convolution.norm_bound, convolution.norm_estimate):
        with pytest.raises(ValueError, match="2 positive image sizes, found"):
            norm(size)


def test_norm_estimate_refuses_zero_iterations():
    for wrong in (0, 1.0, None):
        with pytest.raises(ConfigError, match=f"num_iterations .* at least 1, found {wrong}"):
            Convolution(1, 1).norm_estimate((4, 4), num_iterations=wrong)


def test_repr_names_the_operator():
    assert "2, 3, stencil_size=(3, 3), dimension=2" in repr(Convolution(2, 3))
