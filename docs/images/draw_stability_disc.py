"""The picture of docs/explanation/certificate.md: eigenvalues of steps, and the disc for them.

python docs/images/draw_stability_disc.py
"""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

from pdecnn import StableLayer, create_model
from pdecnn.diagnostics import layer_jacobian, spectrum
from pdecnn.pde import SymmetricLayer
from pdecnn.reports.style import BLUE, GREY, NORMAL, ORANGE, SMALL, WIDTH, journal_style

HERE = Path(__file__).parent
MODEL = "parabolic_cifar10"
SIDE = 6  # pixels of the features: 1152 numbers, so that all eigenvalues can be found
FAINT = 0.1


def example() -> tuple[SymmetricLayer, Tensor]:
    """The last layer of the first block of the published network, and the features it meets."""
    network = create_model(MODEL, pretrained=True).eval().double()
    pixels = torch.tensor(load_sample_image("flower.jpg")[30:414, 112:496]) / 255
    image = nn.functional.avg_pool2d(pixels.permute(2, 0, 1)[None].double(), 12)
    block = network.blocks[0]
    with torch.no_grad():
        features = network.opening(network.preprocessing.apply(image, torch.float64))
        features = block.trajectory(features)[block.num_steps - 1][0]
    middle = features.shape[-1] // 2 - SIDE // 2
    window = slice(middle, middle + SIDE)
    return block.steps[-1][0], features[..., window, window].contiguous()


def stable(layer: SymmetricLayer) -> StableLayer:
    """The same K without the norm, and with the step size that belongs to it."""
    found = StableLayer(layer.channels, size=(SIDE, SIDE), normalization="none").double()
    found.convolution.load_state_dict(layer.convolution.state_dict())
    return found.eval()


def eigenvalues(layer: nn.Module, features: Tensor) -> list[complex]:
    """z = dt times the eigenvalues of dF/dY; dt is 1, or part of F."""
    return list(spectrum(layer_jacobian(layer, features), dense_size=features.numel()).eigenvalues)


def draw(axes: Axes, title: str, series: list[tuple[list[complex], str, str]]) -> None:
    """The disc, and what lies in it or not."""
    axes.add_patch(Circle((-1, 0), 1, facecolor="#E4EEF6", edgecolor=BLUE, linewidth=1.2))
    axes.axhline(0, color=GREY, linewidth=0.5, zorder=0.5)
    axes.axvline(0, color=GREY, linewidth=0.5, zorder=0.5)
    axes.text(-1, 0.62, "|1 + z| ≤ 1", ha="center", va="center", fontsize=SMALL, color=BLUE)
    for values, colour, name in series:
        axes.plot(
            [z.real for z in values],
            [z.imag for z in values],
            linestyle="none",
            marker="o",
            markersize=3,
            markeredgewidth=0,
            color=colour,
            label=name,
        )
    axes.set_title(title, loc="left", fontsize=NORMAL)
    axes.set_aspect("equal")
    axes.set(ylim=(-1.15, 1.15), yticks=[-1, 0, 1], ylabel="imaginary part")
    axes.legend(loc="lower left", fontsize=SMALL)


def main() -> None:
    """Draw it, and print the ends of each spectrum."""
    layer, features = example()
    step = stable(layer)
    found = {
        (name, share): eigenvalues(chosen, share * features)
        for name, chosen in (("paper", layer), ("stable", step))
        for share in (1, FAINT)
    }
    for (name, share), values in found.items():
        reals, outside = [z.real for z in values], sum(abs(1 + z) > 1 + 1e-9 for z in values)
        print(f"{name}, {share:g} of the features: {min(reals):.2f} to {max(reals):.4f}, ", end="")
        print(f"imaginary parts up to {max(z.imag for z in values):.3f}, {outside} outside")
    print(f"dt = {step.factor:.3f}")
    with journal_style():
        figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        draw(
            above,
            "the paper's step: total-variation norm, step size 1",
            [
                (found["paper", FAINT], ORANGE, "features a tenth as large"),
                (found["paper", 1], BLUE, "features of a photograph"),
            ],
        )
        draw(
            below,
            f"the stable step with the same K: no norm, step size 2/|K|² = {step.factor:.2f}",
            [
                (found["stable", FAINT], ORANGE, "features a tenth as large"),
                (found["stable", 1], BLUE, "features of a photograph: the same eigenvalues"),
            ],
        )
        below.set_xlabel("real part of z")
        figure.savefig(HERE / "stability-disc.png", dpi=200)


if __name__ == "__main__":
    main()
