"""`pdecnn diagnose` and `pdecnn attack` as people use them."""

import json

import pytest

import pdecnn
from tests.runs import call, small_config

FILES = ("diagnosis.json", "spectra.csv", "coefficients.csv", "pde.tex")
FIGURES = ("stability", "growth", "energy", "reversibility", "learned_pde")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = small_config(network__channels=[4, 4], training__epochs=1)
    return pdecnn.train(config, output=tmp_path_factory.mktemp("run") / "run", device="cpu")


@pytest.fixture
def run_command(capsys, monkeypatch):
    return lambda *arguments: call(capsys, monkeypatch, *arguments)


def test_diagnose_prints_a_screen_and_leaves_files(run_command, run):
    done = run_command("diagnose", run.folder)
    assert (done.code, done.stderr) == (0, "")
    assert "Block 0 is " in done.stdout
    assert len(done.stdout.splitlines()) <= 24
    assert "Step sizes and spectra" in run_command("diagnose", run.folder, "--full").stdout
    there = {path.name for path in (run.folder / "diagnosis").iterdir()}
    figures = {f"{name}.{suffix}" for name in FIGURES for suffix in ("png", "svg")}
    assert there == {*FILES, *figures}


def test_diagnose_prints_one_json_object(run_command, run, tmp_path):
    done = run_command("diagnose", run.folder, "--json", "--weights", "last", "--output", tmp_path)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout) == json.loads((tmp_path / "diagnosis.json").read_text())


def test_attack_prints_tables_and_leaves_files(run_command, run):
    done = run_command("attack", run.folder, "--epsilon", "0.1", "--images", "20", "--steps", "5")
    assert (done.code, done.stderr) == (0, "")
    assert "of 20 test images right" in done.stdout
    there = {path.name for path in (run.folder / "attack").iterdir()}
    figures = {f"attack_linf{name}.{kind}" for name in ("", "_images") for kind in ("png", "svg")}
    assert there == {"attack_linf.json", *figures}


def test_attack_prints_one_json_object(run_command, run, tmp_path):
    options = ("--epsilon", "0.5", "--epsilon", "0.2", "--norm", "l2", "--images", "20")
    options += ("--method", "fgsm,pgd", "--restarts", "2", "--steps", "3", "--seed", "4")
    done = run_command("attack", run.folder, *options, "--json", "--output", tmp_path)
    assert (done.code, done.stderr) == (0, "")
    values = json.loads(done.stdout)
    assert values == json.loads((tmp_path / "attack_l2.json").read_text())
    assert [(entry["epsilon"], entry["attack"]) for entry in values["results"]] == [
        (0.2, "fgsm"),
        (0.2, "pgd"),
        (0.2, "worst"),
        (0.5, "fgsm"),
        (0.5, "pgd"),
        (0.5, "worst"),
    ]
    assert (values["restarts"], values["num_steps"], values["seed"]) == (2, 3, 4)
    for fast, projected in zip(values["results"][::3], values["results"][1::3], strict=True):
        assert projected["accuracy"] <= fast["accuracy"] <= values["clean_accuracy"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["diagnose", "nowhere"], 5, "not a run directory"),
        (["diagnose", "RUN", "--weights", "worst"], 2, "weights must be one of best, last"),
        (["diagnose", "RUN", "--device", "tpu"], 2, "unknown device 'tpu'"),
        (["attack", "RUN", "--norm", "l1"], 2, "unknown norm 'l1'"),
        (["attack", "RUN", "--epsilon", "-1"], 2, "epsilon must be a number of at least 0"),
        (["attack", "RUN", "--epsilon", "nan"], 2, "epsilon must be a number of at least 0"),
        (["attack", "RUN", "--method", "pdg"], 2, "did you mean 'pgd'"),
        (["attack", "RUN", "--steps", "0"], 2, "num_steps must be a whole number"),
        (["attack", "RUN", "--images", "0"], 2, "num_images must be a whole number"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run_command, run, arguments, code, message):
    done = run_command(*(run.folder if part == "RUN" else part for part in arguments))
    assert done.code == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
