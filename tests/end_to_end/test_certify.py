"""`pdecnn certify` as people use it, and what diagnosis and report say of certified networks."""

import csv
import json

import pytest
import torch

import pdecnn
from pdecnn.data.registry import read_digits
from pdecnn.runs import diagnosis
from tests.runs import call, small_config

STABLE = {
    "network__channels": [4, 8, 8],
    "network__step_size": "stable",
    "network__normalization": "bias",
    "network__opening": "pad",
    "network__connector": "bounded",
    "network__pooling": "space_to_depth",
    "network__classifier": "flat_unit_rows",
    "network__certified_size": [8],
    "data__standardize": "none",
    "training__epochs": 1,
    "training__smoothness_weight": 0.0,
    "training__decay_weight": 0.0,
    "training__box": "none",
}


def train(folder, **settings):
    config = small_config("parabolic_digits", **settings)
    return pdecnn.train(config, output=folder, device="cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("run") / "run", **STABLE)


@pytest.fixture
def run_command(capsys, monkeypatch):
    return lambda *arguments: call(capsys, monkeypatch, *arguments)


def test_certify_prints_a_table_and_leaves_files(run_command, run):
    done = run_command("certify", run.folder, "--images", "20", "--radius", "1/255")
    assert (done.code, done.stderr) == (0, "")
    assert "of 20 test images right" in done.stdout
    assert "L = 1" in done.stdout or "L = 0.99999" in done.stdout
    assert "1/255" in done.stdout
    there = {path.name for path in (run.folder / "certificate").iterdir()}
    assert there == {"certificate.json", "certificate.png", "certificate.svg", "images.csv"}


def test_certify_prints_one_json_object(run_command, run, tmp_path):
    options = ("--images", "30", "--radius", "0.1", "--radius", "36/255", "--json")
    done = run_command("certify", run.folder, *options, "--output", tmp_path, "--weights", "last")
    assert (done.code, done.stderr) == (0, "")
    values = json.loads(done.stdout)
    assert values == json.loads((tmp_path / "certificate.json").read_text())
    assert (values["num_images"], values["norm"], values["weights"]) == (30, "l2", "last")
    assert [row["radius"] for row in values["results"]] == [0.1, 36 / 255]
    network = pdecnn.load(run.folder, "last")
    assert values["num_weights"] == network.num_weights
    for row in values["results"]:
        assert row["certified_accuracy"] <= row["attacked_accuracy"] <= values["clean_accuracy"]
    with (tmp_path / "images.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    places = torch.tensor([int(row["index"]) for row in rows])
    test = read_digits().test.subset(places)
    found = pdecnn.certify(network, test.images, test.labels)
    assert [float(row["radius"]) for row in rows] == pytest.approx(found.radii.tolist())
    assert [int(row["prediction"]) for row in rows] == found.predictions.tolist()
    assert [int(row["label"]) for row in rows] == test.labels.tolist()
    assert values["lipschitz"] == found.lipschitz
    assert values["factors"] == [{"name": name, "bound": value} for name, value in found.factors]


def test_a_run_without_attacks_has_none(run_command, run, tmp_path):
    options = ("--images", "5", "--no-attack", "--json", "--output", tmp_path)
    values = json.loads(run_command("certify", run.folder, *options).stdout)
    assert [row["attacked_accuracy"] for row in values["results"]] == [None] * 3
    assert [row["radius"] for row in values["results"]] == [36 / 255, 72 / 255, 108 / 255]


def test_attacks_that_leave_no_image_end_without_an_error(run_command, run, tmp_path):
    options = ("--images", "5", "--radius", "20", "--radius", "40", "--json", "--output", tmp_path)
    done = run_command("certify", run.folder, *options)
    assert (done.code, done.stderr) == (0, "")
    rows = json.loads(done.stdout)["results"]
    assert [row["attacked_accuracy"] for row in rows] == [0.0, 0.0]


def test_a_large_constant_is_said_and_not_refused(run_command, tmp_path):
    folder = train(tmp_path / "run", network__channels=[4, 4], training__epochs=1).folder
    done = run_command("certify", folder, "--images", "5", "--no-attack")
    assert (done.code, done.stderr) == (0, "")
    assert "no radius above 1/255" in done.stdout
    assert "its largest factor is that of block 0" in done.stdout


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--radius", "wide"), 2, "--radius must be a number such as 0.5 or a fraction"),
        (("--radius", "1/0"), 2, "--radius must be a number such as 0.5 or a fraction"),
        (("--radius", "-1"), 2, "radius must be a number of at least 0"),
        (("--images", "0"), 2, "num_images must be a whole number"),
        (("--weights", "worst"), 2, "weights must be one of best, last"),
    ],
)
def test_bad_options_are_said_in_one_line(run_command, run, options, code, message):
    done = run_command("certify", run.folder, *options)
    assert done.code == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_neither_a_run_nor_a_model_is_said(run_command, tmp_path):
    done = run_command("certify", tmp_path)
    assert done.code == 5
    assert "not a run directory (no config.json), nor a model" in done.stderr


def test_the_report_shows_both_curves(run_command, run, tmp_path):
    page = tmp_path / "report.html"
    run_command("certify", run.folder, "--images", "10", "--radius", "0.1")
    done = run_command("report", run.folder, "--output", page, "--no-diagnosis", "--images", "2")
    assert (done.code, done.stderr) == (0, "")
    text = page.read_text()
    assert 'id="certificate"' in text
    assert "attacked (APGD)" in text
    (run.folder / "certificate" / "certificate.json").write_text("{")
    run_command("report", run.folder, "--output", page, "--no-diagnosis", "--images", "2")
    assert 'id="certificate"' not in page.read_text()


def test_a_diagnosis_says_guaranteed_and_the_constant_of_the_network(run_command, run, tmp_path):
    done = run_command("diagnose", run.folder, "--output", tmp_path)
    assert (done.code, done.stderr) == (0, "")
    assert "Block 0 is guaranteed" in done.stdout
    assert "L = " in done.stdout
    values = json.loads((tmp_path / "diagnosis.json").read_text())
    assert 0.9999 < values["lipschitz"] <= 1
    assert values["lipschitz_missing"] is None
    network = pdecnn.load(run.folder)
    for block, found in zip(network.blocks, values["blocks"], strict=True):
        assert found["step_sizes"] == pytest.approx(block.step_sizes)
        assert found["stability"]["verdict"] == "guaranteed"
    report = diagnosis.diagnose(run.folder, device="cpu")
    assert [len(block.energy.norms) for block in report.blocks] == [3, 3]
