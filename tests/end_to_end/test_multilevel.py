"""Levels on trained networks: refining in time, and the benchmark from data to page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pdecnn
from pdecnn.data.published import CIFAR10
from pdecnn.learning import evaluate_network
from pdecnn.networks import refine_in_time
from pdecnn.runs.preparation import read_splits
from tests.forks import Fork
from tests.published_data import write_version
from tests.runs import environment, finish

ROOT = Path(__file__).parents[2]


def run_benchmark(*options):
    command = [sys.executable, "-m", "benchmarks.multilevel", "--quick", "--device", "cpu"]
    return finish(
        Fork(
            [*command, *map(str, options)],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", ["parabolic", "hamiltonian"])
def test_refining_small_steps_in_time_keeps_the_accuracy(dynamics, tmp_path):
    settings = {"network.num_steps": 8, "network.step_size": 0.125, "training.epochs": 8}
    settings["network.channels"] = [8, 16, 16]
    config = pdecnn.recipe(f"{dynamics}_digits").with_settings(settings)
    run = pdecnn.train(config, output=tmp_path / "run", device="cpu")
    network, test = pdecnn.load(run.folder), read_splits(config.data, config.seed).test
    before, after = (
        100 * evaluate_network(each, test).accuracy for each in (network, refine_in_time(network))
    )
    assert before > 50
    assert abs(after - before) < 5


@pytest.mark.slow
def test_the_benchmark_runs_goes_on_and_writes_its_page(tmp_path):
    options = ["--seeds", 1, "--output", tmp_path, "--epochs", 3]
    levels = ["--levels", "2,1::4,8", "--levels", "1,2:4,8"]
    first = run_benchmark(*options, *levels)
    assert first.code == 0, first.stderr
    results = json.loads((tmp_path / "multilevel.json").read_text())["digits"]
    assert [run["name"] for run in results["runs"]] == [
        "single",
        "levels-2_1epochs-4_8steps",
        "levels-1_2epochs-4_8px",
    ]
    for run in results["runs"]:
        assert run["config"]["data"]["folder"] is None
        assert len(run["curve"]) == 3
        assert run["work"] == run["curve"][-1]["work"] > 0
        assert 0 < run["steady_seconds"] <= run["seconds"] + 1e-9
    page = (tmp_path / "multilevel.md").read_text()
    for words in ("Quick version", "4 → 8 px, epochs 1:2", "Galerkin", "| parabolic | 3 x 1 |"):
        assert words in page
    assert str(tmp_path) not in page
    assert (tmp_path / "multilevel-digits.png").stat().st_size > 10_000
    again = run_benchmark(*options, *levels)
    assert "3 finished before, 0 to go" in again.stdout


@pytest.mark.slow
def test_the_published_networks_are_coarsened_without_any_other_training(tmp_path):
    data = write_version(tmp_path, CIFAR10)
    names = pdecnn.create_model("hamiltonian_cifar10", pretrained=True).preprocessing.class_names
    (data / CIFAR10.names_file).write_text("\n".join(names))
    output = tmp_path / "output"
    done = run_benchmark("--dataset", "published", "--data", data, "--output", output)
    assert done.code == 0, done.stderr
    rows = json.loads((output / "multilevel.json").read_text())["published"]["coarsened"]
    assert len(rows) == 15
    assert sum("tuned_test_accuracy" in row for row in rows) == 9
    page = (output / "multilevel.md").read_text()
    assert "parabolic, hamiltonian, second_order, in this order" in page
    assert "images averaged and interpolated back |" in page
    assert str(tmp_path) not in page
