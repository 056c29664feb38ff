"""Signals are called signals wherever a user reads, and attacked in their own units."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import pdecnn
from pdecnn.diagnostics import block_stability, measure_robustness
from pdecnn.reports.terminal import print_level
from tests.pages import Page
from tests.runs import call

NUM_CHANNELS = 6
SETTINGS = {
    "network.channels": [4, 4],
    "network.num_steps": 2,
    "training.epochs": 1,
    "training.batch_size": 8,
}


def signals(number):
    """Slow and quick waves, in volts say: far outside [0, 1]."""
    generator = np.random.default_rng(0)
    labels = np.arange(number) % 2
    time = np.linspace(0, 2 * np.pi, 32)
    phases = generator.uniform(0, 2 * np.pi, (number, NUM_CHANNELS, 1))
    waves = 40 * np.sin((2 + 6 * labels)[:, None, None] * time + phases)
    return waves.astype(np.float32), labels


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("signals")
    x, y = signals(80)
    np.savez(place / "waves.npz", x=x, y=y, class_names=np.array(["slow", "quick"]))
    return place


@pytest.fixture
def commands(capsys, monkeypatch, folder):
    monkeypatch.chdir(folder)

    def run(*arguments):
        done = call(capsys, monkeypatch, *arguments)
        assert done.code == 0, done.stderr
        said = done.stdout + done.stderr
        assert not re.search(r"\bimages?\b", said), said
        return said

    return run


@pytest.mark.slow
def test_no_command_calls_signals_images(commands, folder):
    options = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    said = commands(
        "train", "hamiltonian_signals", "--data", "waves.npz", "--output", "run", *options
    )
    assert "validation signals" in said
    assert re.search(r"[\d,]+ signals/s", said)
    budget = ("--restarts", 1, "--steps", 3, "--epsilon", 0.5, "--images", 8)
    said = commands("attack", "run", *budget)
    assert "of 8 test signals right" in said
    assert "in the data's own units, without bounds" in said
    assert "test signals" in commands("diagnose", "run")
    commands("report", "run", "--no-diagnosis")
    text = " ".join(Page((folder / "report.html").read_text()).text.split())
    assert "Test signals" in text
    assert "test signals" in text
    assert f"the first 4 of {NUM_CHANNELS} channels" in text
    assert "Accuracy under attack" in text
    assert 'class="pairs"' in (folder / "report.html").read_text()
    assert not re.search(r"\bimages?\b", text.replace("num_images", "")), text
    # The name of what is made of a run says that it is no training.
    said = commands("coarsen", "run", "--time", 2, "--evaluate")
    assert said.startswith("runs/hamiltonian_signals-coarsened-1: ")
    assert "signals/s" in said


def test_an_attack_on_signals_is_not_clipped_to_the_range_of_pixels():
    x, y = signals(8)
    network = pdecnn.create_model("hamiltonian_signals", in_channels=NUM_CHANNELS, channels=(4, 4))
    found = measure_robustness(
        network, torch.from_numpy(x), torch.from_numpy(y), epsilons=[0.5], restarts=1, num_steps=2
    )
    for pair in found.examples:
        change = (pair.attacked - pair.clean).abs()
        assert len(change) == 0 or float(change.max()) == pytest.approx(0.5, rel=1e-3)


def test_a_report_in_a_clone_is_not_for_git():
    root = Path(__file__).parents[2]
    done = subprocess.run(["git", "check-ignore", "report.html"], cwd=root, capture_output=True)
    assert done.returncode == 0


def test_a_loss_of_accuracy_is_remarked(capsys):
    class Run:
        folder = Path("runs/hamiltonian_digits-coarsened-1")
        config = pdecnn.recipe("hamiltonian_digits")

    row = {"accuracy": 0.986, "loss": 0.1, "images_per_second": 1.0, "num_weights": 10}
    print_level(Run(), row | {"accuracy": 0.2, "original": row})
    assert "It lost 78.6 points" in capsys.readouterr().out
    print_level(Run(), row | {"accuracy": 0.98, "original": row})
    assert "lost" not in capsys.readouterr().out


def test_a_diagnosis_of_an_unstable_block_says_what_to_change():
    torch.manual_seed(0)
    layer = pdecnn.SymmetricLayer(2, normalization="none")
    with torch.no_grad():
        layer.convolution.stencil.mul_(2)
    block = pdecnn.Block([layer], "forward_euler", num_steps=4).double()
    verdict = block_stability(block, torch.randn(1, 2, 4, 4, dtype=torch.float64)).verdict
    assert verdict.name == "unstable"
    found = re.search(r"network\.step_size=(\S+) and network\.num_steps=(\d+)", verdict.remedy)
    assert float(found[1]) * int(found[2]) == pytest.approx(block.final_time, rel=1e-2)
    smaller = pdecnn.Block(
        [layer], "forward_euler", step_size=float(found[1]), num_steps=int(found[2])
    )
    again = block_stability(smaller.double(), torch.randn(1, 2, 4, 4, dtype=torch.float64))
    assert again.verdict.name != "unstable"
