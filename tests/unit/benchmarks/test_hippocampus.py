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


def test_the_page_has_each_training_and_the_memory_of_each_mode(packed, tmp_path):
    folder = tmp_path / "hippocampus"
    call("train", packed, folder, "--seeds", "0", "--device", "cpu")
    ours = json.loads((folder / f"{hippocampus.RECIPE}-seed0.json").read_bytes())
    figures = {"median_dice": {"1": 0.901, "2": 0.877}, "mean_dice": 0.88}
    for kind, seeds in ((hippocampus.RECIPE, (0, 1)), (hippocampus.UNET, (0,))):
        for seed in seeds:
            made = ours | {"seed": seed, "test": ours["test"] | figures}
            (folder / f"{kind}-seed{seed}.json").write_text(json.dumps(made))
    (folder / "unet-rate0.001-seed0.json").write_text(
        json.dumps(ours | {"learning_rate": 0.001, "validation_mean_dice": 0.811})
    )
    memory = dict.fromkeys(hippocampus.MODES, 10**9) | {"exact": 2 * 10**8, "unet": None}
    (folder / "memory.json").write_text(json.dumps(memory))
    hippocampus.main(["page", "--results", str(tmp_path)])
    text = (tmp_path / "segmentation.md").read_text()
    assert text.startswith("# Segmentation: a median Dice of 0.901 anterior and 0.877 posterior\n")
    assert text.count("| 0.901 | 0.877 | 0.880 |") == 3
    assert "(0.001: 0.811)" in text
    epochs = ours["config"]["training"]["epochs"]
    assert f"plain 3D U-Net for {epochs} epochs; the recipe has 20" in text
    assert "| exact | 200 |" in text
    assert "| plain 3D U-Net | | not measured |" in text
