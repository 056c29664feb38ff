"""From images or volumes with labels to a segmenter, its figures and its files."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import pdecnn
from pdecnn.data.segmented import pack_segmented
from pdecnn.errors import ConfigError, DataError
from pdecnn.reports.run_figures import draw_run_figures
from pdecnn.runs import predict_images
from tests.runs import assert_resumed_to_the_bit, call, fingerprint
from tests.unit.data.test_segmented import write_labels
from tests.volumes import AXES, make_ball, write_balls, write_volume

nibabel = pytest.importorskip("nibabel")
SMALL = {
    "data.patch": 8,
    "data.repeats": 4,
    "data.validation_fraction": 0.2,
    "network.num_steps": 1,
    "network.hidden_channels": 4,
    "training.batch_size": 8,
    "training.epochs": 2,
}
LEVELS = {2: [4, 16, 4, 4], 3: [4, 32, 4, 4]}


def config_for(dynamics, folder, dimension, **changes):
    settings = SMALL | {"network.channels": LEVELS[dimension], "data.folder": str(folder)}
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    name = f"{dynamics}_segmentation" + ("_volumes" if dimension == 3 else "")
    return pdecnn.recipe(name).with_settings(settings)


def write_discs(folder):
    """Pictures in colour with a disc of class 1."""
    for k in range(12):
        image, labels = make_ball((13 + k % 3, 15), k)
        pixels = (127 + 100 * image / np.abs(image).max()).astype(np.uint8)
        for name, array in (
            ("images", np.stack([pixels] * 3, -1)),
            ("labels", labels.clip(0, 1)),
        ):
            write_labels(folder / name / f"{k}.png", array)
    return folder


@pytest.fixture(scope="module")
def balls(tmp_path_factory):
    return write_balls(tmp_path_factory.mktemp("balls"))


@pytest.fixture(scope="module")
def discs(tmp_path_factory):
    return write_discs(tmp_path_factory.mktemp("discs"))


@pytest.fixture(scope="module")
def trained(balls, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "run"
    return pdecnn.train(config_for("hamiltonian", balls, 3), output=output)


@pytest.fixture(scope="module")
def trained_on_discs(discs, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "run"
    return pdecnn.train(config_for("parabolic", discs, 2), output=output)


@pytest.mark.parametrize(
    ("dynamics", "dimension"), [("parabolic", 2), ("hamiltonian", 3), ("second_order", 2)]
)
def test_every_segmenter_trains(dynamics, dimension, balls, discs, tmp_path):
    folder = balls if dimension == 3 else discs
    run = pdecnn.train(config_for(dynamics, folder, dimension), output=tmp_path / "run")
    assert run.summary["selected_by"] == "validation mean_dice"
    assert set(run.summary["test"]) >= {"dice", "median_dice", "iou", "per_image", "mean_dice"}
    assert set(run.metrics[0]) >= {"mean_dice", "validation_mean_dice"}
    network = pdecnn.load(run.folder)
    names = ("background", "1", "2") if dimension == 3 else ("background", "1")
    assert network.preprocessing.class_names == names
    assert network.preprocessing.standardize == "image"
    channels = 1 if dimension == 3 else 3
    with torch.no_grad():
        sizes = (9, 7, 5)[:dimension]
        assert network(torch.rand(1, channels, *sizes)).shape == (1, len(names), *sizes)


def test_a_segmenter_learns(balls, tmp_path):
    config = config_for(
        "hamiltonian",
        balls,
        3,
        data__repeats=20,
        training__epochs=3,
        training__learning_rates=[5e-3],
        network__hidden_channels=8,
        network__channels=[8, 64, 8, 8],
    )
    run = pdecnn.train(config, output=tmp_path / "run")
    assert run.summary["test"]["mean_dice"] > 0.6


@pytest.mark.parametrize("dynamics", ["parabolic", "hamiltonian"])
def test_killed_and_resumed_gives_the_same_bits(dynamics, balls, tmp_path):
    config = config_for(dynamics, balls, 3)
    assert_resumed_to_the_bit(config, tmp_path)


def test_packed_volumes_train_to_the_same_bits_without_nibabel(
    balls, trained, tmp_path, monkeypatch
):
    pack_segmented(balls, tmp_path / "packed.npz", channels=None)
    monkeypatch.setitem(sys.modules, "nibabel", None)
    config = config_for("hamiltonian", tmp_path / "packed.npz", 3)
    run = pdecnn.train(config, output=tmp_path / "run")
    assert fingerprint(run.folder) == fingerprint(trained.folder)


def test_evaluation_says_dice_and_iou_of_each_class_and_image(trained):
    found = pdecnn.evaluate(trained.folder)
    assert set(found["dice"]) == set(found["median_dice"]) == set(found["iou"]) == {"1", "2"}
    names = [row["image"] for row in found["per_image"]]
    assert names == ["test/images/0.nii", "test/images/1.nii.gz"]
    assert found["mean_dice"] == trained.summary["test"]["mean_dice"]
    with pytest.raises(ConfigError, match="was trained without noise"):
        pdecnn.evaluate(trained.folder, noise=5)


def test_volumes_are_written_with_their_header_and_nothing_is_overwritten(trained, balls, tmp_path):
    image, _ = make_ball((7, 9, 6))
    turned = np.ascontiguousarray(image[::-1, ::-1])
    write_volume(tmp_path / "a.nii.gz", turned, AXES["LPS"])
    write_volume(tmp_path / "b.nii", image)
    output = tmp_path / "out"
    files = [tmp_path / "a.nii.gz", tmp_path / "b.nii"]
    rows = predict_images(trained.folder, files, output)
    assert [row["output"] for row in rows] == [str(output / "a.nii.gz"), str(output / "b.nii")]
    assert rows[0]["size"] == [7, 9, 6]
    assert rows[0]["padded"] == [8, 10, 6]
    one, two = (nibabel.load(output / name) for name in ("a.nii.gz", "b.nii"))
    assert np.array_equal(one.affine, AXES["LPS"])
    assert one.get_data_dtype() == np.uint8
    labels = np.asarray(one.dataobj)[::-1, ::-1]  # the same scan, in another order of axes
    assert np.array_equal(labels, np.asarray(two.dataobj))
    assert set(np.unique(labels)) <= {0, 1, 2}
    with pytest.raises(DataError, match=r"a\.nii\.gz: is there already; pass --force"):
        predict_images(trained.folder, files, output)
    before = (output / "a.nii.gz").read_bytes()
    predict_images(trained.folder, files, output, force=True)
    assert (output / "a.nii.gz").read_bytes() == before
    inside = predict_images(trained.folder, [balls / "test" / "images"], tmp_path / "all")
    assert len(inside) == 2


def test_label_images_are_written_as_classes(trained_on_discs, discs, tmp_path):
    rows = predict_images(trained_on_discs.folder, [discs / "images" / "3.png"], tmp_path / "out")
    assert rows[0]["output"] == str(tmp_path / "out" / "3.png")
    with Image.open(tmp_path / "out" / "3.png") as image:
        labels = np.array(image)
        assert labels.shape == (13, 15)
        assert labels.max() <= 1


def test_files_of_another_kind_are_refused_in_one_line(trained, trained_on_discs, discs, tmp_path):
    write_volume(tmp_path / "a.nii", np.zeros((4, 4, 4, 2), np.float32))
    for run, file, complaint in (
        (trained, discs / "images" / "0.png", "is no volume file; they end in .nii, .nii.gz"),
        (trained_on_discs, tmp_path / "a.nii", "is no image file; they end in .png"),
        (trained, tmp_path / "a.nii", "1 channels"),
    ):
        with pytest.raises(DataError, match=complaint):
            predict_images(run.folder, [file], tmp_path / "out")
    with pytest.raises(ConfigError, match="say where to with --output"):
        pdecnn.predict(trained.folder, [tmp_path / "a.nii"])


def test_the_figures_show_images_classes_and_answers(trained, trained_on_discs):
    for run in (trained, trained_on_discs):
        names = {path.name for path in draw_run_figures(run)}
        assert {"convergence.png", "predictions.png"} <= names


def test_the_command_line_from_folder_to_labels(trained, balls, tmp_path, capsys, monkeypatch):
    def pdecnn_says(*arguments):
        found = call(capsys, monkeypatch, *arguments)
        assert found.code == 0, found.stderr
        return found.stdout

    assert "10 train, 2 test" in pdecnn_says("data", "pack", balls, "--output", tmp_path / "p.npz")
    found = json.loads(pdecnn_says("evaluate", trained.folder, "--json"))
    assert set(found["median_dice"]) == {"1", "2"}
    volume, output = balls / "test" / "images" / "0.nii", tmp_path / "out"
    found = pdecnn_says("predict", trained.folder, volume, "--output", output, "--json")
    (row,) = json.loads(found)["images"]
    assert row["output"] == str(output / "0.nii")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.patch": "none"}, r"set data\.patch"),
        ({"data.noise": 25}, r"data\.noise is for data\.name=pictures"),
        ({"data.standardize": "dataset"}, r"data\.standardize=image or none"),
        ({"data.flip": "alternate"}, r"set data\.flip to true, false or left_right"),
        ({"data.pooling": 2}, "would leave pixels without a class"),
        ({"task.loss": "squared"}, "unknown loss of segmentation"),
        ({"task.name": "regression"}, "does not fit"),
        ({"network.classifier": "linear"}, r"needs network\.classifier=field"),
        ({"training.mixup": 0.2}, r"training\.mixup has no use with task\.name=segmentation"),
        ({"training.evaluation_batch_size": 5}, r"evaluation_batch_size has no use with task"),
        (
            {"training.level_sizes": [64, 128], "training.level_epochs": [1, 1]},
            r"leave out training\.level_sizes",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        pdecnn.recipe("hamiltonian_segmentation").with_settings(changes)


@pytest.mark.parametrize("name", ["turn", "zoom", "intensity"])
def test_settings_of_segmentation_are_refused_elsewhere(name):
    with pytest.raises(ConfigError, match=rf"data\.{name} is for data\.name=segmented"):
        pdecnn.recipe("hamiltonian_digits").with_settings({f"data.{name}": 0.1})
    with pytest.raises(ConfigError, match=r"data\.flip=left_right is for data\.name=segmented"):
        pdecnn.recipe("hamiltonian_digits").with_settings({"data.flip": "left_right"})


def test_a_recipe_that_reads_no_labels_names_those_that_do(balls, capsys, monkeypatch):
    found = call(capsys, monkeypatch, "train", "--data", balls)
    assert found.code != 0
    assert "hamiltonian_segmentation_volumes" in found.stderr
    assert "hamiltonian_segmentation," not in found.stderr


def test_data_of_other_axes_than_the_recipe_is_refused(balls, tmp_path):
    config = config_for("hamiltonian", balls, 2, network__in_channels=1)
    with pytest.raises(ConfigError, match=r"3 dimensions.*take a recipe .*_segmentation_volumes"):
        pdecnn.train(config, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_output_that_is_a_file_is_refused_in_one_line(trained_on_discs, discs, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(DataError, match=r"out: cannot be a folder .*choose another --output"):
        predict_images(trained_on_discs.folder, [discs / "images"], tmp_path / "out")


def test_an_attack_costs_dice_of_each_class(trained, capsys, monkeypatch):
    arguments = ("--epsilon", "1", "--method", "pgd", "--steps", "3", "--restarts", "1")
    found = call(capsys, monkeypatch, "attack", trained.folder, *arguments)
    assert found.code == 0, found.stderr
    assert "Dice of 1  Dice of 2" in found.stdout
    assert "without bounds" in found.stdout
    values = json.loads((trained.folder / "attack" / "attack_linf.json").read_text())
    (result,) = values["results"]
    assert result["loss"] > values["clean"]["loss"]
    assert values["clean"]["dice"] == pytest.approx(pdecnn.evaluate(trained.folder)["dice"])
    assert (trained.folder / "attack" / "attack_linf_images.png").is_file()
