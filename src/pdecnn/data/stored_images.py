"""Images that stay on the disk and are read, some batches ahead, by threads."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

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
