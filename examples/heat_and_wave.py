r"""
Heat and wave on one image
==========================

One operator, two equations: :math:`\partial_t Y = -K^\top K Y` forgets the image, while
:math:`\partial_t^2 Y = -K^\top K Y` carries it away and brings it back.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_sample_image
from torch.nn.functional import avg_pool2d

from pdecnn import Block, SymmetricLayer

SHOWN = (0, 12, 30, 60, 120)  # steps


def laplacian() -> SymmetricLayer:
    """-K^T K with K the forward differences along both axes."""
    layer = SymmetricLayer(1, hidden_channels=2, activation="identity", normalization="none")
    along_x = torch.tensor([[0.0, 0, 0], [0, -1, 1], [0, 0, 0]])
    layer.convolution.stencil.data = torch.stack([along_x, along_x.T])[:, None]
    return layer


pixels = torch.tensor(load_sample_image("flower.jpg")[30:414, 112:496]) / 255
image = avg_pool2d(pixels.mean(2)[None, None], 3)
rim = torch.hann_window(image.shape[-1], periodic=False).mul(8).clamp(max=1)
image = (image - image.median()) * rim * rim[:, None]  # features are zero outside the image

# %%
# Both steps stay below their bounds, :math:`2/\|K\|^2` for heat and :math:`2/\|K\|` for waves.
norm = laplacian().convolution.norm_bound(image.shape[2:])
heat = Block([laplacian()], "forward_euler", step_size=1.5 / norm**2, num_steps=SHOWN[-1])
wave = Block([laplacian()], "leapfrog", step_size=0.5 / norm, num_steps=SHOWN[-1])
with torch.no_grad():
    cooling, out = heat.trajectory(image), wave.trajectory(image)
    back = [out[-1]]
    for layers in reversed(wave.steps):
        back.insert(0, wave.integrator.step_back(layers, back[0], wave.step_size))
error = (back[0][0] - image).abs().max()
print(f"heat: contrast left after {SHOWN[-1]} steps {cooling[-1][0].std() / image.std():.2f}")
print(f"wave: largest error after {SHOWN[-1]} steps out and back {error:.1e}")

figure, axes = plt.subplots(3, 5, figsize=(9.6, 6.2), layout="constrained")
rows = ("heat", cooling, SHOWN), ("wave out", out, SHOWN), ("wave back", back, SHOWN[::-1])
for line, (name, states, steps) in zip(axes, rows, strict=True):
    line[0].set_ylabel(name, fontsize=13)
    for axis, step in zip(line, steps, strict=True):
        axis.imshow(states[step][0][0, 0].numpy(), cmap="gray", vmin=-0.4, vmax=0.8)
        axis.set(title=f"step {step}", xticks=[], yticks=[])
plt.show()
