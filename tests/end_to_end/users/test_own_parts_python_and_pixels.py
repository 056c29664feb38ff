"""Three of the ways in which people use pdecnn, each the whole way from data to result."""

import runpy
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def main_of(name):
    return runpy.run_path(str(HERE / f"{name}.py"))["main"]


@pytest.mark.slow
def test_a_layer_and_an_integrator_of_ones_own_in_every_command(tmp_path):
    result = main_of("own_layer_and_integrator")(tmp_path / "user")
    assert result["evaluation"]["accuracy"] > 0.5  # a tenth by chance
    assert len(result["diagnosis"]["blocks"]) == 1
    assert "my_midpoint" in (tmp_path / "user" / "report.html").read_text()
    assert (tmp_path / "user" / "network.pt2").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own
def test_python_alone(tmp_path):
    result = main_of("python_alone")(tmp_path)
    assert result["evaluation"]["accuracy"] > 0.5
    assert result["accuracy"] > 0.5
    attacked = {found.attack: found.accuracy for found in result["attacked"].results}
    assert 0.1 < result["certificate"].certified_accuracy(0.1) <= attacked["worst"]
    assert all(shape[0] == 4 for shape in result["gradients"].values())
    assert result["features"] == (4, 112)
    assert [level[1] for level in result["levels"]] == result["channels"]


@pytest.mark.slow
def test_pixels_out():
    result = main_of("pixels_out")()
    assert result["restored"] < 0.5 * result["noisy"]
    assert result["way_back"] <= 2**-12
