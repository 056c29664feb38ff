"""Pixels become features by the recipe, alike for bytes and floats, in 1, 2 and 3 dimensions."""

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn import ConfigError, Preprocessing, create_model


def recipe(image):
    """Minus the mean, divided by max(std, 1/sqrt(n)), population std, n over all channels."""
    image = image.astype(np.float64)
    return (image - image.mean()) / max(image.std(ddof=0), 1 / np.sqrt(image.size))


def random_bytes(*shape, seed=0):
    return torch.randint(
        0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


@given(
    seed=st.integers(0, 2**31),
    shape=st.sampled_from([(1, 5), (3, 7), (1, 4, 4), (3, 5, 2), (2, 3, 2, 4), (1, 1, 1)]),
    contrast=st.sampled_from([0.0, 1e-6, 1e-3, 0.05, 1.0]),
)
@settings(deadline=None)
def test_the_recipe(seed, shape, contrast):
    images = 0.5 + contrast * (np.random.default_rng(seed).random((3, *shape)) - 0.5)
    result = Preprocessing().apply(torch.from_numpy(images), torch.float64)
    for image, standardized in zip(images, result.numpy(), strict=True):
        np.testing.assert_allclose(standardized, recipe(image), rtol=1e-9, atol=1e-11)


def test_mean_zero_and_deviation_one():
    result = Preprocessing().apply(random_bytes(4, 3, 9, 8))
    assert result.dtype == torch.float32
    assert result.mean((1, 2, 3)).abs().max() < 1e-6
    assert (result.std((1, 2, 3), correction=0) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("value", [0, 17, 255])
def test_a_constant_image_becomes_zero(value):
    result = Preprocessing().apply(torch.full((2, 3, 8, 8), value, dtype=torch.uint8))
    assert result.abs().max() < 1e-4
    assert result.isfinite().all()


def test_a_constant_image_has_a_finite_gradient():
    images = torch.full((1, 1, 8, 8), 0.5, requires_grad=True)
    (Preprocessing().apply(images) ** 2).sum().backward()
    assert images.grad.isfinite().all()


@pytest.mark.parametrize(
    "preprocessing",
    [
        Preprocessing(),
        Preprocessing(standardize="dataset", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1)),
        Preprocessing(standardize="none"),
        Preprocessing(size=(3, 12)),
    ],
)
def test_bytes_and_floats_agree(preprocessing):
    images = random_bytes(2, 3, 6, 6)
    assert torch.equal(preprocessing.apply(images), preprocessing.apply(images.float() / 255))


def test_each_image_is_standardised_by_itself():
    images = random_bytes(5, 1, 8, 8)
    together = Preprocessing().apply(images)
    for image, standardized in zip(images, together, strict=True):
        torch.testing.assert_close(Preprocessing().apply(image[None])[0], standardized)


def test_dataset_statistics():
    images = random_bytes(4, 2, 5, 6)
    mean, std = (0.3, 0.6), (0.25, 0.5)
    result = Preprocessing(standardize="dataset", mean=mean, std=std).apply(images)
    expected = (images.numpy() / 255 - np.reshape(mean, (1, 2, 1, 1))) / np.reshape(
        std, (1, 2, 1, 1)
    )
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_none_only_scales():
    images = random_bytes(2, 1, 4, 4)
    assert torch.equal(Preprocessing(standardize="none").apply(images), images.float() / 255)


@pytest.mark.parametrize("spatial", [(12,), (12, 8), (12, 8, 4)])
def test_shrinking_by_whole_factors_is_the_exact_average(spatial):
    images = torch.rand(2, 3, *spatial, dtype=torch.float64)
    size = tuple(n // 2 for n in spatial)
    result = Preprocessing(standardize="none", size=size).apply(images, torch.float64)
    folded = images.reshape(2, 3, *(part for n in size for part in (n, 2)))
    expected = folded.mean(dim=tuple(range(3, 3 + 2 * len(size), 2)))
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("spatial", [(5,), (5, 4), (5, 4, 3)])
def test_growing_interpolates_linearly(spatial):
    constant = torch.full((1, 1, *spatial), 0.25)
    size = tuple(2 * n for n in spatial)
    result = Preprocessing(standardize="none", size=size).apply(constant)
    assert result.shape == (1, 1, *size)
    torch.testing.assert_close(result, torch.full_like(result, 0.25))


def test_growing_one_axis_and_shrinking_another():
    images = torch.rand(1, 1, 4, 8)
    result = Preprocessing(standardize="none", size=(8, 4)).apply(images)
    assert result.shape == (1, 1, 8, 4)
    assert images.min() <= result.min()
    assert result.max() <= images.max()


def test_an_image_of_the_right_size_is_left_alone():
    images = torch.rand(1, 2, 7, 5)
    assert torch.equal(Preprocessing(standardize="none", size=(7, 5)).apply(images), images)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_half_precision_is_computed_wide_and_returned_narrow(dtype):
    images = random_bytes(2, 1, 8, 8)
    result = Preprocessing().apply(images, dtype)
    assert result.dtype == dtype
    wide = Preprocessing().apply(images, torch.promote_types(dtype, torch.float32))
    assert torch.equal(result, wide.to(dtype))


def test_a_network_preprocesses_in_its_own_dtype():
    network = create_model("parabolic_digits").double().eval()
    assert network.preprocess(random_bytes(2, 1, 8, 8)).dtype == torch.float64
    assert network(network.preprocess(random_bytes(2, 1, 8, 8))).shape == (2, 10)


def test_the_callers_images_are_untouched():
    images = torch.rand(2, 1, 8, 8)
    before = images.clone()
    Preprocessing().apply(images)
    assert torch.equal(images, before)


texts = st.text(max_size=8)


@given(
    classes=st.none() | st.lists(texts, min_size=1, max_size=4),
    size=st.none() | st.lists(st.integers(1, 500), min_size=1, max_size=3),
    statistics=st.none()
    | st.lists(st.tuples(st.floats(-1, 1), st.floats(1e-3, 10)), min_size=1, max_size=4),
    standardize=st.sampled_from(["image", "none"]),
)
def test_preprocessing_survives_json(classes, size, statistics, standardize):
    values = {"class_names": classes, "size": size, "standardize": standardize}
    if statistics is not None:
        mean, std = zip(*statistics, strict=True)
        values |= {"standardize": "dataset", "mean": mean, "std": std}
    preprocessing = Preprocessing(**values)
    assert Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict()))) == preprocessing


def test_preprocessing_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Preprocessing().size = (3, 3)


@pytest.mark.parametrize(
    "values",
    [
        {"standardize": "dataset"},
        {"standardize": "dataset", "mean": (0.5,)},
        {"standardize": "dataset", "std": (0.5,)},
        {"mean": (0.5,)},
        {"std": (0.5,)},
        {"mean": (0.5,), "std": (0.5,)},
        {"standardize": "dataset", "mean": (0.5,), "std": (1.0, 1.0)},
        {"size": (8, 6), "pooling": 4},
    ],
)
def test_bad_settings_are_refused(values):
    with pytest.raises(ConfigError):
        Preprocessing(**values)


def test_numbers_of_numpy_are_stored_as_pythons():
    half, eight = np.float32(0.5), np.int64(8)
    found = Preprocessing(standardize="dataset", mean=[half], std=[half], size=[eight, eight])
    assert json.loads(json.dumps(found.to_dict()))["size"] == [8, 8]
    assert (found.mean, found.std) == ((0.5,), (0.5,))


@pytest.mark.parametrize(
    ("preprocessing", "images", "message"),
    [
        (Preprocessing(), torch.rand(8, 8), "must have axes"),
        (Preprocessing(), torch.zeros(1, 1, 8, 8, dtype=torch.int64), "uint8 or floating"),
        (Preprocessing(), torch.zeros(1, 1, 8, 8, dtype=torch.bool), "uint8 or floating"),
        (Preprocessing(), torch.rand(1, 1, 0, 8), "no pixels"),
        (Preprocessing(size=(4, 4)), torch.rand(1, 1, 8), "does not fit"),
        (
            Preprocessing(standardize="dataset", mean=(0.5,), std=(0.5,)),
            torch.rand(1, 3, 8, 8),
            "3 channels but mean and std 1",
        ),
    ],
)
def test_bad_images_are_refused(preprocessing, images, message):
    with pytest.raises(ValueError, match=message):
        preprocessing.apply(images)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("spatial", [(9,), (9, 8), (5, 6, 7)])
def test_numpy_arrays_are_taken_as_tensors_are(dtype, spatial):
    images = random_bytes(2, 3, *spatial).numpy()
    images = images if dtype == np.uint8 else (images / 255).astype(dtype)
    wanted = Preprocessing().apply(torch.from_numpy(images))
    assert torch.equal(Preprocessing().apply(images), wanted)
    turned = Preprocessing().apply(images[:, ::-1])  # strides that a tensor cannot have
    torch.testing.assert_close(turned, wanted.flip(1), rtol=0, atol=1e-5)
    network = create_model("hamiltonian_digits", channels=(4, 4), in_channels=3)
    if len(spatial) == 2:
        assert torch.equal(network.preprocess(images), wanted)


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((2, 28, 30, 3), r"images\.transpose\(0, 3, 1, 2\)"),
        ((2, 8, 28, 30, 1), r"images\.transpose\(0, 4, 1, 2, 3\)"),
        ((28, 30, 3), r"one image images\.transpose\(2, 0, 1\)\[None\]"),
    ],
)
def test_numpy_arrays_with_channels_last_are_refused_with_the_remedy(shape, remedy):
    with pytest.raises(ValueError, match=rf"channels last, found shape .*{remedy}"):
        Preprocessing().apply(np.zeros(shape, np.uint8))


def test_tensors_with_the_networks_channels_last_are_refused_with_the_remedy():
    network = create_model("hamiltonian_digits", channels=(4, 4), in_channels=3)
    with pytest.raises(ValueError, match=r"channels last.*images\.permute\(0, 3, 1, 2\)"):
        network.preprocess(random_bytes(2, 28, 30, 3))


def test_numpy_floats_of_0_to_255_are_refused_with_the_remedy():
    images = random_bytes(2, 3, 9, 8).numpy().astype(np.float32)
    with pytest.raises(ValueError, match=r"found 0 to 255; divide them by 255"):
        Preprocessing().apply(images)
    assert Preprocessing().apply(images - 100).isfinite().all()  # in units of their own
    assert Preprocessing().apply(images[:, :, 0]).isfinite().all()  # signals have such


def test_numpy_arrays_of_other_kinds_are_refused():
    for array in (np.zeros((1, 1, 8, 8), np.int64), np.full((1, 1, 8, 8), "a")):
        with pytest.raises(ValueError, match=r"images must be uint8 or floating in \[0, 1\]"):
            Preprocessing().apply(array)


def test_what_is_no_array_is_refused_in_words():
    network = create_model("parabolic_digits")
    with pytest.raises(ValueError, match=r"must be a tensor or a numpy array .* found list"):
        network.preprocess([[[[0.0] * 8] * 8]])


def test_arrays_in_the_byte_order_of_another_machine_are_read():
    network = create_model("parabolic_digits")
    images = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    assert torch.equal(network.preprocess(images.astype(">f4")), network.preprocess(images))
