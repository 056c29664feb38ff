"""Training on images that stay on the disk is the training on images in memory, to the bit."""

from dataclasses import replace

import pytest
import torch

from pdecnn.data.image_set import ImageSet, StoredImages
from pdecnn.errors import DataError
from pdecnn.learning.checkpoint import load_checkpoint, save_checkpoint
from tests.unit.learning.test_capture import gpu_trainer
from tests.unit.learning.trainings import (
    assert_same_bits,
    digits,
    make_network,
    make_trainer,
    on_disk,
    run,
    snapshot,
    step_compiled_and_eager,
)

SETTINGS = {"accumulation": 5, "average_decay": 0.9, "clip_norm": 1.0}


def as_floats(image_set):
    return replace(image_set, images=image_set.images.float() / 100)


def stored_sets():
    return tuple(map(on_disk, digits()))


@pytest.mark.parametrize("dynamics", ["parabolic", "hamiltonian"])
def test_the_same_bits_from_disk_and_memory(dynamics):
    held = make_trainer(make_network(dynamics), **SETTINGS)
    expected = run(held)
    stored = make_trainer(make_network(dynamics), sets=stored_sets(), **SETTINGS)
    assert run(stored) == expected
    assert_same_bits(snapshot(stored), snapshot(held))


def test_the_drift_guard_sees_the_same_images():
    held = make_trainer(make_network(backprop="reversible"), reversal_interval=1)
    expected = run(held)
    assert all(report.reversal_error is not None for report in expected)
    stored = make_trainer(
        make_network(backprop="reversible"), sets=stored_sets(), reversal_interval=1
    )
    assert run(stored) == expected


def test_numbers_that_are_no_bytes_are_trained_on_too():
    sets = tuple(map(as_floats, digits()))
    held = make_trainer(sets=sets)
    expected = run(held)
    stored = make_trainer(sets=tuple(map(on_disk, sets)))
    assert run(stored) == expected
    assert_same_bits(snapshot(stored), snapshot(held))


class Interrupt(Exception):
    pass


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
def test_it_goes_on_where_it_stopped(num_steps, tmp_path):
    expected = make_trainer(sets=stored_sets())
    run(expected)
    interrupted = make_trainer(sets=stored_sets())

    def poll():
        if interrupted.progress.step == num_steps:
            raise Interrupt

    with pytest.raises(Interrupt):
        run(interrupted, poll=poll)
    save_checkpoint(interrupted, tmp_path / "checkpoint")
    resumed = make_trainer(make_network(seed=7), sets=stored_sets())
    load_checkpoint(resumed, tmp_path / "checkpoint")
    run(resumed)
    assert_same_bits(snapshot(resumed), snapshot(expected))


def test_only_a_batch_is_held_on_the_device():
    trainer = make_trainer(sets=stored_sets())
    assert isinstance(trainer.train.images, StoredImages)
    assert trainer._step.images.shape == (20, 1, 8, 8)


def test_an_image_that_cannot_be_read_any_more_ends_the_training():
    train, validation = stored_sets()

    def read(place):
        raise DataError("a.png: no such file; check the path")

    broken = StoredImages(
        read, train.images.places, image_shape=train.images.shape[1:], dtype=torch.uint8
    )
    sets = (ImageSet(images=broken, labels=train.labels, class_names=train.class_names), validation)
    with pytest.raises(DataError, match=r"a\.png"):
        run(make_trainer(sets=sets))


# Of dynamo's own making.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.slow
def test_the_compiled_step_finds_its_batch():
    """What a graph is captured from, compiled here without a GPU."""
    eager = make_trainer(make_network("parabolic"), accumulation=2)
    compiled = make_trainer(make_network("parabolic"), accumulation=2, sets=stored_sets())
    torch._dynamo.reset()
    step_compiled_and_eager(compiled, eager, 2)
    assert_same_bits(snapshot(compiled), snapshot(eager))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_a_captured_training_from_the_disk_is_that_from_memory(caplog):
    """One graph finds its images in the whole set, the other in the place of a batch."""
    caplog.set_level("INFO", "pdecnn")
    found = []
    for stored in (False, True):
        trainer = gpu_trainer(precision="float32", stored=stored)
        found.append(run(trainer))
        assert trainer.captured
    assert not caplog.messages
    for held, read in zip(*found, strict=True):
        assert read.data_loss == pytest.approx(held.data_loss, rel=1e-4)
        assert read.validation_accuracy == pytest.approx(held.validation_accuracy, abs=0.02)
