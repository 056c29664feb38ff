"""Which samples stand in which batch: a function of (seed, epoch) alone (Section 5)."""

import torch
from torch import Tensor

from pdecnn.data.random_numbers import cpu_generator
from pdecnn.errors import ConfigError


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
            f"a batch size of {batch_size} exceeds the {num_samples} training images, so that no "
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
