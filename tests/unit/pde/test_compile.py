"""torch.compile: one graph in every mode, forward and backward, and the same numbers."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from pdecnn.errors import ConfigError, DivergedError
from pdecnn.pde import Block, SymmetricLayer
from tests.blocks import (
    every_integrator,
    gradients_of,
    largest_relative_error,
    make_block,
    make_features,
)


@pytest.mark.parametrize(
    "integrator",
    [
        "forward_euler",
        "leapfrog",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("runge_kutta_4", "verlet", "leapfrog_second_order")
        ),
    ],
)
def test_a_compiled_block_equals_the_eager_one(integrator):
    torch.compiler.reset()
    block = make_block(integrator, num_steps=2)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    features = make_features()
    torch.testing.assert_close(compiled(features), block(features), rtol=1e-13, atol=1e-14)
    expected = gradients_of(block, features)
    found = gradients_of(compiled, features)
    found = {name.removeprefix("_orig_mod."): gradient for name, gradient in found.items()}
    error, name = largest_relative_error(found, expected)
    assert error <= 1e-13, f"{name}: relative error {error}"


@pytest.mark.parametrize("backprop", ["checkpointed", "reversible", "exact"])
def test_a_compiled_block_that_computes_states_again_is_one_graph(backprop):
    """Where nothing but the order of the operators is compiled, gradients are those to the bit."""
    torch.compiler.reset()
    block = make_block("verlet", num_steps=2, backprop=backprop)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    expected = gradients_of(block, make_features())
    found = gradients_of(compiled, make_features())
    for name, gradient in found.items():
        assert torch.equal(gradient, expected[name.removeprefix("_orig_mod.")]), name


def test_a_compiled_block_keeps_no_more_than_the_eager_one():
    torch.compiler.reset()
    block = make_block("leapfrog", num_steps=6, backprop="exact")
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert saved_bytes(compiled, make_features()) <= saved_bytes(block, make_features())


def saved_bytes(module, features):
    """Of the tensors, weights aside, that are kept until the gradient is due."""
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    found = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = module(features.requires_grad_())
    assert outputs.requires_grad
    return sum(found.values())


def test_a_copy_of_a_compiled_block_has_steps_of_its_own():
    torch.compiler.reset()
    block = make_block("verlet", num_steps=2, backprop="reversible")
    torch.compile(block, fullgraph=True, backend="aot_eager")(make_features())
    twin = deepcopy(block)
    twin.step_size = 0.25
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(make_features()), twin(make_features()), rtol=0, atol=0)


class Own(nn.Module):
    """A layer of someone's, of which nothing is known, with features turned in memory."""

    def __init__(self):
        super().__init__()
        self.speed = nn.Parameter(torch.full((2, 1, 1), 0.5))

    def forward(self, features):
        turned = features.contiguous(memory_format=torch.channels_last)
        return -self.speed * torch.tanh(turned)


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_compiled_block_of_layers_of_others_has_the_gradients_of_eager(channels_last):
    torch.compiler.reset()
    block = Block([Own()], "leapfrog", num_steps=3, backprop="exact")
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    found = []
    for run in (block, compiled):
        features = torch.linspace(-1, 1, 60).view(1, 2, 5, 6)
        if channels_last:
            features = features.contiguous(memory_format=torch.channels_last)
        block.zero_grad()
        run(features.requires_grad_()).square().sum().backward()
        found.append([features.grad, block.layers[0].speed.grad])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


class Noisy(SymmetricLayer):
    """A layer of someone's that draws random numbers."""

    def forward(self, features):
        return super().forward(features + torch.rand_like(features))


@pytest.mark.slow
def test_random_numbers_in_a_compiled_block_are_refused_as_in_an_eager_one():
    torch.compiler.reset()
    block = Block([Noisy(2)], "leapfrog", num_steps=2, backprop="exact")
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    with pytest.raises(ConfigError, match="random numbers were drawn while Noisy ran"):
        compiled(torch.rand(1, 2, 4, 4))


@pytest.mark.slow
def test_a_compiled_block_that_leaves_the_range_of_the_grid_says_so():
    torch.compiler.reset()
    block = make_block("verlet", num_steps=2, backprop="exact", dtype=torch.float32)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    with pytest.raises(DivergedError, match="left the range of exact reversal"):
        compiled(1e5 * make_features(dtype=torch.float32))


@pytest.mark.slow
@pytest.mark.parametrize("backprop", ["reversible", "exact"])
def test_a_compiled_block_goes_back_under_the_autocast_it_came_by(backprop):
    torch.compiler.reset()
    found = []
    for compiled in (False, True):
        block = make_block("verlet", num_steps=3, dtype=torch.float32, backprop=backprop)
        run = torch.compile(block, fullgraph=True, backend="aot_eager") if compiled else block
        leaf = make_features(dtype=torch.float32).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = run(leaf)
        outputs.square().sum().backward()
        found.append([leaf.grad, *(weight.grad for weight in block.parameters())])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.slow
def test_compiled_batch_norms_that_are_checkpointed_count_a_batch_once():
    torch.compiler.reset()
    blocks = [
        make_block("forward_euler", num_steps=4, normalization="batch", backprop="checkpointed")
        for _ in range(2)
    ]
    compiled = torch.compile(blocks[1], fullgraph=True, backend="aot_eager")
    for run in (blocks[0], compiled):
        run(make_features()).square().sum().backward()
    pairs = zip(blocks[0].named_buffers(), blocks[1].buffers(), strict=True)
    for (name, expected), found in pairs:
        torch.testing.assert_close(found, expected, msg=name)
    for expected, found in zip(blocks[0].parameters(), blocks[1].parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


@pytest.mark.parametrize("backprop", ["reversible", "exact"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_a_compiled_batch_norm_goes_back_as_it_came(backprop, training):
    """Whatever mode and statistics its norms have by then."""
    torch.compiler.reset()
    found = []
    for compiled in (False, True):
        block = make_block("verlet", num_steps=2, normalization="batch", backprop=backprop)
        run = torch.compile(block, fullgraph=True, backend="aot_eager") if compiled else block
        block.train(training)
        leaf = make_features(requires_grad=True)
        outputs = run(leaf)
        block.train(not training)
        counted = [buffer.clone() for buffer in block.buffers()]
        for buffer in block.buffers():
            buffer.add_(1)
        outputs.square().sum().backward()
        found.append([*counted, leaf.grad, *(weight.grad for weight in block.parameters())])
        assert all(map(torch.equal, block.buffers(), (buffer + 1 for buffer in counted)))
        assert all(part.training != training for part in block.modules())
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("backprop", ["reversible", "exact"])
def test_a_compiled_batch_norm_is_trained_where_the_start_met_it_too(backprop):
    """What was saved of it there was taken for changed, by the statistics counted later."""
    torch.compiler.reset()
    found = []
    for compiled in (False, True):
        block = make_block(
            "leapfrog_second_order", num_steps=2, normalization="batch", backprop=backprop
        )
        run = torch.compile(block, fullgraph=True, backend="aot_eager") if compiled else block
        leaf = make_features(requires_grad=True)
        run(leaf).square().sum().backward()
        weights = [weight.grad for weight in block.parameters()]
        found.append([leaf.grad, *weights, *block.buffers()])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_a_compiled_batch_norm_has_the_statistics_that_stand_in_for_its_own(training):
    torch.compiler.reset()
    found = []
    for compiled in (False, True):
        block = make_block("verlet", num_steps=2, normalization="batch", backprop="reversible")
        block.train(training)
        before = [buffer.clone() for buffer in block.buffers()]

        def call(statistics, features, block=block):
            return functional_call(block, statistics, (features,))

        run = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
        statistics = {name: buffer + 1 for name, buffer in block.named_buffers()}
        leaf = make_features(requires_grad=True)
        run(statistics, leaf).square().sum().backward()
        found.append([leaf.grad, *statistics.values()])
        assert all(map(torch.equal, block.buffers(), before))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


class AskingLayer(SymmetricLayer):
    """A layer that looks at a number, which ends a graph of the compiler."""

    def forward(self, features):
        return super().forward(features) if float(features.detach().sum()) < 1e9 else features


# The compiler's own, where it takes up again after a graph that ended.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_checkpointed_layer_that_breaks_the_graph_runs_beside_the_compiled_code():
    torch.compiler.reset()
    found = []
    for compiled in (False, True):
        block = make_block("forward_euler", layer_class=AskingLayer, backprop="checkpointed")
        run = torch.compile(block, backend="aot_eager") if compiled else block
        run(make_features()).square().sum().backward()
        found.append([weight.grad for weight in block.parameters()])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.slow
@every_integrator
def test_a_compiled_block_under_autocast(integrator):
    torch.compiler.reset()
    block = make_block(integrator, num_steps=2, dtype=torch.float32, share_weights=True)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    features = make_features(dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected, found = block(features), compiled(features)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
