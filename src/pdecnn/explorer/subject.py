"""What is explored: a trained network and the inputs one can pick for it."""

from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from pdecnn.data.image_file import read_image_bytes
from pdecnn.data.image_set import ImageSet
from pdecnn.data.registry import PUBLISHED
from pdecnn.errors import DataError
from pdecnn.learning.tasks import AbstractTask
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import refuse_nonfinite
from pdecnn.runs.config import DataConfig
from pdecnn.runs.preparation import (
    Device,
    make_run_task,
    open_run,
    read_splits,
    read_weights,
    resolve_device,
)
from pdecnn.runs.runs import Weights

PHOTOGRAPHS = {"cat.png": "cat", "flower.jpg": None, "china.jpg": None}
"""To begin with where there are no test images, and of which class each is. The cat is Chelsea of
scikit-image, by Stefan van der Walt, CC0, in 32 x 32 pixels; the others are scikit-learn's."""
_PHOTOGRAPHS_AS = (1, 3)
MOST_OF_FIELDS = {1: 4096, 2: 192, 3: 48}
"""Points an axis, of which the middle ones are taken where each has an answer."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Subject:
    """A network in evaluation mode with test samples, or with photographs in their place."""

    name: str
    network: Network
    test: ImageSet | None
    """None where the data are not there."""
    notice: str | None
    """Why there are no test samples."""

    @property
    def num_samples(self) -> int:
        """How many inputs there are to pick from."""
        return len(PHOTOGRAPHS) if self.test is None else len(self.test)

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the outputs of the network mean."""
        names = self.network.preprocessing.class_names
        return names or tuple(map(str, range(self.network.num_classes)))

    @property
    def takes_images(self) -> bool:
        """Whether image files are inputs of the network."""
        return _takes_images(self.network)

    def pixels(self, index: int) -> Tensor:
        """A sample, (channels, *spatial)."""
        if self.test is None:
            name = list(PHOTOGRAPHS)[index]
            own = PHOTOGRAPHS[name] is not None
            folder = resources.files("pdecnn.explorer" if own else "sklearn.datasets.images")
            return self.read((folder / name).read_bytes(), name)
        if self.test.sizes is not None:
            return self._middle(self.test.picture(index))
        return self.test.images[index : index + 1][0]

    def wanted(self, index: int) -> Tensor | None:
        """The classes of its pixels, (1, *spatial), where they are known."""
        if self.test is None or self.test.masks is None:
            return None
        return self._middle(self.test.mask(index)[None])

    def _middle(self, image: Tensor) -> Tensor:
        """What is explored of a large image: its states at all times must fit into memory."""
        most = MOST_OF_FIELDS[image.dim() - 1]
        for axis, size in enumerate(image.shape[1:], start=1):
            image = image.narrow(axis, max(0, (size - most) // 2), min(size, most))
        return image

    def label(self, index: int) -> str | None:
        """Its class, where that is known."""
        if self.network.config.is_field:
            return None
        if self.test is not None:
            return self.test.class_names[int(self.test.labels[index])]
        found = list(PHOTOGRAPHS.values())[index]
        return found if found in self.class_names else None

    def read(self, content: bytes, name: str) -> Tensor:
        """The content of an image file as an input of the network."""
        if not self.takes_images:
            raise DataError(_no_images(self.network))
        size = self.network.preprocessing.size
        height_width = None if size is None else (size[0], size[1])
        image = read_image_bytes(content, name, self.network.config.in_channels, height_width)
        return self._middle(image) if self.network.config.is_field else image

    def examples(self, number: int) -> list[int]:
        """So many samples to look at first: of each class one, then of each another, and so on."""
        if self.test is None:
            return list(range(min(number, self.num_samples)))
        labels = self.test.labels.cpu()
        order = torch.argsort(labels, stable=True)
        starts = torch.searchsorted(labels[order], labels[order])
        turn = torch.arange(len(labels)) - starts
        chosen: list[int] = order[torch.argsort(turn, stable=True)[:number]].tolist()
        return chosen


def open_subject(
    run: str | Path,
    *,
    data: str | Path | None = None,
    weights: Weights = "best",
    device: Device = "auto",
) -> Subject:
    """The network of a run directory, or the published one of a name, and what to show it.

    Where the data are not there and were not asked for by `data`, a network of images begins
    with photographs; any other cannot be explored without.
    """
    where = resolve_device(device)
    opened = open_run(run)
    config, network = opened.config, read_weights(opened, weights)
    refuse_nonfinite(network, Path(run))
    data_config = config.data if data is None else replace(config.data, folder=str(data))
    task = make_run_task(config)
    test, notice = _read_test(data_config, config.seed, network, task, optional=data is None)
    network.to(where).eval()
    return Subject(name=str(run), network=network, test=test, notice=notice)


def _read_test(
    config: DataConfig, seed: int, network: Network, task: AbstractTask, *, optional: bool
) -> tuple[ImageSet | None, str | None]:
    """The test samples, or why there are none."""
    try:
        test = read_splits(config, seed).test
        task.check_fit(network, test)
    except DataError as error:
        if not (
            optional and network.config.in_channels in _PHOTOGRAPHS_AS and _takes_images(network)
        ):
            raise
        meant = "; what shows none of the network's classes gets no prediction"
        return None, (
            f"{_own_images(config, error)}. These are other pictures"
            f"{meant if task.has_classes else ''}."
        )
    return test, None


def _own_images(config: DataConfig, error: DataError) -> str:
    if config.name not in PUBLISHED:
        return f"Its own images need --data DIR ({error})"
    title = PUBLISHED[config.name][0].title
    return (
        f"{title}'s own images need --data DIR; `pdecnn data download {config.name}` fetches them"
    )


def _takes_images(network: Network) -> bool:
    return network.config.dimension == 2


def _no_images(network: Network) -> str:
    config = network.config
    return (
        f"this network takes samples in {config.dimension}D, and image files have 2; pick one of "
        f"the test samples"
    )
