r"""
Total-variation denoising is a parabolic block
==============================================

With :math:`K = \nabla`, identity activation and the total-variation norm, the symmetric layer is
:math:`\partial_t Y = -K^\top \big(K Y / \sqrt{|K Y|^2 + \epsilon}\big)`: Rudin, Osher and Fatemi.
"""

from math import log10, sqrt

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_sample_image
from torch.nn.functional import avg_pool2d, pad

from pdecnn import Block, SymmetricLayer

NOISE = 0.1  # its standard deviation, for pixels in [0, 1]; the method knows it
RIM = 8  # mirrored pixels around the image, because features are zero outside


def total_variation_flow(size: tuple[int, int], num_steps: int) -> Block:
    layer = SymmetricLayer(1, hidden_channels=2, activation="identity", affine=False, epsilon=1e-4)
    along_x = torch.tensor([[0.0, 0, 0], [0, -1, 1], [0, 0, 0]])
    layer.convolution.stencil.data = torch.stack([along_x, along_x.T])[:, None]
    bound = 2 * sqrt(layer.normalization.epsilon) / layer.convolution.norm_bound(size) ** 2
    return Block([layer], "forward_euler", step_size=0.9 * bound, num_steps=num_steps)


@torch.no_grad()
def denoise(noisy: torch.Tensor) -> torch.Tensor:
    """Follow the flow until as much is removed as there is noise (discrepancy principle)."""
    padded = pad(noisy, (RIM,) * 4, mode="reflect")
    for (state,) in total_variation_flow(padded.shape[2:], num_steps=100).trajectory(padded):
        image = state[..., RIM:-RIM, RIM:-RIM]
        if (image - noisy).square().mean().sqrt() >= NOISE:
            break
    return image


figure, axes = plt.subplots(2, 4, figsize=(8.8, 4.8), layout="constrained")
for row, name in zip(axes, ("flower", "china"), strict=True):
    pixels = torch.tensor(load_sample_image(f"{name}.jpg")[:424, 108:532]) / 255
    clean = avg_pool2d(pixels.mean(2)[None, None], 2)
    noisy = clean + NOISE * torch.randn(clean.shape, generator=torch.manual_seed(0))
    image = denoise(noisy)
    before, after = (-10 * log10((x - clean).square().mean()) for x in (noisy, image))
    print(f"{name}: PSNR {before:.2f} dB -> {after:.2f} dB, gain {after - before:.2f} dB")
    shown = {"clean": clean, f"noisy, {before:.1f} dB": noisy}
    shown |= {f"denoised, {after:.1f} dB": image, "removed": noisy - image + 0.5}
    for axis, (title, x) in zip(row, shown.items(), strict=True):
        axis.imshow(x[0, 0].numpy(), cmap="gray", vmin=0, vmax=1)
        axis.set(title=title, xticks=[], yticks=[])
plt.show()
