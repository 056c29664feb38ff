"""A training that was stopped goes on as if it never had been: the same bits."""

import pytest

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import training_batches
from pdecnn.learning.checkpoint import FILES, load_checkpoint, save_checkpoint
from tests.unit.learning.trainings import (
    AUGMENTED,
    POLLS_PER_EPOCH,
    Poisoned,
    Stop,
    assert_same_bits,
    coloured_digits,
    make_network,
    make_trainer,
    run,
    snapshot,
    stop_at,
)

EVERYTHING = {
    "precision": "bfloat16",
    "accumulation": 5,
    "average_decay": 0.8,
    "clip_norm": 0.5,
    "schedule": "cosine",
    "warmup": 0.2,
    "momentum_convention": "rate_outside",
    "box": "all",
}
TRAININGS = {
    "float32": {},
    "bfloat16": {"precision": "bfloat16"},
    "accumulation": {"accumulation": 5},
    "average": {"average_decay": 0.8},
    "everything": EVERYTHING,
    "nesterov": {"optimizer": "nesterov", "weight_decay": 1e-3},
    "adamw": {"optimizer": "adamw", "learning_rates": (3e-3, 1e-3, 3e-4), "weight_decay": 0.1},
    "muon": {"optimizer": "muon", "average_decay": 0.8, "clip_norm": 0.5, "box_bound": 0.3},
    "reestimated": {"batch_norm_statistics": "reestimated", "average_decay": 0.8},
    "norms in waves": {
        "network": ("second_order", {"normalization": "batch", "backprop": "exact"}),
        "optimizer": "muon",
        "average_decay": 0.8,
        "batch_norm_statistics": "reestimated",
        "mixup": 0.4,
        "cutmix": 1.0,
    },
    "norms computed backwards": {
        "network": ("hamiltonian", {"normalization": "batch", "backprop": "reversible"}),
        "optimizer": "nesterov",
        "accumulation": 2,
        "batch_norm_statistics": "reestimated",
    },
    "trained step sizes": {
        "network": ("second_order", {"train_step_size": True}),
        "optimizer": "adamw",
        "learning_rates": (3e-3, 1e-3, 3e-4),
        "average_decay": 0.8,
    },
    **AUGMENTED,
    "colours": {
        "augmentation": Augmentation(trivial_augment=True),
        "sets": coloured_digits(),
    },
}


def new_trainer(settings, seed=0):
    settings = {"evaluation_batch_size": 16, "epochs": 3, **settings}
    dynamics, overrides = settings.pop("network", ("parabolic", {}))
    channels = settings["sets"][0].channels if "sets" in settings else 1
    network = make_network(dynamics, seed=seed, in_channels=channels, **overrides)
    return make_trainer(network, **settings)


def run_interrupted(settings, stops, folder):
    """Train, stopping at the given polls; each time another process would go on."""
    trainer, reports = new_trainer(settings), []
    for number, stop in enumerate(stops):
        try:
            for report in trainer.epochs(poll=stop_at(stop), on_step=lambda: None):
                reports.append(report)
        except Stop:
            pass
        save_checkpoint(trainer, folder / str(number))
        # Other weights, other random numbers: all that counts is in the checkpoint.
        trainer = new_trainer(settings, seed=100 + number)
        load_checkpoint(trainer, folder / str(number))
    return trainer, reports + run(trainer)


def file_bytes(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("name", TRAININGS)
def test_promise_1_a_resumed_training_is_the_undisturbed_one_to_the_bit(name, tmp_path):
    """Stopped in an epoch, at its end, before and during validation."""
    settings = TRAININGS[name]
    trainer = new_trainer(settings)
    reports = run(trainer)
    # Stops count from the last resume: after 1 step; 2 more; before validation; in it; an epoch on.
    stops = (2, 3, 1, 3, POLLS_PER_EPOCH)
    resumed, resumed_reports = run_interrupted(settings, stops, tmp_path)
    assert resumed_reports == reports
    assert len(reports) == trainer.config.epochs
    assert_same_bits(snapshot(resumed), snapshot(trainer))
    save_checkpoint(trainer, tmp_path / "undisturbed")
    save_checkpoint(resumed, tmp_path / "resumed")
    assert resumed.progress == trainer.progress
    assert file_bytes(tmp_path / "undisturbed") == file_bytes(tmp_path / "resumed")


def test_promise_2_a_training_may_stop_at_every_poll(tmp_path):
    settings = {"average_decay": 0.8, "epochs": 2}
    trainer = new_trainer(settings)
    reports = run(trainer)
    for stop in range(1, 2 * POLLS_PER_EPOCH + 1):
        resumed, resumed_reports = run_interrupted(settings, (stop,), tmp_path / str(stop))
        assert resumed_reports == reports, f"stopped at poll {stop}"
        assert_same_bits(snapshot(resumed), snapshot(trainer))


def test_a_checkpoint_at_the_end_of_an_epoch_goes_on(tmp_path):
    trainer = new_trainer({})
    reports = run(trainer)
    first = new_trainer({})
    epochs = first.epochs(poll=lambda: None, on_step=lambda: None)
    assert next(epochs) == reports[0]
    save_checkpoint(first, tmp_path / "one")
    resumed = new_trainer({}, seed=7)
    load_checkpoint(resumed, tmp_path / "one")
    assert run(resumed) == reports[1:]
    assert_same_bits(snapshot(resumed), snapshot(trainer))


def test_a_finished_training_stays_finished(tmp_path):
    trainer = new_trainer({"epochs": 1})
    run(trainer)
    save_checkpoint(trainer, tmp_path / "end")
    resumed = new_trainer({"epochs": 1}, seed=7)
    load_checkpoint(resumed, tmp_path / "end")
    assert resumed.progress.stopped == "completed"
    assert run(resumed) == []


def test_a_training_with_skipped_steps_is_resumed_to_the_bit(tmp_path):
    index = int(training_batches(62, 20, seed=0, epoch=0)[1][0])

    def make(seed=0):
        return make_trainer(
            make_network(seed=seed), augmentation=Poisoned(index), max_nonfinite_steps=1
        )

    trainer, first, resumed = make(), make(), make(seed=5)
    reports = run(trainer)
    with pytest.raises(Stop):
        run(first, poll=stop_at(3))
    assert first.progress.nonfinite_in_row == 1
    save_checkpoint(first, tmp_path / "c")
    load_checkpoint(resumed, tmp_path / "c")
    assert run(resumed) == reports
    assert reports[0].nonfinite_steps == 1
    assert_same_bits(snapshot(resumed), snapshot(trainer))
