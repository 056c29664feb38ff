"""A step of a denoiser compiles as one graph, in every mode, and does what it does uncompiled."""

import pytest
import torch

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.patches import NoisyPatches
from pdecnn.learning import Trainer, TrainingConfig
from pdecnn.learning.tasks import Denoising
from pdecnn.networks import create_model
from tests.unit.data.test_patches import make_pictures
from tests.unit.learning.trainings import assert_compiled_step_is_the_step

# What the compilers warn of is their own.
pytestmark = pytest.mark.filterwarnings("ignore")
LEVELS = {"channels": (4, 16, 4, 4), "hidden_channels": 4}
NETWORKS = [
    ("parabolic", "stored", {"channels": (4, 4)}),
    ("parabolic", "checkpointed", {"channels": (4, 4)}),
    ("parabolic_stable", "stored", {"channels": (4, 4), "certified_size": 6}),
    ("hamiltonian", "stored", LEVELS),
    ("hamiltonian", "reversible", LEVELS),
    ("second_order", "exact", LEVELS),
]


def make_trainer(dynamics, backprop, settings, *, device="cpu", **training):
    torch.manual_seed(0)
    network = create_model(f"{dynamics}_denoising", num_steps=1, backprop=backprop, **settings)
    config = {"batch_size": 4, "epochs": 2, "learning_rates": (1e-3,), "schedule": "linear"}
    return Trainer(
        network.to(device),
        TrainingConfig(**config | {"optimizer": "adamw", "box": "none"} | training),
        train=make_pictures(),
        validation=make_pictures(),
        augmentation=Augmentation(),
        seed=0,
        task=Denoising("squared", 25.0),
        patches=NoisyPatches(size=(6, 6), repeats=4, flip=True, noise=(5.0, 50.0)),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("dynamics", "backprop", "settings"), NETWORKS)
def test_a_compiled_step_is_the_step(dynamics, backprop, settings):
    assert_compiled_step_is_the_step(lambda: make_trainer(dynamics, backprop, settings))


def test_an_epoch_takes_every_image_as_often_as_it_repeats():
    trainer = make_trainer("parabolic", "stored", {"channels": (4, 4)})
    assert trainer.steps_per_epoch == 3
    reports = list(trainer.epochs(poll=lambda: None, on_step=lambda: None))
    assert [report.step for report in reports] == [3, 6]
    assert all(report.validation_accuracy > 0 for report in reports)


@pytest.mark.gpu
@pytest.mark.parametrize(("dynamics", "backprop", "settings"), NETWORKS)
def test_on_a_gpu_steps_are_captured(dynamics, backprop, settings):
    trainer = make_trainer(dynamics, backprop, settings, device="cuda", precision="bfloat16")
    list(trainer.epochs(poll=lambda: None, on_step=lambda: None))
    assert trainer.captured
