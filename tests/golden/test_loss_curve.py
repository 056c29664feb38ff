"""The first 20 losses of a training on the digits, to ten digits: CPU, float64, rate 0.02.

A refactoring keeps this curve. A change of numbers is a commit of its own that says why and
writes the curve anew with `python -m tests.golden.test_loss_curve`.
"""

import json
from pathlib import Path

import pytest
import torch

import pdecnn
from pdecnn.data import Augmentation, balanced_split, read_digits
from pdecnn.learning import Trainer, TrainingConfig

CURVE = Path(__file__).with_name("loss_curve.json")
PARTS = ("loss", "data_loss", "smoothness", "decay")
NUM_STEPS = 20


def float64_network():
    # Drawn in float64 too: float32 normal numbers differ in the last bit between processors.
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return pdecnn.create_model("hamiltonian_digits")
    finally:
        torch.set_default_dtype(default)


def loss_curve():
    """The objective and its parts at each step, as the trainer computes them."""
    network = float64_network()
    everything = read_digits().train
    train, validation = (
        everything.subset(indices) for indices in balanced_split(everything.labels, 0.2, seed=0)
    )
    config = TrainingConfig(epochs=1, batch_size=50, learning_rates=(0.02,), phases=(1,))
    trainer = Trainer(
        network,
        config,
        train=train,
        validation=validation,
        augmentation=Augmentation(flip=False, padding=0.0),
        seed=0,
    )
    curve = {part: [] for part in PARTS}
    trainer.begin_epoch()
    for _ in range(NUM_STEPS):
        trainer.step()
        trainer.synchronize()
        *sums, _correct, count = trainer.sums.tolist()
        for part, value in zip(PARTS, sums, strict=True):
            curve[part].append(value / count)
        trainer.sums.zero_()
    return curve


@pytest.fixture(scope="module")
def curve():
    return loss_curve()


@pytest.mark.parametrize("part", PARTS)
def test_loss_curve_is_the_stored_one(curve, part):
    stored = json.loads(CURVE.read_text())
    assert len(curve[part]) == len(stored[part]) == NUM_STEPS
    # The smoothness starts at exactly 0.
    assert curve[part] == pytest.approx(stored[part], rel=1e-10, abs=1e-20)


def test_loss_curve_falls(curve):
    assert sum(curve["loss"][-5:]) < sum(curve["loss"][:5])


if __name__ == "__main__":
    torch.set_num_threads(1)
    CURVE.write_text(json.dumps(loss_curve(), indent=1) + "\n")
