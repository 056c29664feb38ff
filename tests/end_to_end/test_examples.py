"""Every example runs without a warning, keeps its word and draws its pictures."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from tests.forks import Fork
from tests.runs import environment, finish

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
SLOW = {
    "accelerate_loop",
    "extrapolation",
    "learned_denoising",
    "plain_loop",
    "signal_1d",
    "segment_textures",
}
DATA_MAKERS = {"chirps", "rotations", "vowels"}  # they write files and draw nothing
# As a user runs it, but that figures are saved in place of shown.
RUNNER = """
import runpy, sys
import matplotlib.pyplot as plt

plt.show = lambda: None
sys.argv = sys.argv[1:]
sys.path.insert(0, str(__import__("pathlib").Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
for number in plt.get_fignums():
    plt.figure(number).savefig(f"figure-{number}.png", dpi=100)
"""


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in EXAMPLES],
)
def example(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    process = Fork(
        [sys.executable, "-c", RUNNER, str(EXAMPLES[request.param])],
        cwd=folder,
        env=environment() | {"MPLBACKEND": "Agg"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return SimpleNamespace(name=request.param, done=finish(process, timeout=800), folder=folder)


def test_it_runs_without_a_warning(example):
    assert example.done.code == 0, example.done.stderr
    assert example.done.stderr == ""


def test_it_draws_and_leaves_nothing_else_behind(example):
    files = sorted(path.name for path in example.folder.iterdir())
    if example.name in DATA_MAKERS:
        assert [name.removesuffix(".npz") for name in files] == [example.name]
        return
    assert files == ["figure-1.png"]
    with Image.open(example.folder / "figure-1.png") as image:
        assert image.width >= 600
        assert len(image.convert("L").getcolors()) > 10


def test_it_keeps_its_word(example):
    if example.name not in DATA_MAKERS:
        CLAIMS[example.name](example.done.stdout)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_short(name):
    assert len(EXAMPLES[name].read_text().splitlines()) < 60


def test_every_example_makes_a_claim():
    assert EXAMPLES.keys() == CLAIMS.keys() | DATA_MAKERS


def number_after(text, output):
    """The number that follows a text."""
    found = re.search(re.escape(text) + r"[: ]*(-?[\d.]+(?:e[+-]?\d+)?)", output)
    assert found, f"no number after {text!r} in:\n{output}"
    return float(found[1].rstrip("."))


def denoising_gains_three_decibels(output):
    gains = [float(gain) for gain in re.findall(r"gain (-?[\d.]+) dB", output)]
    assert len(gains) == 2
    assert min(gains) >= 3, gains
    assert max(gains) >= 8, gains


def heat_forgets_and_the_wave_comes_back(output):
    assert 0 < number_after("contrast left after 120 steps", output) < 0.9
    assert number_after("out and back", output) < 1e-5


def only_stored_states_grow(output):
    lines = re.findall(r"(\w+): ([\d.]+) MB at 3 steps, ([\d.]+) at 100", output)
    growth = {mode: float(last) / float(first) for mode, first, last in lines}
    assert growth["stored"] > 30
    assert growth["checkpointed"] < 10
    assert growth["reversible"] == growth["exact"] == 1


def the_right_energy_is_conserved(output):
    assert number_after("conserved energy: largest relative change", output) < 1e-3
    assert number_after("printed energy: largest relative change", output) > 0.1
    assert abs(number_after("centred", output) - 2) < 0.1
    assert abs(number_after("raw", output) - 1) < 0.1
    assert number_after("parabolic energy left", output) < 0.05


def training_prefers_low_orders(output):
    shares = re.findall(r"higher order (\d+)% \(random: (\d+)%\)", output)
    assert len(shares) == 3
    assert all(2 * int(trained) <= int(drawn) for trained, drawn in shares)
    assert r"1\,\partial_{x} + 0.0625\,\partial_{xx}" in output


def the_equation_survives_coarsening(output):
    rows = dict(re.findall(r"([\w ]+): ([\d., ]+)", output))
    accuracies = {name: [float(value) for value in row.split(", ")] for name, row in rows.items()}
    for name in ("same equation", "Galerkin"):
        assert accuracies[name][1] > accuracies["same stencils"][1]
        assert accuracies[name][2] > accuracies["same stencils"][2]


def every_filter_is_told(output):
    return {name: float(psnr) for name, psnr in re.findall(r"([\w ]+): ([\d.]+) dB", output)}


def a_learned_flow_beats_linear_and_median_filters(output):
    found = every_filter_is_told(output)
    assert found["parabolic network"] > max(found["Gaussian"], found["median"]) > found["noisy"]
    assert "total variation" in found


def a_volume_is_cleaner_than_by_a_gaussian(output):
    found = every_filter_is_told(output)
    assert found["parabolic block"] > found["Gaussian filter"] + 2


def networks_beat_the_repeated_column(output):
    found = dict(re.findall(r"([\w ]+): PSNR of the hidden columns ([\d.]+) dB", output))
    repeated, wave, heat = (float(found[name]) for name in ("column repeated", "wave", "heat"))
    assert min(wave, heat) > repeated
    assert abs(heat - wave) < 2  # 23.3 against 22.7 dB on one processor


def a_network_tells_stripes_apart(output):
    found = re.findall(r"\w+ stripes: Dice ([\d.]+)", output)
    assert len(found) == 2
    assert min(map(float, found)) > 0.75


def accuracy_above(smallest):
    return lambda output: number_after("test accuracy", output) > smallest or pytest.fail(output)


CLAIMS = {
    "accelerate_loop": accuracy_above(0.7),
    "coarsen_network": the_equation_survives_coarsening,
    "extrapolation": networks_beat_the_repeated_column,
    "energy": the_right_energy_is_conserved,
    "heat_and_wave": heat_forgets_and_the_wave_comes_back,
    "learned_denoising": a_learned_flow_beats_linear_and_median_filters,
    "learned_pde": training_prefers_low_orders,
    "memory_against_depth": only_stored_states_grow,
    "plain_loop": accuracy_above(0.7),
    "segment_textures": a_network_tells_stripes_apart,
    "signal_1d": accuracy_above(0.5),
    "tv_denoising": denoising_gains_three_decibels,
    "volume_3d": a_volume_is_cleaner_than_by_a_gaussian,
}
