"""A user whose network ends in pixels: blocks in a module of their own, trained by their own loop.

Noise is taken from drawings of bars. python pixels_out.py
"""

import torch
from torch import Tensor, nn

import pdecnn


class Denoiser(nn.Module):
    """Pixels to pixels: a wave equation in between, with memory constant in its depth."""

    def __init__(self, channels: int = 16, num_steps: int = 6) -> None:
        super().__init__()
        self.opening = pdecnn.Convolution(1, channels)
        layers = [pdecnn.SymmetricLayer(channels // 2) for _ in range(2 * num_steps)]
        self.block = pdecnn.Block(
            layers, "verlet", num_steps=num_steps, step_size=0.5, backprop="exact"
        )
        self.closing = pdecnn.Convolution(channels, 1)

    def forward(self, images: Tensor) -> Tensor:
        return images + self.closing(self.block(self.opening(images)))


def bars(number: int, generator: torch.Generator) -> Tensor:
    """Bright bars on a dark ground, (number, 1, 16, 16)."""
    images = torch.zeros(number, 1, 16, 16)
    places = torch.randint(2, 13, (number, 2), generator=generator).tolist()
    for image, (row, column) in zip(images, places, strict=True):
        image[:, row : row + 2] = 1
        image[:, :, column : column + 2] = 1
    return images


def main(num_steps: int = 150) -> dict[str, float]:
    """The mean squared error of noisy images, and of what the trained network makes of them."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    network = Denoiser()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(num_steps):
        clean = bars(16, generator)
        noisy = clean + 0.4 * torch.randn(clean.shape, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(network(noisy), clean).backward()
        optimizer.step()
    clean = bars(64, generator)
    noisy = clean + 0.4 * torch.randn(clean.shape, generator=generator)
    with torch.no_grad():
        restored = network.eval()(noisy)
        state = network.block.propagate(features := network.opening(noisy))
        back = network.block.reverse(state)
    return {
        "noisy": float((noisy - clean).square().mean()),
        "restored": float((restored - clean).square().mean()),
        "way_back": float((back - features).abs().max()),
    }


if __name__ == "__main__":
    print(main())
