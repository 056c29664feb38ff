"""Every example runs, keeps its word and draws its picture."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda path: path.stem)
def example(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.stem)
    draws = "--output" in request.param.read_text()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(request.param)]
        + (["--output", "picture.png"] if draws else []),
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return request.param, done, folder / "picture.png" if draws else None


def test_it_runs_without_a_warning_and_draws(example):
    path, done, picture = example
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if picture is None:
        return
    with Image.open(picture) as image:
        assert image.width >= 800
    assert picture.stat().st_size < 300_000
    assert os.listdir(picture.parent) == [picture.name], f"{path.name} left other files behind"


def test_it_keeps_its_word(example):
    path, done, _ = example
    CLAIMS.get(path.stem, lambda output: None)(done.stdout)


def test_it_is_short_and_its_picture_is_in_the_repository(example):
    path, _, picture = example
    assert len(path.read_text().splitlines()) <= 60
    assert picture is None or path.with_suffix(".png").stat().st_size < 300_000


def denoising_gains_three_decibels(output):
    gains = [float(gain) for gain in re.findall(r"gain (-?[\d.]+) dB", output)]
    assert len(gains) == 2
    assert min(gains) >= 3, gains
    assert max(gains) >= 8, gains


def heat_forgets_and_the_wave_comes_back(output):
    contrast = float(re.search(r"contrast left after \d+ steps ([\d.]+)", output)[1])
    error = float(re.search(r"out and back ([\d.e+-]+)", output)[1])
    assert 0 < contrast < 0.9
    assert error < 1e-5


CLAIMS = {
    "tv_denoising": denoising_gains_three_decibels,
    "heat_and_wave": heat_forgets_and_the_wave_comes_back,
}


def test_there_are_examples():
    assert {path.stem for path in EXAMPLES} >= CLAIMS.keys()
