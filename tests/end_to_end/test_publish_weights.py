"""Weights of a reproduction become a folder of the package, with all one must know of them."""

import json
import shlex
from dataclasses import replace

import pytest
import torch

import pdecnn
from benchmarks import publish_weights
from pdecnn.data.published import CIFAR10
from pdecnn.files import write_json
from pdecnn.networks import registry
from pdecnn.runs.recipes import resolve_run
from tests.paper_results import make_result
from tests.runs import complete_run, small_config
from tests.unit.data import test_cifar


@pytest.fixture(scope="module")
def reproduction(tmp_path_factory):
    """Networks of full size that saw forty images once."""
    folder = tmp_path_factory.mktemp("published")
    test_cifar.write_files(folder, CIFAR10, records_per_file=8)
    settings = {"data.folder": str(folder), "training.epochs": 1, "training.batch_size": 8}
    for dynamics in ("parabolic", "hamiltonian", "second_order"):
        config = pdecnn.recipe(f"{dynamics}_cifar10").with_settings(settings)
        complete_run(folder / "runs" / f"{dynamics}_cifar10-seed0", config)
    return folder


@pytest.fixture
def publish(reproduction, tmp_path, monkeypatch):
    arguments = ["publish_weights.py", str(reproduction), "--destination", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    return publish_weights.main


def test_what_is_published_is_loaded_by_name(publish, reproduction, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry, "PUBLISHED_WEIGHTS", tmp_path)
    publish()
    name = "hamiltonian_cifar10"
    assert str(tmp_path / name) in capsys.readouterr().out.splitlines()
    network = pdecnn.create_model(name, pretrained=True)
    run = pdecnn.runs.Run(reproduction / "runs" / f"{name}-seed0")
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
        "80% of its training images to train, 20% to choose the epoch",
        f"| test accuracy | {accuracy:.2%} (loss ",
        "| seed | 0 |",
        "epochs 1, batches of 8, computed in float32",
        f"torch {torch.__version__}",
    ):
        assert part in card, part
    assert str(reproduction) not in card


def read_command(text):
    """The config that a `pdecnn train` command means."""
    words = shlex.split(text)
    assert words[:2] == ["pdecnn", "train"]
    options = list(zip(words[3::2], words[4::2], strict=True))
    settings = [value for option, value in options if option == "--set"]
    seed = int(dict(options)["--seed"])
    return resolve_run(words[2], seed=seed, assignments=settings)[0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"training.epochs": 1, "network.channels": [2, 3], "training.phases": [3, 2, 1]},
        {"data.flip": False, "training.patience": 3, "training.precision": "bfloat16"},
    ],
)
def test_the_command_on_the_card_gives_the_run(settings):
    config = pdecnn.recipe("parabolic_cifar10").with_settings({**settings, "seed": 2})
    text = publish_weights.command(replace(config, data=replace(config.data, folder="/somewhere")))
    assert read_command(text) == config
    assert text.count("--set") == len(settings)
    assert "/somewhere" not in text


def test_a_run_that_no_command_gives_is_refused():
    config = replace(pdecnn.recipe("parabolic_cifar10"), initial="/another/run")
    with pytest.raises(pdecnn.errors.ConfigError, match="no recipe with settings gives this run"):
        publish_weights.command(config)


@pytest.mark.parametrize(
    ("precision", "gpu", "said"),
    [
        ("auto", None, "float32"),
        ("auto", "A GPU", "bfloat16"),
        ("float32", "A GPU", "float32"),
    ],
)
def test_the_card_says_what_was_computed_in(tmp_path, precision, gpu, said):
    settings = {"training.precision": precision, "training.epochs": 2}
    config = pdecnn.recipe("parabolic_cifar10").with_settings(settings)
    make_result(tmp_path / "run", config, 0.8)
    path = tmp_path / "run" / "environment.json"
    environment = json.loads(path.read_bytes())
    environment["hardware"]["gpu"] = gpu
    write_json(path, environment)
    card = publish_weights.card(publish_weights.read_result(tmp_path / "run"), "parabolic_cifar10")
    assert f"computed in {said} |" in card


def test_the_card_says_that_nothing_was_selected(tmp_path):
    settings = {"data.validation_fraction": 0, "training.epochs": 2}
    config = pdecnn.recipe("parabolic_cifar10").with_settings(settings)
    make_result(tmp_path / "run", config, 0.8)
    summary = tmp_path / "run" / "summary.json"
    write_json(summary, json.loads(summary.read_text()) | {"best_validation_accuracy": None})
    metrics = tmp_path / "run" / "metrics.jsonl"
    entries = map(json.loads, metrics.read_text().splitlines())
    lines = [json.dumps(entry | {"validation_accuracy": None}) for entry in entries]
    metrics.write_text("\n".join(lines) + "\n")
    card = publish_weights.card(publish_weights.read_result(tmp_path / "run"), "parabolic_cifar10")
    assert "100% of its training images to train, none to choose the epoch" in card
    assert "| weights of | epoch 2, the last: no validation, no selection |" in card
    assert "--set data.validation_fraction=0" in card


def test_a_run_on_other_data_is_refused(tmp_path):
    config = small_config(training__epochs=1)
    complete_run(tmp_path / "run", config)
    with pytest.raises(SystemExit, match="was trained on digits"):
        publish_weights.prepare(tmp_path / "run", "hamiltonian_cifar10")


def test_a_tuned_run_becomes_a_model_of_its_own(reproduction, tmp_path, monkeypatch):
    name = "hamiltonian_cifar10_tuned"
    settings = {"data.folder": str(reproduction), "training.epochs": 1, "training.batch_size": 20}
    config = pdecnn.recipe(name).with_settings(settings)
    run = pdecnn.train(config, output=tmp_path / "run", device="cpu")
    arguments = ["", str(run.folder), "--model", name, "--destination", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    publish_weights.main()
    monkeypatch.setattr(registry, "PUBLISHED_WEIGHTS", tmp_path)
    assert pdecnn.list_models("*_tuned", pretrained=True) == [name]
    assert pdecnn.create_model(name, pretrained=True).num_weights <= 270_000
    card = (tmp_path / name / "README.md").read_text()
    assert f"pdecnn train {name} --data DIR --seed 0 --set training.epochs=1" in card
    assert "100% of its training images to train, none to choose the epoch" in card


def test_all_published_weights_fit_into_the_wheel():
    """Of the paper's three networks, of a certified one, and of three tuned ones."""
    files = [path for path in registry.PUBLISHED_WEIGHTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 14_000_000


def test_nothing_is_written_unless_all_runs_are_in_order(publish, reproduction, tmp_path):
    path = reproduction / "runs" / "second_order_cifar10-seed0" / "summary.json"
    content = path.read_bytes()
    path.unlink()
    try:
        with pytest.raises(SystemExit, match="second_order_cifar10-seed0: not finished"):
            publish()
    finally:
        path.write_bytes(content)
    assert list(tmp_path.iterdir()) == []
