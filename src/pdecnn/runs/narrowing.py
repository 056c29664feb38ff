"""A network made narrower until it has as many weights as another, for a fair comparison."""

from dataclasses import replace
from functools import cache

import torch

from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network

_FINEST = 1000  # parts of a width, so that each width is rounded on its own


@cache
def count_weights(config: NetworkConfig) -> int:
    """The number of trainable weights, without drawing any."""
    with torch.device("meta"):
        return Network(config).num_weights


def narrowed(config: NetworkConfig, num_weights: int) -> NetworkConfig:
    """The network with fewer channels, in proportion, that comes nearest to a weight count."""
    low, high = 1, _FINEST
    while high - low > 1:
        middle = (low + high) // 2
        if count_weights(_scaled(config, middle)) <= num_weights:
            low = middle
        else:
            high = middle
    candidates = (_scaled(config, low), _scaled(config, high))
    return min(candidates, key=lambda candidate: abs(count_weights(candidate) - num_weights))


def _scaled(config: NetworkConfig, parts: int) -> NetworkConfig:
    widths = tuple(max(1, round(width * parts / _FINEST)) for width in config.channels)
    return replace(config, channels=widths)
