"""The digits recipes learn; benchmarks/digits.py measures how well and how fast."""

import pytest

import pdecnn


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dynamics", ["hamiltonian", "parabolic", "second_order"])
def test_the_digits_are_learned(dynamics, tmp_path):
    run = pdecnn.train(pdecnn.recipe(f"{dynamics}_digits"), output=tmp_path, device="cpu")
    assert run.summary["test"]["accuracy"] > 0.9
