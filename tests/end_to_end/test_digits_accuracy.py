"""The digits recipes reach what they promise, in the time they promise."""

import json
import statistics

import pytest

import pdecnn


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dynamics", ["hamiltonian", "parabolic", "second_order"])
def test_at_least_98_percent_within_a_minute(dynamics, tmp_path):
    accuracies = []
    for seed in range(3):
        config = pdecnn.recipe(f"{dynamics}_digits").with_settings({"seed": seed})
        run = pdecnn.train(config, output=tmp_path / str(seed), device="cpu")
        accuracies.append(run.summary["test"]["accuracy"])
        lines = (run.folder / "timing.jsonl").read_text().splitlines()
        assert sum(json.loads(line)["seconds"] for line in lines) < 60
    assert accuracies[0] >= 0.98
    assert statistics.mean(accuracies) >= 0.98
