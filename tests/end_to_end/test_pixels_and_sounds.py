"""One command each from a folder to a trained network, its prediction files and its report."""

import json

import numpy as np
import pytest

import pdecnn
from pdecnn.explorer.answers import Explorer
from pdecnn.explorer.recording import write_recording
from pdecnn.explorer.subject import open_subject
from tests.browser import watched_page
from tests.runs import call
from tests.sound_files import write_speakers
from tests.unit.runs.test_denoising import write_smooth
from tests.unit.runs.test_segmentation import config_for, write_discs
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
def test_the_slider_goes_through_slices_and_the_explorer_shows_the_classes(browser, tmp_path):
    pytest.importorskip("nibabel", reason="pip install 'pdecnn[volumes]'")
    config = config_for("hamiltonian", write_balls(tmp_path / "balls"), 3, training__epochs=1)
    folder = pdecnn.train(config, output=tmp_path / "run", device="cpu").folder
    path = pdecnn.report([folder], tmp_path / "report.html")
    with watched_page(browser) as page:
        page.goto(path.as_uri())
        row = page.locator(".fields > li").first
        slider = row.locator("input[type=range]")
        slider.evaluate("knob => { knob.value = 0; knob.dispatchEvent(new Event('input')); }")
        seen = row.locator(".slice:visible img").evaluate_all("all => all.map((one) => one.alt)")
        assert [alt.rpartition(", ")[2] for alt in seen] == ["slice 1"] * 3
        assert not page.complaints
    write_recording([Explorer(open_subject(folder, device="cpu"))], tmp_path / "explorer.html")
    with watched_page(browser) as page:
        page.goto((tmp_path / "explorer.html").as_uri())
        page.wait_for_selector("body[aria-busy=false]")
        shown = page.locator("#field canvas")
        titles = shown.evaluate_all("all => all.map((one) => one.ariaLabel)")
        assert titles[0] == "what it makes of the input"
        assert titles[-1] == "the classes that are meant"
        assert page.locator("#bars").is_hidden()
        assert not page.complaints


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
