"""The digits recipes learn; benchmarks/digits.py measures how well and how fast."""

import json

import pytest

import pdecnn
from tests.runs import command


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dynamics", ["parabolic", "second_order"])
def test_the_digits_are_learned(dynamics, tmp_path):
    run = pdecnn.train(pdecnn.recipe(f"{dynamics}_digits"), output=tmp_path, device="cpu")
    assert run.summary["test"]["accuracy"] > 0.9


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_is_learned_reported_and_diagnosed(tmp_path):
    """The network of `pdecnn train`, by commands alone."""
    trained = command("train", "--json", "--output", "run", cwd=tmp_path)
    assert trained.code == 0, trained.stderr
    assert json.loads(trained.stdout)["test"]["accuracy"] > 0.9
    reported = command("report", "run", cwd=tmp_path)
    assert reported.code == 0, reported.stderr
    assert (tmp_path / "report.html").stat().st_size < 1_000_000
    diagnosed = command("diagnose", "run", "--json", cwd=tmp_path)
    assert diagnosed.code == 0, diagnosed.stderr
    values = json.loads(diagnosed.stdout)
    assert values["recipe"] == "hamiltonian_digits"
    assert len(values["blocks"]) == 2
    spectra = [step["system"] for block in values["blocks"] for step in block["stability"]["steps"]]
    assert all(spectrum["complete"] for spectrum in spectra)
