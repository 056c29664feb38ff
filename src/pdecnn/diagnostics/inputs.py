"""What the blocks of a network meet: the features that images bring to each of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pdecnn.networks.network import Network


@torch.no_grad()
def block_inputs(network: Network, images: Tensor) -> list[Tensor]:
    """The features each block starts from, for standardised images, in evaluation mode."""
    inputs = []
    with evaluation_mode(network):
        features: Tensor = network.opening(images)
        for block, connector in zip(network.blocks, network.connectors, strict=True):
            inputs.append(features)
            features = connector(block(features))
    return inputs


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Within it a module is in evaluation mode; every part goes back to the mode it had."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training
