"""The drift guard sees wrong gradients where states look perfect, and disturbs nothing."""

from functools import partial

import pytest
import torch
from torch.nn import functional

from pdecnn.errors import ConfigError
from pdecnn.networks.reversal import DriftGuard, block_gradients, gradient_errors, relative_error
from tests.unit.learning import trainings

# Narrower ones fall into the kink trap by themselves: both channels of a half may be 0.
make_network = partial(trainings.make_network, channels=(8, 8, 8))
bfloat16 = partial(torch.autocast, "cpu", dtype=torch.bfloat16)


def probe(network, number=6):
    train, _ = trainings.digits()
    labels = train.labels[:number]
    return network.preprocess(train.images[:number]), partial(
        functional.cross_entropy, target=labels
    )


def trap_(network):
    """Zeros where the first block looks first: half of the opening's channels are switched off."""
    half = network.config.channels[0] // 2
    with torch.no_grad():
        network.opening.normalization.bias[half:] = -100
    return network


@pytest.mark.parametrize("dynamics", ["hamiltonian", "second_order"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str
)
def test_promise_25_reversible_equals_stored_away_from_kinks(dynamics, dtype, tolerance):
    network = make_network(dynamics, backprop="reversible", dtype=dtype)
    errors = DriftGuard(network).measure(*probe(network))
    assert list(errors) == [0, 1]
    assert max(errors.values()) <= tolerance


@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.float64, 1e-13), (torch.float32, 1e-5)], ids=str
)
def test_promise_26_the_guard_sees_the_kink_trap(dtype, rounding):
    """While the states of the very block come back to rounding."""
    network = trap_(make_network(backprop="reversible", dtype=dtype)).train()
    images, loss = probe(network)
    assert DriftGuard(network).measure(images, loss)[0] > 0.1
    with torch.no_grad():
        features = network.opening(images)
        block = network.blocks[0]
        back = block.reverse(block.propagate(features))
    assert relative_error([back], [features]) <= rounding


def test_the_error_is_that_of_the_whole_networks_gradient():
    """One block only, so that its weights' gradients are compared by backward itself."""
    network = trap_(make_network(channels=(8, 8), backprop="reversible")).train()
    images, loss = probe(network)
    (found,) = DriftGuard(network).measure(images, loss).values()
    gradients = {}
    for mode in ("reversible", "stored"):
        network.blocks[0].backprop = mode
        weights = list(network.blocks[0].parameters())
        gradients[mode] = torch.autograd.grad(loss(network(images)), weights)
    assert found >= relative_error(gradients["reversible"], gradients["stored"]) > 0


def test_blocks_are_judged_each_by_itself():
    network = make_network(backprop="reversible").train()
    trap_(network)
    errors = DriftGuard(network).measure(*probe(network))
    assert errors[0] > 1e3 * errors[1]


@pytest.mark.parametrize("training", [True, False])
def test_measuring_changes_nothing(training):
    network = make_network(backprop="reversible").train(training)
    images, loss = probe(network)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    generator = torch.get_rng_state()
    guard = DriftGuard(network)
    first = guard.measure(images, loss)
    assert guard.measure(images, loss) == first
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(weight.grad is None for weight in network.parameters())
    assert all(part.training == training for part in network.modules())
    assert [block.backprop for block in network.blocks] == ["reversible"] * 2


def test_modes_come_back_though_measuring_fails():
    network = make_network(backprop="reversible")
    before = network.opening.normalization.num_batches_tracked.clone()

    def fail(scores):
        raise RuntimeError("no loss today")

    with pytest.raises(RuntimeError, match="no loss today"):
        DriftGuard(network).measure(probe(network)[0], fail)
    assert [block.backprop for block in network.blocks] == ["reversible"] * 2
    assert torch.equal(network.opening.normalization.num_batches_tracked, before)


def test_layers_in_half_precision_are_measured_so():
    """Whatever they round to: on some processors the way back is exact then."""
    network = make_network(backprop="reversible")
    layers = [layer for block in network.blocks for layer in block.layers]
    computed = []
    for layer in layers:
        layer.register_forward_hook(lambda _, inputs, output: computed.append(output.dtype))
    DriftGuard(network).measure(*probe(network), autocast=bfloat16)
    assert set(computed) == {torch.bfloat16}
    assert len(computed) >= 4 * len(layers)  # there and back, checkpointed and reversible


def test_a_gradient_that_is_not_finite_is_no_fault_of_reversal():
    network = make_network(backprop="reversible")
    images, loss = probe(network)
    images[0] = float("nan")
    assert DriftGuard(network).measure(images, loss) == {0: 0.0, 1: 0.0}
    assert [block.backprop for block in network.blocks] == ["reversible"] * 2


def test_frozen_weights_do_not_matter():
    network = make_network(backprop="reversible").requires_grad_(False)
    network.classifier.weight.requires_grad_(True)
    assert max(DriftGuard(network).measure(*probe(network)).values()) < 1e-5


@pytest.mark.parametrize("backprop", ["stored", "checkpointed", "exact"])
def test_only_reversible_blocks_are_watched(backprop):
    """`exact` needs no guard: tests/gradients/test_exact_reversal.py shows its bits."""
    guard = DriftGuard(make_network(backprop=backprop))
    assert guard.watched == ()
    assert guard.switched == []


def test_switched_blocks_stay_watched():
    network = make_network(backprop="reversible")
    guard = DriftGuard(network)
    before = guard.measure(*probe(network))
    assert guard.switch([1]) == [1]
    assert guard.switch([1]) == []
    assert guard.switched == [1]
    assert [block.backprop for block in network.blocks] == ["reversible", "checkpointed"]
    assert guard.measure(*probe(network)) == before
    assert [block.backprop for block in network.blocks] == ["reversible", "checkpointed"]


def test_what_is_not_watched_cannot_be_switched():
    network = make_network(backprop="reversible")
    network.blocks[0].backprop = "stored"
    guard = DriftGuard(network)
    assert guard.watched == (1,)
    with pytest.raises(ConfigError, match="block 0 is not in mode 'reversible'"):
        guard.switch([0])


def test_a_switched_block_has_the_gradient_of_stored():
    network = trap_(make_network(backprop="reversible")).train()
    images, _ = probe(network)
    with torch.no_grad():
        features = network.opening(images)
    block = network.blocks[0]
    cotangent = torch.ones_like(features)
    DriftGuard(network).switch([0])
    found = block_gradients(block, features, cotangent)
    block.backprop = "stored"
    expected = block_gradients(block, features, cotangent)
    assert all(map(torch.equal, found, expected))


def test_no_block_no_error():
    network = make_network(backprop="stored")
    assert gradient_errors(network, *probe(network), []) == {}
