"""Coarsened and refined runs are ordinary runs: evaluated, trained on, refused in one line."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import pdecnn
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.networks import Network
from pdecnn.runs import leveling
from pdecnn.runs.leveling import coarsen, compare_levels, refine
from pdecnn.runs.runs import Run, is_run
from tests.runs import call, small_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    return pdecnn.train(small_config(training__epochs=2), output=folder, device="cpu")


@pytest.mark.parametrize(
    ("make", "options", "size", "steps"),
    [
        (coarsen, {"space": 2}, 4, 2),
        (coarsen, {"space": 2, "method": "galerkin"}, 4, 2),
        (coarsen, {"time": 2, "space": 2}, 4, 1),
        (refine, {"time": 2}, 8, 4),
        (refine, {"space": 2, "time": 3, "interpolation": "linear"}, 16, 6),
    ],
)
def test_a_new_level_is_a_run_that_can_be_evaluated_and_trained_on(
    trained, tmp_path, make, options, size, steps
):
    settings = {"training.epochs": 1}
    run = make(trained, output=tmp_path / "new", settings=settings, **options)
    network = pdecnn.load(run.folder)
    assert network.preprocess(torch.zeros(1, 1, 8, 8)).shape == (1, 1, size, size)
    assert network.config == run.config.network
    assert network.config.num_steps == steps
    before = pdecnn.evaluate(run, device="cpu")
    again = pdecnn.train(run.config, output=run.folder, resume=True, device="cpu")
    assert again.is_finished
    assert Network.from_pretrained(again.weights("last")).config == network.config
    assert again.summary["test"]["num_images"] == before["num_images"]
    first = again.metrics[0]
    assert first["epoch"] == 1
    assert pdecnn.load(again.folder).preprocessing == network.preprocessing


def test_figures_stand_beside_those_of_the_original(trained, tmp_path):
    run = coarsen(trained, space=2, output=tmp_path / "new")
    figures = compare_levels(run, trained, device="cpu")
    expected = pdecnn.evaluate(trained, device="cpu")
    assert figures["original"] | expected == figures["original"]
    assert figures["accuracy"] == pdecnn.evaluate(run, device="cpu")["accuracy"]
    assert figures["images_per_second"] > 0


def test_a_new_level_of_another_precision_is_measured_in_its_own(trained, tmp_path, monkeypatch):
    settings = {"training.precision": "bfloat16"}
    run = coarsen(trained, space=2, output=tmp_path / "new", settings=settings)
    timed = {}
    original = leveling.time_in_turn

    def spy(calls, **options):
        timed.update({name: call.keywords["precision"] for name, call in calls.items()})
        return original(calls, **options)

    monkeypatch.setattr(leveling, "time_in_turn", spy)
    figures = compare_levels(run, trained, device="cpu")
    assert timed == {"run": "bfloat16", "original": trained.config.training.precision}
    for found, one in ((figures, run), (figures["original"], trained)):
        assert found | pdecnn.evaluate(one, device="cpu") == found


def test_image_files_are_read_in_the_size_of_the_new_level(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 12, 16, 16, 3), dtype=np.uint8)
    for name, images in zip(("a", "b"), pixels, strict=True):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / "images" / name / f"{number}.png")
    settings = {
        "data.folder": str(tmp_path / "images"),
        "data.size": 8,
        "network.channels": [2, 2],
        "training.epochs": 1,
        "training.batch_size": 4,
    }
    config = pdecnn.recipe("parabolic_images").with_settings(settings)
    trained = pdecnn.train(config, output=tmp_path / "run", device="cpu")
    run = refine(trained, space=2, output=tmp_path / "fine")
    found, expected = compare_levels(run, trained, device="cpu"), pdecnn.evaluate(run, device="cpu")
    assert found | expected == found


def test_the_commands(trained, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "coarse"
    result = call(
        capsys, monkeypatch, "coarsen", trained.folder, "--space", 2, "--evaluate",
        "--output", folder, "--device", "cpu",
    )  # fmt: skip
    assert result.code == 0, result.stderr
    assert "images averaged by 2" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines()[2:]] == ["original", "new"]
    result = call(
        capsys, monkeypatch, "refine", folder, "--time", 2, "--json", "--evaluate",
        "--set", "training.epochs=1", "--output", tmp_path / "fine", "--device", "cpu",
    )  # fmt: skip
    assert result.code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["run"] == str(tmp_path / "fine")
    assert {"accuracy", "images_per_second", "num_weights"} <= found["original"].keys()
    assert Run(tmp_path / "fine").config.training.epochs == 1


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (coarsen, {}, "nothing would change"),
        (coarsen, {"time": 3}, "divides them"),
        (coarsen, {"space": 3}, "pooling that divides"),
        (coarsen, {"space": 0}, "factor"),
        (coarsen, {"time": 2, "method": "linear"}, "method"),
        (refine, {"space": 2, "interpolation": "cubic"}, "interpolation"),
        (refine, {"time": 2, "settings": {"network.num_steps": 3}}, "those of its original"),
        (refine, {"time": 2, "settings": {"training.epoch": 3}}, "did you mean"),
        (refine, {"time": 2, "settings": {"data.pooling": 2}}, "are its level"),
        (
            refine,
            {
                "time": 2,
                "settings": {"training.level_epochs": [1, 1], "training.level_steps": [2, 4]},
            },
            "trained on a single level",
        ),
    ],
)
def test_what_cannot_be_leaves_nothing_behind(trained, tmp_path, make, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make(trained, output=tmp_path / "new", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_volumes_that_are_not_cubes_become_coarser_but_not_finer(tmp_path):
    """A run could only train on the images as they are, with stencils for finer ones."""
    generator = torch.Generator().manual_seed(0)
    volumes = torch.rand(60, 1, 4, 8, 8, generator=generator)
    file = tmp_path / "volumes.npz"
    np.savez(file, x=volumes.numpy(), y=np.arange(60) % 2)
    settings = {
        "data.folder": str(file),
        "network.channels": [2, 2],
        "network.num_steps": 1,
        "training.epochs": 1,
        "training.batch_size": 8,
    }
    config = pdecnn.recipe("parabolic_volumes").with_settings(settings)
    trained = pdecnn.train(config, output=tmp_path / "run", device="cpu")
    coarse = coarsen(trained, space=2, output=tmp_path / "coarse")
    pdecnn.train(coarse.config, output=coarse.folder, resume=True, device="cpu")
    assert pdecnn.load(coarse.folder).preprocess(volumes).shape == (60, 1, 2, 4, 4)
    back = refine(coarse, space=2, time=2, output=tmp_path / "back")
    assert pdecnn.load(back.folder).preprocess(volumes).shape == volumes.shape
    with pytest.raises(ConfigError, match=r"cannot resize its images to \(8, 16, 16\)"):
        refine(trained, space=2, output=tmp_path / "fine")
    assert not (tmp_path / "fine").exists()


def test_another_run_is_not_overwritten(trained):
    with pytest.raises(ConfigError, match=r"holds a run already; pass another --output$"):
        refine(trained, time=2, output=trained.folder)


def test_a_run_that_was_moved_is_trained_on_from_its_own_weights(trained, tmp_path):
    settings = {"training.epochs": 1}
    expected = refine(trained, time=2, output=tmp_path / "here", settings=settings)
    copy = shutil.copytree(expected.folder, tmp_path / "there", symlinks=True)
    pdecnn.train(expected.config, output=expected.folder, resume=True, device="cpu")
    shutil.rmtree(expected.folder / "initial")
    moved = pdecnn.train(Run(copy).config, output=copy, resume=True, device="cpu")
    assert moved.metrics == expected.metrics


@pytest.mark.parametrize("failing", ["save_pretrained", "link"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SystemExit(143)])
def test_a_run_that_could_not_be_made_leaves_nothing_behind(
    trained, tmp_path, monkeypatch, failing, error
):
    def fail(*arguments):
        assert not is_run(tmp_path / "new")  # killed here, it would be no run without weights
        raise error

    monkeypatch.setattr(Network if failing == "save_pretrained" else Run, failing, fail)
    with pytest.raises((CheckpointError, SystemExit), match=r"No space left|143"):
        refine(trained, time=2, output=tmp_path / "new")
    assert not (tmp_path / "new").exists()
