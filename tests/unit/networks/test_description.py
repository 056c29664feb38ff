"""A network that is not what its config describes is neither saved nor moved to another level."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.learning.synchronization import synchronize_batch_norms_
from pdecnn.networks import Network, coarsen_in_time, refine_in_space, refine_in_time
from pdecnn.pde.activations import TANH
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import Convolution
from pdecnn.pde.integrators import resolve_integrator
from pdecnn.pde.layers import SymmetricLayer
from tests.unit.networks.saved import assert_same, make


class Leaky(SymmetricLayer):
    def forward(self, features):
        return super().forward(features) - features / 10


def exchange_a_block(network):
    network.blocks[0] = Block(list(network.blocks[0].layers), "forward_euler", step_size=0.5)


def exchange_a_layer(network):
    network.blocks[1].layers[0] = Leaky(6)


def exchange_the_integrator(network):
    network.blocks[0].integrator = resolve_integrator("runge_kutta_4")


def exchange_the_activation(network):
    network.blocks[1].layers[2].activation = TANH


def exchange_the_step_size(network):
    network.blocks[0].step_size = 0.25


def exchange_the_config(network):
    network.config = replace(network.config, step_size=0.25)


def exchange_epsilon(network):
    network.blocks[0].layers[1].normalization.epsilon = 0.1


def exchange_a_stencil(network):
    network.opening.convolution = Convolution(1, 4, stencil_size=5)


def exchange_the_momentum(network):
    network.opening.normalization.momentum = 0.5


def add_dropout(network):
    network.connectors[0] = nn.Sequential(network.connectors[0], nn.Dropout())


def add_a_part(network):
    network.opening.more = nn.ReLU()


def leave_out_pooling(network):
    network.connectors[0].pool = False


def share_a_layer(network):
    network.blocks[0].layers[1] = network.blocks[0].layers[0]


def hook(network):
    network.blocks[0].register_forward_hook(lambda module, inputs, output: 2 * output)


def hook_before(network):
    network.classifier.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))


def replace_a_method(network):
    network.classifier.forward = lambda features: features.mean((2, 3))[:, :4]


def reparametrize(network):
    torch.nn.utils.parametrizations.weight_norm(network.opening.convolution, "stencil")


def widen_a_weight(network):
    network.classifier.bias = nn.Parameter(torch.zeros(1))


def add_a_weight(network):
    network.opening.scale = nn.Parameter(torch.ones(4))


CHANGES = [
    (add_a_weight, r"opening.scale has shape \(4,\), not None"),
    (exchange_a_block, "blocks.0.step_size is 0.5, not 1.0"),
    (exchange_a_layer, "blocks.1.layers.0 is Leaky, not SymmetricLayer"),
    (exchange_the_integrator, r"blocks.0.integrator is RungeKutta4\(\), not ForwardEuler\(\)"),
    (exchange_the_activation, r"blocks.1.layers.2.activation is .*tanh.*, not .*relu"),
    (exchange_the_step_size, "blocks.0.step_size is 0.25, not 1.0"),
    (exchange_the_config, "blocks.0.step_size is 1.0, not 0.25"),
    (exchange_epsilon, "blocks.0.layers.1.normalization.epsilon is 0.1, not 0.001"),
    (exchange_a_stencil, r"opening.convolution.stencil_size is \(5, 5\), not \(3, 3\)"),
    (exchange_the_momentum, "opening.normalization.momentum is 0.5, not 0.1"),
    (add_dropout, "connectors.0 is Sequential, not Connector"),
    (add_a_part, "opening.more is not among its parts"),
    (leave_out_pooling, "connectors.0.pool is False, not True"),
    (share_a_layer, "blocks.0.layers.1 is missing, or there twice"),
    (replace_a_method, "classifier.forward is replaced"),
    (reparametrize, "opening.convolution is ParametrizedConvolution, not Convolution"),
    (widen_a_weight, r"classifier.bias has shape \(1,\), not \(4,\)"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_network_that_was_changed_is_not_saved_as_another(change, message, tmp_path):
    network = make("parabolic_digits")
    change(network)
    for use in (
        lambda: network.save_pretrained(tmp_path / "new"),
        lambda: refine_in_time(network),
        lambda: refine_in_space(network),
        lambda: coarsen_in_time(network, 3),
    ):
        with pytest.raises(ConfigError, match=f"changed after it was made: {message}") as caught:
            use()
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("change", "name"), [(hook, "blocks.0"), (hook_before, "classifier")])
def test_a_network_with_a_hook_is_not_saved_without_it(change, name, tmp_path):
    network = make()
    change(network)
    with pytest.raises(ConfigError, match=f"{name} has a forward hook, which no file can hold"):
        network.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_state_kept_on_a_grid_is_not_saved_as_one_that_is_not(tmp_path):
    network = make("hamiltonian_digits")
    network.blocks[0].backprop = "exact"
    with pytest.raises(ConfigError, match=r"blocks\.0\.grid is Grid\(bits=12\), not None"):
        network.save_pretrained(tmp_path / "new")


def test_a_subclass_is_not_saved_as_a_network(tmp_path):
    class Doubled(Network):
        def forward(self, images):
            return 2 * super().forward(images)

    with pytest.raises(ConfigError, match="the network is Doubled, not Network"):
        Doubled(make().config).save_pretrained(tmp_path / "new")


def synchronize(network):
    synchronize_batch_norms_(network, lambda tensor: None)


def look_at_gradients(network):
    network.blocks[0].register_full_backward_hook(lambda module, gradients, others: None)


def recompute(network):
    network.blocks[0].backprop, network.blocks[1].backprop = "checkpointed", "reversible"


def take_notes(network):
    network.seen = {"images": 12}
    network.opening.note = "mine"


def new_classes(network):
    network.reset_classifier(3)


@pytest.mark.parametrize(
    "change",
    [
        nn.Module.double,
        nn.Module.eval,
        lambda network: network.requires_grad_(False),
        synchronize,
        look_at_gradients,
        recompute,
        take_notes,
        new_classes,
    ],
)
def test_what_changes_nothing_that_the_config_says_is_saved(change, tmp_path):
    network = make("second_order_digits")
    change(network)
    state = torch.random.get_rng_state()
    network.save_pretrained(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert_same(network, pdecnn.Network.from_pretrained(tmp_path))


def test_weights_that_are_one_tensor_are_not_saved_as_two(tmp_path):
    network = make()
    layers = network.blocks[0].layers
    layers[1].convolution.stencil = layers[0].convolution.stencil
    with pytest.raises(ConfigError, match="some of its weights are one tensor"):
        network.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
