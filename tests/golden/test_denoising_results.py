"""The page of denoisers and its floor follow from the stored runs."""

from pathlib import Path

from benchmarks import denoising

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RUNS = RESULTS / "denoising" / "runs"


def test_the_page_is_written_from_the_stored_runs():
    assert (RESULTS / "denoising.md").read_text() == denoising.page(RUNS)


def test_fewer_than_100_000_weights_are_ahead_of_tnrd_with_each_of_three_seeds():
    runs = denoising.read(RUNS, "hamiltonian_small")
    assert len(runs) == 3
    for run in runs:
        assert run["num_weights"] <= 100_000
        assert run["psnr"][denoising.NOISE] >= denoising.PUBLISHED["TNRD"][2] >= 30.06


def test_fewer_weights_than_dncnn_has_are_ahead_of_it_with_each_of_three_seeds():
    runs = denoising.read(RUNS, "hamiltonian")
    assert len(runs) == 3
    weights, _, rival, _ = denoising.PUBLISHED["DnCNN"]
    for run in runs:
        assert run["num_weights"] < weights
        assert run["psnr"][denoising.NOISE] > rival == 30.44
