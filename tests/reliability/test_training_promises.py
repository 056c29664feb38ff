"""Promises 2, 18, 23 and 24: numbers during training, and what a run is a function of."""

import json
import os
import random

import numpy as np
import pytest
import torch

import pdecnn
from pdecnn.data.image_set import training_batches
from pdecnn.errors import ConfigError, DivergedError
from pdecnn.learning import trainer as trainer_module
from pdecnn.reports.terminal import ConsoleListener
from pdecnn.runs.preparation import deterministic_algorithms
from tests.runs import call, fingerprint, small_config, small_options
from tests.unit.learning.trainings import Poisoned, make_network, make_trainer, run

# ------------------------------------------------------------------ promise 18


def test_promise_18_the_skipped_batches_are_recorded():
    index = int(training_batches(62, 20, seed=0, epoch=1)[2][4])
    trainer = make_trainer(
        make_network("parabolic"), augmentation=Poisoned(index, epochs=(1,)), max_nonfinite_steps=1
    )
    reports = run(trainer)
    assert [report.nonfinite_batches for report in reports] == [[], [2], []]
    assert [report.nonfinite_steps for report in reports] == [0, 1, 1]


def test_promise_18_divergence_says_step_epoch_and_batch():
    index = int(training_batches(62, 20, seed=0, epoch=1)[2][4])
    trainer = make_trainer(make_network("parabolic"), augmentation=Poisoned(index, epochs=(1,)))
    with pytest.raises(DivergedError, match=r"diverged at step 6 \(epoch 2, batch 3, learning"):
        run(trainer)
    assert trainer.progress.nonfinite_batches == [2]


# ------------------------------------------------------------------ promise 23


def switches():
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )


def test_promise_23_two_deterministic_runs_have_equal_hashes(tmp_path, capsys, monkeypatch):
    seen, before = [], switches()
    original = trainer_module.Trainer.step

    def step(trainer):
        seen.append(switches()[:4])
        original(trainer)

    monkeypatch.setattr(trainer_module.Trainer, "step", step)
    monkeypatch.setattr("pdecnn.reports.run_figures.draw_run_figures", lambda run: [])
    options = small_options(training__epochs=2, data__flip="true", data__padding=0.125)
    for name in ("one", "two"):
        arguments = ("train", "--quiet", "--deterministic", "--output", tmp_path / name, *options)
        done = call(capsys, monkeypatch, *arguments)
        assert done.code == 0, done.stderr
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    assert set(seen) == {(True, False, True, False)}
    assert switches() == before
    # It is part of the run, so that --resume alone keeps it.
    assert json.loads((tmp_path / "one" / "config.json").read_text())["training"]["deterministic"]


def use_what_is_not_deterministic(*arguments):
    """An operation of which torch has no deterministic version, on a CPU too."""
    torch.zeros(2).put_(torch.zeros(1, dtype=torch.int64), torch.ones(1), accumulate=False)


def test_promise_23_what_is_not_deterministic_is_refused(tmp_path, monkeypatch):
    original = pdecnn.runs.training.make_network

    def make(config, train):
        network = original(config, train)
        network.opening.register_forward_hook(use_what_is_not_deterministic)
        return network

    monkeypatch.setattr(pdecnn.runs.training, "make_network", make)
    before = switches()
    with pytest.raises(ConfigError, match=r"put_.*does not have.*training.deterministic=false"):
        pdecnn.train(small_config(training__deterministic=True), output=tmp_path / "run")
    assert switches() == before
    config = small_config(training__epochs=1)
    assert pdecnn.train(config, output=tmp_path / "free").is_finished


def test_promise_23_on_a_gpu_cublas_is_told(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with deterministic_algorithms(True, torch.device("cuda")):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with deterministic_algorithms(True, torch.device("cuda")):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_promise_23_other_errors_pass_and_other_switches_are_kept():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with (
            pytest.raises(DivergedError),
            deterministic_algorithms(True, torch.device("cpu")),
        ):
            raise DivergedError("the loss")
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        with deterministic_algorithms(False, torch.device("cpu")):
            assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


# ------------------------------------------------------------------ promise 24


def test_promise_24_one_seed_is_printed_stored_and_drives_all(tmp_path, capsys):
    config = small_config(training__epochs=1, data__flip=True, seed=7)
    for name, seed_of_the_process in (("one", 1), ("two", 2)):
        torch.manual_seed(seed_of_the_process)
        random.seed(seed_of_the_process)
        np.random.seed(seed_of_the_process)
        pdecnn.train(config, output=tmp_path / name, listener=ConsoleListener())
        assert ", seed 7\n" in capsys.readouterr().out
    for file in ("config.json", "environment.json"):
        assert json.loads((tmp_path / "one" / file).read_text())["seed"] == 7
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    # Seed and determinism are two switches.
    assert not config.training.deterministic
