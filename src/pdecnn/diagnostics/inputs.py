"""What the blocks of a network meet: the features that images bring to each of them."""

import torch
from torch import Tensor

from pdecnn.networks.network import Network, evaluation_mode


@torch.no_grad()
def block_inputs(network: Network, images: Tensor) -> list[Tensor]:
    """The features each block starts from, for standardised images, in evaluation mode."""
    inputs = []
    with evaluation_mode(network):
        features = network.open(images)
        for block, connector in zip(network.blocks, network.connectors, strict=True):
            inputs.append(features)
            features = connector(block(features))
    return inputs
