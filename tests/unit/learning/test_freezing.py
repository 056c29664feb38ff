"""Frozen parts keep every bit, whatever else a training does; all other parts are trained."""

import pytest
import torch

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.learning import TrainingConfig
from pdecnn.learning.checkpoint import load_checkpoint, save_checkpoint
from pdecnn.learning.optimizer import ProjectedSGD
from tests.unit.learning.test_capture import gpu_trainer
from tests.unit.learning.trainings import (
    MODES,
    assert_same_bits,
    make_network,
    make_trainer,
    run,
    scatter_weights_,
    snapshot,
    step_compiled_and_eager,
)

CHOICES = [("opening",), ("blocks",), ("opening", "blocks")]
# A box so small, an average and a decay so strong that they would move any weight.
SETTINGS = {
    "box": "all",
    "box_bound": 0.05,
    "average_decay": 0.5,
    "decay_weight": 0.1,
    "smoothness_weight": 0.1,
}


def is_frozen(name, freeze):
    parts = {"opening": ("opening.",), "blocks": ("blocks.", "connectors.")}
    return name.startswith(tuple(prefix for part in freeze for prefix in parts[part]))


def make(freeze, dynamics="hamiltonian", backprop="stored", **settings):
    network = scatter_weights_(make_network(dynamics, backprop=backprop))
    for name, buffer in network.named_buffers():  # statistics of another data set
        buffer.add_(torch.ones_like(buffer) if "num_batches" in name else 0.25)
    return make_trainer(network, freeze=freeze, **settings)


@pytest.mark.parametrize(
    ("dynamics", "backprop", "freeze"),
    [*((*mode, ("blocks",)) for mode in MODES), *(("hamiltonian", "exact", f) for f in CHOICES)],
)
def test_frozen_weights_and_statistics_keep_their_bits(dynamics, backprop, freeze):
    trainer = make(freeze, dynamics, backprop, epochs=1, **SETTINGS)
    before = snapshot(trainer)
    run(trainer)
    after = snapshot(trainer)
    for name, old in before.items():
        kind, _, inner = name.partition("/")
        if kind == "sums" or "num_batches" in name:
            continue
        if is_frozen(inner, freeze):
            assert torch.equal(after[name], old), name
        else:
            assert not torch.equal(after[name], old), name


@pytest.mark.parametrize("freeze", CHOICES, ids="+".join)
def test_a_frozen_batch_norm_in_a_block_keeps_its_statistics(freeze):
    network = make_network("parabolic", normalization="batch")
    trainer = make_trainer(network, freeze=freeze, epochs=1)
    before = {name: b.clone() for name, b in network.named_buffers()}
    run(trainer)
    for name, buffer in network.named_buffers():
        assert torch.equal(buffer, before[name]) == is_frozen(name, freeze), name


def test_the_gradient_passes_through_frozen_blocks():
    """What is trained before frozen blocks gets the gradient of the whole network."""
    whole, frozen = make(()), make(("blocks",))
    frozen.network.eval()
    whole.network.eval()
    images = torch.rand(5, 1, 8, 8)
    weights = [t.network.opening.convolution.stencil for t in (whole, frozen)]
    gradients = [
        torch.autograd.grad(t.network(images).square().sum(), w)[0]
        for t, w in zip((whole, frozen), weights, strict=True)
    ]
    assert torch.equal(*gradients)


def test_nothing_frozen_is_what_it_was():
    one, two = make_trainer(), make_trainer(freeze=())
    assert run(one) == run(two)
    assert_same_bits(snapshot(one), snapshot(two))


def test_it_goes_on_where_it_stopped(tmp_path):
    expected = make(("opening", "blocks"), epochs=2)
    run(expected)
    first = make(("opening", "blocks"), epochs=2)
    next(first.epochs(poll=lambda: None, on_step=lambda: None))
    save_checkpoint(first, tmp_path / "checkpoint")
    resumed = make_trainer(make_network(seed=9), freeze=("opening", "blocks"), epochs=2)
    load_checkpoint(resumed, tmp_path / "checkpoint")
    run(resumed)
    assert_same_bits(snapshot(resumed), snapshot(expected))


# Of dynamo's own making.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.slow
def test_the_compiled_step_trains_no_frozen_weight():
    """What a graph is captured from, compiled here without a GPU."""
    freeze = ("blocks",)
    eager, compiled = (make(freeze, "parabolic") for _ in range(2))
    frozen = {id(w) for name, w in compiled.network.named_parameters() if is_frozen(name, freeze)}
    assert not frozen & {id(w) for w in compiled._step.weights}
    assert not frozen & {id(w) for w in compiled.optimizer.boxed}
    before = snapshot(compiled)
    torch._dynamo.reset()
    step_compiled_and_eager(compiled, eager, 1)
    after = snapshot(compiled)
    assert_same_bits(after, snapshot(eager))
    for name, old in before.items():
        if is_frozen(name.partition("/")[2], freeze):
            assert torch.equal(after[name], old), name


def test_an_optimizer_of_one_s_own_projects_no_frozen_weight():
    network = scatter_weights_(make_network(), size=3.0)
    network.blocks[0].requires_grad_(False)
    before = [w.clone() for w in network.blocks[0].parameters()]
    optimizer = ProjectedSGD(network, learning_rate=0.1)
    network(torch.rand(3, 1, 8, 8)).sum().backward()
    optimizer.step()
    for old, new in zip(before, network.blocks[0].parameters(), strict=True):
        assert torch.equal(old, new)
    assert network.blocks[1].layers[0].convolution.stencil.abs().max() <= 1


def test_an_unknown_part_is_named():
    with pytest.raises(ConfigError, match="unknown part to freeze 'block'; did you mean 'blocks'"):
        TrainingConfig(freeze=("block",))
    config = pdecnn.recipe("hamiltonian_digits").with_settings({"training.freeze": "opening"})
    assert config.training.freeze == ("opening",)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("freeze", CHOICES, ids="+".join)
@pytest.mark.parametrize(("dynamics", "backprop"), MODES)
def test_a_captured_training_keeps_frozen_bits(dynamics, backprop, freeze, caplog):
    caplog.set_level("INFO", "pdecnn")
    trainer = gpu_trainer(dynamics, backprop, freeze=freeze, precision="bfloat16")
    before = snapshot(trainer)
    run(trainer)
    after = snapshot(trainer)
    assert trainer.captured
    assert not caplog.messages
    for name, old in before.items():
        if is_frozen(name.partition("/")[2], freeze):
            assert torch.equal(after[name], old), name
    for name in ("weights/classifier.weight", "velocity/classifier.bias"):
        assert not torch.equal(after[name], before[name])
