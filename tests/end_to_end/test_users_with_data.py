"""The whole way of users with data of their own, as scripts of public names alone."""

import json
import runpy
from pathlib import Path

import pytest

USERS = Path(__file__).parent / "users"


@pytest.fixture
def result(capsys, monkeypatch, tmp_path):
    """What a script prints when it is run in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(name):
        runpy.run_path(str(USERS / f"{name}.py"), run_name="__main__")
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


@pytest.mark.slow
def test_satellite_tiles_of_six_bands_and_16_bits(result, tmp_path):
    pytest.importorskip("tifffile", reason="pip install 'pdecnn[tiff]' for more than 4 bands")
    found = result("satellite_tiles")
    assert found["channels"] == 6
    assert found["num_test"] == 12  # the tiles of two scenes
    assert found["accuracy"] > 0.6  # a third by chance
    assert found["predicted"] in ("forest", "town", "water")
    assert found["widths"] == [32, 64, 112, 112]  # those of the published weights
    assert found["num_predicted"] == 60
    assert found["exported"] == "float32"
    assert "the mean of 6 channels" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_spoken_digits_of_speakers_never_heard(result):
    found = result("spoken_digits")
    assert found["shared"] == 0
    assert found["num_recordings"] == 128
    assert abs(found["test"]["num_images"] - 128 / 5) <= 16  # whole speakers
    assert found["test"]["accuracy"] > 0.5  # a quarter by chance
    assert len(found["said"]) == 4
