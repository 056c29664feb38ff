"""
Memory against depth
====================

What autograd keeps for the backward pass of one Hamiltonian block, counted in bytes. Stored
states grow with the number of steps; a wave that runs backwards needs one, at any depth.
"""

import matplotlib.pyplot as plt
import torch
from torch.autograd.graph import saved_tensors_hooks

from pdecnn import BACKPROP_MODES, Block, SymmetricLayer

DEPTHS = (3, 10, 30, 100)
torch.manual_seed(0)
features = torch.randn(2, 16, 32, 32)


def saved_megabytes(block: Block) -> float:
    """What is kept for the gradient, every tensor once, weights left out."""
    weights = {weight.untyped_storage().data_ptr() for weight in block.parameters()}
    saved = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        block(features.requires_grad_())
    return sum(saved.values()) / 1e6


figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
for mode, marker in zip(BACKPROP_MODES, "os^v", strict=True):
    megabytes = []
    for depth in DEPTHS:
        layers = [SymmetricLayer(8), SymmetricLayer(8)]  # shared by all steps
        block = Block(layers, "verlet", step_size=0.1, num_steps=depth, backprop=mode)
        megabytes.append(saved_megabytes(block))
    print(
        f"{mode}: {megabytes[0]:.2f} MB at {DEPTHS[0]} steps, {megabytes[-1]:.2f} at {DEPTHS[-1]}"
    )
    axis.loglog(
        DEPTHS, megabytes, marker=marker, label=mode, linestyle="--" if marker == "v" else "-"
    )
axis.set(
    xlabel="time steps", ylabel="kept for the gradient, MB", title="One block, 16 channels, 32x32"
)
axis.legend()
plt.show()
