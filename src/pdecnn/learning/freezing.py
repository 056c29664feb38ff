"""Parts of a network that a training leaves as they are, to the bit (transfer learning)."""

from collections.abc import Sequence

from torch import nn

from pdecnn.networks.network import Network

FREEZABLE = ("opening", "blocks")
"""What can be frozen: the opening; the blocks, each with the connector after it."""


def freeze_(network: Network, names: Sequence[str]) -> None:
    """Take the weights of these parts out of the training."""
    for part in _parts(network, names):
        part.requires_grad_(False)


def training_mode_(network: Network, names: Sequence[str]) -> None:
    """Training mode, but for frozen parts: their batch norms use and keep their statistics."""
    network.train()
    for part in _parts(network, names):
        part.eval()


def _parts(network: Network, names: Sequence[str]) -> list[nn.Module]:
    parts: dict[str, list[nn.Module]] = {
        "opening": [network.opening],
        "blocks": [network.blocks, network.connectors],
    }
    return [part for name in names for part in parts[name]]
