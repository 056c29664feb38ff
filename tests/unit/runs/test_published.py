"""Published weights go by their name wherever a run goes by its folder."""

import pytest
import torch

import pdecnn
from pdecnn.data.published import CIFAR10
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.explorer.subject import open_subject
from pdecnn.runs import diagnosis
from tests.image_folders import write_folder
from tests.unit.data.test_cifar import write_files

NAME = "hamiltonian_cifar10"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A working directory without anything called as a model."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cifar10(elsewhere):
    inner, _ = write_files(elsewhere, CIFAR10, records_per_file=4)
    names = pdecnn.load(NAME).preprocessing.class_names
    (inner / CIFAR10.names_file).write_text("\n".join(names) + "\n")
    return elsewhere


def assert_same_weights(one, other):
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_a_name_is_loaded_and_predicts(elsewhere):
    network = pdecnn.load(NAME)
    assert not network.training
    assert_same_weights(network, pdecnn.create_model(NAME, pretrained=True))
    (image, *_) = write_folder(elsewhere / "images", 2)
    (row,) = pdecnn.predict(NAME, [image], device="cpu")
    assert row["predictions"][0]["class"] in network.preprocessing.class_names
    with pytest.raises(ConfigError, match="has its published weights only; leave out --weights"):
        pdecnn.load(NAME, "last")
    with pytest.raises(CheckpointError, match="not a run directory"):
        pdecnn.load("hamiltonian_cifar1")


def test_an_existing_path_wins_over_a_name_and_that_is_said(elsewhere, caplog):
    pdecnn.create_model("hamiltonian_digits", channels=(4, 4)).save_pretrained(NAME)
    assert pdecnn.load(NAME).config.channels == (4, 4)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "what lies there is taken, not the published weights" in record.getMessage()


def test_a_name_is_evaluated_and_attacked_on_data_that_is_said(cifar10):
    found = pdecnn.evaluate(NAME, data=cifar10, device="cpu")
    assert found["num_images"] == 4
    attacked = pdecnn.attack(
        NAME, data=cifar10, epsilons=[0.01], methods=["fgsm"], num_images=2, device="cpu"
    )
    assert (attacked.run, attacked.recipe) == (NAME, NAME)


def test_a_name_is_diagnosed_and_explored(cifar10, monkeypatch):
    looked_at = []
    monkeypatch.setattr(
        diagnosis, "diagnose_network", lambda network, images, say: looked_at.append(network) or []
    )
    assert pdecnn.diagnose(NAME, data=cifar10, device="cpu").run == NAME
    assert_same_weights(looked_at[0], pdecnn.load(NAME))
    assert open_subject(NAME, data=cifar10, device="cpu").num_samples == 4


def test_a_training_from_a_name_takes_its_widths(elsewhere):
    write_folder(elsewhere / "images", 20)
    config = pdecnn.recipe("hamiltonian_images").with_settings(
        {
            "data.folder": str(elsewhere / "images"),
            "data.size": 8,
            "training.epochs": 1,
            "training.batch_size": 8,
        }
    )
    run = pdecnn.train(config, output="run", initial=NAME, device="cpu")
    published = pdecnn.load(NAME)
    assert run.config.initial == NAME
    assert run.config.network.channels == published.config.channels
    assert run.config.network.num_classes == 2
    other = config.with_settings({"network.channels": [4, 4]})
    with pytest.raises(CheckpointError, match="channels is"):
        pdecnn.train(other, output="other", initial=NAME, device="cpu")
