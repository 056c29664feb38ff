"""Errors of running backwards, of states and of gradients."""

from math import inf

import pytest
import torch

from pdecnn.diagnostics import block_reversibility, network_reversibility, reversal_errors
from pdecnn.errors import ConfigError
from pdecnn.networks.reversal import relative_error
from tests.blocks import every_reversible, make_block, make_features
from tests.gradients.test_kink_trap import features_with_zeros, fresh_block
from tests.unit.learning.trainings import make_network


@every_reversible
def test_errors_are_rounding_and_grow_with_it(integrator):
    block = make_block(integrator, dtype=torch.float32)
    double, single, half = block_reversibility(block, make_features(dtype=torch.float32))
    assert [found.dtype for found in (double, single, half)] == [
        torch.float64,
        torch.float32,
        torch.bfloat16,
    ]
    assert double.reconstruction <= 1e-14
    assert double.gradient <= 1e-13
    assert 1e-9 <= single.reconstruction <= 1e-5
    assert 1e-9 <= single.gradient <= 1e-5
    # The state is float32 and F is the same function back and forth, but for kinks.
    assert half.reconstruction <= 1e-2
    assert half.gradient <= 0.2


@every_reversible
def test_the_kink_trap_shows_in_the_gradient_only(integrator):
    block = fresh_block(integrator, torch.float64)
    features = features_with_zeros(integrator, torch.float64)
    found = reversal_errors(block, features, dtype=torch.float64)
    assert found.reconstruction <= 1e-13
    assert found.feature_gradient > 1
    assert found.gradient >= found.feature_gradient


@every_reversible
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_exact_reversal_has_no_error(integrator, dtype):
    block = fresh_block(integrator, dtype)
    features = features_with_zeros(integrator, dtype)
    found = reversal_errors(block, features, dtype=dtype, backprop="exact")
    assert (found.reconstruction, found.gradient) == (0, 0)


@every_reversible
@pytest.mark.parametrize("backprop", ["stored", "checkpointed", "reversible", "exact"])
def test_the_blocks_own_mode_does_not_matter(integrator, backprop):
    features = make_features(dtype=torch.float32)
    wanted = reversal_errors(make_block(integrator, dtype=torch.float32), features)
    block = make_block(integrator, dtype=torch.float32, backprop=backprop)
    assert reversal_errors(block, features) == wanted
    assert block.backprop == backprop
    assert all(weight.grad is None for weight in block.parameters())


def test_shared_weights_stay_shared():
    block = make_block("leapfrog", share_weights=True, num_steps=4)
    assert reversal_errors(block, make_features(), dtype=torch.float64).gradient <= 1e-13


def test_every_block_of_a_network():
    network = make_network("hamiltonian")
    images = network.preprocess(torch.rand(2, 1, 8, 8))
    found = network_reversibility(network, images, dtypes=[torch.float64])
    assert [len(errors) for errors in found] == [1, 1]
    assert all(errors[0].reconstruction <= 1e-12 for errors in found)


def test_what_cannot_be_reversed_is_refused():
    with pytest.raises(ConfigError, match="needs a reversible integrator"):
        reversal_errors(make_block("forward_euler"), make_features())
    with pytest.raises(ConfigError, match="'reversible' or 'exact', found 'stored'"):
        reversal_errors(make_block("verlet"), make_features(), backprop="stored")


def test_relative_errors_at_zero_and_beyond_all_numbers():
    zero, one = torch.zeros(2), torch.ones(2)
    assert relative_error([zero], [zero]) == 0
    assert relative_error([one], [zero]) == inf
    assert relative_error([one * float("nan")], [one]) == inf
    assert relative_error([zero, one], [one, one]) == pytest.approx(0.5**0.5)
