"""A step of a segmenter compiles as one graph, in every mode, as does one of the U-Net."""

import pytest
import torch

from benchmarks.unet import TrainableUNet
from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import ImageSet
from pdecnn.data.patches import LEFT_RIGHT, LabelledPatches
from pdecnn.learning import Trainer, TrainingConfig
from pdecnn.learning.tasks import Segmentation
from pdecnn.networks import create_model
from tests.unit.learning.trainings import assert_compiled_step_is_the_step
from tests.volumes import make_ball

# What the compilers warn of is their own.
pytestmark = pytest.mark.filterwarnings("ignore")
NETWORKS = [
    ("parabolic", "stored"),
    ("hamiltonian", "stored"),
    ("hamiltonian", "reversible"),
    ("second_order", "reversible"),
    ("second_order", "exact"),
    ("unet", None),
]


def make_network(dynamics, backprop):
    torch.manual_seed(0)
    if dynamics == "unet":
        return TrainableUNet(2, in_channels=1, num_classes=3)
    return create_model(
        f"{dynamics}_segmentation_volumes",
        num_steps=1,
        backprop=backprop,
        channels=(4, 32, 4, 4),
        hidden_channels=4,
        num_classes=3,
    )


def make_trainer(dynamics, backprop, *, device="cpu", **training):
    pairs = [make_ball((8, 9, 8), seed) for seed in range(3)]
    images, masks = (torch.stack([torch.from_numpy(one[k]) for one in pairs]) for k in (0, 1))
    volumes = ImageSet(
        images=images[:, None],
        labels=torch.zeros(3, dtype=torch.int64),
        class_names=("background", "1", "2"),
        sizes=torch.tensor([[8, 9, 8]] * 3),
        masks=masks,
    )
    config = {"batch_size": 4, "epochs": 2, "learning_rates": (1e-3,), "schedule": "linear"}
    return Trainer(
        make_network(dynamics, backprop).to(device),
        TrainingConfig(**config | {"optimizer": "adamw", "box": "none"} | training),
        train=volumes,
        validation=volumes,
        augmentation=Augmentation(),
        seed=0,
        task=Segmentation("cross_entropy_dice"),
        patches=LabelledPatches(
            size=(8, 8, 16), repeats=4, flip=LEFT_RIGHT, turn=10.0, zoom=0.1, intensity=0.1
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("dynamics", "backprop"), NETWORKS)
def test_a_compiled_step_is_the_step(dynamics, backprop):
    assert_compiled_step_is_the_step(lambda: make_trainer(dynamics, backprop))


def test_the_unet_trains_in_our_trainer():
    trainer = make_trainer("unet", None)
    first, last = list(trainer.epochs(poll=lambda: None, on_step=lambda: None))
    assert last.data_loss < first.data_loss
    with torch.no_grad():  # of a size that its levels do not divide
        assert trainer.network(torch.zeros(1, 1, 9, 10, 7)).shape == (1, 3, 9, 10, 7)


@pytest.mark.gpu
@pytest.mark.parametrize(("dynamics", "backprop"), NETWORKS)
def test_on_a_gpu_steps_are_captured(dynamics, backprop):
    trainer = make_trainer(dynamics, backprop, device="cuda", precision="bfloat16")
    list(trainer.epochs(poll=lambda: None, on_step=lambda: None))
    assert trainer.captured
