"""TrivialAugment: each change against a slow rule, and every image a function of its index."""

from math import floor

import pytest
import torch

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.trivial_augment import CHANGES, apply_changes
from pdecnn.errors import ConfigError

AUGMENTATION = Augmentation(trivial_augment=True)


def draw(number=3, size=(7, 9), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (number, 3, *size), dtype=torch.uint8, generator=generator)


def changed(images, name, strength=1.0, sign=1):
    number = len(images)
    return apply_changes(
        images,
        torch.full((number,), CHANGES.index(name)),
        torch.full((number,), strength),
        torch.full((number,), sign),
    )


@pytest.mark.parametrize("name", CHANGES)
def test_without_strength_hardly_anything_changes(name):
    images = draw()
    result = changed(images, name, strength=0.0)
    assert result.shape == images.shape
    assert result.dtype == torch.float32
    assert 0 <= float(result.min()) <= float(result.max()) <= 1
    if name not in ("auto_contrast", "equalize", "solarize"):
        torch.testing.assert_close(result, images / 255, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_pixels_stay_pixels(name, sign):
    result = changed(draw(size=(32, 32)), name, sign=sign)
    assert bool(result.isfinite().all())
    assert 0 <= float(result.min()) <= float(result.max()) <= 1


def test_strengths_are_those_of_the_changes():
    images = draw()
    pixels = images / 255
    assert torch.allclose(changed(images, "brightness", sign=-1), 0.1 * pixels)
    assert torch.allclose(changed(images, "brightness", 0.5), (1.45 * pixels).clamp(max=1))
    assert torch.allclose(changed(images, "solarize"), 1 - pixels)
    half = changed(images, "solarize", 0.5)
    assert torch.allclose(half, torch.where(pixels >= 0.5, 1 - pixels, pixels))
    assert torch.equal(changed(images, "posterize"), (images & 0xF0) / 255)
    grey = (pixels * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    found = changed(images, "color", sign=-1)
    assert torch.allclose(found, grey + 0.1 * (pixels - grey), atol=1e-6)
    mean = grey.mean((1, 2, 3), keepdim=True)
    found = changed(images, "contrast", sign=-1)
    assert torch.allclose(found, mean + 0.1 * (pixels - mean), atol=1e-6)
    stretched = changed(images, "auto_contrast")
    assert torch.equal(stretched.amin((2, 3)), torch.zeros(3, 3))
    assert torch.equal(stretched.amax((2, 3)), torch.ones(3, 3))


def test_blurring_leaves_the_rim():
    images = draw()
    found, pixels = changed(images, "sharpness", sign=-1), images / 255
    assert torch.allclose(found[..., 0, :], pixels[..., 0, :])
    cell = pixels[0, 0, 1:4, 2:5]
    blurred = (cell.sum() + 4 * cell[1, 1]) / 13
    assert torch.allclose(found[0, 0, 2, 3], blurred + 0.1 * (cell[1, 1] - blurred), atol=1e-6)


def equalized(values):
    """PIL's rule for one channel, by its histogram."""
    counts = [values.count(k) for k in range(256)]
    step = (len(values) - counts[max(values)]) // 255
    if step == 0:
        return values
    table, total = [], step // 2
    for count in counts:
        table.append(min(total // step, 255))
        total += count
    return [table[value] for value in values]


@pytest.mark.parametrize("size", [(4, 4), (24, 32)])
def test_equalizing_follows_the_histogram(size):
    images = draw(size=size).div(3, rounding_mode="floor")
    images[0, 0] = 7
    found = (changed(images, "equalize") * 255).round().int()
    for image, result in zip(images.flatten(0, 1), found.flatten(0, 1), strict=True):
        assert result.flatten().tolist() == equalized(image.flatten().tolist())


@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_geometry_reads_the_nearest_pixel(name, sign):
    images, strength = draw(size=(9, 12)), 0.7
    found = changed(images, name, strength, sign)
    height, width = images.shape[2:]
    amount = torch.tensor(sign * strength)
    angle = torch.pi / 6 * amount
    for row in range(height):
        for column in range(width):
            down, right = row - (height - 1) / 2, column - (width - 1) / 2
            if name == "rotate":
                right, down = (
                    angle.cos() * right - angle.sin() * down,
                    angle.cos() * down + angle.sin() * right,
                )
            right += 0.3 * amount * down if name == "shear_x" else 0
            down += 0.3 * amount * right if name == "shear_y" else 0
            right += (10 / 32 * width * amount).round() if name == "translate_x" else 0
            down += (10 / 32 * height * amount).round() if name == "translate_y" else 0
            wanted = float(down + (height - 1) / 2), float(right + (width - 1) / 2)
            if any(abs(place % 1 - 0.5) < 1e-4 for place in wanted):
                continue  # either neighbour is as near
            y, x = (floor(place + 0.5) for place in wanted)
            inside = 0 <= y < height and 0 <= x < width
            expected = images[..., y, x] / 255 if inside else torch.zeros(3, 3)
            assert torch.equal(found[..., row, column], expected)


def test_each_image_has_one_change_of_its_own_whatever_its_batch():
    images, indices = draw(60, size=(8, 8)), torch.randperm(1000)[:60]
    whole = AUGMENTATION.change_colours(images, indices, seed=1, epoch=3)
    for part in torch.arange(60).split(7):
        alone = AUGMENTATION.change_colours(images[part], indices[part], seed=1, epoch=3)
        assert torch.equal(alone, whole[part])
    epoch = AUGMENTATION.change_colours(images, indices, seed=1, epoch=torch.tensor(3))
    assert torch.equal(epoch, whole)
    for other in ({"seed": 2, "epoch": 3}, {"seed": 1, "epoch": 4}):
        found = AUGMENTATION.change_colours(images, indices, **other)
        assert (found == whole).flatten(1).all(1).sum() < 30


def test_nothing_waits_for_the_device():
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8, device="meta")
    indices = torch.zeros(4, dtype=torch.int64, device="meta")
    epoch = torch.zeros((), dtype=torch.int64, device="meta")
    result = AUGMENTATION.change_colours(images, indices, seed=0, epoch=epoch)
    assert result.shape == images.shape


@pytest.mark.parametrize(
    ("images", "found"),
    [
        ((1, (8, 8), torch.uint8), "2D samples of 1 of uint8"),
        ((3, (8,), torch.uint8), "1D samples of 3 of uint8"),
        ((3, (8, 8), torch.float32), "2D samples of 3 of float32"),
    ],
)
def test_what_has_no_colours_is_refused(images, found):
    with pytest.raises(ConfigError, match=f"3 channels of bytes, found {found}"):
        AUGMENTATION.check_images(*images)
