"""Augmentation: right by a slow reference, uniform, and a function of (seed, epoch, index)."""

import pytest
import torch

from pdecnn.data.augmentation import Augmentation, stable_seed, uniform_integers
from pdecnn.errors import ConfigError, DataError

SIZES = [(9,), (8, 6), (5, 8, 7)]
NUM_MANY = 8000
every_augmentation = pytest.mark.parametrize(
    "augmentation",
    [Augmentation(), Augmentation(flip="alternate", padding_mode="reflect")],
    ids=["default", "alternate and reflect"],
)


def slow_reference(augmentation, images, indices, *, seed, epoch):
    """One sample at a time: flip, pad, crop."""
    results = []
    for image, index in zip(images, indices, strict=True):
        coin = uniform_integers(2, stable_seed(seed, "flip"), epoch, counters=index)
        if augmentation.flip == "alternate":
            coin = (uniform_integers(2, stable_seed(seed, "flip"), counters=index) + epoch) % 2
        if augmentation.flip and coin == 1:
            image = image.flip(-1)
        for axis, size in enumerate(image.shape[1:]):
            padding = augmentation.padding_pixels(size)
            before, after = (
                image.narrow(axis + 1, start, padding).flip(axis + 1)
                for start in (1, size - 1 - padding)
            )
            if augmentation.padding_mode == "zero":
                before, after = torch.zeros_like(before), torch.zeros_like(after)
            key = stable_seed(seed, "crop", axis)
            offset = int(uniform_integers(2 * padding + 1, key, epoch, counters=index))
            padded = torch.cat([before, image, after], axis + 1)
            image = padded.narrow(axis + 1, offset, size)
        results.append(image)
    return torch.stack(results)


def draw(size, num_images=40, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(num_images, 3, *size, generator=generator).to(dtype)
    return images, torch.randperm(1000, generator=generator)[:num_images]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("flip", [True, False, "alternate"])
@pytest.mark.parametrize("padding", [0, 1 / 16, 0.3, 0.5])
@pytest.mark.parametrize("padding_mode", ["zero", "reflect"])
def test_it_equals_the_slow_reference(size, flip, padding, padding_mode):
    augmentation = Augmentation(flip=flip, padding=padding, padding_mode=padding_mode)
    images, indices = draw(size)
    result = augmentation.augment(images, indices, seed=4, epoch=2)
    expected = slow_reference(augmentation, images, indices, seed=4, epoch=2)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("size", SIZES)
def test_the_batch_a_sample_is_in_does_not_matter(size):
    images, indices = draw(size)
    whole = Augmentation().augment(images, indices, seed=1, epoch=3)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    for part in order.split(7):
        alone = Augmentation().augment(images[part], indices[part], seed=1, epoch=3)
        assert torch.equal(alone, whole[part])


def test_seed_epoch_and_index_all_matter():
    images = torch.randn(1, 1, 32, 32).expand(200, -1, -1, -1)
    indices = torch.arange(200)
    first = Augmentation().augment(images, indices, seed=1, epoch=0)
    assert torch.equal(first, Augmentation().augment(images, indices, seed=1, epoch=0))
    for other in (
        Augmentation().augment(images, indices, seed=2, epoch=0),
        Augmentation().augment(images, indices, seed=1, epoch=1),
        Augmentation().augment(images, indices + 200, seed=1, epoch=0),
    ):
        # 2 * 5 * 5 outcomes: about 1 of 50 samples agrees by chance.
        assert (first == other).flatten(1).all(1).sum() < 20


def test_an_epoch_in_a_tensor_gives_the_same():
    images, indices = draw((8, 8))
    as_int = Augmentation().augment(images, indices, seed=1, epoch=17)
    epoch = torch.tensor(17)
    assert torch.equal(as_int, Augmentation().augment(images, indices, seed=1, epoch=epoch))


def test_flips_are_fair_and_touch_the_last_axis_only():
    image = torch.arange(12.0).view(1, 1, 3, 4)
    augmentation = Augmentation(padding=0)
    result = augmentation.augment(
        image.expand(NUM_MANY, -1, -1, -1), torch.arange(NUM_MANY), seed=0, epoch=0
    )
    is_same = (result == image).flatten(1).all(1)
    is_flipped = (result == image.flip(-1)).flatten(1).all(1)
    assert (is_same ^ is_flipped).all()
    assert abs(is_flipped.double().mean() - 0.5) < 6 * 0.5 / NUM_MANY**0.5


def test_an_alternate_flip_shows_each_side_of_every_image_in_two_epochs():
    images, indices = draw((6, 5), num_images=200)
    augmentation = Augmentation(flip="alternate", padding=0)
    epochs = [augmentation.augment(images, indices, seed=3, epoch=epoch) for epoch in range(4)]
    is_flipped = (epochs[0] == images.flip(-1)).flatten(1).all(1)
    assert 60 < is_flipped.sum() < 140
    assert torch.equal(epochs[1], epochs[0].flip(-1))
    assert torch.equal(epochs[2], epochs[0])
    assert torch.equal(epochs[3], epochs[1])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cutout", [1, 2, 3, 4])
def test_a_cutout_is_a_square_around_a_pixel_of_the_image(size, cutout):
    augmentation = Augmentation(cutout=cutout)
    images, indices = torch.ones(200, 2, *size), torch.arange(200)
    result = augmentation.cut_out(images, indices, seed=4, epoch=2)
    for image in result:
        assert torch.equal(image[0], image[1])
        hole = (image[0] == 0).nonzero()
        lengths = hole.amax(0) - hole.amin(0) + 1
        assert len(hole) == lengths.prod()  # a box without gaps
        for axis, length in enumerate(lengths.tolist()):
            # Cut off by the border at most to half its side.
            assert cutout // 2 <= length <= cutout or size[axis] < cutout
            at_border = hole[:, axis].min() == 0 or hole[:, axis].max() == size[axis] - 1
            assert length == cutout or at_border
    again = augmentation.cut_out(images[50:60], indices[50:60], seed=4, epoch=torch.tensor(2))
    assert torch.equal(again, result[50:60])
    assert not torch.equal(result, augmentation.cut_out(images, indices, seed=4, epoch=3))


def test_a_cutout_of_whole_images_is_refused():
    Augmentation(cutout=7).check_images(1, (8, 8), torch.uint8)
    with pytest.raises(ConfigError, match=r"data\.cutout=8 would cut out whole images of size"):
        Augmentation(cutout=8).check_images(1, (8, 9), torch.uint8)


@pytest.mark.parametrize("size", [(1,), (2, 1), (3, 3)])
def test_the_smallest_images_are_reflected_too(size):
    images, indices = draw(size)
    result = Augmentation(padding=0.5, padding_mode="reflect").augment(
        images, indices, seed=0, epoch=0
    )
    assert (result != 0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flip": "alternating"}, "unknown data.flip 'alternating'; did you mean 'alternate'"),
        ({"flip": 1}, "flip must be true, false or 'alternate', found 1"),
        ({"padding_mode": "zeros"}, "unknown data.padding_mode 'zeros'; did you mean 'zero'"),
    ],
)
def test_words_that_are_not_known_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Augmentation(**settings)


def test_offsets_are_uniform_and_independent_along_the_axes():
    # One bright pixel in the middle shows where the crop went.
    image = torch.zeros(1, 1, 32, 32)
    image[..., 16, 16] = 1
    result = Augmentation(flip=False).augment(
        image.expand(NUM_MANY, -1, -1, -1), torch.arange(NUM_MANY), seed=0, epoch=0
    )
    counts = result.sum((0, 1))
    assert counts.sum() == NUM_MANY
    inner = counts[14:19, 14:19]
    assert inner.sum() == NUM_MANY
    expected = NUM_MANY / 25
    assert (inner - expected).abs().max() < 6 * expected**0.5


@pytest.mark.parametrize(("size", "pixels"), [(32, 2), (96, 6), (8, 1), (7, 0), (24, 2)])
def test_padding_is_a_sixteenth_of_the_size_rounded_half_up(size, pixels):
    assert Augmentation().padding_pixels(size) == pixels


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_dtype_is_kept(dtype):
    images, indices = draw((8, 8), dtype=dtype)
    assert Augmentation().augment(images, indices, seed=0, epoch=0).dtype == dtype


@pytest.mark.parametrize(
    ("size", "memory_format"),
    [((8, 6), torch.channels_last), ((5, 8, 7), torch.channels_last_3d)],
)
def test_channels_last_is_kept_and_changes_no_value(size, memory_format):
    images, indices = draw(size)
    expected = Augmentation().augment(images, indices, seed=0, epoch=0)
    assert expected.is_contiguous()
    result = Augmentation().augment(
        images.contiguous(memory_format=memory_format), indices, seed=0, epoch=0
    )
    assert result.is_contiguous(memory_format=memory_format)
    assert torch.equal(result, expected)


def test_the_input_is_not_changed():
    images, indices = draw((8, 8))
    before = images.clone()
    Augmentation().augment(images, indices, seed=0, epoch=0)
    assert torch.equal(images, before)


def test_without_flip_and_padding_nothing_happens():
    images, indices = draw((8, 8))
    nothing = Augmentation(flip=False, padding=0)
    assert nothing.augment(images, indices, seed=0, epoch=0) is images


def test_pixels_that_are_not_finite_stay_where_they_are():
    images = torch.full((50, 1, 8), float("inf"))
    result = Augmentation(padding=0.25).augment(images, torch.arange(50), seed=0, epoch=0)
    assert not result.isnan().any()
    assert (result == 0).any()


@pytest.mark.parametrize("size", SIZES)
@every_augmentation
def test_nothing_waits_for_the_device(size, augmentation):
    # Meta tensors have no values: any operation that waits for one would raise.
    images = torch.zeros(4, 3, *size, device="meta")
    indices = torch.zeros(4, dtype=torch.int64, device="meta")
    epoch = torch.zeros((), dtype=torch.int64, device="meta")
    result = augmentation.augment(images, indices, seed=0, epoch=epoch)
    assert result.shape == images.shape


@pytest.mark.gpu
@every_augmentation
def test_a_gpu_gives_the_same_images_in_a_replayed_graph(augmentation):
    images, indices = draw((32, 32))
    static = (images.cuda(), indices.cuda())
    epoch = torch.zeros((), dtype=torch.int64, device="cuda")
    augmentation.augment(*static, seed=0, epoch=epoch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = augmentation.augment(*static, seed=0, epoch=epoch)
    for number in (0, 1, 7):
        epoch.fill_(number)
        graph.replay()
        expected = augmentation.augment(images, indices, seed=0, epoch=number)
        assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize(
    ("images", "indices", "message"),
    [
        (torch.zeros(4, 3), torch.arange(4), r"1 to 3 spatial axes, found \(4, 3\)"),
        (torch.zeros(4, 3, 8), torch.arange(1), r"4 images need .* shape \(1,\)"),
        (torch.zeros(4, 3, 8), torch.arange(4).int(), "4 images need int64 .* torch.int32"),
    ],
)
def test_images_and_indices_that_do_not_fit_are_refused(images, indices, message):
    with pytest.raises(DataError, match=message):
        Augmentation().augment(images, indices, seed=0, epoch=0)
