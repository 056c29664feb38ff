"""The page of denoisers and segmenters: figures and pictures, as the runs recorded them."""

import json
import re
import shutil

import pytest

import pdecnn
from pdecnn.errors import CheckpointError, ConfigError
from tests.pages import Page
from tests.runs import small_config
from tests.unit.runs.test_denoising import config_for, write_smooth


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictures")
    for part, number in (("train", 10), ("test", 2)):
        for k in range(number):
            write_smooth(place / part / f"{k}.png", 12, 15, k)
    return place


@pytest.fixture(scope="module")
def runs(root):
    return [
        pdecnn.train(config_for(name, root), output=root / "runs" / name, device="cpu")
        for name in ("hamiltonian", "parabolic")
    ]


def report(runs, path, **options):
    pdecnn.report([getattr(run, "folder", run) for run in runs], path, **options)
    return path.read_text()


def test_the_summary_names_the_data_by_its_folder(runs, root, tmp_path):
    texts = Page(report(runs[:1], tmp_path / "one.html")).texts
    assert f"pictures, {root.name}" in texts


def test_one_denoiser_has_its_figures_and_pictures(runs, tmp_path):
    page = Page(report(runs[:1], tmp_path / "one.html"))
    assert f"{runs[0].summary['test']['psnr']:.2f} dB" in page.texts
    alts = [entry["alt"] for entry in page.attributes("img")]
    epochs = [f"noisy, denoised, clean after epoch {k}" for k in (1, 2)]
    assert alts == epochs + ["noisy", "what a run makes of it", "clean"] * 2
    charts = [entry for entry in page.attributes("svg") if entry.get("class") == "chart"]
    assert len(charts) == 2
    assert "PSNR in dB" in page.texts
    assert "dotted lines are changes of learning rate" in page.text
    assert "pdecnn train hamiltonian_denoising --data FOLDER" in page.texts


def test_two_denoisers_stand_beside_each_other_on_the_same_images(runs, tmp_path):
    html = report(runs, tmp_path / "two.html")
    page = Page(html)
    ((header, *rows),) = page.tables["The runs side by side"]
    column = header.index("test PSNR")
    assert [row[column] for row in rows] == [
        f"{run.summary['test']['psnr']:.2f} dB" for run in runs
    ]
    assert len(page.attributes("img")) == 2 * 2 + 2 * 4  # previews; noisy, two answers, clean
    assert len(re.findall(r"\d dB</figcaption>", html)) == 2 * 3
    assert report(runs, tmp_path / "again.html") == html
    assert len(Page(report(runs, tmp_path / "none.html", num_images=0)).attributes("img")) == 4


def test_denoisers_and_classes_do_not_share_a_page(runs, tmp_path):
    config = small_config(network__channels=[4, 4], training__epochs=1)
    digits = pdecnn.train(config, output=tmp_path / "digits", device="cpu")
    with pytest.raises(ConfigError, match="has an answer for each pixel"):
        report([runs[0], digits], tmp_path / "page.html")
    with pytest.raises(ConfigError, match="leave out --data and --weights"):
        report(runs, tmp_path / "page.html", weights="last")


def test_unfinished_and_damaged_denoisers_say_so(runs, tmp_path):
    folder = tmp_path / "begun"
    shutil.copytree(runs[0].folder, folder, symlinks=True)
    summary = json.loads((folder / "summary.json").read_bytes())
    (folder / "summary.json").unlink()
    text = Page(report([folder], tmp_path / "page.html")).text
    assert "not finished" in text
    assert "Images are there when a run is finished." in text
    del summary["test"]["psnr"]
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(CheckpointError, match=r"summary.json: damaged \(it lacks test.psnr\)"):
        report([folder], tmp_path / "page.html")
    (folder / "summary.json").unlink()
    (folder / "metrics.jsonl").write_text('{"epoch": 1}\n')
    with pytest.raises(CheckpointError, match=r"metrics.jsonl: damaged \(it lacks psnr\)"):
        report([folder], tmp_path / "page.html")


@pytest.fixture(scope="module")
def segmenters(tmp_path_factory):
    pytest.importorskip("nibabel")
    from tests.unit.runs import test_segmentation as segmentation

    place = tmp_path_factory.mktemp("segmented")
    discs = segmentation.write_discs(place / "discs")
    return [
        pdecnn.train(segmentation.config_for(name, discs, 2), output=place / name, device="cpu")
        for name in ("hamiltonian", "parabolic")
    ]


def test_networks_that_segment_have_a_report(segmenters, tmp_path):
    page = Page(report(segmenters[:1], tmp_path / "one.html"))
    test = segmenters[0].summary["test"]
    assert f"{test['mean_dice']:.1%}" in page.texts
    assert "median Dice of 1" in page.text
    alts = [entry["alt"] for entry in page.attributes("img")]
    assert alts[:2] == [f"image, labels, found after epoch {k}" for k in (1, 2)]
    assert alts[2:5] == ["image", "labels", "what a run makes of it"]
    assert "mean Dice" in page.texts


def test_two_networks_that_segment_share_a_report_but_not_with_denoisers(
    runs, segmenters, tmp_path
):
    page = Page(report(segmenters, tmp_path / "two.html"))
    ((header, *rows),) = page.tables["The runs side by side"]
    column = header.index("test mean Dice")
    assert [row[column] for row in rows] == [
        f"{run.summary['test']['mean_dice']:.1%}" for run in segmenters
    ]
    with pytest.raises(ConfigError, match="do not share a report"):
        report([runs[0], segmenters[0]], tmp_path / "page.html")


def test_segmenters_of_other_classes_share_a_report(segmenters, tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(segmenters[0].folder, folder, symlinks=True)
    summary = json.loads((folder / "summary.json").read_bytes())
    for key in ("dice", "median_dice", "iou"):
        summary["test"][key]["2"] = None
    (folder / "summary.json").write_text(json.dumps(summary))
    text = Page(report([segmenters[1], folder], tmp_path / "page.html")).text
    assert "mean Dice of 1" in text


def test_a_slider_goes_through_the_slices_of_volumes(tmp_path):
    pytest.importorskip("nibabel")
    from tests.unit.runs import test_segmentation as segmentation
    from tests.volumes import write_balls

    balls = write_balls(tmp_path / "balls")
    config = segmentation.config_for("hamiltonian", balls, 3, training__epochs=1)
    run = pdecnn.train(config, output=tmp_path / "run", device="cpu")
    page = Page(report([run], tmp_path / "page.html", num_images=1))
    assert "pdecnn train hamiltonian_segmentation_volumes --data FOLDER" in page.texts
    (slider,) = (one for one in page.attributes("input") if one.get("type") == "range")
    slices = [one for one in page.attributes("span") if one.get("class") == "slice"]
    number = int(slider["max"]) + 1
    assert number > 1
    assert len(slices) == 3 * number
    seen = [k for k, one in enumerate(slices[:number]) if "hidden" not in one]
    assert seen == [int(slider["value"])]


def test_a_preview_that_is_no_picture_is_left_out(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs[0].folder, folder, symlinks=True)
    (folder / "figures" / "preview-epoch-0001.png").write_bytes(b"<script>")
    alts = [one["alt"] for one in Page(report([folder], tmp_path / "p.html")).attributes("img")]
    assert [alt for alt in alts if "epoch" in alt] == ["noisy, denoised, clean after epoch 2"]
