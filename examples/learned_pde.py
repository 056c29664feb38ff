r"""
What PDE did my network learn?
==============================

A 3x3 stencil is a sum of nine differential operators: reaction :math:`1`, convection
:math:`\partial_x`, diffusion :math:`\partial_x^2` and so on. So the stencils of a trained network
can be read. This one was trained on CIFAR-10 and comes with the package.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import pdecnn
from pdecnn.diagnostics import block_coefficients, pde_latex

SIZES = (32, 16, 8)  # of the images in each block
COLOURS = ("#4477aa", "#66ccee", "#ee6677", "#ccbb44", "#aa3377")


def shares(network: pdecnn.Network) -> list[dict[str, float]]:
    """How much each kind of term contributes to the stencils of each block."""
    return [
        block_coefficients(block, (size, size)).shares
        for block, size in zip(network.blocks, SIZES, strict=True)
    ]


torch.manual_seed(0)
name = "parabolic_cifar10"
trained = shares(pdecnn.create_model(name, pretrained=True))
drawn = shares(pdecnn.create_model(name))
kinds = list(trained[0])
for index, (new, old) in enumerate(zip(trained, drawn, strict=True), start=1):
    parts = ", ".join(f"{kind} {new[kind]:.0%} (random: {old[kind]:.0%})" for kind in kinds)
    print(f"block {index}: {parts}")

# %%
# Random stencils have shares too: a third is of third and fourth order. Training moves them to low
# orders: reaction and convection gain, third and fourth order lose half of that or more.
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
for axis, (title, found) in zip(axes, {"random": drawn, "trained": trained}.items(), strict=True):
    bottom = np.zeros(len(SIZES))
    for kind, colour in zip(kinds, COLOURS, strict=True):
        heights = np.array([block[kind] for block in found])
        axis.bar(
            ["block 1", "block 2", "block 3"], heights, bottom=bottom, label=kind, color=colour
        )
        bottom += heights
    axis.set(title=title, ylabel="share of the stencils" if axis is axes[0] else "")
axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %%
# And as LaTeX. Here is the heat equation, found again in a layer that was given its stencil.
layer = pdecnn.SymmetricLayer(1, activation="identity", normalization="none", dimension=1)
layer.convolution.stencil.data = torch.tensor([[[0.0, -8, 8]]])
block = pdecnn.Block([layer], "forward_euler", step_size=0.001, num_steps=10)
print(pde_latex(block, (8,)))
