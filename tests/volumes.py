"""Small volumes with labels, as NIfTI files: balls of two halves in noise."""

from pathlib import Path

import numpy as np

AXES = {"RAS": np.diag([1.0, 1.0, 1.0, 1.0]), "LPS": np.diag([-1.0, -1.0, 1.0, 1.0])}
AXES["SAR"] = np.array([[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=float)


def make_ball(size: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A bright ball whose classes 1 and 2 are its halves along the second axis."""
    random = np.random.default_rng(seed)
    lines = np.meshgrid(*(np.arange(n) - (n - 1) / 2 for n in size), indexing="ij")
    inside = sum(line**2 for line in lines) < (min(size) / 2.5) ** 2
    labels = np.where(inside, np.where(lines[1] < 0, 1, 2), 0).astype(np.uint8)
    image = 300 * (1 + seed) * (inside + 0.3 * random.standard_normal(size) + 0.2 * lines[1] / 8)
    return image.astype(np.float32), labels


def write_volume(path: Path, array: np.ndarray, affine: np.ndarray | None = None) -> None:
    import nibabel

    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, AXES["RAS"] if affine is None else affine), path)


def write_ball(folder: Path, name: str, size: tuple[int, ...], seed: int = 0) -> None:
    """An image and its labels under one name."""
    image, labels = make_ball(size, seed)
    write_volume(folder / "images" / name, image)
    write_volume(folder / "labels" / name, labels)


def write_balls(folder: Path) -> Path:
    """Ten volumes to train with and two to test, of several sizes."""
    for part, number in (("train", 10), ("test", 2)):
        for k in range(number):
            suffix = ".nii.gz" if k % 2 else ".nii"
            write_ball(folder / part, f"{k}{suffix}", (7 + k % 3, 9, 6 + k % 2), k)
    return folder
