"""Examples of images with a class for each pixel: image and classes change alike."""

from dataclasses import replace

import pytest
import torch

from pdecnn.data.image_set import ImageSet
from pdecnn.data.patches import LEFT_RIGHT, LabelledPatches
from pdecnn.errors import DataError

SIZES = [(9, 12, 7), (6, 8, 10), (3, 4, 2)]


def make_volumes(sizes=SIZES) -> ImageSet:
    """The class of a voxel is its value: both say where along the axes it stands."""
    largest = [max(size[axis] for size in sizes) for axis in range(len(sizes[0]))]
    masks = torch.full((len(sizes), *largest), 255, dtype=torch.uint8)
    for place, size in enumerate(sizes):
        value = torch.zeros(size, dtype=torch.int64)
        for axis, n in enumerate(size):
            line = torch.arange(n).view(*(-1 if k == axis else 1 for k in range(len(size))))
            value = value + line * (1, 12, 96)[axis]
        masks[place][tuple(slice(0, n) for n in size)] = value.clamp(max=250).to(torch.uint8)
    return ImageSet(
        images=masks[:, None].float(),
        labels=torch.zeros(len(sizes), dtype=torch.int64),
        class_names=("image",),
        sizes=torch.tensor(sizes),
        names=tuple(map(str, range(len(sizes)))),
        masks=masks,
    )


def make_patches(**changes) -> LabelledPatches:
    return LabelledPatches(**{"size": (5, 6, 4), "repeats": 3, "flip": False} | changes)


def examples(patches, volumes, places, seed=0, epoch=0):
    return patches.examples(volumes, places, lambda x: x, seed=seed, epoch=epoch)


@pytest.mark.parametrize("flip", [False, True, LEFT_RIGHT])
def test_classes_are_those_of_the_voxels(flip):
    inputs, classes = examples(make_patches(flip=flip), make_volumes(), torch.arange(300))
    assert inputs.shape == (300, 1, 5, 6, 4)
    assert torch.equal(inputs[:, 0].long(), classes)
    assert classes.max() < 255  # nothing from outside an image


def test_a_patch_larger_than_its_image_holds_all_of_it_mirrored_at_its_edge():
    _, classes = examples(make_patches(size=(5, 6, 4)), make_volumes(), 2 + 3 * torch.arange(200))
    mask = make_volumes().mask(2).long()
    assert all(set(found.flatten().tolist()) == set(mask.flatten().tolist()) for found in classes)
    first = classes[:, :, 0, 0] % 12  # along an axis of three voxels
    assert {tuple(line) for line in first.tolist()} == {
        (0, 1, 2, 2, 1),
        (0, 0, 1, 2, 2),
        (1, 0, 0, 1, 2),
    }


@pytest.mark.parametrize(
    ("dimension", "flip", "mirrored"),
    [(3, LEFT_RIGHT, [0]), (3, True, [0, 1, 2]), (2, LEFT_RIGHT, [1]), (2, False, [])],
)
def test_volumes_are_mirrored_along_their_first_axis_and_images_along_their_last(
    dimension, flip, mirrored
):
    volumes = make_volumes([size[:dimension] for size in SIZES[:1]])
    patches = make_patches(flip=flip, size=(2,) * dimension)
    _, classes = examples(patches, volumes, torch.arange(100))
    for axis in range(dimension):
        ends = classes.select(axis + 1, 1) - classes.select(axis + 1, 0)
        assert (ends < 0).any() == (axis in mirrored)
        assert (ends > 0).any()


def test_lengths_are_turned_not_numbers_of_voxels():
    """The slope of a linear function keeps its size in mm, also where slices lie far apart."""
    spacing = torch.tensor([1.0, 0.5, 3.0])
    lines = [torch.arange(24.0) * step for step in spacing]
    x, y, z = torch.meshgrid(*lines, indexing="ij")
    volumes = replace(
        make_volumes([(24, 24, 24)]),
        images=(2 * x - y + 3 * z)[None, None],
        spacings=spacing[None],
    )
    inputs, _ = examples(make_patches(size=(3, 3, 3), turn=20.0), volumes, torch.arange(60))
    ends = [inputs.select(axis, 2) - inputs.select(axis, 0) for axis in (2, 3, 4)]
    steps = torch.stack([end[:, 0, 1, 1] / 2 for end in ends], 1)
    slopes = (steps / spacing).norm(dim=1)
    assert ((slopes - 14**0.5).abs() < 1e-3).float().mean() > 0.5  # others meet the edge
    assert steps.std(0).min() > 0.01


def test_turned_and_scaled_patches_interpolate():
    x, y, z = torch.meshgrid(*(torch.arange(20.0) for _ in range(3)), indexing="ij")
    volumes = make_volumes([(20, 20, 20)])
    linear = (2 * x - y + 3 * z)[None, None]
    volumes = ImageSet(
        images=linear,
        labels=volumes.labels,
        class_names=("image",),
        sizes=volumes.sizes,
        masks=volumes.masks,
    )
    patches = make_patches(size=(3, 3, 3), turn=30.0, zoom=0.2)
    inputs, _ = examples(patches, volumes, torch.arange(50))
    # A linear function stays linear: what lies opposite has the centre for its mean.
    opposite = (inputs + inputs.flip(2, 3, 4)) / 2
    inside = (opposite - inputs[:, :, 1:2, 1:2, 1:2]).abs().flatten(1).amax(1) < 1e-3
    assert inside.float().mean() > 0.5  # others meet the edge, where it is mirrored
    steps = (inputs[:, 0, 2, 1, 1] - inputs[:, 0, 0, 1, 1]) / 2
    assert steps.std() > 0.1
    plain, _ = examples(make_patches(size=(3, 3, 3), turn=1e-9), volumes, torch.arange(50))
    exact, _ = examples(make_patches(size=(3, 3, 3)), volumes, torch.arange(50))
    assert torch.allclose(plain, exact, atol=1e-3)


def test_an_example_depends_on_seed_epoch_and_place_alone():
    volumes = make_volumes()
    patches = make_patches(flip=True, turn=20.0, zoom=0.1, intensity=0.2)
    inputs, classes = examples(patches, volumes, torch.arange(9), seed=3, epoch=2)
    again = examples(patches, volumes, torch.tensor([7, 4]), seed=3, epoch=torch.tensor(2))
    assert torch.equal(inputs[[7, 4]], again[0])
    assert torch.equal(classes[[7, 4]], again[1])
    for other in ({"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 3}):
        assert not torch.equal(examples(patches, volumes, torch.arange(9), **other)[0], inputs)


def test_intensities_change_within_their_range_and_classes_do_not():
    volumes = make_volumes([(6, 6, 6)])
    inputs, classes = examples(make_patches(size=(6, 6, 6)), volumes, torch.arange(100))
    changed, same = examples(
        make_patches(size=(6, 6, 6), intensity=0.1), volumes, torch.arange(100)
    )
    assert torch.equal(classes, same)
    offset = changed[:, 0, 0, 0, 0]  # of a voxel that is 0
    assert 0.05 < offset.abs().max() <= 0.1
    factors = (changed[:, 0, 1, 0, 0] - offset).sub(1).abs()
    assert 0.05 < factors.max() <= 0.1 + 1e-5
    assert inputs.max() > 1


def test_images_are_standardised_by_all_of_their_pixels():
    def standardize(images):
        return (images - images.mean()) / images.std()

    volumes = make_volumes()
    prepared = make_patches().prepared(volumes, standardize)
    for place in range(3):
        wanted = standardize(volumes.picture(place))
        assert torch.allclose(prepared.picture(place), wanted)
    assert torch.equal(prepared.masks, volumes.masks)


def test_a_patch_of_other_axes_is_refused():
    with pytest.raises(DataError, match=r"data\.patch has 2 numbers, and the data 3 axes"):
        make_patches(size=(4, 4)).check_fit(make_volumes())
