"""A step on sounds that are changed at random compiles as one graph and is what it was."""

import pytest
import torch

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import ImageSet
from pdecnn.learning import Trainer, TrainingConfig
from pdecnn.networks import create_model
from tests.unit.learning.trainings import assert_compiled_step_is_the_step

# What the compilers warn of is their own.
pytestmark = pytest.mark.filterwarnings("ignore")
CHANGES = {"speed": (0.8, 1.25), "gain": 6.0, "colour": 0.3, "hiss": 0.2, "cutout": 20}


def make_trainer(*, device="cpu", **training):
    torch.manual_seed(0)
    sounds = ImageSet(
        images=torch.randn(12, 1, 256), labels=torch.arange(12) % 2, class_names=("a", "b")
    )
    network = create_model("hamiltonian_sounds", channels=(8, 8, 8), num_steps=1)
    config = {"batch_size": 4, "epochs": 2, "learning_rates": (1e-3,), "schedule": "linear"}
    return Trainer(
        network.to(device),
        TrainingConfig(**config | {"optimizer": "adamw", "box": "none"} | training),
        train=sounds,
        validation=sounds,
        augmentation=Augmentation(flip=False, **CHANGES),
        seed=0,
    )


@pytest.mark.slow
def test_a_compiled_step_is_the_step():
    assert_compiled_step_is_the_step(make_trainer)


@pytest.mark.gpu
def test_a_gpu_changes_sounds_as_a_cpu_does_and_nothing_waits():
    waves, indices = torch.randn(8, 1, 500), torch.arange(8)
    change = Augmentation(**CHANGES).change_sounds
    wanted = change(waves, indices, seed=1, epoch=2)
    waves, indices, epoch = waves.cuda(), indices.cuda(), torch.tensor(2).cuda()
    change(waves, indices, seed=1, epoch=epoch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = change(waves, indices, seed=1, epoch=epoch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.allclose(found.cpu(), wanted, atol=2e-2)


@pytest.mark.gpu
def test_on_a_gpu_steps_are_captured():
    trainer = make_trainer(device="cuda")
    list(trainer.epochs(poll=lambda: None, on_step=lambda: None))
    assert trainer.captured
