"""Signals of your own: tones and chirps in noise, saved as arrays that a recipe trains on.

    python examples/chirps.py
    pdecnn train hamiltonian_signals --data chirps.npz

A tone keeps its frequency; a chirp rises or falls; a warble does both. Where a signal begins, its
phase, loudness and frequencies are drawn at random, and half of its power is noise.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

CLASSES = ("tone", "rising", "falling", "warble")
LENGTH = 128


def frequencies(name: str, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Cycles a sample at each time."""
    time = np.linspace(0, 1, LENGTH)
    low, high = random.uniform(0.02, 0.06), random.uniform(0.2, 0.3)
    share = {
        "tone": np.full(LENGTH, random.random()),
        "rising": time,
        "falling": 1 - time,
        "warble": 0.5 + 0.5 * np.sin(2 * np.pi * (3 * time + random.random())),
    }
    return low + (high - low) * share[name]


def make_signals(
    num_signals: int, seed: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Signals (n, length), each of mean power 1 before the loudness, and their classes."""
    random = np.random.default_rng(seed)
    labels = np.arange(num_signals) % len(CLASSES)
    phases = [2 * np.pi * np.cumsum(frequencies(CLASSES[k], random)) for k in labels]
    shifts = random.uniform(0, 2 * np.pi, (num_signals, 1))
    signals = np.sin(np.array(phases) + shifts) + random.normal(0, 0.7, (num_signals, LENGTH))
    loudness = np.exp(random.uniform(-1, 1, (num_signals, 1)))
    return (loudness * signals).astype(np.float32), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=1500)
    number = parser.parse_args().number
    x, y = make_signals(number, seed=0)
    np.savez_compressed(Path("chirps.npz"), x=x, y=y, class_names=np.array(CLASSES))
    print(f"chirps.npz: {number} signals of {LENGTH} samples: {', '.join(CLASSES)}")


if __name__ == "__main__":
    main()
