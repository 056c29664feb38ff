"""The real CIFAR-10, where a folder with it is given."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_epochs_on_5000_images_learn(cifar10_folder, tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "pdecnn", "train", "hamiltonian_cifar10", "--quiet"]
    command += ["--data", cifar10_folder, "--output", str(run), "--device", "cpu"]
    command += ["--set", "data.fraction=0.125", "--set", "training.epochs=2"]
    subprocess.run(command, check=True)
    epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(epochs) == 2
    assert epochs[-1]["validation_accuracy"] > 0.30
