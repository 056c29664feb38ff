"""Trainers on random images: our whole training step, ready to be timed."""

from typing import Any

import torch

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import ImageSet
from pdecnn.learning.trainer import Trainer
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network

CAPTURED, EAGER = "captured", "eager"
"""Steps replayed as one CUDA graph, and operator by operator."""
NOT_RUN: dict[str, Any] = {"captured": None, "notes": []}
"""In place of what `TrainerSteps.finish` says, where no such steps were timed."""

# Low enough that no network diverges on noise, however often it is timed.
_LEARNING_RATE = 1e-3


def random_images(
    number: int, channels: int, size: tuple[int, ...], *, num_classes: int = 10
) -> ImageSet:
    """Uniformly random bytes with random labels, the same every time."""
    generator = torch.Generator().manual_seed(0)
    shape = (number, channels, *size)
    return ImageSet(
        images=torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8),
        labels=torch.randint(0, num_classes, (number,), generator=generator),
        class_names=tuple(str(k) for k in range(num_classes)),
    )


def make_network(config: NetworkConfig, device: torch.device) -> Network:
    """A network with the same random weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network(config).to(device)


def precision_of(device: torch.device) -> str:
    """What all networks of a bench compute in."""
    return "bfloat16" if device.type == "cuda" else "float32"


class TrainerSteps:
    """Whole training steps of a trainer, one a call, epoch after epoch.

    A step gathers and standardises a batch, augments it, computes the gradient of loss and
    regulariser, looks whether it is finite, updates and projects the weights, and adds to the
    sums that are reported.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.notes: list[str] = []
        trainer.note = self.notes.append
        self.steps_left = 0

    def __call__(self) -> None:
        """Train on the next batch."""
        if self.steps_left == 0:
            self._begin_epoch()
        self.trainer.step()
        self.steps_left -= 1

    def _begin_epoch(self) -> None:
        trainer = self.trainer
        trainer.synchronize()  # it raises if a step failed, which `begin_epoch` would forget
        if trainer.progress.batch:
            trainer.progress.epoch += 1
            trainer.progress.batch = 0
        trainer.begin_epoch()
        self.steps_left = trainer.steps_per_epoch

    def finish(self) -> dict[str, Any]:
        """Raise if a step failed, after which later ones did nothing; how the steps were run.

        captured  whether they were replayed from a graph, which wanting it does not ensure
        notes     what went other than wanted
        """
        self.trainer.synchronize()
        return {"captured": self.trainer.captured, "notes": self.notes}


def make_steps(
    config: NetworkConfig,
    images: ImageSet,
    *,
    batch_size: int,
    device: torch.device,
    capture: bool,
) -> TrainerSteps:
    """Training steps of a fresh network on the images."""
    training = TrainingConfig(
        batch_size=batch_size,
        precision=precision_of(device),
        learning_rates=(_LEARNING_RATE,),
        phases=(1,),
        capture=capture,
    )
    trainer = Trainer(
        make_network(config, device),
        training,
        train=images,
        validation=images.subset(torch.arange(1)),
        augmentation=Augmentation(),
        seed=0,
    )
    return TrainerSteps(trainer)
