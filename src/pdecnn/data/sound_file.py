"""One sound file as a wave: WAV by scipy, FLAC and OGG by soundfile, both imported when needed."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdecnn.errors import DataError, bad_file_refused

Wave = npt.NDArray[np.float64]
SOUNDS = (".wav", ".flac", ".ogg")
"""How names of sound files end."""
LARGEST = 2**15 - 1
"""The loudest sample of a sound as it is kept, in 16 bits."""
HIGHEST_RATE = 1_000_000
_MOST_SAMPLES = 2**28


def read_sound(path: Path, *, rate: int, length: int) -> Tensor:
    """A sound of `length` samples at `rate` samples a second: int16, shape (1, length).

    Several channels are averaged. The sound loses its mean, is resampled, cut or padded with zeros
    alike at both ends, and made so loud that its largest sample is `LARGEST`; silence is zeros.
    """
    wave, own_rate = _read(path)
    if len(wave) == 0:
        raise DataError(f"{path}: holds no sound; remove it")
    with np.errstate(over="ignore", invalid="ignore"):
        wave = wave - wave.mean()
    if not np.isfinite(wave).all():
        raise DataError(f"{path}: has samples that are not finite; mend or remove it")
    if not 0 < own_rate <= HIGHEST_RATE:
        raise DataError(
            f"{path}: says {own_rate:,} samples a second, and 1 to {HIGHEST_RATE:,} are read; "
            f"convert it"
        )
    if len(wave) * rate > _MOST_SAMPLES * own_rate:
        raise DataError(
            f"{path}: is {len(wave) / own_rate:,.0f} s long, by its {own_rate:,} samples a second; "
            f"cut it into shorter ones"
        )
    if np.ptp(wave) < np.finfo(np.float32).eps:  # what is left of a constant by rounding
        wave = np.zeros_like(wave)
    wave = fit_length(_resample(wave, own_rate, rate), length)
    largest = np.abs(wave).max()
    if largest > 0:
        wave = wave * (LARGEST / largest)
    return torch.from_numpy(wave.round().astype(np.int16))[None]


def fit_length(wave: Wave, length: int) -> Wave:
    """The middle of a longer wave; a shorter one with zeros at both ends."""
    missing = length - len(wave)
    if missing < 0:
        begin = -missing // 2
        return wave[begin : begin + length]
    return np.pad(wave, (missing // 2, missing - missing // 2))


@contextmanager
def strict_wave_files() -> Iterator[None]:
    """Within it a WAV file that ends too early is an error, and unknown remarks in one are not.

    For all threads, and so not to be entered in several at once.
    """
    from scipy.io.wavfile import WavFileWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error", WavFileWarning)
        warnings.filterwarnings("ignore", "Chunk", WavFileWarning)
        yield


def _read(path: Path) -> tuple[Wave, int]:
    """The mean of the channels, in [-1, 1] for whole numbers, and the samples a second."""
    read = _read_wav if path.suffix.lower() == ".wav" else _read_compressed
    if path.suffix.lower() not in SOUNDS:
        raise DataError(f"{path}: is no sound file; they end in {', '.join(SOUNDS)}")
    with bad_file_refused(path, "cannot be read as a sound", "save it again"):
        samples, rate = read(path)
    return samples.mean(1) if samples.ndim == 2 else samples, int(rate)


def _read_wav(path: Path) -> tuple[npt.NDArray[Any], int]:
    from scipy.io import wavfile

    rate, samples = wavfile.read(path)
    if samples.dtype == np.uint8:
        return (samples.astype(np.float64) - 2**7) / 2**7, rate
    if samples.dtype.kind == "i":  # 24 bits come as the highest of 32
        return samples.astype(np.float64) / -float(np.iinfo(samples.dtype).min), rate
    return samples.astype(np.float64), rate


def _read_compressed(path: Path) -> tuple[npt.NDArray[Any], int]:
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: the library that it calls is not there
        raise DataError(
            f"{path}: FLAC and OGG files are read by soundfile, which is not installed; pip "
            f"install 'pdecnn[audio]', convert it to WAV, or take a file of `pdecnn data pack`"
        ) from None
    with soundfile.SoundFile(path) as file:
        if file.frames * file.channels > _MOST_SAMPLES:
            raise DataError(f"{path}: unpacks to {file.frames:,} samples; cut it into shorter ones")
        return file.read(dtype="float64"), file.samplerate


def _resample(wave: Wave, rate: int, new_rate: int) -> Wave:
    if rate == new_rate:
        return wave
    from scipy.signal import resample_poly

    common = gcd(rate, new_rate)
    resampled: Wave = resample_poly(wave, new_rate // common, rate // common)
    return resampled
