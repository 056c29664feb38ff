"""Training from coarse to fine: which level when, what goes up, and resuming across levels."""

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import ImageSet
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.learning import TrainingConfig
from pdecnn.learning.checkpoint import load_checkpoint, save_checkpoint
from pdecnn.learning.metrics import best_epoch, training_flops
from pdecnn.networks.preprocessing import Preprocessing
from tests.unit.learning.trainings import (
    Stop,
    assert_same_bits,
    digits,
    make_network,
    make_trainer,
    run,
    snapshot,
)

SPACE = {"level_epochs": (1, 1), "level_sizes": (4, 8), "epochs": 4}
REDISCRETIZED = {**SPACE, "level_stencils": "rediscretize"}
TIME = {"level_epochs": (1, 1, 2), "level_steps": (1, 2, 4), "epochs": 4}
BOTH = {**TIME, "level_sizes": (4, 4, 8), "average_decay": 0.9}
LEVELS = {"space": SPACE, "rediscretized": REDISCRETIZED, "time": TIME, "both": BOTH}


def first_level_network(settings, **overrides):
    """The network a run of these settings starts with."""
    config = TrainingConfig(**settings)
    overrides = {"num_steps": 4, "step_size": 0.25, **overrides}
    network = make_network(**overrides)
    finest = Preprocessing(size=(8, 8))
    new_config, preprocessing = config.first_level(network.config, finest, (8, 8))
    network = make_network(
        **{**overrides, "num_steps": new_config.num_steps, "step_size": new_config.step_size}
    )
    network.preprocessing = preprocessing
    return network


def level_trainer(settings, seed=0, **overrides):
    network = first_level_network(settings, **overrides)
    return make_trainer(network, seed=seed, **settings)


@pytest.mark.parametrize(
    ("lengths", "epochs", "expected"),
    [
        ((60, 40), 10, [0] * 6 + [1] * 4),
        ((1, 1, 2), 4, [0, 1, 2, 2]),
        ((30, 30, 40), 3, [0, 1, 2]),
        ((1, 1000), 4, [0, 1, 1, 1]),
    ],
)
def test_levels_are_scaled_to_the_epochs_and_none_is_missing(lengths, epochs, expected):
    sizes = tuple(4 * 2**k for k in range(len(lengths)))
    config = TrainingConfig(level_epochs=lengths, level_sizes=sizes, epochs=epochs)
    assert [config.level_of(epoch, epochs) for epoch in range(epochs)] == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level_sizes": (4, 8)}, "training.level_sizes needs training.level_epochs"),
        (
            {"level_epochs": (1, 1)},
            "training.level_epochs needs training.level_sizes, training.level",
        ),
        ({"level_epochs": (1, 0), "level_sizes": (4, 8)}, "level_epochs must be a number in"),
        ({"level_epochs": (1, 1), "level_sizes": (4, 8, 16)}, "one number for each of 2 levels"),
        ({"level_epochs": (1, 1), "level_sizes": 8}, "one number for each of 2 levels"),
        ({"level_epochs": (1, 1), "level_sizes": (8, 4)}, "a multiple of the one before"),
        ({"level_epochs": (1, 1), "level_steps": (2, 3)}, "a multiple of the one before"),
        ({"level_epochs": (1, 1), "level_steps": (0, 3)}, "level_steps"),
        ({**TIME, "epochs": 2}, "3 levels need as many epochs"),
    ],
)
def test_bad_levels_are_refused_in_one_line(settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        TrainingConfig(**settings)
    assert "\n" not in str(caught.value)


def test_levels_must_end_with_the_network_and_its_images():
    network, images = make_network(num_steps=4).config, Preprocessing(size=(8, 8))
    with pytest.raises(ConfigError, match="the images' own width 8"):
        TrainingConfig(**{**SPACE, "level_sizes": (4, 16)}).first_level(network, images, (8, 8))
    with pytest.raises(ConfigError, match=r"must be network\.num_steps=4"):
        TrainingConfig(**{**TIME, "level_steps": (1, 2, 2)}).first_level(network, images, (8, 8))
    with pytest.raises(ConfigError, match="starts with the network of the first"):
        make_trainer(make_network(), **SPACE)
    with pytest.raises(ConfigError, match="starts with the network of the first"):
        make_trainer(make_network(num_steps=4), **TIME)


@pytest.mark.parametrize("name", LEVELS)
def test_a_training_ends_on_the_finest_level_and_counts_the_work_of_each(name, caplog):
    trainer = level_trainer(LEVELS[name])
    flops, reports, work = {}, [], 0
    caplog.set_level("INFO", "pdecnn")
    for report in trainer.epochs(poll=lambda: None, on_step=lambda: None):
        network = trainer.network
        size = (8 // network.preprocessing.pooling,) * 2
        flops[report.level] = training_flops(network.config, size, 20)
        work += 3 * flops[report.level]  # batches an epoch
        assert report.work == work
        reports.append(report)
    assert all(coarse < fine for coarse, fine in pairwise(flops.values()))
    expected = [trainer.config.level_of(epoch, 4) for epoch in range(4)]
    assert [report.level for report in reports] == expected
    assert trainer.evaluated.preprocessing.pooling == 1
    config = trainer.network.config
    assert (config.num_steps, config.step_size) == (4, 0.25)
    assert config.mesh_size == (0.5 if name == "rediscretized" else 1)
    assert len(caplog.messages) == max(expected)
    assert "8 x 8 pixels, 4 steps a block" in caplog.messages[-1]


@pytest.mark.parametrize("step_size", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("level_steps", [(1, 3), (2, 6), (1, 7)])
def test_the_last_level_has_the_step_size_of_the_config(level_steps, step_size):
    """To the bit: weights go into a network of another step size only if asked to."""
    settings = {"level_epochs": (1, 1), "level_steps": level_steps, "epochs": 2}
    network = first_level_network(settings, num_steps=level_steps[-1], step_size=step_size)
    refined = TrainingConfig(**settings).refine(network, 1)
    assert refined.config.step_size == step_size


def test_work_is_that_of_the_convolutions():
    """Twice the products of a forward pass, and as many again for each of two gradients."""
    config = make_network("parabolic", channels=(2, 3), num_steps=2).config
    pixels, batch = 16, 5
    opening, block, connector = 9 * 1 * 2, 9 * 2 * 2, 2 * 3
    forward = pixels * (opening + 2 * 2 * block + connector) + 3 * 10
    without_images = pixels * opening  # nobody asks for the gradient of the images
    expected = 2 * batch * (3 * forward - without_images)
    assert training_flops(config, (4, 4), batch) == expected
    assert training_flops(replace(config, backprop="checkpointed"), (4, 4), batch) == expected


@pytest.mark.parametrize("convention", ["rate_inside", "rate_outside"])
@pytest.mark.parametrize("name", LEVELS)
def test_velocities_and_averages_go_up_as_the_weights_do(name, convention):
    """The step that would have come next is made on the finer level."""
    trainer = level_trainer({**LEVELS[name], "momentum_convention": convention})
    trainer.begin_epoch()
    for _ in range(3):
        trainer.step()
    coarse, optimizer, average = trainer.network, trainer.optimizer, trainer.average
    with torch.no_grad():
        ahead = trainer.config.refine(_moved(coarse, optimizer), 1)
    trainer.enter_level(1)
    found = _moved(trainer.network, trainer.optimizer).state_dict()
    for key, value in ahead.state_dict().items():
        assert torch.allclose(found[key], value, atol=1e-5), key
    assert (trainer.average is None) == (average is None)
    if average is not None:
        expected = trainer.config.refine(average, 1).state_dict()
        assert_same_bits(trainer.average.state_dict(), expected)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_means_of_adamw_begin_anew_on_a_finer_level(optimizer):
    """Squares have no sign to go by a linear map; velocities of matrices go up."""
    trainer = level_trainer({**next(iter(LEVELS.values())), "optimizer": optimizer})
    trainer.begin_epoch()
    trainer.step()
    trainer.enter_level(1)
    for name, tensor in trainer.optimizer.named_states(trainer.network).items():
        carried = optimizer == "muon" and name.startswith("velocity/")
        assert bool(tensor.count_nonzero()) == carried, name
    trainer.begin_epoch()
    trainer.step()
    trainer.synchronize()


def _moved(network, optimizer):
    """The network after a step along its velocity."""
    moved = type(network)(network.config, network.preprocessing)
    moved.load_state_dict(network.state_dict())
    with torch.no_grad():
        for (_, weight), (_, old) in zip(
            moved.named_parameters(), network.named_parameters(), strict=True
        ):
            weight -= optimizer.velocity(old)
    return moved


@pytest.mark.parametrize("third", [(0.3, 1.0), (0.9, 1.0), (0.9, 2.0)])
def test_the_best_epoch_is_one_of_the_last_level(monkeypatch, third):
    trainer = level_trainer(SPACE)
    figures = iter([(0.9, 1.0), (0.8, 1.0), third, (0.95, 1.0)])
    monkeypatch.setattr(
        "pdecnn.learning.tasks.evaluate_network",
        lambda *arguments, **options: _Evaluation(*next(figures)),
    )
    best, recorded = [], []
    for report in trainer.epochs(poll=lambda: None, on_step=lambda: None):
        progress = trainer.progress
        best.append((progress.best_epoch, progress.best_accuracy, progress.best_loss))
        recorded.append(report._asdict())
        # What reports find in the metrics is what the trainer kept.
        assert best_epoch(recorded, ties="loss") == progress.best_epoch - 1
    assert best == [(1, 0.9, 1.0), (1, 0.9, 1.0), (3, *third), (4, 0.95, 1.0)]


def test_patience_counts_on_the_last_level_only(monkeypatch):
    trainer = level_trainer({**SPACE, "epochs": 12, "patience": 2})
    monkeypatch.setattr("pdecnn.learning.tasks.evaluate_network", lambda *a, **o: _Evaluation(0.5))
    reports = run(trainer)
    assert trainer.progress.stopped == "early_stopping"
    assert [report.level for report in reports] == [0] * 6 + [1] * 3


class _Evaluation:
    def __init__(self, accuracy, loss=1.0):
        self.score, self.loss = accuracy, loss


# Batches are 3 an epoch: before and after the last batch of a level, and in the next one.
@pytest.mark.parametrize(
    ("name", "stop"),
    [
        ("rediscretized", 6),
        ("both", 5),
        ("both", 7),
        *(
            pytest.param(name, stop, marks=pytest.mark.slow)
            for name, stop in (("rediscretized", 5), ("rediscretized", 7), ("both", 6))
        ),
    ],
)
def test_a_training_resumed_anywhere_gives_the_same_bits(name, stop, tmp_path):
    settings = LEVELS[name]
    whole = level_trainer(settings)
    reports = run(whole)

    first = level_trainer(settings)
    found = []

    def poll():
        if first.progress.step == stop:
            raise Stop

    with suppress(Stop):
        for report in first.epochs(poll=poll, on_step=lambda: None):
            found.append(report)
    assert first.progress.step == stop
    save_checkpoint(first, tmp_path / "checkpoint")
    second = level_trainer(settings, seed=0)
    load_checkpoint(second, tmp_path / "checkpoint")
    assert second.progress == first.progress
    assert_same_bits(snapshot(second), snapshot(first))
    found += run(second)
    assert found == reports
    assert_same_bits(snapshot(second), snapshot(whole))


@pytest.mark.parametrize("name", ["space", "time"])
def test_frozen_parts_and_switched_blocks_stay_so_on_finer_levels(name, tmp_path):
    # Every reversible block is switched at once: no gradient is as exact as that.
    settings = {**LEVELS[name], "freeze": ("opening",), "reversal_tolerance": 1e-300}
    whole = level_trainer(settings, backprop="reversible")
    opening = {k: v.clone() for k, v in whole.network.opening.state_dict().items()}
    reports = run(whole)
    assert reports[-1].checkpointed_blocks == len(whole.network.blocks)
    assert {block.backprop for block in whole.network.blocks} == {"checkpointed"}
    assert not any(weight.requires_grad for weight in whole.network.opening.parameters())
    assert_same_bits(dict(whole.network.opening.state_dict()), opening)
    half = level_trainer(settings, backprop="reversible")
    next(half.epochs(poll=lambda: None, on_step=lambda: None))
    half.enter_level(1)
    assert {block.backprop for block in half.network.blocks} == {"checkpointed"}
    save_checkpoint(half, tmp_path / "checkpoint")
    resumed = level_trainer(settings, backprop="reversible")
    load_checkpoint(resumed, tmp_path / "checkpoint")
    assert {block.backprop for block in resumed.network.blocks} == {"checkpointed"}
    assert resumed.progress.level == 1


def test_a_checkpoint_at_the_end_of_a_level_is_still_on_it(tmp_path):
    trainer = level_trainer(SPACE)
    epochs = trainer.epochs(poll=lambda: None, on_step=lambda: None)
    next(epochs), next(epochs)
    save_checkpoint(trainer, tmp_path / "end")
    assert trainer.progress.level == 0
    again = level_trainer(SPACE)
    load_checkpoint(again, tmp_path / "end")
    assert again.network.preprocessing.pooling == 2
    assert [report.level for report in run(again)] == [1, 1]


def test_a_checkpoint_that_is_refused_leaves_the_trainer_on_its_level(tmp_path):
    fine = level_trainer(SPACE)
    run(fine)
    save_checkpoint(fine, tmp_path / "fine")
    coarse = level_trainer(SPACE)
    save_checkpoint(coarse, tmp_path / "coarse")
    other = level_trainer({**SPACE, "average_decay": 0.5})
    network, before = other.network, snapshot(other)
    with pytest.raises(CheckpointError, match="moving average"):
        load_checkpoint(other, tmp_path / "fine")
    assert other.network is network
    assert other.progress.level == 0
    assert_same_bits(snapshot(other), before)
    with pytest.raises(CheckpointError, match="is on level 1"):
        load_checkpoint(make_trainer(make_network(), epochs=4), tmp_path / "fine")


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", ["parabolic", "hamiltonian", "second_order"])
def test_going_on_with_more_steps_the_loss_stays_near(dynamics):
    """On digits."""
    settings = {"level_steps": (4, 8), "level_epochs": (3, 1), "epochs": 4, "batch_size": 32}
    network = make_network(dynamics, num_steps=4, step_size=0.25, channels=(16, 32, 32))
    still = Augmentation(flip=False, padding=0.0)
    trainer = make_trainer(network, sets=digits(1000, 40), augmentation=still, **settings)
    assert_loss_stays_near(trainer)


@pytest.mark.slow
@pytest.mark.parametrize("level_stencils", ["keep", "rediscretize"])
@pytest.mark.parametrize("dynamics", ["parabolic", "hamiltonian", "second_order"])
def test_going_on_with_finer_signals_the_loss_stays_near(dynamics, level_stencils):
    """On smooth pulses and with small steps: on digits, of 4, 8 or 16 pixels, it rises."""
    settings = {
        "level_sizes": (64, 128),
        "level_epochs": (3, 1),
        "level_stencils": level_stencils,
        "epochs": 4,
        "batch_size": 30,
    }
    shape = {"dimension": 1, "num_classes": 3, "channels": (8, 16, 16)}
    network = make_network(dynamics, num_steps=4, step_size=0.25, **shape)
    network.preprocessing = Preprocessing(standardize="none", size=(128,), pooling=2)
    still = Augmentation(flip=False, padding=0.0)
    sets = pulses(600, seed=0), pulses(30, seed=1)
    assert_loss_stays_near(make_trainer(network, sets=sets, augmentation=still, **settings))


def pulses(number, seed):
    """A bump, its slope or its curvature, somewhere on 128 points."""
    draw, labels = torch.Generator().manual_seed(seed), torch.arange(number) % 3
    middle, width, height = torch.rand(3, number, 1, generator=draw)
    u = (torch.linspace(0, 1, 128) - 0.3 - 0.4 * middle) / (0.04 + 0.02 * width)
    kinds = torch.stack([torch.ones_like(u), -1.6 * u, 1 - u**2]) * torch.exp(-(u**2) / 2)
    signals = (0.5 + height) * kinds[labels, torch.arange(number)]
    names = ("bump", "slope", "curvature")
    return ImageSet(images=signals[:, None], labels=labels, class_names=names)


def assert_loss_stays_near(trainer):
    """Mean loss of the first 10 steps at most 2 max(mean of the last 10, 0.1).

    The network must have learned something: by chance the bound would be that of any network.
    """
    losses = {0: [], 1: []}
    sums = torch.zeros_like(trainer.sums)

    def on_step():
        nonlocal sums
        if trainer.progress.batch == 1:
            sums = torch.zeros_like(sums)
        change, sums = trainer.sums - sums, trainer.sums.clone()
        losses[trainer.progress.level].append(float(change[1] / change[5]))

    run(trainer, on_step=on_step)
    before, after = sum(losses[0][-10:]) / 10, sum(losses[1][:10]) / 10
    assert before < 0.5
    assert after <= 2 * max(before, 0.1), (before, after)


def test_frozen_weights_stay_frozen_and_where_they_are():
    trainer = level_trainer(TIME)
    for weight in trainer.network.opening.parameters():
        weight.requires_grad_(False)
    before = trainer.network.opening.convolution.stencil.clone()
    run(trainer)
    assert torch.equal(trainer.network.opening.convolution.stencil, before)
