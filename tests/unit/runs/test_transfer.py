"""Training that starts from another network: its blocks, and its classifier where classes agree."""

import shutil
from dataclasses import replace

import pytest
import torch

import pdecnn
from pdecnn.errors import CheckpointError
from pdecnn.networks.pretrained import WEIGHTS, deserialize
from tests.image_folders import write_folder
from tests.runs import Recorder, call, small_config

SETTINGS = {
    "data.size": 8,
    "data.channels": 1,
    "network.channels": [8, 8],
    "network.num_steps": 2,
    "training.batch_size": 8,
    "training.epochs": 1,
}
SLOWLY = {"training__learning_rates": [1e-12], "training__phases": [1]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return pdecnn.train(small_config(), output=tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    write_folder(folder, 40)
    return folder


def configure(pictures, **settings):
    settings = {key.replace("__", "."): value for key, value in settings.items()}
    config = pdecnn.recipe("hamiltonian_images").with_settings(SETTINGS | settings)
    return replace(config, data=replace(config.data, folder=str(pictures)))


def weights(folder):
    return deserialize(folder / WEIGHTS)


@pytest.mark.parametrize("as_folder", [False, True])
def test_other_classes_get_a_new_classifier(trained, pictures, as_folder, tmp_path):
    initial = trained.folder
    if as_folder:
        initial = tmp_path / "network"
        pdecnn.load(trained.folder).save_pretrained(initial)
    config = configure(pictures, training__freeze=["opening", "blocks"])
    recorder = Recorder()
    run = pdecnn.train(config, output=tmp_path / "run", initial=initial, listener=recorder)
    assert any("the classifier starts anew" in note for note in recorder.notes)
    before, after = weights(trained.weights("best")), weights(run.weights("best"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        if name.startswith("classifier."):
            assert after[name].shape[0] == 2
        else:
            assert torch.equal(after[name], tensor), name


def test_as_many_classes_of_other_names_get_a_new_classifier(trained, tmp_path):
    write_folder(tmp_path / "data", 100, classes=tuple("abcdefghij"))
    recorder = Recorder()
    config = configure(tmp_path / "data", **SLOWLY)
    run = pdecnn.train(config, output=tmp_path / "run", initial=trained.folder, listener=recorder)
    assert any("the classifier starts anew" in note for note in recorder.notes)
    name = "classifier.weight"
    old, new = weights(trained.weights("best"))[name], weights(run.weights("best"))[name]
    assert not torch.allclose(old, new, atol=1e-3)


def test_the_same_classes_keep_their_classifier(trained, tmp_path):
    recorder = Recorder()
    config = small_config(training__epochs=1, **SLOWLY)
    run = pdecnn.train(config, output=tmp_path / "run", initial=trained.folder, listener=recorder)
    assert not recorder.notes
    before, after = weights(trained.weights("best")), weights(run.weights("best"))
    assert torch.allclose(before["classifier.weight"], after["classifier.weight"], atol=1e-6)


def test_images_of_other_channels_get_stencils_made_of_those_there_are(trained, pictures, tmp_path):
    recorder = Recorder()
    config = configure(pictures, data__channels=3, training__freeze=["opening", "blocks"])
    run = pdecnn.train(config, output=tmp_path / "run", initial=trained.folder, listener=recorder)
    assert any("takes 1 channel(s), the data has 3" in note for note in recorder.notes)
    name = "opening.convolution.stencil"
    before, after = weights(trained.weights("best"))[name], weights(run.weights("best"))[name]
    torch.testing.assert_close(after, before.expand(-1, 3, -1, -1) / 3)


def test_another_architecture_is_refused(trained, pictures, tmp_path):
    config = configure(pictures, network__channels=[8, 16])
    with pytest.raises(
        CheckpointError,
        match=r"belongs to another architecture: channels is .* --set network\.channels=",
    ):
        pdecnn.train(config, output=tmp_path / "run", initial=trained.folder)
    assert not (tmp_path / "run").exists()


def test_from_the_command_line(trained, pictures, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pdecnn.reports.run_figures.draw_run_figures", lambda run: [])
    options = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    options += ["--data", pictures, "--from", trained.folder, "--output", tmp_path / "run"]
    parts = ("--freeze", "opening", "--freeze", "blocks")
    done = call(capsys, monkeypatch, "train", "hamiltonian_images", *options, *parts)
    assert done.code == 0, done.stderr
    assert "run: 18 weights" in done.stdout  # of 8 features to 2 classes
    assert pdecnn.runs.Run(tmp_path / "run").config.training.freeze == ("opening", "blocks")
    done = call(capsys, monkeypatch, "train", "--freeze", "head")
    assert done.code == 2
    assert "unknown part to freeze 'head'; known are blocks, opening" in done.stderr


def test_transfer_helps(trained, tmp_path):
    """Half of the digits, other classes by name: trained blocks beat drawn ones, all frozen."""
    frozen = {"training__freeze": ["opening", "blocks"], "training__epochs": 3}
    accuracies = []
    for name, initial in (("from", trained.folder), ("drawn", None)):
        config = small_config(**frozen)
        run = pdecnn.train(config, output=tmp_path / name, initial=initial)
        accuracies.append(run.summary["test"]["accuracy"])
    assert accuracies[0] > accuracies[1]


def test_a_run_goes_on_without_the_weights_it_began_with(trained, tmp_path):
    initial = tmp_path / "network"
    pdecnn.load(trained.folder).save_pretrained(initial)
    stopped = small_config(training__time_limit_seconds=1e-9)
    run = pdecnn.train(stopped, output=tmp_path / "run", initial=initial)
    shutil.rmtree(initial)
    assert pdecnn.train(small_config(), output=run.folder, resume=True).is_finished
