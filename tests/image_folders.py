"""Folders of small images that are easy to tell apart."""

import numpy as np
from PIL import Image

ORIENTATION_TAG = 0x0112
FORMATS = ("png", "jpg", "webp", "bmp")


def stripes(random, *, vertical, height, width):
    """Stripes along one axis with a random phase and colour, in noise: uint8 (h, w, 3)."""
    rows, columns = np.mgrid[0:height, 0:width]
    along, length = (columns, width) if vertical else (rows, height)
    wave = np.sin(2 * np.pi * (4 * along / length + random.random()))
    colour = random.uniform(0.3, 1, 3)
    pixels = 128 + 80 * wave[..., None] * colour + random.normal(0, 15, (height, width, 3))
    return pixels.clip(0, 255).astype(np.uint8)


def write_folder(root, num_images, *, seed=0, classes=("across", "down")):
    """Images of all sizes, modes and formats, in equal numbers a class; returns their paths."""
    random = np.random.default_rng(seed)
    paths = []
    for k in range(num_images):
        label = k % len(classes)
        height, width = random.integers(20, 70, 2)
        pixels = stripes(random, vertical=label == 0, height=height, width=width)
        image = Image.fromarray(pixels)
        kind = k // len(classes) % 7
        suffix = FORMATS[k // len(classes) % len(FORMATS)] if kind == 0 else "png"
        options = {}
        if kind == 1:
            image = image.convert("L")
        elif kind == 2:
            image.putalpha(200)
        elif kind == 3:
            grey = np.asarray(image.convert("L")).astype(np.uint16) * 257
            image = Image.fromarray(grey)
        elif kind == 4:
            image = image.convert("P")
        elif kind == 5:  # stored lying on its side, with a tag that says so
            image, suffix = image.transpose(Image.Transpose.ROTATE_90), "jpg"
            exif = Image.Exif()
            exif[ORIENTATION_TAG] = 6
            options["exif"] = exif
        folder = root / classes[label]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"image {k:04d}.{suffix}"
        image.save(path, **options)
        paths.append(path)
    return paths
