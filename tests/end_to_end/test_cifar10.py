"""The real CIFAR-10, where a folder with it is given."""

import json
import subprocess
import sys

import pytest
import torch

import pdecnn
from pdecnn.data.registry import read_dataset


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


@pytest.mark.slow
@pytest.mark.parametrize(("training", "floor"), [("", 0.88), ("_tuned", 0.91)])
@pytest.mark.parametrize("dynamics", ["parabolic", "hamiltonian", "second_order"])
def test_the_published_weights_classify_the_test_images(cifar10_folder, dynamics, training, floor):
    images = read_dataset("cifar10", cifar10_folder).test.subset(torch.arange(2000))
    network = pdecnn.create_model(f"{dynamics}_cifar10{training}", pretrained=True).eval()
    with torch.no_grad():
        scores = torch.cat([network(network.preprocess(part)) for part in images.images.split(250)])
    assert (scores.argmax(1) == images.labels).double().mean() > floor
