"""Sounds of your own: synthesised vowels of several speakers, as WAV files that a recipe trains on.

    python examples/vowels.py
    pdecnn train hamiltonian_sounds --data vowels --set 'data.label=^([a-z])_' \
        --set 'data.group=_([a-z]+)_' --set data.test_groups=nora

A voice is a train of pulses; the tract above it resonates at three frequencies, which tell vowels
apart. Speakers differ in pitch and in the length of their tract, takes in pitch, time and noise.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.io import wavfile
from scipy.signal import lfilter

RATE = 8000
# The resonances of the vowels of a man (Peterson and Barney 1952), in Hz.
VOWELS = {"a": (730, 1090, 2440), "i": (270, 2290, 3010), "u": (300, 870, 2240)}
# Pitch in Hz, and how much shorter than his the tract is.
SPEAKERS = {"adam": (110, 1.0), "bert": (90, 0.95), "nora": (200, 1.15), "olga": (180, 1.1)}


def make_vowel(vowel: str, speaker: str, random: np.random.Generator) -> npt.NDArray[np.int16]:
    """A take of a vowel, 16 bits at `RATE`."""
    pitch, scale = SPEAKERS[speaker]
    length = round(RATE * random.uniform(0.25, 0.5))
    phase = np.cumsum(pitch * random.uniform(0.9, 1.1) / RATE * np.linspace(1, 0.9, length))
    wave = np.diff(np.floor(phase), prepend=0.0)
    for resonance in VOWELS[vowel]:
        angle = 2 * np.pi * resonance * scale * random.uniform(0.97, 1.03) / RATE
        radius = np.exp(-np.pi * 80 / RATE)
        wave = lfilter([1.0], [1.0, -2 * radius * np.cos(angle), radius**2], wave)
    wave = wave / np.abs(wave).max() + random.normal(0, 0.01, length)
    return np.round(10_000 * wave * np.hanning(length) ** 0.25).astype(np.int16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=480)
    takes = parser.parse_args().number // (len(VOWELS) * len(SPEAKERS))
    random, folder = np.random.default_rng(0), Path("vowels")
    folder.mkdir(exist_ok=True)
    for speaker in SPEAKERS:
        for vowel in VOWELS:
            for take in range(takes):
                wave = make_vowel(vowel, speaker, random)
                wavfile.write(folder / f"{vowel}_{speaker}_{take}.wav", RATE, wave)
    print(f"vowels: {takes} takes of {', '.join(VOWELS)} by {', '.join(SPEAKERS)}")


if __name__ == "__main__":
    main()
