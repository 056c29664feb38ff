"""Runs, saved networks and published weights of earlier versions stay usable, with equal numbers.

`tests/earlier/9a0660f` holds four small runs of the digits, a saved network and what that commit
said of them (`expected.json`). A release may refuse to resume such a run, nothing else.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pdecnn
from tests.runs import call

EARLIER = Path(__file__).parent.parent / "earlier" / "9a0660f"
EXPECTED = json.loads((EARLIER / "expected.json").read_text())
RUNS = ("hamiltonian_exact", "parabolic", "second_order", "resnet")
PUBLISHED = ("parabolic_cifar10", "hamiltonian_cifar10", "second_order_cifar10")
# Scores that two processors round differently; the predictions must be the same.
TOLERANCE = 1e-4

every_run = pytest.mark.parametrize("name", RUNS)


@pytest.fixture
def run(name, tmp_path):
    """A copy of an earlier run."""
    return Path(shutil.copytree(EARLIER / name, tmp_path / name, symlinks=True))


@pytest.fixture
def command(capsys, monkeypatch):
    """A command in this process: its output; it must succeed. Trainings draw no figures."""
    monkeypatch.setattr("pdecnn.reports.run_figures.draw_run_figures", lambda run: [])

    def run_command(*arguments):
        outcome = call(capsys, monkeypatch, *map(str, arguments))
        assert outcome.code == 0, outcome.stderr
        return outcome.stdout

    return run_command


def pictures():
    return sorted((EARLIER / "pictures").glob("*.png"))


def pixels():
    return torch.from_numpy(np.stack([np.asarray(Image.open(path)) for path in pictures()]))[
        :, None
    ]


@torch.no_grad()
def scores(network, images):
    return network.eval()(network.preprocess(images))


def assert_scores(network, images, expected):
    found, expected = scores(network, images), torch.tensor(expected)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert torch.equal(found.argmax(1), expected.argmax(1))


@every_run
def test_an_earlier_run_is_loaded(name, run):
    assert_scores(pdecnn.load(run), pixels(), EXPECTED[name]["scores"])


def test_an_earlier_saved_network_is_loaded():
    network = pdecnn.Network.from_pretrained(EARLIER / "saved")
    assert_scores(network, pixels(), EXPECTED["second_order"]["scores"])


@pytest.mark.parametrize("model", PUBLISHED)
def test_published_weights_give_the_scores_they_gave(model):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4, 3, 32, 32), generator=generator, dtype=torch.uint8)
    network = pdecnn.create_model(model, pretrained=True)
    assert_scores(network, images, EXPECTED["published"][model])


@every_run
def test_an_earlier_run_is_evaluated(name, run, command):
    found, expected = json.loads(command("evaluate", run)), EXPECTED[name]["evaluate"]
    assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)
    assert found["loss"] == pytest.approx(expected["loss"], rel=TOLERANCE)


@every_run
def test_an_earlier_run_predicts(name, run, command):
    found = json.loads(command("predict", run, *pictures(), "--json"))
    for row, expected in zip(found["images"], EXPECTED[name]["predict"], strict=True):
        best = row["predictions"][0]
        assert best["class"] == expected["class"]
        assert best["probability"] == pytest.approx(expected["probability"], abs=TOLERANCE)


@every_run
def test_an_earlier_run_is_refined_in_time(name, run, command, tmp_path):
    command("refine", run, "--time", "2", "--output", tmp_path / "new")
    assert_scores(pdecnn.load(tmp_path / "new"), pixels(), EXPECTED[name]["levels"]["refine time"])


@every_run
@pytest.mark.parametrize("direction", ["coarsen", "refine"])
def test_an_earlier_run_changes_its_mesh(name, run, direction, command, tmp_path):
    command(direction, run, "--space", "2", "--output", tmp_path / "new")
    weights = pdecnn.load(tmp_path / "new").state_dict()
    for key, expected in EXPECTED[name]["levels"][f"{direction} space"].items():
        assert float(weights[key].double().sum()) == pytest.approx(expected, abs=1e-3)


@every_run
def test_an_earlier_run_starts_another(name, run, command, tmp_path):
    dynamics = name.removesuffix("_exact")
    steps = json.loads((run / "config.json").read_text())["network"]
    command(
        *("train", f"{dynamics}_digits", "--from", run, "--output", tmp_path / "new"),
        *("--set", "network.channels=8,12,12", "--set", "training.epochs=1"),
        *("--set", "data.fraction=0.1", "--set", "training.batch_size=16"),
        *("--set", f"network.num_steps={steps['num_steps']}"),
        *("--set", f"network.step_size={steps['step_size']}"),
    )
    assert pdecnn.load(tmp_path / "new").num_classes == 10


@pytest.mark.slow
@every_run
def test_an_earlier_run_is_diagnosed(name, run, command):
    found = json.loads(command("diagnose", run, "--json"))
    for block, norms in zip(found["blocks"], EXPECTED[name]["norms"], strict=True):
        layers = [layer for step in block["stability"]["steps"] for layer in step["layers"]]
        assert [layer["norm_upper"] for layer in layers] == pytest.approx(norms, rel=TOLERANCE)


@pytest.mark.slow
@every_run
def test_an_earlier_run_is_attacked(name, run, command):
    options = ("--images", "30", "--epsilon", "0.1", "--method", "fgsm,pgd", "--steps", "40")
    found = json.loads(command("attack", run, *options, "--json"))
    found["results"].pop()  # the worst of both, which is that of PGD
    # A step along the sign of a gradient may go the other way where rounding decides.
    for row, expected in zip(found["results"], EXPECTED[name]["attack"], strict=True):
        assert row["attack"] == expected["attack"]
        assert row["accuracy"] == pytest.approx(expected["accuracy"], abs=0.07)


@pytest.mark.slow
@every_run
def test_an_earlier_run_is_exported(name, run, command, tmp_path):
    command("export", run, "--torch-export", tmp_path / "network.pt2")
    assert (tmp_path / "network.pt2").stat().st_size > 0


@pytest.mark.slow
def test_earlier_runs_are_reported(command, tmp_path):
    for name in RUNS:
        shutil.copytree(EARLIER / name, tmp_path / name, symlinks=True)
    page = tmp_path / "report.html"
    command("report", *(tmp_path / name for name in RUNS), "-o", page)
    assert all(name in page.read_text() for name in RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS[:1])
def test_an_earlier_run_is_explored(name, run):
    with subprocess.Popen(
        [sys.executable, "-m", "pdecnn", "explore", str(run), "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            address = re.search(r"http://\S+", process.stdout.readline()).group()
            with urllib.request.urlopen(address, timeout=60) as page:
                assert "pdecnn" in page.read().decode()
        finally:
            process.terminate()
