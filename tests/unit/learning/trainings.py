"""Trainings small enough to repeat: a few digits, a narrow network, a handful of steps."""

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import fields, replace
from functools import cache
from unittest.mock import patch

import torch

import pdecnn
from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import ImageSet, StoredImages
from pdecnn.data.registry import read_digits
from pdecnn.learning import Trainer, TrainingConfig
from pdecnn.learning import capture as capture_module
from pdecnn.learning.capture import CapturedFunction, TrainingGraphs, compiled_step
from pdecnn.learning.distributed import ALONE, Ranks

DYNAMICS = ("resnet", "parabolic", "hamiltonian", "second_order")
MODES = [
    ("resnet", "stored"),
    ("parabolic", "stored"),
    ("parabolic", "checkpointed"),
    ("hamiltonian", "stored"),
    ("hamiltonian", "checkpointed"),
    ("hamiltonian", "reversible"),
    ("hamiltonian", "exact"),
    ("second_order", "stored"),
    ("second_order", "reversible"),
    ("second_order", "exact"),
]
AUGMENTED = {
    "alternate and reflect": {
        "augmentation": Augmentation(flip="alternate", padding_mode="reflect")
    },
    "cutout": {"augmentation": Augmentation(cutout=3)},
    "mixup": {"mixup": 0.4, "label_smoothing": 0.1},
    "cutmix": {"cutmix": 1.0},
    "mixup or cutmix": {"mixup": 0.2, "cutmix": 1.0},
}
"""Trainings of which each has an augmentation that the others have not."""
NUM_TRAIN, NUM_VALIDATION = 62, 40
# Batches, before validation, batches of validation: of 20 and 16 images.
POLLS_PER_EPOCH = 3 + 1 + 3


@cache
def digits(num_train=NUM_TRAIN, num_validation=NUM_VALIDATION):
    everything = read_digits().train
    order = torch.arange(len(everything))
    return (
        everything.subset(order[:num_train]),
        everything.subset(order[num_train : num_train + num_validation]),
    )


def make_network(dynamics="hamiltonian", *, seed=0, dtype=torch.float32, **overrides):
    torch.manual_seed(seed)
    overrides = {"channels": (4, 6, 6), **overrides}
    return pdecnn.create_model(f"{dynamics}_digits", **overrides).to(dtype)


def scatter_weights_(network, seed=1, size=0.3):
    """Move every weight, so that steps of a block differ and norms are not at their start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight += size * noise.to(weight.dtype)
    return network


def make_trainer(network=None, *, augmentation=None, seed=0, sets=None, ranks=ALONE, **settings):
    settings = {"epochs": 3, "batch_size": 20, **settings}
    train, validation = digits() if sets is None else sets
    return Trainer(
        make_network() if network is None else network,
        TrainingConfig(**settings),
        train=train,
        validation=validation,
        augmentation=Augmentation() if augmentation is None else augmentation,
        seed=seed,
        ranks=ranks,
    )


def run(trainer, poll=lambda: None, on_step=lambda: None):
    return list(trainer.epochs(poll=poll, on_step=on_step))


def coloured_digits():
    """The digits in shades of three colours, so that there are colours to change."""
    shades = torch.tensor([1.0, 0.7, 0.4]).view(1, 3, 1, 1)
    return tuple(replace(part, images=(part.images * shades).byte()) for part in digits())


class Stop(Exception):
    """Interrupts a training."""


def stop_at(number):
    """A poll that raises the n-th time it is asked."""
    calls = iter(range(1, number + 1))

    def poll():
        if next(calls) == number:
            raise Stop

    return poll


def step_compiled_and_eager(compiled, eager, number):
    """Take steps of two trainers as a GPU does, of one compiled for a graph but without one."""
    for trainer in (compiled, eager):
        trainer._step.gated = True
        trainer.begin_epoch()
    with compiled_step(compiled._step, "aot_eager"):
        for _ in range(number):
            compiled.step()
    for _ in range(number):
        eager.step()


class Rehearsed(CapturedFunction):
    """What a graph is made by, its trial runs, and in its place the function: there is no GPU."""

    def __init__(self, function, state):
        tensors = [tensor.detach() for tensor in state]
        before = [tensor.clone() for tensor in tensors]
        for _ in range(2):
            function()
            torch._foreach_copy_(tensors, before)
        self.function = function

    def __call__(self):
        self.function()


@contextmanager
def rehearsed_graphs(kind=Rehearsed):
    """Within it steps go by graphs as on a GPU, and nothing is compiled."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(TrainingGraphs, "_wanted", True))
        patches.enter_context(patch.object(TrainingGraphs, "scores", lambda graphs: None))
        for name in ("compiled_step", "compiled_network"):
            patches.enter_context(patch.object(capture_module, name, nullcontext))
        patches.enter_context(patch.object(capture_module, "CapturedFunction", kind))
        yield


class Twins(Ranks):
    """Two ranks that have the same share, of which this is one."""

    def __init__(self):
        super().__init__(0, 2)

    def sum_(self, tensor):
        tensor.mul_(2)


def first_step(trainer):
    trainer.begin_epoch()
    trainer.step()
    trainer.synchronize()


def snapshot(trainer):
    """Everything a training goes on from, copied."""
    tensors = {f"weights/{k}": v for k, v in trainer.network.state_dict().items()}
    tensors |= trainer.optimizer.named_states(trainer.network)
    if trainer.average is not None:
        tensors |= {f"average/{k}": v for k, v in trainer.average.state_dict().items()}
    tensors["sums"] = trainer.sums
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


class Poisoned(Augmentation):
    """An augmentation that turns one image into NaN in some epochs."""

    def __init__(self, index, epochs=(0,)):
        super().__init__(flip=False, padding=0.0)
        object.__setattr__(self, "_poison", (index, epochs))

    def augment(self, images, indices, *, seed, epoch):
        index, epochs = self._poison
        images = super().augment(images, indices, seed=seed, epoch=epoch).clone()
        if epoch in epochs:
            images[indices == index] = float("nan")
        return images


def field_names(cls):
    return [field.name for field in fields(cls)]


def on_disk(image_set):
    """The same set as one whose images are read when they are needed."""
    images = image_set.images
    stored = StoredImages(
        lambda place: images[place].clone(),
        torch.arange(len(images)),
        image_shape=tuple(images.shape[1:]),
        dtype=images.dtype,
    )
    return replace(image_set, images=stored)


def image_set(images, labels, class_names):
    return ImageSet(images=images, labels=labels, class_names=tuple(class_names))


def assert_compiled_step_is_the_step(make_trainer):
    """Of two trainers alike, one of which takes its first step by compiled code."""
    results = []
    for compiled in (False, True):
        trainer = make_trainer()
        trainer.begin_epoch()
        step = trainer._step
        step.gated = True  # as on a GPU, where no number is waited for
        with compiled_step(step, backend="eager") if compiled else nullcontext():
            step()
        results.append([weight.detach().clone() for weight in trainer.network.parameters()])
    for one, two in zip(*results, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-6)
