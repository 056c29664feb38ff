"""The page of denoisers: runs at one level of noise beside those trained for a range."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import denoising

KEPT = Path(__file__).parents[3] / "docs" / "results" / "denoising" / "runs"


@pytest.fixture
def runs(tmp_path):
    """Two runs at noise 25 and one for a range, with figures that nobody measured."""

    def add(name, noise, psnr):
        folder = tmp_path / name
        shutil.copytree(KEPT / "hamiltonian_small-seed0", folder)
        config = json.loads((folder / "config.json").read_bytes())
        config["data"]["noise"] = noise
        (folder / "config.json").write_text(json.dumps(config))
        summary = json.loads((folder / "summary.json").read_bytes())
        summary["test"]["psnr"] = psnr
        (folder / "summary.json").write_text(json.dumps(summary))
        return folder

    add("hamiltonian-seed0", 25.0, 30.3)
    add("hamiltonian-seed1", 25.0, 30.4)
    blind = add("blind-seed0", [5.0, 55.0], 29.0)
    figures = {"15": 32.75, "25": 30.25, "50": 27.05}
    (blind / denoising.BY_LEVEL).write_text(json.dumps(figures))
    return tmp_path


def test_a_network_for_a_range_has_a_figure_at_each_level(runs):
    lines = denoising.page(runs).splitlines()
    assert lines[0] == "# Denoising: 30.35 dB on Set12 at noise 25"
    (blind,) = (line for line in lines if "one network for 5 to 55 |" in line)
    assert "| 1 | 32.75 | 30.25 | 27.05 |" in blind
    (ours,) = (line for line in lines if line.startswith("| hamiltonian |"))
    assert "| 2 | not measured | 30.35 ± 0.07 | not measured |" in ours
    (missing,) = (line for line in lines if line.startswith("Not measured"))
    assert "parabolic, small; hamiltonian, small" in missing


def test_what_is_kept_names_no_place_of_a_machine(runs, tmp_path):
    run = runs / "hamiltonian-seed0"
    config = json.loads((run / "config.json").read_bytes())
    config["data"]["folder"] = "/somewhere/denoising.npz"
    (run / "config.json").write_text(json.dumps(config))
    environment = json.loads((run / "environment.json").read_bytes()) | {"command": ["/somewhere"]}
    (run / "environment.json").write_text(json.dumps(environment))
    denoising.keep(run, tmp_path / "kept" / "hamiltonian-seed0")
    kept = list((tmp_path / "kept" / "hamiltonian-seed0").iterdir())
    assert not any("somewhere" in path.read_text() for path in kept)
    assert denoising.read(tmp_path / "kept", "hamiltonian") == [
        one | {"environment": environment_without_command(one)}
        for one in denoising.read(runs, "hamiltonian")[:1]
    ]


def environment_without_command(one):
    return {key: value for key, value in one["environment"].items() if key != "command"}
