"""Labelled images, in memory or on the disk: the examples (y_i, c_i) of Section 2.

And seeded choices of them: class-balanced splits, and the batches of an epoch (Section 5).
"""

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pdecnn.data.augmentation import cpu_generator
from pdecnn.errors import ConfigError, DataError
from pdecnn.settings import check_count

LARGEST_IN_MEMORY = 4 * 2**30
"""Bytes; a larger set stays on the disk unless it is said otherwise."""
BATCHES_AHEAD = 2
_MOST_WORKERS = 16
LARGEST_RATIO = 10
"""Of the sizes of two classes, before it is worth a warning."""
_TEST_SHARE = 0.2
# Part of the definition of a test set: another number is another test set.
_TEST_SEED = 0
_DRAWS = 32


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
        if self.images.dtype not in (torch.uint8, torch.float32):
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

    def subset(self, indices: Tensor) -> "ImageSet":
        """The images at these indices, in the order of the indices."""
        images, where = self.images, indices.to(self.labels.device)
        return self._each(
            lambda tensor: tensor[where],
            images=images.subset(where) if isinstance(images, StoredImages) else images[where],
            groups=None if self.groups is None else self.groups[indices.cpu()],
            names=None if self.names is None else tuple(self.names[k] for k in where.tolist()),
        )

    def to(self, device: torch.device | str) -> "ImageSet":
        """The same set with the labels, and images that are in memory, on that device."""
        images = self.images
        return self._each(
            lambda tensor: tensor.to(device),
            images=images if isinstance(images, StoredImages) else images.to(device),
        )

    def _each(self, change: Callable[[Tensor], Tensor], **others: Any) -> "ImageSet":
        """The set with what is on the device of the labels changed, and the others given."""
        names = ("labels", "sizes", "spacings", "masks")
        tensors = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {
            name: change(one) for name, one in tensors.items() if one is not None
        }
        return replace(self, **changed, **others)


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

    @classmethod
    def of_parts(cls, name: str, parts: Mapping[str, ImageSet]) -> "DataSet":
        """The set of 'train', perhaps 'validation' and 'test', which is held out if missing."""
        train, test = parts["train"], parts.get("test")
        if test is None:
            kept, held_out = hold_out_test(train.labels, train.groups)
            train, test = train.subset(kept), train.subset(held_out)
        return cls(name=name, train=train, test=test, validation=parts.get("validation"))


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


# ------------------------------------------------------------------ choices of samples


def hold_out_test(labels: Tensor, groups: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Indices (kept, test) for data that has no test part of its own: the same in every run."""
    if _share(len(labels), _TEST_SHARE) == 0:
        raise DataError(
            f"{len(labels)} samples are too few to hold a test part out of; add some, or give a "
            f"test part"
        )
    return balanced_split(labels, _TEST_SHARE, seed=_TEST_SEED, purpose="test set", groups=groups)


def number_groups(names: Mapping[str, Sequence[str]]) -> dict[str, Tensor]:
    """The groups of the samples of each part as numbers; a DataError where parts share one."""
    parts = {name: part for part, found in names.items() for name in found}
    for part, found in names.items():
        for name in found:
            if parts[name] != part:
                both = " and ".join(sorted((part, parts[name])))
                raise DataError(
                    f"the group {name!r} has samples in the parts {both}; put all of a group into "
                    f"one of them"
                )
    numbers = {name: number for number, name in enumerate(sorted(parts))}
    return {part: torch.tensor([numbers[name] for name in found]) for part, found in names.items()}


def imbalance(labels: Tensor, class_names: tuple[str, ...]) -> str | None:
    """A warning where the largest class has more than `LARGEST_RATIO` times the smallest."""
    counts = torch.bincount(labels.cpu(), minlength=len(class_names))
    small, large = int(counts.argmin()), int(counts.argmax())
    if counts[large] <= LARGEST_RATIO * counts[small]:
        return None
    return (
        f"warning: {counts[large]:,} training samples of {class_names[large]!r}, but "
        f"{counts[small]:,} of {class_names[small]!r}; accuracy says little then: look at "
        f"balanced_accuracy, and consider training.class_weights"
    )


def balanced_split(
    labels: Tensor,
    held_out: int | float,
    *,
    seed: int,
    purpose: str = "validation",
    groups: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Indices (kept, held out), disjoint and together all; each sorted, on the CPU.

    `held_out` is a number of images if an int, a fraction in (0, 1) if a float. The held-out
    part has exactly that many images, rounded half up, and of each class its share to within
    one image. `purpose` separates splits that have the same seed. With `groups`, a number for
    each image, whole groups are held out, and both as nearly as they allow.
    """
    num_labels = len(labels)
    if isinstance(held_out, float) and not 0 < held_out < 1:
        raise ConfigError(f"the held-out fraction must be in (0, 1), found {held_out}")
    num_held_out = _share(num_labels, held_out) if isinstance(held_out, float) else held_out
    if not 0 < num_held_out < num_labels:
        is_setting = isinstance(held_out, float) and purpose == "validation"
        remedy = "set data.validation_fraction for" if is_setting else "choose"
        raise ConfigError(
            f"holding out {num_held_out} of {num_labels} images leaves one part empty; {remedy} "
            f"1 to {num_labels - 1}"
        )
    if groups is None:
        chosen = _balanced_choice(labels, num_held_out, seed=seed, purpose=purpose)
    else:
        chosen = _grouped_choice(labels, groups, num_held_out, seed=seed, purpose=purpose)
    is_kept = torch.ones(num_labels, dtype=torch.bool)
    is_kept[chosen] = False
    return is_kept.nonzero().flatten(), chosen


def balanced_fraction(labels: Tensor, fraction: float, *, seed: int) -> Tensor:
    """Sorted indices of this fraction of the images, balanced by class; 1 is all of them."""
    if not 0 < fraction <= 1:
        raise ConfigError(f"the fraction of the images must be in (0, 1], found {fraction}")
    count = _share(len(labels), fraction)
    if count == 0:
        raise ConfigError(
            f"a fraction of {fraction} of {len(labels)} images is no image; choose a larger one"
        )
    return _balanced_choice(labels, count, seed=seed, purpose="fraction")


def _share(total: int, fraction: float) -> int:
    return math.floor(total * fraction + 0.5)


def _balanced_choice(labels: Tensor, count: int, *, seed: int, purpose: str) -> Tensor:
    labels = labels.cpu()
    sizes = [int(size) for size in torch.bincount(labels)]
    chosen = []
    for label, quota in enumerate(_largest_remainder(sizes, count)):
        # One generator a class: what is drawn from a class does not depend on the others.
        generator = cpu_generator(seed, purpose, label)
        members = (labels == label).nonzero().flatten()
        chosen.append(members[torch.randperm(sizes[label], generator=generator)[:quota]])
    return torch.cat(chosen).sort().values


def _grouped_choice(
    labels: Tensor, groups: Tensor, count: int, *, seed: int, purpose: str
) -> Tensor:
    """Sorted indices of whole groups, about `count`: the draw that is nearest in every class."""
    labels = labels.cpu()
    _, members, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    sizes = counts.tolist()
    if len(sizes) < 2:
        raise DataError(
            f"a {purpose} part cannot be held out of 1 group: at least 2 are needed, one of them "
            f"to train on; give more or smaller groups, a test part, or data.validation_fraction=0"
        )
    totals = torch.bincount(labels).tolist()
    draws = []
    for number in range(_DRAWS):
        order = torch.randperm(len(sizes), generator=cpu_generator(seed, purpose, "group", number))
        is_chosen = torch.zeros(len(sizes), dtype=torch.bool)
        is_chosen[_fill(order.tolist(), sizes, count)] = True
        chosen = is_chosen[members].nonzero().flatten()
        found = torch.bincount(labels[chosen], minlength=len(totals)).tolist()
        pairs = [(part, total) for part, total in zip(found, totals, strict=True) if total]
        lost = sum(part == total for part, total in pairs)
        apart = sum(abs(part * len(labels) - total * count) / total for part, total in pairs)
        draws.append((lost, apart, number, chosen))
    lost, _, _, best = min(draws, key=lambda draw: draw[:3])
    if lost:
        raise DataError(
            f"a {purpose} part of whole groups takes all samples of a class: {len(sizes)} groups "
            f"are too few, or a group is a class; give each class at least 3 groups"
        )
    return best


def _fill(order: list[int], sizes: list[int], count: int) -> list[int]:
    """Groups in turn, each if it brings the sum nearer to the count: within half the largest."""
    chosen: list[int] = []
    for group in order:
        if len(chosen) < len(sizes) - 1 and sizes[group] <= 2 * count:
            chosen.append(group)
            count -= sizes[group]
    return chosen or [min(order, key=lambda group: sizes[group])]


def _largest_remainder(sizes: list[int], count: int) -> list[int]:
    """Whole numbers that sum to count, each within one of its proportional share."""
    total = sum(sizes)
    quotas = [count * size // total for size in sizes]
    # A stable sort: equal remainders go to the lower class, on every machine.
    by_remainder = sorted(range(len(sizes)), key=lambda k: -(count * sizes[k] % total))
    for label in by_remainder[: count - sum(quotas)]:
        quotas[label] += 1
    return quotas


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch visits the samples: an int64 permutation on the CPU."""
    return torch.randperm(num_samples, generator=cpu_generator(seed, epoch, "order"))


def training_batches(num_samples: int, batch_size: int, *, seed: int, epoch: int) -> Tensor:
    """The epoch's order in rows, one batch a row: int64, shape (num_batches, batch_size).

    An incomplete last batch is dropped; as the order changes, other samples miss out each
    epoch. One tensor for the whole epoch can go to the device in one copy.
    """
    check_count("batch_size", batch_size)
    if batch_size > num_samples:
        raise ConfigError(
            f"a batch size of {batch_size} exceeds the {num_samples} training samples, so that no "
            f"complete batch exists; choose at most {num_samples}"
        )
    num_batches = num_samples // batch_size
    order = epoch_order(num_samples, seed=seed, epoch=epoch)
    return order[: num_batches * batch_size].view(num_batches, batch_size)


def evaluation_batches(num_samples: int, batch_size: int) -> list[slice]:
    """Slices that cover all samples once and in order; the last may be shorter.

    A slice reads a batch as a view, on any device.
    """
    check_count("batch_size", batch_size)
    return [
        slice(start, min(start + batch_size, num_samples))
        for start in range(0, num_samples, batch_size)
    ]
