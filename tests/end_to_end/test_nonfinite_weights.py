"""Networks whose weights are no numbers: refused in one line, or shown and said so."""

import json
import re
import shutil

import pytest
import torch
from PIL import Image

import pdecnn
from pdecnn.networks import Network
from tests.pages import Page
from tests.runs import call, small_config, small_options

PLACES = {
    "opening": "opening.convolution.stencil",
    "blocks": "blocks.0.layers.0.convolution.stencil",
    "classifier": "classifier.weight",
    "statistics": "opening.normalization.running_var",
}
SETTINGS = {"network__channels": [4, 4], "training__epochs": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    output = tmp_path_factory.mktemp("trained") / "run"
    return pdecnn.train(small_config(**SETTINGS), output=output, device="cpu").folder


@pytest.fixture(scope="module")
def broken(trained, tmp_path_factory):
    """A run for each place, with one weight of the best and last network that is no number."""
    folders = {}
    for place, name in PLACES.items():
        folder = tmp_path_factory.mktemp(place) / "run"
        shutil.copytree(trained, folder, symlinks=True)
        network = Network.from_pretrained(folder / "best")
        with torch.no_grad():
            network.state_dict()[name].view(-1)[0] = float("nan" if place != "blocks" else "inf")
        network.save_pretrained((folder / "best").resolve())
        folders[place] = folder
    return folders


@pytest.fixture
def run_command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Image.linear_gradient("L").resize((8, 8)).save("image.png")
    return lambda *arguments: call(capsys, monkeypatch, *arguments)


COMMANDS = {
    "predict": ["predict", "RUN", "image.png"],
    "predict-json": ["predict", "RUN", "image.png", "--json"],
    "evaluate": ["evaluate", "RUN"],
    "attack": ["attack", "RUN", "--images", "4", "--epsilon", "0.1"],
    "export": ["export", "RUN", "--torch-export", "network.pt2"],
    "explore": ["explore", "RUN", "--no-browser"],
    "coarsen": ["coarsen", "RUN", "--time", "2", "--output", "coarse"],
    "refine": ["refine", "RUN", "--time", "2", "--output", "fine"],
    "train": ["train", "--from", "RUN", "--output", "further", *small_options(**SETTINGS)],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_weights_that_are_no_numbers_are_refused_in_one_line(run_command, broken, tmp_path, name):
    before = set(tmp_path.iterdir())
    folder = broken["blocks"]
    done = run_command(*(folder if part == "RUN" else part for part in COMMANDS[name]))
    assert done.code == 4
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert str(folder) in done.stderr
    assert f"weights is NaN or infinite, the first in {PLACES['blocks']}" in done.stderr
    assert {path.name for path in set(tmp_path.iterdir()) - before} <= {"further"}


@pytest.mark.parametrize("place", PLACES)
def test_wherever_they_are(run_command, broken, place):
    done = run_command("evaluate", broken[place])
    assert done.code == 4
    said = rf": 1 of \d+ weights is NaN or infinite, the first in {re.escape(PLACES[place])},"
    assert re.search(said, done.stderr)


@pytest.mark.parametrize(
    "place",
    [
        "blocks",
        *(pytest.param(place, marks=pytest.mark.slow) for place in PLACES if place != "blocks"),
    ],
)
def test_a_diagnosis_is_made_and_says_so(run_command, broken, place):
    done = run_command("diagnose", broken[place], "--json")
    assert done.code == 0
    assert done.stderr.count("\n") == 1
    assert f"weights is NaN or infinite, the first in {PLACES[place]}" in done.stderr
    values = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"bare {name}"))
    assert values["notice"] in done.stderr
    (block,) = values["blocks"]
    reasons = {
        "opening": "the features that reach the block are not finite",
        "statistics": "the features that reach the block are not finite",
        "blocks": "weights is NaN or infinite, the first in layers.0.convolution.stencil",
    }
    if place in reasons:
        assert block["stability"]["verdict"] == "unstable"
        assert reasons[place] in block["stability"]["reason"]
    else:
        assert block["stability"]["steps"]  # the classifier comes after all blocks


def test_the_tables_of_a_diagnosis_say_so_too(run_command, broken):
    done = run_command("diagnose", broken["blocks"], "--full")
    assert done.code == 0
    assert done.stderr.count("\n") == 1
    assert "Block 0 is unstable: " in done.stdout
    text = " ".join(done.stdout.split())
    assert "weights is NaN or infinite, the first in layers.0.convolution.stencil of the" in text
    assert "0 forwards overflow overflow overflow" in text


def test_a_report_has_the_rest_and_says_so(run_command, trained, broken):
    done = run_command("report", broken["blocks"], trained, "--output", "report.html")
    assert done.code == 0
    assert done.stderr.count("\n") == 1
    said = f"weights is NaN or infinite, the first in {PLACES['blocks']}"
    assert said in done.stderr
    with open("report.html") as file:
        text = Page(file.read()).text
    assert text.count(said) >= 2  # the card, and beside the diagnosis
    assert "The figures are those it was left with." in text
    assert "on another device or with other versions" not in text
    assert text.count("The weights are no numbers, so that no image can be tried.") == 1
    assert "holds no best weights" not in text


def test_a_report_of_the_last_weights_has_no_figures_at_all(run_command, broken):
    """The recorded ones are of the best."""
    run = broken["blocks"]
    options = ("--weights", "last", "--no-diagnosis", "--output", "report.html")
    assert run_command("report", run, *options).code == 0
    with open("report.html") as file:
        text = Page(file.read()).text
    assert "Not tested: the weights are no numbers." in text
    assert "no last weights yet" not in text


def test_the_library_opens_them_for_a_look(broken):
    network = pdecnn.load(broken["blocks"])
    assert not all(bool(weight.isfinite().all()) for weight in network.parameters())


def test_scores_that_overflow_are_never_printed_as_nan(run_command, trained, tmp_path):
    """With weights that are numbers, but too large for what is made of them."""
    folder = tmp_path / "large"
    shutil.copytree(trained, folder, symlinks=True)
    network = Network.from_pretrained(folder / "best")
    with torch.no_grad():
        network.classifier.weight.fill_(3e38)
    network.save_pretrained((folder / "best").resolve())
    done = run_command("predict", folder, "image.png", "--json")
    assert (done.code, done.stdout) == (4, "")
    assert "image.png: its class scores are not finite" in done.stderr
    done = run_command("evaluate", folder, "--json")
    assert done.code == 0
    assert json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))["loss"] is None
    assert "the loss is not finite" in done.stderr
    assert done.stderr.count("\n") == 1
