"""The benchmark of segmenters: which volumes are for the test, and what a training writes."""

import json

import pytest

from benchmarks import hippocampus
from benchmarks.unet import TrainableUNet
from pdecnn.data.segmented import pack_segmented
from pdecnn.networks import create_model
from tests.volumes import write_ball

SETTINGS = [
    "data.patch=8",
    "data.repeats=1",
    "network.channels=4,32,4,4",
    "network.hidden_channels=4",
    "network.num_steps=1",
    "training.batch_size=4",
    "training.epochs=1",
]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hippocampus")
    for k in range(15):
        write_ball(folder / "scans", f"h_{k:02}.nii", (7, 9, 6), k)
    hippocampus.main(["arrange", str(folder / "scans"), str(folder / "arranged")])
    names = sorted(path.name for path in (folder / "arranged" / "test" / "labels").iterdir())
    assert names == ["h_04.nii", "h_09.nii", "h_14.nii"]
    file = folder / "packed.npz"
    assert pack_segmented(folder / "arranged", file, channels=None) == {"train": 12, "test": 3}
    return file


def call(command, packed, output, *others):
    settings = [word for text in SETTINGS for word in ("--set", text)]
    hippocampus.main([command, "--data", str(packed), "--output", str(output), *settings, *others])


def test_a_training_writes_its_figures_once(packed, tmp_path, capsys):
    call("train", packed, tmp_path, "--seeds", "3", "--device", "cpu")
    path = tmp_path / f"{hippocampus.RECIPE}-seed3.json"
    found = json.loads(path.read_bytes())
    assert set(found["test"]["median_dice"]) == {"1", "2"}
    assert (found["seed"], found["updates"], len(found["epochs"])) == (3, 2, 1)
    assert found["config"]["data"]["folder"] is None  # no path of a machine
    assert "command" not in found["environment"]
    before = path.read_bytes()
    call("train", packed, tmp_path, "--seeds", "3", "--device", "cpu")
    assert path.read_bytes() == before
    assert "test median Dice" in capsys.readouterr().out


def test_the_rate_of_the_unet_is_chosen_without_the_test_volumes(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(hippocampus, "WIDTH", 2)
    call("unet", packed, tmp_path, "--seeds", "0", "--device", "cpu", "--set", "data.patch=8,8,16")
    tried = [json.loads(path.read_bytes()) for path in tmp_path.glob("unet-rate*.json")]
    assert {one["learning_rate"] for one in tried} == set(hippocampus.RATES)
    assert all("test" not in one for one in tried)
    best = max(tried, key=lambda one: one["validation_mean_dice"])["validation_mean_dice"]
    chosen = json.loads((tmp_path / "unet-seed0.json").read_bytes())
    rates = [one["learning_rate"] for one in tried if one["validation_mean_dice"] == best]
    assert chosen["learning_rate"] in rates


def test_memory_is_measured_in_every_mode(packed, tmp_path):
    call("memory", packed, tmp_path, "--device", "cpu")
    found = json.loads((tmp_path / "memory.json").read_bytes())
    assert set(found) == {"environment", "stored", "checkpointed", "reversible", "exact", "unet"}


def test_the_unet_has_about_as_many_weights_as_ours():
    unet = TrainableUNet(hippocampus.WIDTH, in_channels=1, num_classes=3)
    ours = create_model(hippocampus.RECIPE, num_classes=3)
    assert 0.5 <= unet.num_weights / ours.num_weights <= 2
