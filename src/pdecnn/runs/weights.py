"""The weights of a run, or of a folder or file, as a network takes them."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from pdecnn.errors import CheckpointError
from pdecnn.networks.foreign import take_foreign_weights
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import WEIGHTS as MODEL
from pdecnn.networks.pretrained import refuse_nonfinite
from pdecnn.networks.registry import take_weights
from pdecnn.runs.runs import Run


def weights_folder(path: str | Path, weights: str = "best") -> Path:
    """The `from_pretrained` folder meant by a run directory or by such a folder itself."""
    path = Path(path)
    return path if os.path.isfile(path / MODEL) else Run(path).weights(weights)


def load(path: str | Path, weights: str = "best") -> Network:
    """The trained network of a run directory or `save_pretrained` folder, in evaluation mode."""
    return Network.from_pretrained(weights_folder(path, weights)).eval()


def take_initial(
    initial: str | None, foreign: bool, note: Callable[[str], None], network: Network
) -> None:
    """Take the weights a run begins with, unless they are drawn at random."""
    if initial is None:
        return
    if os.path.isfile(initial):
        if not foreign:
            raise CheckpointError(
                f"{initial}: is a file; pass a run, a save_pretrained folder, or --foreign to take "
                f"the tensors, and nothing else, of a file of torch.save"
            )
        take_foreign_weights(network, Path(initial))
        refuse_nonfinite(network, Path(initial))
        return
    fresh = network.classifier.weight.detach().clone()
    folder = weights_folder(initial)
    take_weights(network, Network.from_pretrained(folder), folder)
    refuse_nonfinite(network, Path(initial))
    if torch.equal(network.classifier.weight, fresh):
        note(f"other classes than in {initial}: the classifier starts anew")
