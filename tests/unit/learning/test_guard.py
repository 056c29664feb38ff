"""A training measures the gradients of reversible blocks, acts on them, and resumes exactly."""

import sys
from functools import cache

import pytest
import torch

from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.learning import Trainer, TrainingConfig
from pdecnn.learning import guard as guard_module
from pdecnn.learning.checkpoint import load_checkpoint, save_checkpoint
from pdecnn.learning.training_config import GuardConfig
from tests.unit.learning.trainings import (
    Stop,
    assert_same_bits,
    make_trainer,
    run,
    snapshot,
    stop_at,
)
from tests.unit.networks.test_reversal import make_network, trap_


@pytest.fixture(autouse=True)
def notes_are_kept(caplog):
    caplog.set_level("INFO", "pdecnn")


def trapped_trainer(*, seed=0, **settings):
    """A training that meets the kink trap before its first step."""
    return make_trainer(trap_(make_network(seed=seed, backprop="reversible")), **settings)


def modes(trainer):
    return [block.backprop for block in trainer.network.blocks]


def test_promise_26_a_wrong_gradient_switches_the_block(caplog):
    trainer = trapped_trainer()
    reports = run(trainer)
    assert modes(trainer) == ["checkpointed", "reversible"]
    assert reports[0].reversal_error > 0.1
    assert [report.reversal_error for report in reports[1:]] == [None, None]
    assert [report.checkpointed_blocks for report in reports] == [1, 1, 1]
    assert len(caplog.messages) == 1
    said = "epoch 1: the gradient of reversible block 0 is wrong by a relative"
    assert caplog.messages[0].startswith(said)
    assert "checkpointed from now on" in caplog.messages[0]
    assert "network.backprop=exact" in caplog.messages[0]


def test_after_the_switch_the_training_is_that_of_checkpointed():
    trainer = trapped_trainer()
    run(trainer)
    twin = make_trainer(trap_(make_network(backprop="reversible")), reversal_guard="off")
    twin.network.blocks[0].backprop = "checkpointed"
    run(twin)
    assert_same_bits(snapshot(trainer), snapshot(twin))


def test_it_may_only_warn(caplog):
    trainer = trapped_trainer(reversal_guard="warn", reversal_interval=1)
    reports = run(trainer)
    assert modes(trainer) == ["reversible"] * 2
    assert all(report.reversal_error is not None for report in reports)
    assert {report.checkpointed_blocks for report in reports} == {0}
    assert "it goes on" in caplog.messages[0]


def test_it_may_be_off():
    trainer = trapped_trainer(reversal_guard="off")
    reports = run(trainer)
    assert modes(trainer) == ["reversible"] * 2
    assert {report.reversal_error for report in reports} == {None}


def test_a_right_gradient_is_left_alone(caplog):
    network = make_network(backprop="reversible")
    trainer = make_trainer(network, reversal_interval=2)
    reports = run(trainer)
    assert caplog.messages == []
    assert modes(trainer) == ["reversible"] * 2
    assert [report.reversal_error is None for report in reports] == [False, True, False]
    assert 0 < reports[0].reversal_error < 1e-4
    # Nor does looking change the training.
    twin = make_trainer(make_network(backprop="reversible"), reversal_guard="off")
    run(twin)
    assert_same_bits(snapshot(trainer), snapshot(twin))


@pytest.mark.parametrize("backprop", ["stored", "checkpointed", "exact"])
def test_other_modes_are_not_measured(backprop, monkeypatch):
    monkeypatch.setattr(guard_module.DriftGuard, "measure", None)
    reports = run(make_trainer(make_network(backprop=backprop), epochs=1))
    assert reports[0].reversal_error is None
    assert reports[0].checkpointed_blocks == 0


@pytest.mark.parametrize("precision", ["bfloat16"])
def test_it_measures_in_the_precision_of_the_training(precision):
    reports = run(make_trainer(make_network(backprop="reversible"), epochs=1, precision=precision))
    assert reports[0].reversal_error < 0.1


@cache
def undisturbed():
    trainer = trapped_trainer(reversal_interval=2)
    return trainer, run(trainer)


@pytest.mark.parametrize("poll_number", [1, 2, 9])
def test_promise_1_a_switched_block_is_switched_again_on_resume(tmp_path, poll_number):
    """Stopped before the first step, within an epoch, and in the next one."""
    whole, reports = undisturbed()
    assert whole.progress.checkpointed_blocks == [0]
    first, resumed = trapped_trainer(reversal_interval=2), trapped_trainer(reversal_interval=2)
    early = []
    with pytest.raises(Stop):
        early.extend(first.epochs(poll=stop_at(poll_number), on_step=lambda: None))
    save_checkpoint(first, tmp_path / "c")
    load_checkpoint(resumed, tmp_path / "c")
    assert modes(resumed) == modes(first) == ["checkpointed", "reversible"]
    assert resumed.progress.reversal_error == first.progress.reversal_error
    assert early + run(resumed) == reports
    assert_same_bits(snapshot(resumed), snapshot(whole))
    assert resumed.progress == whole.progress


def test_switched_blocks_of_another_network_are_refused(tmp_path):
    trainer = trapped_trainer(epochs=1)
    run(trainer)
    trainer.progress.checkpointed_blocks = [7]
    save_checkpoint(trainer, tmp_path / "c")
    with pytest.raises(CheckpointError, match="switched blocks that this network does not reverse"):
        load_checkpoint(trapped_trainer(epochs=1), tmp_path / "c")


def test_a_switch_means_capturing_anew():
    """A graph of the old step must not be replayed."""
    trainer = trapped_trainer(reversal_interval=1, reversal_tolerance=1e9)
    trainer.begin_epoch()
    trainer.step()
    graphs = trainer._graphs
    launch, score = graphs._launch, object()
    graphs._score, graphs._tried_scores = score, True
    trainer._look_at_reversal(trainer.guard)
    assert (graphs._launch, graphs._score, graphs._tried_scores) == (launch, score, True)
    object.__setattr__(trainer.config, "reversal_tolerance", 1e-12)
    trainer._look_at_reversal(trainer.guard)
    assert (graphs._launch, graphs._score, graphs._tried_scores) == (None, None, False)


def test_too_little_memory_is_said_not_fatal(monkeypatch, caplog):
    def fail(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    trainer = trapped_trainer(epochs=1)
    monkeypatch.setattr(trainer.guard.drift, "measure", fail)
    (report,) = run(trainer)
    assert report.reversal_error is None
    assert "not enough memory to measure" in caplog.messages[0]


def test_an_infinite_error_is_a_number_in_json(monkeypatch):
    trainer = trapped_trainer(epochs=1)
    monkeypatch.setattr(trainer.guard.drift, "measure", lambda *a, **k: {0: float("inf")})
    (report,) = run(trainer)
    assert report.reversal_error == sys.float_info.max
    assert modes(trainer) == ["checkpointed", "reversible"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"reversal_guard": "swich"},
            "unknown training.reversal_guard 'swich'; did you mean 'switch'",
        ),
        ({"reversal_guard": True}, "unknown training.reversal_guard True"),
        ({"reversal_tolerance": 0}, "reversal_tolerance must be a positive number"),
        ({"reversal_interval": 0}, "reversal_interval must be a whole number of at least 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    for config in (GuardConfig, TrainingConfig):
        with pytest.raises(ConfigError, match=message):
            config(**settings)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_a_captured_training_is_switched_and_resumed(tmp_path):
    def make():
        network = trap_(make_network(channels=(16, 16), backprop="reversible")).cuda()
        return Trainer(network, **options)

    cpu = make_trainer(epochs=2, reversal_interval=1, precision="float32")
    options = {
        "config": cpu.config,
        "train": cpu.train,
        "validation": cpu.validation,
        "augmentation": cpu.augmentation,
        "seed": 0,
    }
    whole, first, resumed = make(), make(), make()
    reports = run(whole)
    assert whole.captured
    assert modes(whole) == ["checkpointed"]
    early = []
    with pytest.raises(Stop):
        early.extend(first.epochs(poll=stop_at(9), on_step=lambda: None))
    save_checkpoint(first, tmp_path / "c")
    load_checkpoint(resumed, tmp_path / "c")
    assert early + run(resumed) == reports
    assert_same_bits(snapshot(resumed), snapshot(whole))
