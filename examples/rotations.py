"""Volumes of your own: short videos of a turning or moving bar, saved for a recipe.

    python examples/rotations.py
    pdecnn train hamiltonian_volumes --data rotations.npz

The first axis is time. No picture tells left from right or a turn from its opposite: only the
motion does.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

CLASSES = ("clockwise", "anticlockwise", "left", "right")
NUM_PICTURES, SIZE = 8, 12


def make_video(name: str, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Pictures (time, height, width) of a soft bar on a torus, in noise."""
    time = np.arange(NUM_PICTURES)[:, None, None]
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    turn = {"clockwise": 1.0, "anticlockwise": -1.0}.get(name, 0.0)
    shift = {"left": -1.0, "right": 1.0}.get(name, 0.0)
    angle = random.uniform(0, np.pi) + turn * random.uniform(0.25, 0.4) * time
    if shift:  # a bar that is seen to move along the rows stands upright, more or less
        angle = np.pi / 2 + random.uniform(-0.6, 0.6) + 0 * time
    middle = random.uniform(4, 8, 2)
    x = (columns - middle[0] - shift * random.uniform(0.8, 1.6) * time + SIZE / 2) % SIZE - SIZE / 2
    y = rows - middle[1]
    across, along = x * np.sin(angle) - y * np.cos(angle), x * np.cos(angle) + y * np.sin(angle)
    bar = np.exp(-((across / 1.5) ** 2) - (along / 4.5) ** 4)
    return bar + random.normal(0, 0.15, bar.shape)


def make_videos(
    num_videos: int, seed: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Videos (n, channels, time, height, width) and their classes."""
    random = np.random.default_rng(seed)
    labels = np.arange(num_videos) % len(CLASSES)
    videos = np.array([make_video(CLASSES[label], random) for label in labels])
    return videos[:, None].astype(np.float32), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=800)
    number = parser.parse_args().number
    x, y = make_videos(number, seed=0)
    np.savez_compressed(Path("rotations.npz"), x=x, y=y, class_names=np.array(CLASSES))
    print(f"rotations.npz: {number} videos of {x.shape[2:]}: {', '.join(CLASSES)}")


if __name__ == "__main__":
    main()
