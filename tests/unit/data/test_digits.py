"""Facts of the digits: sizes, values, balance, and a test set that never moves."""

import hashlib

import pytest
import torch

from pdecnn.data.registry import NUM_TEST_IMAGES, read_digits


@pytest.fixture(scope="module")
def digits():
    return read_digits()


def test_there_are_1437_and_360_grey_images(digits):
    assert digits.name == "digits"
    assert len(digits.train) == 1437
    assert len(digits.test) == NUM_TEST_IMAGES == 360
    assert digits.train.channels == 1
    assert digits.train.size == (8, 8)
    assert digits.train.class_names == tuple("0123456789")


def test_pixels_are_the_rounded_sixteenths_of_255(digits):
    values = torch.cat([digits.train.images, digits.test.images]).unique().tolist()
    assert values == [round(value * 255 / 16) for value in range(17)]


def test_no_image_is_lost(digits):
    from sklearn.datasets import load_digits

    ours = torch.cat([digits.train.images, digits.test.images]).flatten(1).tolist()
    theirs = torch.from_numpy(load_digits().data).mul(255 / 16).round().int().tolist()
    assert sorted(ours) == sorted(theirs)


def test_the_test_set_is_balanced(digits):
    test = torch.bincount(digits.test.labels)
    total = test + torch.bincount(digits.train.labels)
    assert (test - total * 360 / 1797).abs().max() < 1


def test_the_test_set_never_moves(digits):
    torch.manual_seed(5)
    again = read_digits().test
    assert torch.equal(again.images, digits.test.images)
    content = digits.test.images.numpy().tobytes() + digits.test.labels.numpy().tobytes()
    assert hashlib.sha256(content).hexdigest() == (
        "7eab3c9bc6f34ed13642ca94490c80a55ece8b998c68cc0c50911a8b77b60e35"
    )


def test_a_size_enlarges_them_and_moves_none(digits):
    large = read_digits(size=32)
    assert large.train.size == (32, 32)
    assert torch.equal(large.test.labels, digits.test.labels)
    back = torch.nn.functional.avg_pool2d(large.test.images.float(), 4)
    assert (back - digits.test.images).abs().mean() < 20
    assert large.test.images.max() == 255
    assert torch.equal(read_digits(size=8).test.images, digits.test.images)
