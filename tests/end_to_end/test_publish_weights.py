"""Weights of a reproduction become a folder of the package, with all one must know of them."""

import importlib.util
from pathlib import Path

import pytest
import torch

import pdecnn
from pdecnn.data.cifar import CIFAR10
from pdecnn.networks import registry
from tests.runs import small_config
from tests.unit.data import test_cifar

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "publish_weights.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("publish_weights", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reproduction(tmp_path_factory):
    """Networks of full size that saw forty images once."""
    folder = tmp_path_factory.mktemp("published")
    test_cifar.write_files(folder, CIFAR10, records_per_file=8)
    settings = {"data.folder": str(folder), "training.epochs": 1, "training.batch_size": 8}
    for dynamics in ("parabolic", "hamiltonian", "second_order"):
        config = pdecnn.recipe(f"{dynamics}_cifar10").with_settings(settings)
        pdecnn.train(config, output=folder / "runs" / f"{dynamics}_cifar10-seed0", device="cpu")
    return folder


def test_what_is_published_is_loaded_by_name(script, reproduction, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry, "PUBLISHED_WEIGHTS", tmp_path)
    arguments = ["publish_weights.py", str(reproduction), "--destination", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    script.main()
    name = "hamiltonian_cifar10"
    assert str(tmp_path / name) in capsys.readouterr().out.splitlines()
    network = pdecnn.create_model(name, pretrained=True)
    run = pdecnn.experiments.Run(reproduction / "runs" / f"{name}-seed0")
    for key, tensor in pdecnn.load(run.folder).state_dict().items():
        assert torch.equal(network.state_dict()[key], tensor), key
    assert network.preprocessing.class_names[:2] == ("class 0", "class 1")
    assert sorted(path.name for path in (tmp_path / name).iterdir()) == [
        "README.md",
        "config.json",
        "manifest.json",
        "model.safetensors",
    ]
    card = (tmp_path / name / "README.md").read_text()
    accuracy = run.summary["test"]["accuracy"]
    for part in (
        'create_model("hamiltonian_cifar10", pretrained=True)',
        "trained on CIFAR-10",
        "264,106\nweights",
        f"| test accuracy | {accuracy:.2%} (loss ",
        "| seed | 0 |",
        "`pdecnn train hamiltonian_cifar10 --seed 0`: 1 epochs",
        f"torch {torch.__version__}",
    ):
        assert part in card, part
    assert str(reproduction) not in card


def test_a_run_on_other_data_is_refused(script, tmp_path):
    run = pdecnn.train(small_config(training__epochs=1), output=tmp_path / "run", device="cpu")
    with pytest.raises(SystemExit, match="was trained on digits"):
        script.publish(run, "hamiltonian_cifar10", tmp_path)
