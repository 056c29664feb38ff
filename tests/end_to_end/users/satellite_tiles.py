"""Satellite tiles in folders: 16 bits, six bands, several of a scene; then colour tiles.

Run it in an empty folder. The first network sees all bands and is tested on scenes it never saw;
the second begins with published weights. Both are predicted with, reported and exported.
"""

import json
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image

import pdecnn

CLASSES = ("forest", "town", "water")
BRIGHTNESS = {"forest": 3000, "town": 9000, "water": 1500}
"""Of 65,535: such tiles are dark, and lost all but 12 to 35 grey levels in 8 bits."""
SCENES, TILES = 10, 2
SIZE = 16


def tile(kind: str, scene: int, number: int, bands: int) -> np.ndarray:
    """Radiances (height, width, bands): smooth water, rough forest, the blocks of a town."""
    random = np.random.default_rng([CLASSES.index(kind), scene, number])
    grain = {"forest": 1, "town": 4, "water": 16}[kind]
    coarse = random.normal(1, 0.3, (SIZE // grain, SIZE // grain, bands))
    pixels = np.kron(coarse, np.ones((grain, grain, 1))) + random.normal(
        0, 0.05, (SIZE, SIZE, bands)
    )
    haze = 1 + 0.1 * (scene % 3)
    return (BRIGHTNESS[kind] * haze * pixels).clip(0, 65535).astype(np.uint16)


def write_tiles() -> None:
    """bands/forest/scene03_1.tif with six bands, and colours/forest/scene03_1.png in 8 bits."""
    for kind in CLASSES:
        for folder in ("bands", "colours"):
            Path(folder, kind).mkdir(parents=True)
        for scene in range(SCENES):
            for number in range(TILES):
                pixels, name = tile(kind, scene, number, 6), f"scene{scene:02d}_{number}"
                tifffile.imwrite(
                    Path("bands", kind, f"{name}.tif"),
                    pixels,
                    photometric="minisblack",
                    planarconfig="contig",
                    compression="zlib",
                )
                colours = (pixels[..., :3] / 128).clip(0, 255).astype(np.uint8)
                Image.fromarray(colours).save(Path("colours", kind, f"{name}.png"))


def train(folder: str, *, initial: str | None = None, **settings: object):
    """A short training that keeps the tiles of a scene together."""
    config = pdecnn.recipe("hamiltonian_images").with_settings(
        {
            "data.folder": folder,
            "data.size": SIZE,
            "data.group": r"scene(\d+)",
            "data.standardize": "dataset",
            "training.batch_size": 8,
            "training.num_threads": 1,
        }
        | settings
    )
    return pdecnn.train(config, output=f"run-{folder}", initial=initial)


def main() -> None:
    """From tiles to results, which are printed as JSON."""
    write_tiles()
    own = train("bands", **{"network.channels": [8, 8, 8], "training.epochs": 8})
    published = train("colours", initial="hamiltonian_cifar10", **{"training.epochs": 1})
    file = Path("bands", "water", "scene00_0.tif")
    pdecnn.report([own.folder, published.folder], "report.html", diagnosis=False)
    print(
        json.dumps(
            {
                "channels": own.config.network.in_channels,
                "accuracy": pdecnn.evaluate(own.folder)["accuracy"],
                "num_test": pdecnn.evaluate(own.folder)["num_images"],
                "predicted": pdecnn.predict(own.folder, [file])[0]["predictions"][0]["class"],
                "widths": list(published.config.network.channels),
                "num_predicted": len(pdecnn.predict(published.folder, ["colours"])),
                "exported": pdecnn.export(own.folder, "network.pt2")["pixels"],
            }
        )
    )


if __name__ == "__main__":
    main()
