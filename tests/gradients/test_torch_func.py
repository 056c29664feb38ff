"""torch.func: grad, jvp and vmap of blocks and networks, and what cannot be had of them."""

import pytest
import torch
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vjp, vmap

import pdecnn
from pdecnn.errors import ConfigError
from tests.blocks import make_block, make_features

# PyTorch's own, where jvp is used first.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
MEMORY_SAVING = ("checkpointed", "reversible", "exact")
every_mode = pytest.mark.parametrize("backprop", ["stored", *MEMORY_SAVING])


def small(backprop="stored", **settings):
    torch.manual_seed(0)
    settings = {"channels": (4, 4), "num_steps": 2} | settings
    return pdecnn.create_model("hamiltonian_digits", backprop=backprop, **settings).eval().double()


def stable():
    """Never run, so that the bounds of its steps are not known yet."""
    torch.manual_seed(0)
    network = pdecnn.create_model("parabolic_stable_digits", channels=(4, 4), hidden_channels=4)
    return network.eval().double()


IMAGES = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1)).double()


def loss_of(network):
    return lambda weights, images: functional_call(network, weights, (images,)).square().sum()


@pytest.mark.parametrize("make", [small, stable])
def test_grad_is_the_gradient(make):
    network, twin = make(), make()
    found = grad(loss_of(network))(dict(network.named_parameters()), IMAGES)
    twin(IMAGES).square().sum().backward()
    for name, weight in twin.named_parameters():
        torch.testing.assert_close(found[name], weight.grad)


@pytest.mark.parametrize("make", [small, stable])
def test_gradients_of_each_example(make):
    network = make()
    weights, loss = dict(network.named_parameters()), loss_of(network)
    found = vmap(grad(loss), in_dims=(None, 0))(weights, IMAGES.unsqueeze(1))
    for k, image in enumerate(IMAGES):
        alone = grad(loss)(weights, image[None])
        for name, gradient in alone.items():
            torch.testing.assert_close(found[name][k], gradient)


@every_mode
def test_jvp_and_vmap_are_there_in_every_mode(backprop):
    block = make_block("verlet", num_steps=3, backprop=backprop)
    grid_bits = 12 if backprop == "exact" else None
    twin = make_block("verlet", num_steps=3, grid_bits=grid_bits)
    features = make_features()
    tangent = torch.cos(features)
    value, derivative = jvp(block, (features,), (tangent,))
    torch.testing.assert_close(value, block(features), rtol=0, atol=1e-12)
    _, pullback = vjp(twin, features)
    cotangent = torch.sin(value)
    torch.testing.assert_close(
        (derivative * cotangent).sum(), (tangent * pullback(cotangent)[0]).sum()
    )
    one_by_one = vmap(lambda image: block(image[None])[0])(features)
    torch.testing.assert_close(one_by_one, block(features), rtol=0, atol=1e-12)


@pytest.mark.parametrize("backprop", MEMORY_SAVING)
@pytest.mark.parametrize("transform", [grad, jacrev])
def test_grad_of_a_mode_that_computes_states_again_is_refused_in_one_line(backprop, transform):
    network = small(backprop)
    weights = dict(network.named_parameters())
    with pytest.raises(ConfigError, match=f"need backprop='stored', found '{backprop}'") as refusal:
        transform(loss_of(network))(weights, IMAGES)
    assert "\n" not in str(refusal.value)
    for block in network.blocks:  # the remedy
        block.backprop = "stored"
    assert transform(loss_of(network))(weights, IMAGES)


def test_a_stable_network_whose_weights_are_replaced_has_their_bounds():
    network, other = stable(), stable()
    weights = {name: 3 * weight.detach() for name, weight in network.named_parameters()}
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(3)
    _, derivative = jvp(
        lambda images: functional_call(network, weights, (images,)), (IMAGES,), (IMAGES,)
    )
    _, expected = jvp(other, (IMAGES,), (IMAGES,))
    torch.testing.assert_close(derivative, expected)
    torch.testing.assert_close(network(IMAGES), stable()(IMAGES))  # nothing is left behind


def test_an_ensemble_of_stable_networks_in_evaluation_is_refused_in_one_line():
    networks = [stable(), stable()]
    weights, buffers = stack_module_state(networks)
    with pytest.raises(ConfigError, match="vmap over the weights of a stable network"):
        vmap(lambda w, b: functional_call(networks[0], (w, b), (IMAGES,)))(weights, buffers)
