"""The networks of plain torch to compare with: the same numbers, as much work."""

import pytest
import torch
from torch.nn import functional

import pdecnn
from benchmarks.work import count_work
from pdecnn.networks.registry import DYNAMICS as AXES
from pdecnn.runs.bench import PAPER_DYNAMICS, plain_layout
from pdecnn.runs.plain_twin import PlainNetwork, PlainStep, copy_weights_

DEVICE = torch.device("cpu")

every_dynamics = pytest.mark.parametrize("dynamics", PAPER_DYNAMICS)


def make_pair(dynamics, channels=(8, 12, 6)):
    """A network of ours and its plain twin with the same weights, none of them symmetric."""
    network = pdecnn.Network(pdecnn.NetworkConfig(channels=channels, **AXES[dynamics]))
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    twin = PlainNetwork(dynamics, channels)
    copy_weights_(twin, network)
    return network.double(), twin.double()


@every_dynamics
def test_the_plain_twin_computes_the_scores_of_our_network(dynamics):
    network, twin = make_pair(dynamics)
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(twin(images), network(images), rtol=1e-10, atol=1e-10)
    network.eval(), twin.eval()
    torch.testing.assert_close(twin(images), network(images), rtol=1e-10, atol=1e-10)


@every_dynamics
def test_the_plain_twin_has_the_gradient_of_our_network(dynamics):
    network, twin = make_pair(dynamics)
    images, labels = torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 3, 7, 9])
    for model in (network, twin):
        functional.cross_entropy(model(images), labels).backward()
    for mine, theirs in zip(twin.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-8, atol=1e-10)


def test_weights_of_another_network_are_refused():
    with pytest.raises(ValueError, match="do not match"):
        copy_weights_(PlainNetwork("parabolic", (8, 8)), PlainNetwork("parabolic", (8, 6)))


@every_dynamics
def test_our_network_and_its_twin_do_the_same_number_of_operations(dynamics):
    network, twin = make_pair(dynamics)
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    ours, plain = (
        count_work(lambda model=model: model(images).sum().backward()) for model in (network, twin)
    )
    assert ours.flops == plain.flops > 0
    assert plain.minimum_bytes < plain.moved_bytes


def test_a_plain_step_takes_its_batches_in_turn_and_learns():
    network = PlainNetwork("parabolic", (8, 8))
    before = network.classifier.weight.clone()
    batches = [(torch.randn(2, 3, 8, 8), torch.tensor([k, 9])) for k in range(2)]
    step = PlainStep(network, batches, half=False)
    seen = []
    network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    for _ in range(3):
        step()
    assert [images is batches[k % 2][0] for k, images in enumerate(seen)] == [True] * 3
    assert not torch.equal(network.classifier.weight, before)


def test_plain_networks_have_the_layout_that_is_fastest_on_a_gpu():
    assert plain_layout(torch.device("cuda")) == torch.channels_last
    assert plain_layout(DEVICE) == torch.contiguous_format
    twin = PlainNetwork("hamiltonian", (8, 8))
    batches = [(torch.randn(2, 3, 8, 8), torch.tensor([0, 9]))]
    step = PlainStep(twin, batches, half=False, layout=torch.channels_last)
    seen = []
    for module in (twin.opening, twin.connectors[0]):
        module.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    step()
    kernels = [weight for weight in twin.parameters() if weight.dim() == 4]
    assert len(seen) == 2
    for tensor in [*seen, *kernels]:
        assert tensor.is_contiguous(memory_format=torch.channels_last)
