"""Groups: validation and test never share one with training, in every command."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import pdecnn
from pdecnn.data.registry import suggested_groups
from pdecnn.errors import ConfigError, DataError
from pdecnn.runs.config import DataConfig, run_config_from_dict
from pdecnn.runs.preparation import read_own, read_splits
from tests.runs import Recorder

SMALL = {
    "network.channels": [4, 4],
    "network.num_steps": 1,
    "training.epochs": 1,
    "training.batch_size": 8,
    "training.precision": "float32",
    "training.num_threads": 1,
}


def group_sets(splits):
    return [set(part.groups.tolist()) for part in splits]


def assert_apart(splits):
    train, validation, test = group_sets(splits)
    assert not train & validation
    assert not train & test
    assert not validation & test


def arrays(num_groups=10, each=6):
    """Signals of two classes; each group has a tone of its own."""
    groups = np.arange(num_groups * each) // each
    labels = np.arange(len(groups)) % 2
    time = np.arange(16) / 16
    x = np.sin(2 * np.pi * (1 + 3 * labels[:, None]) * time) + 0.1 * groups[:, None]
    return x.astype(np.float32), labels, groups


@pytest.fixture
def scenes(tmp_path):
    """A folder of two classes with the scene in each name."""
    random = np.random.default_rng(0)
    for k in range(60):
        path = tmp_path / "tiles" / "ab"[k % 2] / f"scene-{k // 6}_{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    return tmp_path / "tiles"


def configure(folder, **settings):
    settings = {key.replace("__", "."): value for key, value in settings.items()}
    return pdecnn.recipe("parabolic_images").with_settings(
        SMALL | {"data.folder": str(folder), "data.size": 8} | settings
    )


def test_no_scene_of_a_folder_is_in_two_parts(scenes):
    config = configure(scenes, data__group=r"scene-(\d+)")
    splits = read_splits(config.data, 0)
    assert_apart(splits)
    assert [len(part) for part in splits] == [36, 12, 12]
    # The test part is the same for every seed; without groups scenes are mixed.
    assert torch.equal(read_splits(config.data, 1).test.images, splits.test.images)
    assert read_splits(configure(scenes).data, 0).train.groups is None


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kind", ["npz", "npy", "held"])
def test_no_group_of_arrays_is_in_two_parts(tmp_path, kind, named):
    x, y, group = arrays()
    group = np.array([f"speaker {k}" for k in group]) if named else group
    held = None
    if kind == "npz":
        np.savez(tmp_path / "data.npz", x=x, y=y, group=group)
    elif kind == "npy":
        (tmp_path / "data.npz").mkdir()
        for name, values in (("x", x), ("y", y), ("group", group)):
            np.save(tmp_path / "data.npz" / f"{name}.npy", values)
    else:
        held = {"x": torch.from_numpy(x), "y": y, "group": group.tolist() if named else group}
    folder = None if held is not None else str(tmp_path / "data.npz")
    splits = read_splits(DataConfig(name="arrays", folder=folder), 0, held)
    assert_apart(splits)
    assert [len(part) for part in splits] == [36, 12, 12]


def test_groups_of_given_parts_must_be_apart(tmp_path):
    x, y, group = arrays()
    parts = {"x_train": x, "y_train": y, "group_train": group}
    test = {"x_test": x[:12], "y_test": y[:12]}
    np.savez(tmp_path / "bad.npz", **parts, **test, group_test=group[:12])
    with pytest.raises(DataError, match="the group '0' has samples in the parts test and train"):
        pdecnn.data.read_arrays(tmp_path / "bad.npz")
    np.savez(tmp_path / "good.npz", **parts, **test, group_test=group[:12] + 100)
    assert len(pdecnn.data.read_arrays(tmp_path / "good.npz").test) == 12


@pytest.mark.parametrize("group", [np.arange(7), np.zeros((60, 1), int), np.zeros(60)])
def test_a_group_that_is_no_number_a_sample_is_refused(group):
    x, y, _ = arrays()
    with pytest.raises(DataError, match="must have a whole number or a text for each of the 60"):
        pdecnn.data.read_arrays({"x": x, "y": y, "group": group})


def test_too_few_groups_are_refused_in_one_line():
    x, y, group = arrays()
    for number, message in ((1, "test set part cannot be held out of 1"), (2, "validation part")):
        held = {"x": x, "y": y, "group": group % number}
        with pytest.raises(DataError, match=message) as caught:
            read_splits(DataConfig(name="arrays"), 0, held)
        assert "\n" not in str(caught.value)
        assert "data.validation_fraction=0" in str(caught.value)
    splits = read_splits(DataConfig(name="arrays", validation_fraction=0.0), 0, held)
    assert splits.validation is None


def test_a_run_is_resumed_and_evaluated_with_its_split(scenes, tmp_path):
    config = configure(scenes, data__group=r"scene-(\d+)")
    run = pdecnn.train(config, output=tmp_path / "run")
    assert pdecnn.evaluate(run.folder)["num_images"] == 12
    assert json.loads((run.folder / "data.json").read_bytes())["images"]["test"] == 12
    (run.folder / "summary.json").unlink()
    with pytest.raises(ConfigError, match="other settings"):
        pdecnn.train(configure(scenes), output=run.folder, resume=True)
    assert pdecnn.train(config, output=run.folder, resume=True).is_finished


def test_tensors_may_come_with_groups(tmp_path):
    config = pdecnn.recipe("parabolic_signals").with_settings(SMALL)
    run = pdecnn.train(config, data=arrays(), output=tmp_path / "run")
    assert run.summary["test"]["num_images"] == 12
    with pytest.raises(DataError, match=r"\(x, y\) or \(x, y, group\), found 1 arrays"):
        pdecnn.train(config, data=arrays()[:1], output=tmp_path / "other")


def test_names_that_suggest_groups_are_pointed_out(scenes, tmp_path):
    recorder = Recorder()
    pdecnn.train(configure(scenes), output=tmp_path / "run", listener=recorder)
    (note,) = [note for note in recorder.notes if "suggest" in note]
    assert "a/scene-0_0.png suggest 10 groups" in note
    pattern = note.partition("data.group=")[2].rstrip("'")
    assert_apart(read_splits(configure(scenes, data__group=pattern).data, 0))
    recorder = Recorder()
    config = configure(scenes, data__group=pattern)
    pdecnn.train(config, output=tmp_path / "grouped", listener=recorder)
    assert not any("suggest" in note for note in recorder.notes)


@pytest.mark.parametrize(
    ("name", "suggests"),
    [("speaker", True), ("patient_id", True), ("subjects", True), ("z", False)],
)
def test_arrays_that_suggest_groups_are_pointed_out(name, suggests):
    x, y, group = arrays()
    note = suggested_groups("arrays", {"x": x, "y": y, name: group})
    assert (note is not None) == suggests
    assert suggested_groups("arrays", {"x": x, "y": y, name: group, "group": group}) is None


def test_ordinary_names_suggest_nothing(tmp_path):
    for k in range(8):
        path = tmp_path / "ab"[k % 2] / f"scenery {k}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (4, 4)).save(path)
    assert suggested_groups("images", tmp_path) is None


def test_channels_come_from_the_files_and_stay_with_the_run(scenes):
    config = read_own(configure(scenes))[0]
    assert config.data.channels == config.network.in_channels == 1
    assert run_config_from_dict(config.to_dict()) == config
    coloured = read_own(configure(scenes, data__channels=3))[0]
    assert coloured.network.in_channels == 3
    with pytest.raises(DataError, match=r"data\.channels is 5, but the files have 1; leave it out"):
        read_splits(configure(scenes, data__channels=5).data, 0)


def test_a_config_of_before_reads_images_in_colour_and_other_data_as_ever():
    for name, channels in (("parabolic_images", 3), ("parabolic_digits", None)):
        values = pdecnn.recipe(name).to_dict() | {"format_version": 2}
        del values["data"]["group"]
        values["data"]["channels"] = 3
        assert run_config_from_dict(values).data.channels == channels


def test_grey_images_are_read_in_colour_for_weights_that_take_it(scenes, caplog):
    caplog.set_level("INFO", logger="pdecnn")

    config = replace(configure(scenes), initial="hamiltonian_cifar10")
    fitted, splits = read_own(config)
    assert fitted.data.channels == fitted.network.in_channels == splits.train.channels == 3
    assert (
        "images are read in colour, as the weights of hamiltonian_cifar10 take them" in caplog.text
    )
