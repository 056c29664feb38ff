"""A training on everything: no validation, no selection, and everybody who tells of it says so."""

import json
import re

import numpy as np
import pytest

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.reports.page import make_page
from pdecnn.reports.page_runs import read_page_runs
from pdecnn.runs.paper import make_plan
from pdecnn.runs.preparation import read_splits
from pdecnn.runs.runs import Run
from tests.runs import Killed, Recorder, call, fingerprint, small_config, small_options

SETTINGS = {"data__validation_fraction": 0, "training__average_decay": 0.9}


@pytest.fixture
def command(capsys, monkeypatch):
    return lambda *arguments: call(capsys, monkeypatch, *arguments)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("final") / "run"
    return pdecnn.train(small_config(**SETTINGS), output=folder, device="cpu")


def test_all_training_images_are_trained_on():
    config = small_config(data__validation_fraction=0, data__fraction=1.0)
    held_out = read_splits(small_config(data__fraction=1.0).data, 0)
    everything = read_splits(config.data, 0)
    assert everything.validation is None
    assert len(everything.train) == len(held_out.train) + len(held_out.validation)


def test_from_the_command_line_to_the_page(command, tmp_path):
    folder = tmp_path / "run"
    options = small_options(**SETTINGS)
    done = command("train", "hamiltonian_digits", *options, "--output", folder)
    assert done.code == 0, done.stderr
    said = done.stdout + done.stderr
    assert re.search(r"training and no validation images, 4 epochs", said)
    assert re.search(r"epoch 4/4  loss \S+  accuracy \S+  [\d,]+ images/s", said)
    assert "with the weights of epoch 4, the last: no validation, no selection" in said
    test = json.loads((folder / "summary.json").read_text())["test"]
    for weights in ("best", "last"):
        done = command("evaluate", folder, "--weights", weights)
        assert json.loads(done.stdout)["accuracy"] == test["accuracy"]
    done = command("evaluate", folder, "--split", "validation")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "has no validation images" in done.stderr
    assert command("evaluate", folder, "--split", "train").code == 0
    done = command("report", folder, "--output", tmp_path / "page.html", "--no-diagnosis")
    assert done.code == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "No validation: the weights are those of epoch 4, the last" in page
    assert "validation accuracy" not in page


def test_the_last_epoch_is_the_result(whole):
    assert [entry["validation_accuracy"] for entry in whole.metrics] == [None] * 4
    assert [entry["validation_loss"] for entry in whole.metrics] == [None] * 4
    summary = whole.summary
    assert (summary["best_epoch"], summary["stopped"]) == (4, "completed")
    assert (summary["best_validation_accuracy"], summary["selected_by"]) == (None, None)
    assert (whole.folder / "best").resolve() == (whole.folder / "last").resolve()
    assert json.loads((whole.folder / "data.json").read_text())["images"]["validation"] == 0


def test_it_is_reported_beside_a_run_with_validation(whole, tmp_path):
    other = pdecnn.train(small_config(training__epochs=2), output=tmp_path / "run", device="cpu")
    found = read_page_runs([whole.folder, other.folder], diagnosis=False, device="cpu")
    page = make_page(found)
    assert "no validation: the weights are those of epoch 4, the last" in page
    assert "best validation accuracy" in page
    assert "different validation images" not in page


def kill_at(place):
    def on_step(progress):
        if (progress.epoch, progress.batch) == place:
            raise Killed

    return Recorder(on_step=on_step)


def test_killed_and_resumed_it_gives_the_same_bits(whole, tmp_path):
    config, folder = small_config(**SETTINGS), tmp_path / "run"
    for place in ((0, 3), (2, 5)):
        with pytest.raises(Killed):
            pdecnn.train(config, output=folder, resume=True, listener=kill_at(place), device="cpu")
    run = pdecnn.train(config, output=folder, resume=True, device="cpu")
    assert fingerprint(run.folder) == fingerprint(whole.folder)


@pytest.mark.parametrize(
    ("name", "value", "default"), [("patience", 2, "none"), ("ties", "first", "loss")]
)
def test_what_only_validation_reads_is_refused_without_it(name, value, default, tmp_path):
    """A rule for the best epoch was silently ignored where no epoch is selected."""
    config = small_config(**SETTINGS, **{f"training__{name}": value})
    with pytest.raises(
        ConfigError,
        match=rf"^training\.{name} has no use without validation \(data\.validation_fraction=0\), "
        rf"found {value}; leave it out, or .* pass --set training\.{name}={default}$",
    ):
        pdecnn.train(config, output=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_run_of_before_that_selected_nothing_goes_on(tmp_path):
    """Its file has no rule for ties, which meant 'first', and nothing here."""
    config = small_config(**SETTINGS)
    with pytest.raises(Killed):
        pdecnn.train(config, output=tmp_path / "run", listener=kill_at((1, 2)), device="cpu")
    values = json.loads((tmp_path / "run" / "config.json").read_text())
    del values["format_version"], values["training"]["ties"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(values))
    config = Run(tmp_path / "run").config
    run = pdecnn.train(config, output=tmp_path / "run", resume=True, device="cpu")
    assert run.summary["epochs"] == 4


def test_what_shows_validation_accuracies_is_refused():
    with pytest.raises(ConfigError, match="validation_fraction=0 leaves none of the accuracies"):
        make_plan("table1", quick=True, settings={"data.validation_fraction": 0})


def test_validation_samples_of_the_data_are_not_thrown_away(tmp_path):
    x, y = np.zeros((12, 1, 8), "f4"), np.arange(12) % 2
    parts = {
        f"{kind}_{part}": a
        for part in ("train", "validation", "test")
        for kind, a in (("x", x), ("y", y))
    }
    np.savez(tmp_path / "a.npz", **parts)
    settings = {"data.folder": str(tmp_path / "a.npz"), "data.validation_fraction": 0}
    config = pdecnn.recipe("parabolic_signals").with_settings(settings)
    with pytest.raises(ConfigError, match="the data has validation samples of its own"):
        read_splits(config.data, 0)
