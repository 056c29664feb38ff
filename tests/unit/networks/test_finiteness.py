"""Weights that are no numbers are counted and named."""

from pathlib import Path

import pytest
import torch

from pdecnn.errors import DivergedError
from pdecnn.networks.pretrained import nonfinite_weights, refuse_nonfinite
from tests.unit.learning.trainings import make_network


def test_a_network_of_numbers_is_taken():
    network = make_network()
    assert nonfinite_weights(network) is None
    refuse_nonfinite(network, Path("run"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_and_statistics_count_alike(value):
    network = make_network()
    with torch.no_grad():
        network.classifier.weight[0, 0] = value
        network.connectors[0].normalization.running_mean.fill_(value)
    number = 1 + network.connectors[0].normalization.running_mean.numel()
    total = sum(t.numel() for t in network.state_dict().values() if t.is_floating_point())
    said = f"{number} of {total:,} weights are NaN or infinite, the first in connectors.0."
    assert nonfinite_weights(network).startswith(said)
    with pytest.raises(DivergedError, match=r"run/best: .*take other weights"):
        refuse_nonfinite(network, Path("run/best"))
