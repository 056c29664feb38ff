"""A network without its end: features of several resolutions, for networks of others."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from torch import Tensor, nn

from pdecnn.networks.network import Network


class FeatureInfo(Sequence[dict[str, Any]]):
    """What each of the features has, as timm's `feature_info`: channels and pixels."""

    def __init__(self, entries: Sequence[dict[str, Any]]) -> None:
        self._entries = tuple(entries)

    def __getitem__(self, index: Any) -> Any:
        return self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def channels(self) -> list[int]:
        """The channels of each."""
        return [entry["num_chs"] for entry in self]

    def reduction(self) -> list[int]:
        """How many pixels of an image, along an axis, are one of theirs."""
        return [entry["reduction"] for entry in self]


class FeatureNetwork(nn.Module):
    """The features after each block of a network, what `create_model(features_only=True)` returns.

    Nothing after the last block is computed or trained.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        # Weights without a gradient would stop DistributedDataParallel, and regularisers move them.
        network.connectors[-1].requires_grad_(False)
        network.classifier.requires_grad_(False)
        config = network.config
        self.feature_info = FeatureInfo(
            [
                {
                    "num_chs": width,
                    "reduction": config.patch_size * 2**level,
                    "module": f"blocks.{k}",
                }
                for k, (width, level) in enumerate(
                    zip(config.channels[:-1], config.block_levels, strict=True)
                )
            ]
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        """The features of standardised images, (batch, channels, *spatial), finest first."""
        return self.network.forward_intermediates(images)

    def preprocess(self, images: Tensor | npt.NDArray[Any]) -> Tensor:
        """Standardised images, on the device and in the dtype of the weights."""
        return self.network.preprocess(images)
