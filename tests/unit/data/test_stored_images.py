"""Images on the disk: the same bits as in memory, for any number of readers."""

import threading
import time

import pytest
import torch

from pdecnn.data import image_set as image_set_module
from pdecnn.data.image_set import (
    BATCHES_AHEAD,
    ImageSet,
    StoredImages,
    channel_statistics,
    image_batches,
)
from pdecnn.errors import DataError

IMAGES = torch.arange(40 * 3 * 4 * 5).remainder(251).to(torch.uint8).view(40, 3, 4, 5)


def store(images=IMAGES, read=None, delay=lambda place: 0.0):
    def slow(place):
        time.sleep(delay(place))
        return images[place]

    places = torch.arange(len(images))
    return StoredImages(
        read or slow, places, image_shape=tuple(images.shape[1:]), dtype=images.dtype
    )


def test_it_looks_like_a_tensor():
    stored = store()
    assert (len(stored), stored.shape, stored.dtype) == (40, IMAGES.shape, torch.uint8)
    assert torch.equal(stored[:], IMAGES)
    assert torch.equal(stored[3:7], IMAGES[3:7])
    indices = torch.tensor([5, 5, 0])
    assert torch.equal(stored[indices], IMAGES[indices])
    subset = stored.subset(torch.tensor([9, 1, 8]))
    assert subset.shape == (3, 3, 4, 5)
    assert torch.equal(subset.subset(torch.tensor([2, 0]))[:], IMAGES[[8, 9]])


@pytest.mark.parametrize("workers", [1, 2, 3, 16])
def test_the_number_of_workers_changes_nothing(workers, monkeypatch):
    """Promise 2: late readers do not change the order either."""
    monkeypatch.setattr(image_set_module, "num_workers", lambda: workers)
    stored = store(delay=lambda place: 0.002 * (place % 3 == 0))
    groups = torch.randperm(40).view(8, 5)
    for found, group in zip(stored.batches(groups), groups, strict=True):
        assert torch.equal(found, IMAGES[group])


def test_batches_are_read_ahead_but_not_all():
    before = set(threading.enumerate())  # other tests may have left some
    seen = []
    stored = store(read=lambda place: (seen.append(place), IMAGES[place])[1])
    batches = stored.batches(torch.arange(40).view(10, 4))
    next(batches)
    wanted = set(range(4 * (BATCHES_AHEAD + 1)))
    while not wanted <= set(seen):
        time.sleep(0.01)
    time.sleep(0.05)  # for what would be too much
    assert set(seen) == wanted
    batches.close()
    assert not {t for t in threading.enumerate() if t.name.startswith("images")} - before


def test_a_file_that_vanished_is_an_error_of_its_batch():
    def read(place):
        if place == 6:
            raise DataError("a.png: no such file")
        return IMAGES[place]

    batches = store(read=read).batches(torch.arange(40).view(10, 4))
    assert torch.equal(next(batches), IMAGES[:4])
    with pytest.raises(DataError, match=r"a\.png"):
        next(batches)


def test_batches_of_a_tensor_are_the_same():
    groups = [slice(0, 3), slice(3, 7)]
    for images in (IMAGES, store()):
        found = list(image_batches(images, groups))
        assert all(torch.equal(f, IMAGES[g]) for f, g in zip(found, groups, strict=True))


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_the_statistics_have_the_same_bits(kind, monkeypatch):
    monkeypatch.setattr("pdecnn.data.image_set._AT_A_TIME", 7)
    images = IMAGES if kind == torch.uint8 else torch.randn(40, 3, 4, 5) * 1e3
    sets = [
        ImageSet(images=one, labels=torch.zeros(40, dtype=torch.int64), class_names=("a",))
        for one in (images, store(images))
    ]
    one, two = map(channel_statistics, sets)
    assert one == two
    values = images.double() / (255 if kind == torch.uint8 else 1)
    values = values.transpose(0, 1).flatten(1)
    assert torch.allclose(torch.tensor(one[0], dtype=torch.float64), values.mean(1), rtol=1e-12)
    std = values.std(1, correction=0)
    assert torch.allclose(torch.tensor(one[1], dtype=torch.float64), std, rtol=1e-12)


def test_a_constant_channel_can_be_divided_by():
    for images, least in (
        (torch.zeros(4, 1, 5, dtype=torch.uint8), 1 / 255),
        (torch.ones(4, 1, 5), 1),
    ):
        labels = torch.zeros(4, dtype=torch.int64)
        _, std = channel_statistics(ImageSet(images=images, labels=labels, class_names=("a",)))
        assert std == (least,)


def test_a_set_on_the_disk_is_a_set():
    labels = torch.arange(40) % 2
    stored = ImageSet(images=store(), labels=labels, class_names=("a", "b"))
    assert isinstance(stored.images, StoredImages)
    assert (stored.channels, stored.size, len(stored)) == (3, (4, 5), 40)
    assert stored.to("cpu").images is stored.images
    subset = stored.subset(torch.tensor([7, 2]))
    assert subset.labels.tolist() == [1, 0]
    assert torch.equal(subset.images[:], IMAGES[[7, 2]])
