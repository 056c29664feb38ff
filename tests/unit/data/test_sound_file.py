"""One sound file: every width of WAV, FLAC and OGG, several channels, other rates, silence."""

import struct
import sys

import numpy as np
import pytest
import torch

from pdecnn.data.sound_file import LARGEST, read_sound, strict_wave_files
from pdecnn.errors import DataError
from tests.sound_files import tone, write_wave

LENGTH = 800


def read(path, length=LENGTH, rate=8000):
    with strict_wave_files():
        return read_sound(path, rate=rate, length=length)


def write_24_bits(path, wave):
    content = b"".join(round(v * (2**23 - 1)).to_bytes(3, "little", signed=True) for v in wave)
    form = struct.pack("<HHIIHH", 1, 1, 8000, 24000, 3, 24)
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", len(content)) + content
    path.write_bytes(b"RIFF" + struct.pack("<I", len(chunks)) + chunks)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32, np.float64])
def test_every_width_of_wav_is_the_same_sound(tmp_path, dtype):
    write_wave(tmp_path / "a.wav", tone(440), dtype=dtype)
    found = read(tmp_path / "a.wav")
    assert found.dtype == torch.int16
    assert found.shape == (1, LENGTH)
    assert found.abs().max() == LARGEST
    wanted = torch.from_numpy(tone(440) / np.abs(tone(440)).max())
    tolerance = 2e-2 if dtype == np.uint8 else 1e-3
    assert torch.allclose(found[0].double() / LARGEST, wanted, atol=tolerance)


def test_24_bits_are_read(tmp_path):
    write_24_bits(tmp_path / "a.wav", tone(440))
    write_wave(tmp_path / "b.wav", tone(440), dtype=np.float64)
    assert (read(tmp_path / "a.wav") - read(tmp_path / "b.wav")).abs().max() <= 1


@pytest.mark.parametrize("kind", ["FLAC", "OGG"])
def test_flac_and_ogg_are_read(tmp_path, kind):
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / f"a.{kind.lower()}"
    soundfile.write(path, tone(440), 8000, format=kind)
    found = read(path)[0].double() / LARGEST
    wanted = torch.from_numpy(tone(440) / np.abs(tone(440)).max())
    assert (found - wanted).abs().mean() < (1e-3 if kind == "FLAC" else 0.1)


def test_flac_without_soundfile_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    with pytest.raises(DataError, match=r"a\.flac.*pip install 'pdecnn\[audio\]'"):
        read(tmp_path / "a.flac")


def test_stereo_is_the_mean_of_both(tmp_path):
    left, right = tone(440), tone(700)
    write_wave(tmp_path / "stereo.wav", np.stack([left, right], 1), dtype=np.float64)
    write_wave(tmp_path / "mono.wav", (left + right) / 2, dtype=np.float64)
    assert torch.equal(read(tmp_path / "stereo.wav"), read(tmp_path / "mono.wav"))


def test_a_constant_offset_and_the_loudness_do_not_matter(tmp_path):
    write_wave(tmp_path / "a.wav", tone(440), dtype=np.float64)
    write_wave(tmp_path / "b.wav", 0.25 * tone(440) + 0.5, dtype=np.float64)
    assert (read(tmp_path / "a.wav") - read(tmp_path / "b.wav")).abs().max() <= 1


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_silence_is_zeros(tmp_path, value):
    write_wave(tmp_path / "a.wav", np.full(777, value), dtype=np.float32)
    assert not read(tmp_path / "a.wav").any()


def test_another_rate_is_resampled(tmp_path):
    write_wave(tmp_path / "a.wav", tone(440, rate=44100), rate=44100)
    found = read(tmp_path / "a.wav")[0, 100:-100] / LARGEST
    wanted = torch.from_numpy(tone(440))[100:-100] / 0.5
    assert (found / found.abs().max() - wanted).abs().max() < 0.05


def test_long_sounds_lose_both_ends_and_short_ones_get_zeros_there(tmp_path):
    wave = np.zeros(800)
    wave[400] = 0.5
    wave[0] = wave[799] = -0.2
    write_wave(tmp_path / "a.wav", wave, dtype=np.float64)
    short, long = read(tmp_path / "a.wav", 400), read(tmp_path / "a.wav", 1001)
    assert short.shape == (1, 400)
    assert int(short.argmax()) == 200
    assert int(long.argmax()) == 500
    assert not long[0, :100].any()
    assert not long[0, 900:].any()


def test_bad_files_are_refused_in_one_line(tmp_path):
    write_wave(tmp_path / "empty.wav", np.zeros(0))
    write_wave(tmp_path / "nan.wav", np.array([0.1, np.nan, 0.3]), dtype=np.float32)
    write_wave(tmp_path / "fast.wav", tone(440), rate=2_000_000_000)
    write_wave(tmp_path / "whole.wav", tone(440))
    (tmp_path / "cut.wav").write_bytes((tmp_path / "whole.wav").read_bytes()[:500])
    (tmp_path / "text.wav").write_text("not a sound")
    (tmp_path / "a.mp3").write_bytes(b"ID3")
    for name, found in (
        ("empty.wav", "holds no sound"),
        ("nan.wav", "not finite"),
        ("fast.wav", r"2,000,000,000 samples a second"),
        ("cut.wav", "cannot be read as a sound"),
        ("text.wav", "cannot be read as a sound"),
        ("a.mp3", r"is no sound file; they end in \.wav"),
    ):
        with pytest.raises(DataError, match=found) as error:
            read(tmp_path / name)
        assert "\n" not in str(error.value)


def test_remarks_that_other_programs_leave_in_a_file_are_passed_over(tmp_path):
    write_wave(tmp_path / "a.wav", tone(440))
    content = (tmp_path / "a.wav").read_bytes() + b"cue " + struct.pack("<I", 4) + b"abcd"
    content = content[:4] + struct.pack("<I", len(content) - 8) + content[8:]
    (tmp_path / "b.wav").write_bytes(content)
    assert torch.equal(read(tmp_path / "a.wav"), read(tmp_path / "b.wav"))


def test_sounds_without_end_or_beyond_all_numbers_are_refused(tmp_path):
    write_wave(tmp_path / "slow.wav", np.ones(40_000), rate=1)
    with pytest.raises(DataError, match=r"slow\.wav: is 40,000 s long"):
        read_sound(tmp_path / "slow.wav", rate=8000, length=800)
    write_wave(tmp_path / "loud.wav", np.full(100, 1e308), dtype=np.float64)
    with pytest.raises(DataError, match="not finite"):
        read_sound(tmp_path / "loud.wav", rate=8000, length=800)
