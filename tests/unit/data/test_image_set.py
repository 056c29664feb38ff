"""An ImageSet holds usable images or does not exist."""

import dataclasses

import pytest
import torch

from pdecnn.data.image_set import DataSet, ImageSet
from pdecnn.errors import DataError


def make_set(num_images=6, shape=(3, 4, 5), class_names=("cat", "dog", "owl")):
    return ImageSet(
        images=torch.arange(num_images, dtype=torch.uint8)
        .view(-1, *(1,) * len(shape))
        .expand(num_images, *shape)
        .contiguous(),
        labels=torch.arange(num_images) % len(class_names),
        class_names=class_names,
    )


@pytest.mark.parametrize("shape", [(1, 7), (3, 4, 5), (2, 3, 4, 5)])
def test_it_knows_its_shape(shape):
    images = make_set(shape=shape)
    assert len(images) == 6
    assert images.num_classes == 3
    assert images.channels == shape[0]
    assert images.size == shape[1:]


def test_a_subset_keeps_the_order_of_the_indices():
    subset = make_set().subset(torch.tensor([5, 0, 4]))
    assert subset.images[:, 0, 0, 0].tolist() == [5, 0, 4]
    assert subset.labels.tolist() == [2, 0, 1]
    assert subset.class_names == ("cat", "dog", "owl")


def test_moving_to_a_device_keeps_the_content():
    images = make_set()
    moved = images.to("cpu")
    assert torch.equal(moved.images, images.images)
    assert torch.equal(moved.labels, images.labels)


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_set().labels = torch.zeros(6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"images": torch.zeros(6, 3, 4, 5, dtype=torch.float64)},
            "images must be uint8 .* or float32, found torch.float64",
        ),
        ({"labels": torch.zeros(6, dtype=torch.int32)}, "labels must be int64, found torch.int32"),
        ({"images": torch.zeros(6, 3, dtype=torch.uint8)}, r"spatial axes, found \(6, 3\)"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, r"6 images and labels of shape \(5,\)"),
        ({"labels": torch.zeros(6, 1, dtype=torch.int64)}, r"labels of shape \(6, 1\)"),
        ({"labels": torch.tensor([0, 1, 2, 0, 1, 3])}, "0 to 2 .* found 3"),
        ({"labels": torch.tensor([0, 1, 2, 0, 1, -1])}, "0 to 2 .* found -1"),
        (
            {
                "images": torch.zeros(0, 3, 4, 5, dtype=torch.uint8),
                "labels": torch.zeros(0, dtype=torch.int64),
            },
            r"must not be empty, found shape \(0, 3, 4, 5\)",
        ),
    ],
)
def test_unusable_images_and_labels_are_refused(change, message):
    with pytest.raises(DataError, match=message):
        dataclasses.replace(make_set(), **change)


def test_an_empty_subset_is_refused():
    with pytest.raises(DataError, match="must not be empty"):
        make_set().subset(torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"shape": (1, 4, 5)}, "same channels, found 3 and 1"),
        ({"shape": (3, 4, 6)}, r"same size, found \(4, 5\) and \(4, 6\)"),
        ({"class_names": ("cat", "dog")}, "same class_names"),
    ],
)
def test_train_and_test_must_fit_each_other(other, message):
    with pytest.raises(DataError, match=f"zoo: .*{message}"):
        DataSet(name="zoo", train=make_set(), test=make_set(**other))
