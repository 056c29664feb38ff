"""Examples of pictures: crops within each image, noise by hashing, the same wherever they are."""

import numpy as np
import pytest
import torch

from pdecnn.data.image_set import ImageSet
from pdecnn.data.patches import NoisyPatches, standard_normal, with_test_noise
from pdecnn.errors import DataError

SIZES = [(9, 12), (14, 8), (8, 8)]


def make_pictures() -> ImageSet:
    """Pixels that say which image and where they are of, 255 outside."""
    images = torch.full((3, 1, 14, 12), 255, dtype=torch.uint8)
    for place, (height, width) in enumerate(SIZES):
        rows, columns = torch.arange(height)[:, None], torch.arange(width)
        images[place, 0, :height, :width] = 80 * place + rows + 5 * columns
    return ImageSet(
        images=images,
        labels=torch.zeros(3, dtype=torch.int64),
        class_names=("image",),
        sizes=torch.tensor(SIZES),
        names=("a.png", "b.png", "c.png"),
    )


def make_patches(**changes) -> NoisyPatches:
    return NoisyPatches(
        **{"size": (6, 6), "repeats": 4, "flip": False, "noise": (25.0, 25.0)} | changes
    )


def test_a_patch_lies_within_its_image():
    places = torch.arange(900)
    found = make_patches().crop(make_pictures(), places, seed=0, epoch=0)
    assert found.shape == (900, 1, 6, 6)
    assert found.max() < 255
    assert torch.equal(found[:, 0, 0, 0] // 80, places % 3)
    corners = found[places % 3 == 0, 0, 0, 0].int()
    assert set((corners % 5).tolist()) == {0, 1, 2, 3}  # every row at which one can begin
    assert len(set(corners.tolist())) == 4 * 7


def test_patches_are_mirrored_and_turned():
    found = make_patches(flip=True).crop(make_pictures(), 3 * torch.arange(200), seed=0, epoch=0)
    steps = {
        (int(p[0, 0, 1]) - int(p[0, 0, 0]), int(p[0, 1, 0]) - int(p[0, 0, 0])) for p in found.int()
    }
    assert steps == {(a, b) for x, y in ((5, 1), (1, 5)) for a in (x, -x) for b in (y, -y)}


def test_an_example_depends_on_seed_epoch_and_place_alone():
    pictures, patches = make_pictures(), make_patches(flip=True, noise=(0.0, 50.0))
    scaled = lambda pixels: pixels / 255  # noqa: E731
    noisy, clean = patches.examples(pictures, torch.arange(12), scaled, seed=3, epoch=2)
    again = patches.examples(pictures, torch.tensor([7, 4]), scaled, seed=3, epoch=torch.tensor(2))
    assert torch.equal(noisy[[7, 4]], again[0])
    assert torch.equal(clean[[7, 4]], again[1])
    for other in ({"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 3}):
        changed, _ = patches.examples(pictures, torch.arange(12), scaled, **other)
        assert not torch.equal(noisy, changed)


def test_another_epoch_or_seed_has_other_crops_and_other_noise_on_each_example():
    pictures = make_pictures()
    patches = make_patches(noise=(25.0, 25.0))

    def example(**place):
        noisy, clean = patches.examples(
            pictures, torch.arange(30), lambda pixels: pixels / 255, **place
        )
        return clean, noisy - clean

    crops, noise = example(seed=3, epoch=2)
    for other in ({"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 3}):
        other_crops, other_noise = example(**other)
        assert not torch.equal(crops, other_crops)
        together = (noise * other_noise).flatten(1).mean(1) * (255 / 25) ** 2
        assert together.abs().max() < 0.8  # 1 for the same noise, else 0 give or take 1/6


def test_noise_is_normal_and_has_its_level():
    pictures, patches = make_pictures(), make_patches(noise=(10.0, 40.0))
    noisy, clean = patches.examples(
        pictures, torch.arange(3000), lambda pixels: pixels / 255, seed=0, epoch=0
    )
    levels = 255 * (noisy - clean).flatten(1).std(1)
    assert 15 < levels.quantile(0.2) < 18
    assert 32 < levels.quantile(0.8) < 36
    numbers = standard_normal(torch.arange(400_000))
    assert abs(float(numbers.mean())) < 0.01
    assert float(numbers.std()) == pytest.approx(1, abs=0.01)
    assert float(numbers.pow(4).mean()) == pytest.approx(3, abs=0.05)
    assert abs(float((numbers[1:] * numbers[:-1]).mean())) < 0.01


def test_test_noise_is_numpys_one_draw_an_image():
    images = [torch.zeros(1, 3, 4), torch.zeros(1, 2, 2)]
    generator = np.random.default_rng(0)
    expected = [generator.normal(0, 25, image.shape) / 255 for image in images]
    for found, wanted in zip(with_test_noise(images, 25), expected, strict=True):
        assert torch.allclose(found.double(), torch.from_numpy(wanted), atol=1e-7)


def test_an_image_smaller_than_a_patch_is_named():
    with pytest.raises(DataError, match=r"b\.png: has 14 x 8 pixels, and data\.patch=9"):
        make_patches(size=(9, 9)).check_fit(make_pictures().subset(torch.tensor([0, 1])))
