"""Recomputation draws the random numbers of the forward pass, wherever the chance sits."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.blocks import gradients_of, make_block, make_features


def drop_in_normalization(layer):
    layer.normalization = nn.Sequential(layer.normalization, nn.Dropout(0.5))


def drop_by_hook(layer):
    layer.register_forward_hook(lambda _module, _inputs, output: functional.dropout(output, 0.5))


def drop_by_activation(layer):
    layer.activation = layer.activation.__class__(
        name="dropout", function=lambda values: functional.dropout(values, 0.5)
    )


@pytest.mark.parametrize("make_random", [drop_in_normalization, drop_by_hook, drop_by_activation])
def test_checkpointed_equals_stored_with_chance_inside_our_own_layers(make_random):
    found = []
    for backprop in ("stored", "checkpointed"):
        block = make_block("forward_euler", num_steps=4, backprop=backprop)
        for layer in block.layers:
            make_random(layer)
        torch.manual_seed(3)
        found.append(gradients_of(block, make_features()))
    for name, gradient in found[0].items():
        assert torch.equal(found[1][name], gradient), name


def test_layers_that_draw_nothing_do_not_touch_the_generator():
    block = make_block("forward_euler", num_steps=4, backprop="checkpointed")
    torch.manual_seed(3)
    state = torch.get_rng_state()
    gradients_of(block, make_features())
    assert torch.equal(torch.get_rng_state(), state)
