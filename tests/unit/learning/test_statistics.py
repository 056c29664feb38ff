"""Re-estimated statistics: those of the weights validated, saved with them, and no one else's."""

from math import isfinite

import pytest
import torch

from pdecnn.data.image_set import training_batches
from pdecnn.errors import ConfigError
from pdecnn.learning import evaluate_network
from pdecnn.learning.checkpoint import load_checkpoint, save_checkpoint
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import deserialize
from pdecnn.networks.registry import create_model
from tests.unit.learning.trainings import (
    Poisoned,
    Stop,
    assert_same_bits,
    digits,
    make_network,
    make_trainer,
    on_disk,
    run,
    snapshot,
    stop_at,
)

SETTINGS = {"batch_norm_statistics": "reestimated", "learning_rates": (0.1,), "phases": (1,)}
HOW = {"batch_size": 250}


def trainer_of(dynamics="hamiltonian", seed=0, **settings):
    overrides = settings.pop("overrides", {})
    network = make_network(dynamics, seed=seed, **overrides)
    return make_trainer(network, **(SETTINGS | {"epochs": 2} | settings))


def expected_statistics(trainer, network):
    """By hooks: the mean over the batches of what every norm met."""
    norms = [c.normalization for c in network.connectors]
    met = [[] for _ in norms]

    def watching(found):
        def hook(module, inputs):
            features = inputs[0].transpose(0, 1).flatten(1).double()
            found.append(torch.stack([features.mean(1), features.var(1)]))

        return hook

    hooks = [
        n.register_forward_pre_hook(watching(found)) for n, found in zip(norms, met, strict=True)
    ]
    trainer.begin_epoch()
    network.train()
    with torch.no_grad():
        for row in range(trainer.steps_per_epoch):
            for batch in trainer._step.parts(torch.tensor([row])):
                network(batch[0])
    for hook in hooks:
        hook.remove()
    return [torch.stack(found).nanmean(0) for found in met]


@pytest.mark.parametrize(
    "settings", [{}, {"accumulation": 5}, {"average_decay": 0.5}], ids=["plain", "parts", "average"]
)
def test_statistics_are_means_over_the_batches_of_the_epoch(settings):
    trainer = trainer_of(epochs=1, **settings)
    run(trainer)
    found = [c.normalization for c in trainer.evaluated.connectors]
    source = trainer.network if trainer.average is None else trainer.average
    trainer.progress.epoch = 0
    for norm, (mean, variance) in zip(found, expected_statistics(trainer, source), strict=True):
        torch.testing.assert_close(norm.running_mean.double(), mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(norm.running_var.double(), variance, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_batch_that_is_thrown_away_leaves_no_trace_in_them(place):
    index = int(training_batches(62, 20, seed=0, epoch=0)[place][4])
    trainer = trainer_of(epochs=1, augmentation=Poisoned(index), max_nonfinite_steps=1)
    (report,) = run(trainer)
    assert report.nonfinite_steps == 1
    assert isfinite(report.validation_loss)
    found = [c.normalization for c in trainer.evaluated.connectors]
    trainer.progress.epoch = 0
    expected = expected_statistics(trainer, trainer.network)
    for norm, (mean, variance) in zip(found, expected, strict=True):
        torch.testing.assert_close(norm.running_mean.double(), mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(norm.running_var.double(), variance, rtol=1e-4, atol=1e-5)


def test_the_training_itself_does_not_notice():
    plain = trainer_of(batch_norm_statistics="running", average_decay=0.9)
    reestimated = trainer_of(average_decay=0.9)
    reports = [run(plain), run(reestimated)]
    assert_same_bits(snapshot(reestimated), snapshot(plain))
    for one, two in zip(*reports, strict=True):
        assert one.loss == two.loss
        assert one.validation_loss != two.validation_loss


@pytest.mark.parametrize("settings", [{}, {"average_decay": 0.5}], ids=["plain", "average"])
def test_what_is_saved_has_the_statistics_it_was_validated_with(settings, tmp_path):
    trainer = trainer_of(**settings)
    *_, report = run(trainer)
    save_checkpoint(trainer, tmp_path / "c")
    network = Network.from_pretrained(tmp_path / "c")
    found = evaluate_network(network, digits()[1], **HOW)
    assert (found.loss, found.accuracy) == (report.validation_loss, report.validation_accuracy)
    group = "average" if settings else "weights"
    kept = deserialize(tmp_path / "c" / "state.safetensors")
    differing = {
        name
        for name, tensor in network.state_dict().items()
        if not torch.equal(tensor, kept[f"{group}/{name}"])
    }
    assert differing
    assert all(name.endswith(("running_mean", "running_var")) for name in differing)


def test_without_validation_the_last_weights_have_them_too():
    trainer = trainer_of(sets=(digits()[0], None), epochs=1)
    with_validation = trainer_of(epochs=1)
    for one in (trainer, with_validation):
        run(one)
    assert trainer.evaluated is not trainer.network
    assert_same_bits(trainer.evaluated.state_dict(), with_validation.evaluated.state_dict())


def test_in_the_midst_of_an_epoch_the_evaluated_network_is_the_trained_one(tmp_path):
    trainer = trainer_of()
    epochs = trainer.epochs(poll=lambda: None, on_step=lambda: None)
    next(epochs)
    assert trainer.evaluated is not trainer.network
    trainer.begin_epoch()
    trainer.step()
    trainer.synchronize()
    assert trainer.evaluated is trainer.network


def test_a_training_may_stop_at_every_batch_of_the_statistics(tmp_path):
    reports = run(trainer_of())
    # 3 batches, before the statistics, 3 batches of them, validation.
    for stop in range(4, 9):
        first, resumed = trainer_of(), trainer_of(seed=9)
        with pytest.raises(Stop):
            run(first, poll=stop_at(stop))
        save_checkpoint(first, tmp_path / str(stop))
        load_checkpoint(resumed, tmp_path / str(stop))
        assert run(resumed) == reports


def test_images_on_the_disk_give_the_same():
    one, two = trainer_of(), trainer_of(sets=tuple(map(on_disk, digits())))
    assert run(one) == run(two)
    assert_same_bits(two.evaluated.state_dict(), one.evaluated.state_dict())


def test_levels_have_statistics_of_their_own():
    settings = {"level_epochs": (1, 1), "level_steps": (1, 2)}
    trainer = trainer_of(**settings, overrides={"num_steps": 1, "step_size": 2.0})
    run(trainer)
    assert trainer.evaluated.config.num_steps == 2
    assert trainer.evaluated is not trainer.network


def test_frozen_norms_keep_what_they_have():
    trainer = trainer_of("parabolic", freeze=("opening",))
    before = [buffer.clone() for buffer in trainer.network.opening.buffers()]
    run(trainer)
    for kept, old in zip(trainer.evaluated.opening.buffers(), before, strict=True):
        assert torch.equal(kept, old)
    changed = trainer.evaluated.connectors[0].normalization.running_mean
    assert not torch.equal(changed, trainer.network.connectors[0].normalization.running_mean)


@pytest.mark.parametrize(
    ("model", "settings"),
    [("parabolic_stable", {}), ("parabolic", {"freeze": ("opening", "blocks")})],
    ids=["no norms", "all frozen"],
)
def test_where_there_is_nothing_to_estimate_it_is_refused(model, settings):
    network = create_model(f"{model}_digits")
    with pytest.raises(ConfigError, match="needs batch norms that are trained"):
        make_trainer(network, **SETTINGS, **settings)
