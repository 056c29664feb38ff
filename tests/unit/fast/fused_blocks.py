"""Blocks whose layers fit the fused kernels, with them and without, and the errors of both."""

from copy import deepcopy

import torch
from torch import nn

from pdecnn.fast.acceleration import accelerated
from pdecnn.fast.kernels import symmetric_shear as kernels
from tests.blocks import make_block, make_features, relative_error


def large_blocks(kernel, features):
    """For the interpreter, which counts its instructions, whatever their size.

    Of images a step of a product takes one tap, as in the table that is in use.
    """
    one_tap = features.dim() == 4 and kernel != "stencil_gradient"
    width = kernels._padded(features.shape[1]) if one_tap else 256
    return kernels.Blocks(64, width, 4, 3)


def block_of(integrator, mode="stored", *, num_steps=2, **options):
    """A block of layers that fit, of width 16 or 2 x 8."""
    chosen = {"channels": 16, "activation": "relu", "step_size": 0.25, "dtype": torch.float32}
    return make_block(integrator, backprop=mode, num_steps=num_steps, **{**chosen, **options})


def features_of(batch=1, size=(3, 4), *, channels=16):
    return make_features(
        batch=batch, channels=channels, size=size, dimension=len(size), dtype=torch.float32
    )


def loss_of(outputs):
    """A generic scalar."""
    weights = torch.cos(torch.arange(outputs.numel(), dtype=torch.float64)).view(outputs.shape)
    return (outputs * weights.to(outputs)).sum()


def outputs_and_gradients(block, features):
    """By name, of all that need a gradient; None for the others."""
    block.zero_grad()
    leaf = features.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    outputs = block(leaf)
    loss_of(outputs).backward()
    gradients = {name: weight.grad for name, weight in block.named_parameters()}
    return {"outputs": outputs.detach(), "features": leaf.grad, **gradients}


def under_autocast(function, *args):
    with torch.autocast(args[-1].device.type, dtype=torch.bfloat16):
        return function(*args)


def by_kernels(function, *args):
    """A block, a method of one, or a function of one and its features, by fused kernels."""
    met = (function, getattr(function, "__self__", None), *args)
    block = next((thing for thing in met if isinstance(thing, nn.Module)), nn.Identity())
    with accelerated(block, "uncompiled"):
        return under_autocast(function, *args)


def in_double(block, features):
    """The reference: the same weights off the grid."""
    twin = deepcopy(block)
    twin._grid_bits, twin.backprop = None, "stored"
    return outputs_and_gradients(twin.double(), features.double())


def error_of(found, expected, kind):
    """Of all that is of one kind, taken together."""
    both = [
        torch.cat([values[name].flatten().double() for name in expected if name.endswith(kind)])
        for values in (found, expected)
    ]
    return relative_error(*both)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:
            assert found[name] is None, name
        else:
            assert torch.equal(found[name], value), name
