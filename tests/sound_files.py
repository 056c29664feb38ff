"""Sound files for tests: tones of a class and a speaker."""

import numpy as np
from scipy.io import wavfile

RATE = 8000


def tone(frequency: float, seconds: float = 0.1, *, rate: int = RATE, level: float = 0.5):
    """A sine as numbers in [-1, 1]."""
    return level * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)


def write_wave(path, wave, *, rate: int = RATE, dtype=np.int16):
    """A wave of [-1, 1] as a WAV file of that type."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if np.dtype(dtype).kind == "i":
        wave = np.round(wave * np.iinfo(dtype).max)
    elif np.dtype(dtype).kind == "u":
        wave = np.round(wave * 127 + 128)
    wavfile.write(path, rate, np.asarray(wave).astype(dtype))


def write_speakers(folder, *, takes: int = 4, speakers=("ann", "bob", "cat")):
    """Files low_ann_0.wav and so on, told apart by their frequency."""
    for shift, speaker in enumerate(speakers):
        for take in range(takes):
            for name, frequency in (("low", 300), ("high", 1200)):
                wave = tone(frequency * (1 + 0.05 * shift + 0.01 * take))
                write_wave(folder / f"{name}_{speaker}_{take}.wav", wave)
    return folder
