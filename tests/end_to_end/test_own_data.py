"""Data of one's own, as a user trains on it."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from tests.image_folders import write_folder
from tests.runs import call, fingerprint

SETTINGS = ("data.size=16", "network.channels=[4,4]", "training.epochs=2", "training.batch_size=8")
SMALL = tuple(part for setting in SETTINGS for part in ("--set", setting))
EXAMPLES = Path(__file__).parents[2] / "examples"


def write_example(path, example, function, number):
    """What an example makes, in smaller numbers."""
    module = runpy.run_path(str(EXAMPLES / f"{example}.py"))
    x, y = module[function](number, seed=0)
    np.savez(path, x=x, y=y, class_names=np.array(module["CLASSES"]))


@pytest.fixture
def commands(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pdecnn.reports.run_figures.draw_run_figures", lambda run: [])
    return lambda *arguments: call(capsys, monkeypatch, *arguments)


def test_bad_files_are_reported_together_and_no_run_is_left(commands, tmp_path):
    root = tmp_path / "data"
    write_folder(root, 20)
    (root / "down" / "empty.png").write_bytes(b"")
    (root / "across" / "text.png").write_text("no image")
    done = commands("train", "parabolic_images", "--data", "data")
    assert done.code == 3
    first, *lines = done.stderr.splitlines()
    assert first.startswith(f"pdecnn: {root}: 2 files or folders cannot be used")
    assert [line.partition(":")[0] for line in lines] == ["  across/text.png", "  down/empty.png"]
    assert not (tmp_path / "runs").exists()


def test_the_classes_of_a_folder_are_those_of_the_network(commands, tmp_path):
    write_folder(tmp_path / "data", 60, classes=("a", "b", "c"))
    done = commands("train", "hamiltonian_images", "--data", "data", "--output", "run", *SMALL)
    assert done.code == 0, done.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_bytes())
    assert (config["network"]["num_classes"], config["network"]["in_channels"]) == (3, 3)
    evaluated = json.loads(commands("evaluate", "run").stdout)
    assert list(evaluated["per_class"]) == ["a", "b", "c"]
    assert evaluated["num_images"] == 12
    # A finished run is left alone, and its own config resumes it.
    assert "nothing to do" in commands("train", "--output", "run", "--resume").stdout
    path = next((tmp_path / "data" / "a").iterdir())
    done = commands("predict", "run", path)
    assert done.stdout.splitlines()[1].startswith(str(path))


def test_grey_images_and_another_number_of_classes(commands, tmp_path):
    write_folder(tmp_path / "data", 40)
    grey = ("--set", "data.channels=1", "--output", "grey")
    assert commands("train", "parabolic_images", "--data", "data", *grey, *SMALL).code == 0
    config = json.loads((tmp_path / "grey" / "config.json").read_bytes())
    assert config["network"]["in_channels"] == 1
    wrong = ("--set", "network.num_classes=5")
    done = commands("train", "parabolic_images", "--data", "data", *wrong, *SMALL)
    assert done.code == 2
    assert "2 classes, the network 3 and 5" in done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.size=none"], "data.size must be set"),
        (["data.channels=0"], "data.channels must be"),
        (["data.group=scene("], "data.group must be a regular expression"),
        (["data.name=arrays", "data.group=a"], "arrays have an array group beside x and y"),
        (["data.name=cifar10", "data.stream=true"], "data.stream is for data of one's own"),
        (["data.name=cifar10", "data.channels=1"], "data.channels is for image files of one's own"),
        (["data.name=digits"], "'digits' is built in and reads no folder; leave out --data"),
    ],
)
def test_settings_that_make_no_sense_are_refused(commands, settings, message):
    options = [part for setting in settings for part in ("--set", setting)]
    done = commands("train", "parabolic_images", "--data", "data", *options)
    assert done.code == 2
    assert message in done.stderr


@pytest.mark.parametrize("recipe", ["parabolic_images", "parabolic_signals", "parabolic_volumes"])
def test_data_that_is_not_there_is_asked_for(commands, recipe, tmp_path):
    done = commands("train", recipe)
    assert done.code == 3
    assert "pass --data" in done.stderr
    done = commands("train", recipe, "--data", "nowhere")
    assert done.code == 3
    assert "no such" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_imbalance_is_said(commands, tmp_path):
    write_folder(tmp_path / "data", 40)
    train = ("train", "parabolic_images", "--data", "data", *SMALL)
    done = commands(*train, "--output", "equal")
    assert done.code == 0, done.stderr
    assert "warning" not in done.stdout
    for path in sorted((tmp_path / "data" / "down").iterdir())[2:]:
        path.rename(tmp_path / "data" / "across" / f"moved {path.name}")
    done = commands(*train, "--output", "unequal")
    assert done.code == 0, done.stderr
    assert "training samples of 'across', but" in done.stdout
    assert "balanced_accuracy" in done.stdout


def test_from_the_disk_the_run_is_the_same_to_the_bit(commands, tmp_path):
    write_folder(tmp_path / "data", 60)
    for name, stream in (("held", "false"), ("stored", "true")):
        options = ("--output", name, "--set", f"data.stream={stream}", *SMALL)
        standardize = ("--set", "data.standardize=dataset")
        done = commands("train", "second_order_images", "--data", "data", *options, *standardize)
        assert done.code == 0, done.stderr
    assert fingerprint(tmp_path / "held") == fingerprint(tmp_path / "stored")
    assert commands("evaluate", "held").stdout == commands("evaluate", "stored").stdout


@pytest.mark.slow
def test_five_hundred_mixed_images_are_learned(commands, tmp_path):
    """All sizes and modes; first with three bad files among them, then without."""
    root = tmp_path / "data"
    paths = write_folder(root, 500)
    content = paths[0].read_bytes()
    bad = {
        "across/corrupt.png": content[: len(content) // 2],
        "down/empty.png": b"",
        "down/text.png": b"a text",
    }
    for name, data in bad.items():
        (root / name).write_bytes(data)
    done = commands("train", "hamiltonian_images", "--data", "data")
    assert done.code == 3
    assert [line.strip().partition(":")[0] for line in done.stderr.splitlines()[1:]] == list(bad)
    for name in bad:
        (root / name).unlink()
    options = ("--set", "data.size=32", "--set", "training.epochs=3", "--output", "run")
    assert commands("train", "hamiltonian_images", "--data", "data", *options).code == 0
    assert json.loads(commands("evaluate", "run").stdout)["accuracy"] > 0.75


def test_arrays_of_other_dimensions_are_refused(commands, tmp_path):
    x, y = np.zeros((40, 3, 8, 8), np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "pictures.npz", x=x, y=y)
    done = commands("train", "parabolic_volumes", "--data", "pictures.npz")
    assert done.code == 2
    assert "2 dimensions after samples and channels, the network 3" in done.stderr
    done = commands("train", "parabolic_images", "--data", "pictures.npz")
    assert done.code == 3
    assert "--set data.name=arrays" in done.stderr
    arrays = ("--set", "data.name=arrays", "--output", "run", *SMALL)
    assert commands("train", "parabolic_images", "--data", "pictures.npz", *arrays).code == 0


def test_a_run_on_signals_is_like_any_other(commands, tmp_path):
    """Evaluated, resumed and drawn; image files it cannot take are refused."""
    write_example(tmp_path / "chirps.npz", "chirps", "make_signals", 80)
    options = ("--set", "network.channels=[4,4]", "--set", "training.epochs=2", "--output", "run")
    done = commands("train", "hamiltonian_signals", "--data", "chirps.npz", *options)
    assert done.code == 0, done.stderr
    evaluated = json.loads(commands("evaluate", "run").stdout)
    assert list(evaluated["per_class"]) == ["tone", "rising", "falling", "warble"]
    done = commands("predict", "run", "image.png")
    assert done.code == 2
    assert "takes 1D samples; pass .npy" in done.stderr


def test_the_figures_of_volumes_are_drawn(capsys, tmp_path):
    import pdecnn
    from pdecnn.reports.run_figures import draw_run_figures

    write_example(tmp_path / "data.npz", "rotations", "make_videos", 60)
    settings = {"network.channels": [4, 4], "training.epochs": 1, "training.batch_size": 8}
    config = pdecnn.recipe("parabolic_volumes").with_settings(
        settings | {"data.folder": str(tmp_path / "data.npz")}
    )
    run = pdecnn.train(config, output=tmp_path / "run")
    assert {path.stem for path in draw_run_figures(run)} == {
        "convergence",
        "confusion",
        "predictions",
    }


LEARNED = {
    "signals": ("chirps", "make_signals", 800, 10),
    "volumes": ("rotations", "make_videos", 480, 8),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dynamics"),
    [("signals", "hamiltonian"), ("signals", "second_order"), ("volumes", "parabolic")],
)
def test_signals_and_volumes_are_learned(kind, dynamics, commands, tmp_path):
    """Far above the quarter of chance; benchmarks/own_data.py measures how well."""
    example, function, number, epochs = LEARNED[kind]
    write_example(tmp_path / "data.npz", example, function, number)
    options = ("--set", f"training.epochs={epochs}", "--output", "run", "--json", "--quiet")
    done = commands("train", f"{dynamics}_{kind}", "--data", "data.npz", *options)
    assert json.loads(done.stdout)["test"]["accuracy"] > 0.6
