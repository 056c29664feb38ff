"""The memory a training step needs besides its weights and their gradients."""

import gc
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from pdecnn.data.image_set import ImageSet
from pdecnn.learning.memory import free_memory, is_out_of_memory
from pdecnn.learning.metrics import autocast
from pdecnn.networks.network import Network
from pdecnn.pde.acceleration import accelerated
from pdecnn.pde.convolution import fast_layout
from pdecnn.runs.bench.trainers import precision_of


def activation_bytes(
    network: Network, batch: ImageSet, *, fused: bool = False, warm_up: bool = True
) -> int | None:
    """Of forward and backward of one batch; None if it does not fit.

    Blocks run operator by operator, or with `fused` by the kernels of a captured step.

    On a GPU the peak of what is allocated, less what was before (weights and the batch) and
    less the weights' gradients. Elsewhere the bytes saved for backward, weights left out.
    On a GPU the first batch makes the libraries take workspaces, which are not meant:
    `warm_up` runs one before, not needed if a network of the same widths just ran.
    """
    images = fast_layout(network.preprocess(batch.images[:]))
    # Traced for its fused kernels, but nothing is compiled: that would take no less memory.
    with accelerated("eager") if fused else nullcontext():
        found = _activation_bytes_or_none(network.train(), images, batch.labels, warm_up)
    network.zero_grad()
    if found is None:
        free_memory()
    return found


def weight_bytes(network: Network) -> int:
    """Of all weights; their gradients and velocities take as much each."""
    return sum(weight.nbytes for weight in network.parameters())


def _activation_bytes_or_none(
    network: Network, images: Tensor, labels: Tensor, warm_up: bool
) -> int | None:
    # A function of its own: while the error lives, so do the tensors of the frames it names.
    try:
        if images.device.type == "cuda":
            if warm_up:
                _loss(network, images, labels).backward()  # type: ignore[no-untyped-call]
            return _peak_bytes(network, images, labels)
        return _saved_bytes(network, images, labels)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None


def _peak_bytes(network: Network, images: Tensor, labels: Tensor) -> int:
    device = images.device
    network.zero_grad()
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    _loss(network, images, labels).backward()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    gradients = sum(w.grad.nbytes for w in network.parameters() if w.grad is not None)
    return torch.cuda.max_memory_allocated(device) - before - gradients


def _saved_bytes(network: Network, images: Tensor, labels: Tensor) -> int:
    weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = _loss(network, images, labels)
    total = sum(saved.values())
    loss.backward()  # type: ignore[no-untyped-call]
    return total


def _loss(network: Network, images: Tensor, labels: Tensor) -> Tensor:
    with autocast(precision_of(images.device), images.device):
        scores = network(images)
    return functional.cross_entropy(scores, labels)
