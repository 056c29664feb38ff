"""The picture of docs/how-to/certify.md: digits and the worst that APGD finds within 0.5.

python docs/images/draw_perturbed_digits.py RUN
"""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

import pdecnn
from pdecnn.data.registry import read_digits
from pdecnn.diagnostics import scores_of_pixels
from pdecnn.diagnostics.attacks import apgd
from pdecnn.reports.style import NORMAL, SMALL, WIDTH, journal_style

HERE = Path(__file__).parent
RADIUS = 0.5
SHOWN = 3


def main() -> None:
    """Some digits that are certified, and some whose class changes."""
    network = pdecnn.load(sys.argv[1])
    test = read_digits().test
    images, labels = torch.as_tensor(test.images[:]), test.labels
    certificate = pdecnn.certify(network, images, labels)
    pixels = images.float() / 255
    with scores_of_pixels(network) as scores:
        attacked = apgd(scores, pixels, labels, epsilon=RADIUS, norm="l2")
        predicted = scores(attacked.pixels).argmax(1)
    right = certificate.predictions == labels
    safe = (right & (certificate.radii >= RADIUS)).nonzero()[:SHOWN, 0]
    fallen = (right & ~attacked.resists).nonzero()[:SHOWN, 0]
    with journal_style():
        figure = Figure(figsize=(WIDTH, 0.46 * WIDTH), layout="constrained")
        axes = figure.subplots(2, 2 * SHOWN)
        for column, place in enumerate([*safe.tolist(), *fallen.tolist()]):
            for row, picture in enumerate((pixels[place], attacked.pixels[place])):
                axes[row, column].imshow(picture[0], cmap="gray", vmin=0, vmax=1)
                axes[row, column].set(xticks=[], yticks=[])
            radius = float(certificate.radii[place])
            axes[0, column].set_title(f"{labels[place]}, radius {radius:.2f}", fontsize=SMALL)
            axes[1, column].set_xlabel(f"taken for {predicted[place]}", fontsize=SMALL)
        axes[0, 0].set_ylabel("clean", fontsize=NORMAL)
        axes[1, 0].set_ylabel(f"attacked, {RADIUS}", fontsize=NORMAL)
        figure.savefig(HERE / "perturbed-digits.png", dpi=160)


if __name__ == "__main__":
    main()
