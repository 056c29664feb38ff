"""Labelled images, in memory or on the disk: the examples (y_i, c_i) of Section 2."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pdecnn.data.stored_images import StoredImages
from pdecnn.errors import DataError

DTYPES = (torch.uint8, torch.float32)


# Tensors have no single truth value, so a generated == would raise: sets compare by identity.
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ImageSet:
    """Images of one size with a class for each; checked once, then trusted everywhere."""

    images: Tensor | StoredImages
    """uint8 (0 to 255) or float32, shape (n, channels, *spatial) with 1, 2 or 3 spatial axes."""
    labels: Tensor
    """int64, shape (n,), each in 0 .. num_classes - 1."""
    class_names: tuple[str, ...]
    """What label k is called, for every k."""

    def __post_init__(self) -> None:
        if self.images.dtype not in DTYPES:
            raise DataError(
                f"images must be uint8 (0 to 255) or float32, found {self.images.dtype}"
            )
        if self.labels.dtype != torch.int64:
            raise DataError(f"labels must be int64, found {self.labels.dtype}")
        if len(self.images.shape) not in (3, 4, 5):
            raise DataError(
                f"images must have shape (n, channels, *spatial) with 1 to 3 spatial axes, "
                f"found {tuple(self.images.shape)}"
            )
        if self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"each image needs one label: found {self.images.shape[0]} images and labels of "
                f"shape {tuple(self.labels.shape)}"
            )
        if 0 in self.images.shape:
            raise DataError(
                f"a set of images must not be empty, found shape {tuple(self.images.shape)}"
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= self.num_classes:
            raise DataError(
                f"labels must lie in 0 to {self.num_classes - 1} (there are {self.num_classes} "
                f"class names), found {low if low < 0 else high}"
            )

    def __len__(self) -> int:
        return self.images.shape[0]

    @property
    def num_classes(self) -> int:
        """How many classes there are, whether or not each has an image here."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """Numbers a pixel: 1 for grey images, 3 for colour."""
        return self.images.shape[1]

    @property
    def size(self) -> tuple[int, ...]:
        """Pixels along each spatial axis."""
        return tuple(self.images.shape[2:])

    @property
    def dtype(self) -> torch.dtype:
        """uint8 for pixels 0 to 255, float32 for other numbers."""
        return self.images.dtype

    @property
    def is_stored(self) -> bool:
        """Whether the images stay on the disk until they are needed."""
        return isinstance(self.images, StoredImages)

    def subset(self, indices: Tensor) -> "ImageSet":
        """The images at these indices, in the order of the indices."""
        images, where = self.images, indices.to(self.labels.device)
        return ImageSet(
            images=images.subset(where) if isinstance(images, StoredImages) else images[where],
            labels=self.labels[where],
            class_names=self.class_names,
        )

    def to(self, device: torch.device | str) -> "ImageSet":
        """The same set with the labels, and images that are in memory, on that device."""
        images = self.images
        return ImageSet(
            images=images if isinstance(images, StoredImages) else images.to(device),
            labels=self.labels.to(device),
            class_names=self.class_names,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DataSet:
    """What a reader returns: images to learn from and images that only the final test may see."""

    name: str
    """How configs refer to it."""
    train: ImageSet
    """Images for training, and for validation unless there are others for that."""
    test: ImageSet
    """Images for the reported test accuracy."""
    validation: ImageSet | None = None
    """Images for validation, where they are given; None: part of the training images."""

    def __post_init__(self) -> None:
        for kind, other in (("test", self.test), ("validation", self.validation)):
            # Bytes are divided by 255, other numbers are not: mixed parts would not compare.
            for what in ("channels", "size", "class_names", "dtype"):
                if other is not None and getattr(self.train, what) != getattr(other, what):
                    raise DataError(
                        f"{self.name}: training and {kind} images must have the same {what}, "
                        f"found {getattr(self.train, what)} and {getattr(other, what)}"
                    )
