"""
Coarsen a trained network
=========================

Weights are coefficients of an equation and belong to no mesh. Three kinds of smooth pulses are
learned at 128 points, then told apart at 64 and 32 by the same stencils and by the same equation.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import pdecnn

LENGTH = 128


def make_pulses(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """A bump, its slope or its curvature, on a slowly varying ground."""
    draw, labels = torch.Generator().manual_seed(seed), torch.arange(number) % 3
    middle, width, height = torch.rand(3, number, 1, generator=draw)
    u = (torch.linspace(0, 1, LENGTH) - 0.3 - 0.4 * middle) / (0.04 + 0.02 * width)
    kinds = torch.stack([torch.ones_like(u), -1.6 * u, 1 - u**2]) * torch.exp(-(u**2) / 2)
    modes = torch.sin(torch.pi * torch.outer(torch.arange(1, 5), torch.linspace(0, 1, LENGTH)))
    ground = 0.1 * torch.randn(number, 4, generator=draw) @ modes
    return ((0.5 + height) * kinds[labels, torch.arange(number)] + ground)[:, None], labels


torch.manual_seed(0)
(signals, labels), test = make_pulses(600, seed=0), make_pulses(300, seed=1)
config = pdecnn.NetworkConfig(channels=(8, 16, 16), in_channels=1, num_classes=3, dimension=1)
network = pdecnn.Network(config, pdecnn.Preprocessing(standardize="none"))
objective, optimizer = pdecnn.Objective(), pdecnn.ProjectedSGD(network, learning_rate=0.1)
for optimizer.learning_rate in (0.1,) * 6 + (0.02,) * 2:
    for batch in torch.randperm(len(signals)).split(30):
        optimizer.zero_grad()
        objective(network, network(signals[batch]), labels[batch]).total.backward()
        optimizer.step()

# %%
# ``coarsen_in_space`` averages the signals over cells and re-discretises every stencil.
rows = {"same stencils": [], "same equation": [], "Galerkin": []}
for factor in (1, 2, 4):
    equation = pdecnn.coarsen_in_space(network, factor)
    galerkin = pdecnn.coarsen_in_space(network, factor, method="galerkin")
    stencils = pdecnn.coarsen_in_space(network, factor)
    stencils.load_state_dict(network.state_dict())  # put back as they were
    for row, coarse in zip(rows, (stencils, equation, galerkin), strict=True):
        with torch.no_grad():
            right = coarse.eval()(coarse.preprocess(test[0])).argmax(1) == test[1]
        rows[row].append(right.double().mean().item())
figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for (name, values), marker in zip(rows.items(), "os^", strict=True):
    print(f"{name}: " + ", ".join(f"{value:.3f}" for value in values))
    axis.plot(["128 points", "64", "32"], values, marker=marker, label=name)
axis.axhline(1 / 3, color="grey", linestyle=":", label="by chance")
axis.set(ylabel="test accuracy", ylim=(0, 1.02), title="Trained at 128 points only")
axis.legend(loc="lower left")
plt.show()
