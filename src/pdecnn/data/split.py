"""Seeded choices of samples: class-balanced splits, and the batches of an epoch (Section 5)."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pdecnn.data.augmentation import cpu_generator
from pdecnn.errors import ConfigError, DataError

LARGEST_RATIO = 10
"""Of the sizes of two classes, before it is worth a warning."""
_TEST_SHARE = 0.2
# Part of the definition of a test set: another number is another test set.
_TEST_SEED = 0
_DRAWS = 32


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
    if isinstance(held_out, float):
        if not 0 < held_out < 1:
            raise ConfigError(f"the held-out fraction must be in (0, 1), found {held_out}")
        num_held_out = _share(num_labels, held_out)
    else:
        num_held_out = held_out
    if not 0 < num_held_out < num_labels:
        raise ConfigError(
            f"holding out {num_held_out} of {num_labels} images leaves one part empty; choose "
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
    _check_batch_size(batch_size)
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
    _check_batch_size(batch_size)
    return [
        slice(start, min(start + batch_size, num_samples))
        for start in range(0, num_samples, batch_size)
    ]


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ConfigError(f"the batch size must be at least 1, found {batch_size}")
