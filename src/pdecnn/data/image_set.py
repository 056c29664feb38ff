"""Labelled images, in memory or on the disk: the examples (y_i, c_i) of Section 2."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from pdecnn.data.split import evaluation_batches
from pdecnn.errors import DataError

LARGEST_IN_MEMORY = 4 * 2**30
"""Bytes; a larger set stays on the disk unless it is said otherwise."""
BATCHES_AHEAD = 2
_MOST_WORKERS = 16


def num_workers() -> int:
    """How many threads read images: one a core. What they read does not depend on it."""
    return min(os.cpu_count() or 1, _MOST_WORKERS)


class StoredImages:
    """The images at some places of a source too large for memory.

    Like a tensor it has a shape and a dtype and can be indexed, which reads the images; `read`
    must give the same bits each time and be free to run in several threads.
    """

    def __init__(
        self,
        read: Callable[[int], Tensor],
        places: Tensor,
        *,
        image_shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> None:
        self.read, self.places = read, places
        self.shape = torch.Size((len(places), *image_shape))
        self.dtype = dtype

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, where: slice | Tensor) -> Tensor:
        return next(self.batches([where]))

    def subset(self, indices: Tensor) -> "StoredImages":
        """The images at these indices, still on the disk."""
        places = self.places[indices.cpu()]
        return StoredImages(self.read, places, image_shape=self.shape[1:], dtype=self.dtype)

    def batches(
        self, groups: Iterable[slice | Tensor], *, pin_memory: bool = False
    ) -> Iterator[Tensor]:
        """The images of each group in turn, read while the caller works on earlier ones.

        In pinned memory a copy to a GPU does not wait.
        """
        workers = num_workers()
        pool = ThreadPoolExecutor(workers, thread_name_prefix="images")
        waiting: deque[tuple[Tensor, list[Future[None]]]] = deque()
        try:
            for group in groups:
                places = self.places[group].tolist()
                batch = torch.empty(
                    (len(places), *self.shape[1:]), dtype=self.dtype, pin_memory=pin_memory
                )
                parts = (
                    slice(k * len(places) // workers, (k + 1) * len(places) // workers)
                    for k in range(workers)
                )
                waiting.append(
                    (batch, [pool.submit(self._fill, batch[p], places[p]) for p in parts])
                )
                if len(waiting) > BATCHES_AHEAD:
                    yield _finished(*waiting.popleft())
            while waiting:
                yield _finished(*waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def _fill(self, batch: Tensor, places: list[int]) -> None:
        for row, place in enumerate(places):
            batch[row] = self.read(place)


def _finished(batch: Tensor, parts: list[Future[None]]) -> Tensor:
    for part in parts:
        part.result()
    return batch


def image_batches(
    images: Tensor | StoredImages, groups: Iterable[slice | Tensor]
) -> Iterator[Tensor]:
    """The images of each group in turn, wherever they are."""
    if isinstance(images, StoredImages):
        return images.batches(groups)
    return (images[group] for group in groups)


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
    groups: Tensor | None = None
    """int64, shape (n,), on the CPU: what has one number is never split; None: no groups."""
    sizes: Tensor | None = None
    """Of pictures that differ in size, int64 (n, axes): each stands at the beginning of every axis
    and is padded to the largest; None: all have one size."""
    spacings: Tensor | None = None
    """float32, shape (n, axes): how far pixels lie apart along each axis; None: equally far."""
    names: tuple[str, ...] | None = None
    """What pictures are called, in order."""
    masks: Tensor | None = None
    """uint8, shape (n, *spatial): a class for each pixel, of which `labels` then say nothing; None:
    each image has one class."""

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
        if self.groups is not None and self.groups.shape != self.labels.shape:
            raise DataError(
                f"each image needs one group: found {len(self.labels)} images and groups of shape "
                f"{tuple(self.groups.shape)}"
            )
        if self.masks is not None and self.masks.shape != (len(self), *self.size):
            raise DataError(
                f"each pixel needs one label: found images of shape {tuple(self.images.shape)} and "
                f"labels of shape {tuple(self.masks.shape)}"
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
    def dimension(self) -> int:
        """How many spatial axes there are."""
        return len(self.size)

    def name_of(self, place: int) -> str:
        """What an image is called; its place, where it has no name."""
        return str(place) if self.names is None else self.names[place]

    def picture(self, place: int) -> Tensor:
        """One image of its own size, (channels, *spatial)."""
        return self._of_its_size(self.images[place : place + 1], place)[0]

    def mask(self, place: int) -> Tensor:
        """The classes of the pixels of one image, (*spatial)."""
        assert self.masks is not None, "the images have a class for each pixel"
        return self._of_its_size(self.masks[None, place : place + 1], place)[0, 0]

    def _of_its_size(self, images: Tensor, place: int) -> Tensor:
        for axis, n in enumerate(() if self.sizes is None else self.sizes[place].tolist(), start=2):
            images = images.narrow(axis, 0, n)
        return images

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
            groups=None if self.groups is None else self.groups[indices.cpu()],
            sizes=None if self.sizes is None else self.sizes[where],
            spacings=None if self.spacings is None else self.spacings[where],
            names=None if self.names is None else tuple(self.names[k] for k in where.tolist()),
            masks=None if self.masks is None else self.masks[where],
        )

    def to(self, device: torch.device | str) -> "ImageSet":
        """The same set with the labels, and images that are in memory, on that device."""
        images = self.images
        return ImageSet(
            images=images if isinstance(images, StoredImages) else images.to(device),
            labels=self.labels.to(device),
            class_names=self.class_names,
            groups=self.groups,
            sizes=None if self.sizes is None else self.sizes.to(device),
            spacings=None if self.spacings is None else self.spacings.to(device),
            names=self.names,
            masks=None if self.masks is None else self.masks.to(device),
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
                if what == "size" and self.train.sizes is not None:
                    continue
                if other is not None and getattr(self.train, what) != getattr(other, what):
                    raise DataError(
                        f"{self.name}: training and {kind} images must have the same {what}, "
                        f"found {getattr(self.train, what)} and {getattr(other, what)}"
                    )


_AT_A_TIME = 1024


def channel_statistics(image_set: ImageSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation per channel; bytes count as pixels in [0, 1].

    Images are taken in portions of one size, so that the result has the same bits whether they
    are in memory or on the disk.
    """
    portions = evaluation_batches(len(image_set), _AT_A_TIME)
    mean = _mean(image_set, portions, torch.zeros(image_set.channels, dtype=torch.float64), 1)
    variance = _mean(image_set, portions, mean, 2)
    std = variance.sqrt()
    if image_set.images.dtype == torch.uint8:
        std = std.clamp(min=1 / 255)
    else:  # numbers in units of their own: only what is constant is not scaled
        std = torch.where(std > 0, std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())


def _mean(image_set: ImageSet, portions: list[slice], centre: Tensor, power: int) -> Tensor:
    total = torch.zeros(image_set.channels, dtype=torch.float64)
    for images in image_batches(image_set.images, portions):
        values = images.cpu().transpose(0, 1).flatten(1).double()
        if images.dtype == torch.uint8:
            values = values / 255
        total += (values - centre[:, None]).pow(power).sum(1)
    count = len(image_set)
    for size in image_set.size:
        count *= size
    return total / count
