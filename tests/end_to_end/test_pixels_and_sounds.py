"""One command each from a folder to a trained network, its prediction files and its report."""

import json

import numpy as np
import pytest

from tests.runs import call
from tests.sound_files import write_speakers
from tests.unit.runs.test_denoising import write_smooth
from tests.unit.runs.test_segmentation import write_discs
from tests.volumes import write_balls

LEVELS = ["network.channels=4,16,4,4", "network.hidden_channels=4", "network.num_steps=1"]
PATCHES = ["data.patch=8", "data.repeats=4", "training.batch_size=8", "training.epochs=2"]
SOUNDS = [
    *("data.seconds=0.1", "data.label=^([a-z]+)_", "data.group=_([a-z]+)_"),
    *("data.test_groups=bob", "network.channels=8,8,8", "network.num_steps=1"),
    *("training.batch_size=4", "training.epochs=2"),
]


def write_pictures(folder):
    for k in range(12):
        write_smooth(folder / f"{k}.png", 12, 15, k)
    return folder


@pytest.fixture
def run(capsys, monkeypatch):
    def run_(*arguments):
        found = call(capsys, monkeypatch, *arguments)
        assert found.code == 0, found.stderr
        return found.stdout

    return run_


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "write", "settings", "source", "written"),
    [
        ("parabolic_denoising", write_pictures, [*PATCHES, *LEVELS], ".", "0.png"),
        ("hamiltonian_segmentation", write_discs, [*PATCHES, *LEVELS], "images", "0.png"),
        (
            "second_order_segmentation_volumes",
            write_balls,
            [*PATCHES, "network.channels=4,32,4,4", *LEVELS[1:]],
            "test/images",
            "0.nii",
        ),
    ],
)
def test_from_a_folder_to_answers_for_each_pixel(
    recipe, write, settings, source, written, run, tmp_path
):
    if recipe.endswith("volumes"):
        pytest.importorskip("nibabel", reason="pip install 'pdecnn[volumes]'")
    data, folder = write(tmp_path / "data"), tmp_path / "run"
    chosen = [word for text in settings for word in ("--set", text)]
    run("train", recipe, "--data", data, "--output", folder, "--quiet", *chosen)
    assert (folder / "figures" / "preview-epoch-0002.png").exists()
    found = json.loads(run("evaluate", folder, "--json"))
    assert np.isfinite(found["loss"])
    run("predict", folder, data / source, "--output", tmp_path / "out")
    assert (tmp_path / "out" / written).stat().st_size > 0
    run("report", folder, "--output", tmp_path / "report.html")
    assert "after epoch 2" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_from_a_folder_to_the_classes_of_sounds(run, tmp_path):
    data, folder = write_speakers(tmp_path / "data"), tmp_path / "run"
    chosen = [word for text in SOUNDS for word in ("--set", text)]
    run("train", "hamiltonian_sounds", "--data", data, "--output", folder, "--quiet", *chosen)
    assert 0 <= json.loads(run("evaluate", folder, "--json"))["accuracy"] <= 1
    said = json.loads(run("predict", folder, data / "low_ann_0.wav", "--json"))["images"]
    assert {one["class"] for one in said[0]["predictions"]} == {"low", "high"}
    run("report", folder, "--output", tmp_path / "report.html")
    assert "Learned PDE" in (tmp_path / "report.html").read_text(encoding="utf-8")
