"""Every command on integrators and a layer that an installed package brings."""

import json
import sys

import pytest
from PIL import Image

import pdecnn
from pdecnn.explorer.answers import Explorer
from pdecnn.explorer.subject import open_subject
from tests.plugins import forget, install
from tests.runs import call, small_config, small_options

SMOOTH = {"network__normalization": "none", "network__activation": "tanh"}
OWN = {
    "explicit_midpoint": {"network__integrator": "explicit_midpoint", "network__step_size": 0.1},
    "implicit_midpoint": {
        "network__integrator": "implicit_midpoint",
        "network__step_size": 0.1,
        **SMOOTH,
    },
    "leaky": {"network__layer": "leaky", "network__integrator": "leapfrog"},
}
EQUATIONS = {
    "explicit_midpoint": "A heat equation: what its stencils respond to is damped, but every step",
    "implicit_midpoint": "A heat equation: what its stencils respond to is damped, but every step",
    "leaky": "its layers have no special structure",
}
MISSING = "if it comes from a plugin, install the package that provides it"


@pytest.fixture
def installed(tmp_path_factory, monkeypatch):
    """A plugin that this process has not loaded yet; the folder it lies in."""
    folder = tmp_path_factory.mktemp("installed")
    install(folder)
    forget(monkeypatch)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def run_command(capsys, monkeypatch):
    def succeed(*arguments):
        done = call(capsys, monkeypatch, *arguments)
        assert done.code == 0, done.stderr
        return done.stdout

    return succeed


@pytest.fixture(params=OWN)
def own(request):
    return request.param


@pytest.fixture
def run(own, installed, run_command, tmp_path):
    """A training that is stopped, then resumed."""
    folder = tmp_path / "run"
    options = ("--output", folder, "--device", "cpu", "--json")
    limited = small_options(training__epochs=2, training__time_limit_seconds=1e-6, **OWN[own])
    begun = json.loads(run_command("train", "hamiltonian_digits", *options, *limited))
    assert begun["stopped"] == "time_limit"
    more = ("--set", "training.time_limit_seconds=none")
    assert json.loads(run_command("train", "--resume", *options, *more))["stopped"] == "completed"
    return folder


@pytest.mark.slow
def test_all_commands_work_on_it(own, run, run_command, tmp_path):
    evaluation = json.loads(run_command("evaluate", run, "--json", "--device", "cpu"))
    assert evaluation["num_images"] == 360
    Image.new("L", (8, 8), 128).save(tmp_path / "grey.png")
    assert "grey.png" in run_command("predict", run, tmp_path / "grey.png", "--device", "cpu")
    run_command("attack", run, "--images", 4, "--epsilon", 0.1, "--steps", 5, "--device", "cpu")
    run_command("export", run, "--torch-export", tmp_path / "network.pt2")
    diagnosed = run_command("diagnose", run, "--full", "--device", "cpu")
    page = tmp_path / "page.html"
    run_command("report", run, "-o", page, "--device", "cpu")
    reported = page.read_text(encoding="utf-8")
    assert own.replace("_", " ") in reported
    for text in (diagnosed, reported):
        assert "cannot be run backwards" not in text
        assert "Missing in block" not in text
    numbers = json.loads((run / "diagnosis" / "diagnosis.json").read_text())
    (block,) = numbers["blocks"]
    assert [step["missing"] for step in block["stability"]["steps"]] == [[], []]
    explorer = Explorer(open_subject(run, device="cpu"))
    answers = [
        explorer.describe(),
        explorer.sample("1"),
        explorer.noise("1", 0.5),
        explorer.frame("1", 0, 2),
        explorer.reverse("1", 0),
    ]
    json.dumps(answers, allow_nan=False)
    assert EQUATIONS[own] in answers[0]["equation"]
    assert (answers[1]["blocks"][0]["energy"] is None) == (own != "implicit_midpoint")
    names = [part["name"] for part in answers[3]["components"]]
    assert "features Y" in names
    assert answers[4]["reversible"]
    assert max(answers[4]["errors"]) < 1e-4


def test_without_its_plugin_a_run_is_refused_by_name(installed, capsys, monkeypatch, tmp_path):
    folder = tmp_path / "run"
    config = small_config(network__channels=[2, 2], training__epochs=1, **OWN["explicit_midpoint"])
    pdecnn.train(config, output=folder, device="cpu")
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part != str(installed)])
    forget(monkeypatch)
    page, program = tmp_path / "page.html", tmp_path / "network.pt2"
    for arguments in (
        ("train", "--resume", "--output", folder),
        ("train", "hamiltonian_digits", "--set", "network.integrator=explicit_midpoint"),
        ("evaluate", folder),
        ("predict", folder, "grey.png"),
        ("diagnose", folder),
        ("report", folder, "-o", page),
        ("attack", folder),
        ("explore", folder, "--no-browser"),
        ("export", folder, "--torch-export", program),
        ("export", folder / "best", "--torch-export", program),
    ):
        refused = call(capsys, monkeypatch, *arguments)
        assert refused.code in (2, 3, 5), arguments
        assert MISSING in refused.stderr, arguments
        assert refused.stderr.count("\n") == 1
        assert not page.exists()
        assert not program.exists()
