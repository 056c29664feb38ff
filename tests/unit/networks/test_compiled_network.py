"""torch.compile of whole networks: fullgraph=True in every mode, with the gradients of eager."""

import pytest
import torch

import pdecnn
from pdecnn.networks.reversal import relative_error

WAVE = {"name": "hamiltonian_digits", "channels": (4, 4), "num_steps": 2}
STABLE = {"name": "parabolic_stable_digits", "channels": (4, 4), "hidden_channels": 4}


def make(training, **settings):
    torch.manual_seed(0)
    return pdecnn.create_model(**settings).double().train(training)


def result(network, run):
    """Scores, gradients and, of a training network, statistics."""
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    images = images.double().requires_grad_()
    scores = run(images)
    scores.square().sum().backward()
    gradients = [weight.grad for weight in network.parameters() if weight.grad is not None]
    statistics = [buffer.double() for buffer in network.buffers()]
    return [scores.detach(), images.grad, *gradients, *statistics]


def check(backend, training, tolerance, **settings):
    torch.compiler.reset()
    networks = make(training, **settings), make(training, **settings)
    compiled = torch.compile(networks[1], fullgraph=True, backend=backend)
    expected, found = result(networks[0], networks[0]), result(networks[1], compiled)
    assert len(expected) == len(found)
    for one, other in zip(found, expected, strict=True):
        assert relative_error([one], [other]) <= tolerance


@pytest.mark.parametrize("backprop", ["checkpointed", "exact"])
def test_a_network_is_one_graph(backprop):
    check("aot_eager", True, 1e-6, **WAVE, backprop=backprop)


def test_a_stable_network_never_run_is_one_graph_and_follows_its_weights():
    torch.compiler.reset()
    network = make(False, **STABLE)
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    images = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    first = compiled(images)
    assert relative_error([first.detach()], [network(images).detach()]) <= 1e-6
    with torch.no_grad():
        network.blocks[0].layers[0].convolution.stencil.mul_(3)
    assert relative_error([compiled(images).detach()], [network(images).detach()]) <= 1e-6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler, about what it does itself
@pytest.mark.parametrize("backprop", pdecnn.BACKPROP_MODES)
def test_compiled_code_has_the_gradients_of_eager_in_every_mode(backprop):
    """Opening, connectors and classifier are compiled in each; of 'exact' the blocks are not."""
    # Kernels take seconds each: two blocks with pooling between them in one mode only.
    pooled = {"channels": (4, 4, 4), "num_steps": 1} if backprop == "stored" else {}
    check("inductor", True, 1e-5, **WAVE | pooled, backprop=backprop)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("backprop", ["stored", "checkpointed"])
def test_a_stable_network_is_one_graph_with_the_gradients_of_eager(backprop, training):
    check("aot_eager", training, 1e-6, **STABLE, backprop=backprop)
