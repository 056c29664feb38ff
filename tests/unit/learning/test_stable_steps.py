"""Training with stable steps: kept vectors move with the weights, and with nothing else."""

import pytest
import torch

from pdecnn.data.image_set import training_batches
from pdecnn.learning.capture import compiled_network
from pdecnn.pde.stable import OperatorNorm
from tests.unit.learning.trainings import Poisoned, first_step, make_network, make_trainer


def stable_network(**settings):
    return make_network("parabolic_stable", channels=(4, 8, 8), hidden_channels=3, **settings)


@pytest.mark.parametrize("backprop", ["stored", "checkpointed"])
@pytest.mark.parametrize("accumulation", [1, 5])
def test_vectors_move_once_a_step(monkeypatch, accumulation, backprop):
    moved, advance = [], OperatorNorm.advance_

    def advance_(norm, *given):
        moved.append(norm)
        advance(norm, *given)

    trainer = make_trainer(stable_network(backprop=backprop), accumulation=accumulation, box="none")
    monkeypatch.setattr(OperatorNorm, "advance_", advance_)
    first_step(trainer)
    norms = [part for part in trainer.network.modules() if isinstance(part, OperatorNorm)]
    assert sorted(map(id, moved)) == sorted(map(id, norms))


def test_a_skipped_step_changes_neither_vectors_nor_weights():
    index = int(training_batches(62, 20, seed=0, epoch=0)[0][0])
    trainer = make_trainer(stable_network(), augmentation=Poisoned(index), max_nonfinite_steps=1)
    before = {name: value.clone() for name, value in trainer.network.state_dict().items()}
    first_step(trainer)
    assert trainer.progress.nonfinite_steps == 1
    for name, value in trainer.network.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_recomputed_steps_have_the_gradients_of_stored_ones():
    images, gradients = torch.randn(3, 1, 8, 8), []
    for backprop in ("stored", "checkpointed"):
        network = stable_network(backprop=backprop)
        network(images).square().sum().backward()
        gradients.append([weight.grad for weight in network.parameters()])
    for stored, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, stored)


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated")
def test_scores_compiled_as_one_graph_are_the_eager_ones():
    network, images = stable_network().eval(), torch.randn(3, 1, 8, 8)
    torch._dynamo.reset()
    with torch.no_grad():
        with compiled_network(network, "eager"):
            scores = network(images)
        torch.testing.assert_close(scores, network(images))
