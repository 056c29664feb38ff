"""Evaluation and prediction agree with what training measured."""

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import pdecnn
from pdecnn.errors import CheckpointError, ConfigError, DataError
from pdecnn.runs.preparation import read_splits


@pytest.fixture
def image_files(tmp_path):
    """Six digits as PNG files."""
    paths = []
    for number, pixels in enumerate(load_digits().images[:6]):
        paths.append(tmp_path / f"digit {number}.png")
        Image.fromarray(np.round(pixels * 255 / 16).astype(np.uint8)).save(paths[-1])
    return paths


def test_the_test_accuracy_is_that_of_the_summary(undisturbed):
    result = pdecnn.evaluate(undisturbed.folder)
    expected = undisturbed.summary["test"]
    assert result == {k: v for k, v in expected.items() if k != "confusion"} | {
        "num_weights": undisturbed.summary["num_weights"]
    }
    assert list(result) == [
        "accuracy",
        "loss",
        "balanced_accuracy",
        "per_class",
        "num_images",
        "num_weights",
    ]
    assert 0 <= result["accuracy"] <= 1
    assert result["num_weights"] == pdecnn.load(undisturbed.folder).num_weights


def test_validation_figures_are_those_of_the_metrics(undisturbed):
    best = undisturbed.metrics[undisturbed.summary["best_epoch"] - 1]
    result = pdecnn.evaluate(undisturbed, split="validation")
    assert result["accuracy"] == best["validation_accuracy"]
    assert result["loss"] == best["validation_loss"]
    assert result["num_images"] == 287
    last = pdecnn.evaluate(undisturbed, split="validation", weights="last")
    assert last["accuracy"] == undisturbed.metrics[-1]["validation_accuracy"]


def test_training_images_are_those_of_the_fraction_without_augmentation(undisturbed):
    result = pdecnn.evaluate(undisturbed, split="train")
    assert result["num_images"] == 230  # a fifth of 1,437 - 287
    splits = read_splits(undisturbed.config.data, undisturbed.config.seed)
    network = pdecnn.load(undisturbed.folder)
    with torch.no_grad():
        predicted = network(network.preprocess(splits.train.images)).argmax(1)
    assert result["accuracy"] == float((predicted == splits.train.labels).double().mean())


def test_what_cannot_be_evaluated_is_refused(undisturbed, tmp_path):
    with pytest.raises(ConfigError, match="split must be one of test, validation, train"):
        pdecnn.evaluate(undisturbed, split="training")
    with pytest.raises(ConfigError, match="weights must be one of"):
        pdecnn.evaluate(undisturbed, weights="worst")
    with pytest.raises(CheckpointError, match="not a run directory"):
        pdecnn.evaluate(tmp_path)


def test_predictions_are_sorted_and_named(undisturbed, image_files):
    results = pdecnn.predict(undisturbed.folder, image_files, top=4)
    assert [result["image"] for result in results] == [str(path) for path in image_files]
    for result in results:
        entries = result["predictions"]
        assert len(entries) == 4
        probabilities = [entry["probability"] for entry in entries]
        assert probabilities == sorted(probabilities, reverse=True)
        assert all(0 <= probability <= 1 for probability in probabilities)
        assert sum(probabilities) <= 1 + 1e-6
        assert all(entry["class"] in "0123456789" for entry in entries)
        assert len({entry["class"] for entry in entries}) == 4


def test_a_file_and_a_tensor_are_predicted_alike(undisturbed, image_files):
    network = pdecnn.load(undisturbed.folder).eval()
    pixels = torch.from_numpy(np.round(load_digits().images[:6] * 255 / 16).astype(np.uint8))
    with torch.no_grad():
        probabilities = network(network.preprocess(pixels[:, None])).softmax(1)
    results = pdecnn.predict(undisturbed.folder, image_files, top=99)
    for result, expected in zip(results, probabilities, strict=True):
        entries = {entry["class"]: entry["probability"] for entry in result["predictions"]}
        assert len(entries) == 10
        found = torch.tensor([entries[str(digit)] for digit in range(10)])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_images_of_any_size_are_taken_and_of_any_colour(undisturbed, tmp_path):
    path = tmp_path / "large.png"
    Image.new("RGB", (40, 30), (200, 10, 10)).save(path)
    assert len(pdecnn.predict(undisturbed.folder, [path])[0]["predictions"]) == 3


def test_a_pretrained_folder_predicts_too_and_names_default_to_numbers(tmp_path, image_files):
    network = pdecnn.create_model("hamiltonian_digits", channels=(4, 4))
    network.save_pretrained(tmp_path / "folder")
    entry = pdecnn.predict(tmp_path / "folder", image_files[:1], top=1)[0]["predictions"][0]
    assert entry["class"] in [str(digit) for digit in range(10)]


def test_folders_and_arrays_are_predicted_as_their_images_are(undisturbed, tmp_path, image_files):
    expected = [row["predictions"] for row in pdecnn.predict(undisturbed.folder, image_files)]
    pixels = np.round(load_digits().images[:6, None] * 255 / 16).astype(np.uint8)
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for place, path in enumerate(image_files):
        (tmp_path / "in" / "deep" / f"{place}.png").write_bytes(path.read_bytes())
    (tmp_path / "in" / "notes.txt").write_text("not for you")
    np.save(tmp_path / "digits.npy", pixels)
    np.savez(tmp_path / "digits.npz", x=pixels, y=np.zeros(6, int))
    found = pdecnn.predict(undisturbed.folder, [tmp_path / "in"])
    assert [row["image"] for row in found] == [
        str(tmp_path / "in" / "deep" / f"{place}.png") for place in range(6)
    ]
    assert_same_classes(found, expected)
    for name in ("digits.npy", "digits.npz"):
        found = pdecnn.predict(undisturbed.folder, [tmp_path / name])
        assert [row["image"] for row in found] == [f"{tmp_path / name}[{k}]" for k in range(6)]
        assert_same_classes(found, expected)
    for array in (pixels, torch.from_numpy(pixels), torch.from_numpy(pixels).float() / 255):
        found = pdecnn.predict(undisturbed.folder, array)
        assert [row["image"] for row in found] == list("012345")
        assert_same_classes(found, expected)


def assert_same_classes(found, expected):
    for row, predictions in zip(found, expected, strict=True):
        assert [entry["class"] for entry in row["predictions"]] == [
            entry["class"] for entry in predictions
        ]
        assert row["predictions"][0]["probability"] == pytest.approx(
            predictions[0]["probability"], abs=1e-5
        )


def test_arrays_that_do_not_fit_are_refused(undisturbed, tmp_path):
    np.savez(tmp_path / "two.npz", a=np.zeros(3), b=np.zeros(3))
    with pytest.raises(DataError, match=r"gone\.npy: no such file"):
        pdecnn.predict(undisturbed.folder, [tmp_path / "gone.npy"])
    with pytest.raises(DataError, match=r"holds no array x \(found: a, b\); save"):
        pdecnn.predict(undisturbed.folder, [tmp_path / "two.npz"])
    with pytest.raises(DataError, match=r"1 channels, height, width\), found shape \(2, 3, 8, 8\)"):
        pdecnn.predict(undisturbed.folder, np.zeros((2, 3, 8, 8), np.uint8))
    with pytest.raises(DataError, match="seems to have its channels last"):
        pdecnn.predict(undisturbed.folder, np.zeros((2, 8, 8, 1), np.uint8))


def test_what_cannot_be_predicted_is_refused(undisturbed, tmp_path, image_files):
    broken = tmp_path / "broken.png"
    broken.write_bytes(image_files[0].read_bytes()[:40])
    (tmp_path / "empty").mkdir()
    for path in (broken, tmp_path / "none.png", tmp_path / "empty"):
        with pytest.raises(DataError, match=str(path)):
            pdecnn.predict(undisturbed.folder, [image_files[0], path])
    with pytest.raises(ConfigError, match="top must be at least 1"):
        pdecnn.predict(undisturbed.folder, image_files, top=0)
