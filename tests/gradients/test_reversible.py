"""Backprop modes agree, and the reversible function behaves like any other operation."""

import gc
import weakref

import pytest
import torch
from torch.autograd.graph import save_on_cpu
from torch.nn.utils import parametrizations

from pdecnn.errors import ConfigError
from pdecnn.pde import Block, SymmetricLayer
from tests.blocks import (
    both_reversing_modes,
    every_combination,
    every_integrator,
    every_reversible,
    gradients_of,
    largest_relative_error,
    make_block,
    make_features,
    relative_error,
    replica_of,
)


@every_reversible
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("normalization", ["none", "tv"])
@pytest.mark.parametrize("share_weights", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str
)
def test_reversible_equals_stored(
    integrator, activation, normalization, share_weights, dtype, tolerance
):
    """At the paper's depth, for tanh and for ReLU away from kinks (random biases)."""
    # The paper's step with its norm; a smaller one where nothing else keeps features in bounds.
    step_size = 1.0 if normalization == "tv" else 0.1
    found, expected = (
        gradients_of(
            make_block(
                integrator,
                channels=8,
                activation=activation,
                normalization=normalization,
                affine=True,
                share_weights=share_weights,
                step_size=step_size,
                dtype=dtype,
                backprop=backprop,
            ),
            make_features(channels=8, size=(8, 8), dtype=dtype),
        )
        for backprop in ("reversible", "stored")
    )
    error, name = largest_relative_error(found, expected)
    assert error <= tolerance, f"{name}: relative error {error}"


@every_integrator
@pytest.mark.parametrize("num_steps", [1, 2, 3, 10])
@pytest.mark.parametrize("share_weights", [False, True], ids=["separate", "shared"])
def test_checkpointed_equals_stored(integrator, num_steps, share_weights):
    found, expected = (
        gradients_of(
            make_block(
                integrator,
                num_steps=num_steps,
                share_weights=share_weights,
                backprop=backprop,
                activation="relu",
            ),
            make_features(),
        )
        for backprop in ("checkpointed", "stored")
    )
    error, name = largest_relative_error(found, expected)
    assert error <= 1e-14, f"{name}: relative error {error}"


@every_reversible
@pytest.mark.parametrize("dimension", [1, 3])
def test_reversible_equals_stored_in_other_dimensions(integrator, dimension):
    found, expected = (
        gradients_of(
            make_block(integrator, dimension=dimension, backprop=backprop),
            make_features(dimension=dimension),
        )
        for backprop in ("reversible", "stored")
    )
    error, name = largest_relative_error(found, expected)
    assert error <= 1e-12, f"{name}: relative error {error}"


@every_combination
def test_every_parameter_gets_a_gradient(integrator, backprop):
    block = make_block(integrator, backprop=backprop, activation="relu", dtype=torch.float32)
    block(make_features(dtype=torch.float32)).square().sum().backward()
    without = [
        name
        for name, parameter in block.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]
    assert not without, f"no gradient, or zero, in {without}"


@every_reversible
@both_reversing_modes
def test_frozen_parameters_get_none_and_the_others_the_same(integrator, backprop):
    block = make_block(integrator, backprop=backprop)
    features = make_features()
    expected = gradients_of(block, features)
    frozen = [name for name, _ in block.named_parameters() if "scale" in name or "layers.0" in name]
    for name in frozen:
        block.get_parameter(name).requires_grad_(False)
    trained = [(name, weight) for name, weight in block.named_parameters() if name not in frozen]
    outputs = block(features)
    seed_gradient = torch.cos(torch.arange(outputs.numel()).double().reshape(outputs.shape))
    outputs.backward(seed_gradient)
    assert all(block.get_parameter(name).grad is None for name in frozen)
    for name, weight in trained:
        assert relative_error(weight.grad, expected[name]) <= 1e-12, name


@every_reversible
@both_reversing_modes
def test_gradient_of_the_features_through_a_frozen_block(integrator, backprop):
    block = make_block(integrator, backprop=backprop)
    expected = gradients_of(block, make_features())["features"]
    block.requires_grad_(False)
    features = make_features(requires_grad=True)
    outputs = block(features)
    seed_gradient = torch.cos(torch.arange(outputs.numel()).double().reshape(outputs.shape))
    (found,) = torch.autograd.grad(outputs, features, seed_gradient)
    assert relative_error(found, expected) <= 1e-12


@every_reversible
@both_reversing_modes
def test_nothing_to_differentiate_gives_no_graph(integrator, backprop):
    block = make_block(integrator, backprop=backprop).requires_grad_(False)
    assert not block(make_features()).requires_grad


@every_reversible
@both_reversing_modes
@pytest.mark.parametrize("create", ["features", "weights"])
def test_second_derivatives_raise_a_clear_error(integrator, backprop, create):
    block = make_block(integrator, backprop=backprop)
    features = make_features(requires_grad=True)
    inputs = features if create == "features" else block.layers[0].convolution.stencil
    outputs = block(features)
    with pytest.raises(RuntimeError, match=r"second derivatives .* use backprop='stored'"):
        torch.autograd.grad(outputs.sum(), inputs, create_graph=True)


@every_combination
def test_a_second_backward_over_a_retained_graph_gives_the_same(integrator, backprop):
    block = make_block(integrator, backprop=backprop)
    features = make_features(requires_grad=True)
    total = block(features).square().sum()
    inputs = (features, *block.parameters())
    first = torch.autograd.grad(total, inputs, retain_graph=True)
    second = torch.autograd.grad(total, inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError):
        torch.autograd.grad(total, inputs)


@pytest.mark.parametrize("integrator", ["verlet", "leapfrog"])
@both_reversing_modes
def test_features_changed_after_forward_do_not_matter(integrator, backprop):
    """Unlike the weights they are not needed: the final state replaces them."""
    block = make_block(integrator, backprop=backprop)
    features = make_features()
    expected = gradients_of(block, features)
    total = block(features)
    seed_gradient = torch.cos(torch.arange(total.numel()).double().reshape(total.shape))
    features.zero_()
    total.backward(seed_gradient)
    for name, weight in block.named_parameters():
        assert torch.equal(weight.grad, expected[name])


@every_reversible
@both_reversing_modes
@pytest.mark.parametrize("share_weights", [False, True], ids=["separate", "shared"])
def test_a_hook_on_a_parameter_runs_once(integrator, backprop, share_weights):
    block = make_block(integrator, backprop=backprop, share_weights=share_weights)
    calls, accumulated = [], []
    for name, parameter in block.named_parameters():
        parameter.register_hook(lambda gradient, name=name: calls.append((name, gradient.clone())))
        parameter.register_post_accumulate_grad_hook(
            lambda parameter, name=name: accumulated.append(name)
        )
    block(make_features()).sum().backward()
    names = sorted(name for name, _ in block.named_parameters())
    assert sorted(name for name, _ in calls) == names
    assert sorted(accumulated) == names
    for name, gradient in calls:  # the sum over all steps, not that of one
        assert torch.equal(gradient, block.get_parameter(name).grad), name


@every_reversible
@pytest.mark.parametrize("backprop", ["checkpointed", "reversible", "exact"])
def test_a_block_used_twice_in_one_graph(integrator, backprop):
    grid_bits = 12 if backprop == "exact" else None
    twice = {}
    for mode, bits in ((backprop, None), ("stored", grid_bits)):
        block = make_block(integrator, backprop=mode, grid_bits=bits)

        class Twice(torch.nn.Module):
            def __init__(self, block):
                super().__init__()
                self.block = block

            def forward(self, features):
                return self.block(self.block(features)) + self.block(2 * features)

        twice[mode] = gradients_of(Twice(block), make_features())
    error, name = largest_relative_error(twice[backprop], twice["stored"])
    assert error <= 1e-12, f"{name}: relative error {error}"


@every_reversible
def test_one_layer_in_two_places_of_a_block(integrator):
    """The same module at steps 0 and 2: its gradient is the sum over both."""
    found = []
    for backprop in ("reversible", "stored"):
        distinct = make_block(integrator, num_steps=2)
        width = integrator.layers_per_step
        first, second = distinct.layers[:width], distinct.layers[width:]
        block = Block([*first, *second, *first], integrator, step_size=0.5, backprop=backprop)
        assert block.num_steps == 3
        found.append(gradients_of(block, make_features()))
    assert largest_relative_error(*found)[0] <= 1e-12


@every_reversible
def test_one_weight_in_two_layers(integrator):
    """Tied weights: the gradient is the sum over both layers, counted once."""
    found = []
    for backprop in ("reversible", "stored"):
        block = make_block(integrator, backprop=backprop)
        block.layers[-1].convolution.stencil = block.layers[0].convolution.stencil
        found.append(gradients_of(block, make_features()))
    assert largest_relative_error(*found)[0] <= 1e-12


@every_reversible
@both_reversing_modes
def test_weight_normalised_stencils(integrator, backprop):
    """Weights behind a parametrisation are found and trained like any other."""
    found = []
    for mode in (backprop, "stored"):
        grid_bits = 12 if backprop == "exact" else None
        block = make_block(integrator, backprop=mode, grid_bits=grid_bits)
        for layer in block.layers:
            parametrizations.weight_norm(layer.convolution, "stencil")
        found.append(gradients_of(block, make_features()))
    error, name = largest_relative_error(*found)
    assert error <= 1e-12, f"{name}: relative error {error}"


@every_combination
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(integrator, backprop, mode):
    block = make_block(integrator, backprop=backprop)
    features = make_features()
    expected = block(features).detach()
    with mode():
        found = block(features)
        assert not found.requires_grad
        if integrator.reversible:
            back = block.reverse(block.propagate(features))
    assert torch.equal(found, expected)
    if integrator.reversible:
        torch.testing.assert_close(back, features, rtol=0, atol=2e-4)


@every_combination
def test_callers_tensors_are_untouched(integrator, backprop):
    block = make_block(integrator, backprop=backprop)
    features = make_features(requires_grad=True)
    before = {"features": features.detach().clone()}
    before |= {name: weight.detach().clone() for name, weight in block.named_parameters()}
    versions = [tensor._version for tensor in (features, *block.parameters())]
    outputs = block(features)
    kept = outputs.detach().clone()
    gradient = torch.ones_like(outputs)
    outputs.backward(gradient)
    assert [tensor._version for tensor in (features, *block.parameters())] == versions
    assert torch.equal(outputs.detach(), kept)
    assert torch.equal(gradient, torch.ones_like(outputs))
    assert torch.equal(features.detach(), before["features"])
    for name, weight in block.named_parameters():
        assert torch.equal(weight.detach(), before[name])


@every_reversible
@both_reversing_modes
def test_saved_tensors_may_be_moved_away_and_back(integrator, backprop):
    block = make_block(integrator, backprop=backprop)
    expected = gradients_of(block, make_features())
    with save_on_cpu():
        found = gradients_of(block, make_features())
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@every_reversible
@both_reversing_modes
def test_one_component_of_the_state_may_go_unused(integrator, backprop):
    block = make_block(integrator, backprop=backprop)
    reference = make_block(integrator, grid_bits=12 if backprop == "exact" else None)
    for component in (0, 1):
        gradients = []
        for each in (block, reference):
            features = make_features(requires_grad=True)
            total = each.propagate(features)[component].square().sum()
            gradients.append(torch.autograd.grad(total, features)[0])
        assert relative_error(*gradients) <= 1e-12


@pytest.mark.parametrize("backprop", ["reversible", "exact"])
def test_a_layer_may_have_no_weights(backprop):
    class Spring(torch.nn.Module):
        def forward(self, features):
            return -features

    block = Block([Spring()], "leapfrog", step_size=0.1, num_steps=5, backprop=backprop)
    features = make_features(requires_grad=True)
    (found,) = torch.autograd.grad(block(features).sum(), features)
    stored = Block([Spring()], "leapfrog", step_size=0.1, num_steps=5)
    (expected,) = torch.autograd.grad(stored(features).sum(), features)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


class Constant(torch.nn.Module):
    """F(Y) = 0.5, whatever Y is; its weight has no use, or shifts the constant."""

    def __init__(self, *, used):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.full((4, 1, 1), 0.25, dtype=torch.float64))
        self.used = used

    def forward(self, features):
        constant = torch.full_like(features, 0.5)
        return constant + self.shift if self.used else constant


@both_reversing_modes
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("integrator", ["verlet", "leapfrog"])
def test_a_layer_may_ignore_its_input(integrator, backprop, used):
    found = []
    for mode in (backprop, "stored"):
        grid_bits = 12 if backprop == "exact" else None
        layers = [Constant(used=used), SymmetricLayer(4).double()]
        torch.nn.init.constant_(layers[1].convolution.stencil, 0.1)
        block = Block(layers, integrator, step_size=0.5, backprop=mode, grid_bits=grid_bits)
        features = make_features(channels=8 if integrator == "verlet" else 4, requires_grad=True)
        block(features).square().sum().backward()
        found.append([features.grad, *(weight.grad for weight in block.parameters())])
    for gradient, expected in zip(*found, strict=True):
        assert (gradient is None) == (expected is None)
        assert gradient is None or relative_error(gradient, expected) <= 1e-12
    assert (found[0][1] is not None) == used


def test_batch_norm_is_counted_once_when_checkpointed():
    """Recomputation must not update running statistics a second time."""
    found = {}
    for backprop in ("stored", "checkpointed"):
        block = make_block("forward_euler", normalization="batch", backprop=backprop)
        gradients = gradients_of(block, make_features())
        for name, buffer in block.named_buffers():
            if name.endswith("num_batches_tracked"):
                assert int(buffer) == 1
        found[backprop] = (gradients, dict(block.named_buffers()))
        assert all(layer.normalization.track_running_stats for layer in block.layers)
    error, name = largest_relative_error(found["checkpointed"][0], found["stored"][0])
    assert error <= 1e-14, f"{name}: relative error {error}"
    for name, buffer in found["stored"][1].items():
        assert torch.equal(found["checkpointed"][1][name], buffer), name


@every_reversible
@both_reversing_modes
@pytest.mark.parametrize("share_weights", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_batch_norm_is_met_and_counted_as_when_stored(
    integrator, backprop, share_weights, training
):
    """The statistics of a batch of states are those of the same states computed backwards."""
    found = {}
    for mode in (backprop, "stored"):
        options = {"grid_bits": 20} if backprop == "exact" else {}
        block = make_block(
            integrator,
            normalization="batch",
            share_weights=share_weights,
            backprop=mode,
            **options,
        )
        block(make_features(seed=7))  # so that statistics are no longer 0 and 1
        block.train(training)
        gradients = gradients_of(block, make_features())
        found[mode] = gradients, {name: b.clone() for name, b in block.named_buffers()}
    (gradients, buffers), (expected, expected_buffers) = found[backprop], found["stored"]
    error, name = largest_relative_error(gradients, expected)
    assert error <= 1e-12, f"{name}: relative error {error}"
    for name, buffer in expected_buffers.items():
        assert torch.equal(buffers[name], buffer), name


@pytest.mark.parametrize("integrator", ["verlet", "leapfrog"])
@both_reversing_modes
def test_batch_norm_on_the_way_back_is_as_it_was(integrator, backprop):
    """Whatever happens between forward and backward, twice."""
    block = make_block(integrator, normalization="batch", backprop=backprop).eval()
    features = make_features(requires_grad=True)
    (expected,) = torch.autograd.grad(block(features).square().sum(), features)
    outputs = block(features)
    block.train()
    block(make_features(seed=7))
    buffers = {name: buffer.clone() for name, buffer in block.named_buffers()}
    for _ in range(2):
        (gradient,) = torch.autograd.grad(outputs.square().sum(), features, retain_graph=True)
        assert relative_error(gradient, expected) <= 1e-12
    assert all(torch.equal(buffers[name], buffer) for name, buffer in block.named_buffers())
    assert all(part.training for part in block.modules())


@every_reversible
def test_running_a_batch_back_counts_nothing(integrator):
    block = make_block(integrator, normalization="batch", backprop="exact", dtype=torch.float32)
    features = block.grid.round(make_features(dtype=torch.float32))
    with torch.no_grad():
        state = block.propagate(features)
    buffers = {name: buffer.clone() for name, buffer in block.named_buffers()}
    with torch.no_grad():
        assert torch.equal(block.reverse(state), features)
    assert all(torch.equal(buffers[name], buffer) for name, buffer in block.named_buffers())


def test_other_running_statistics_are_counted_once_when_checkpointed():
    found = {}
    for backprop in ("stored", "checkpointed"):
        norm = torch.nn.InstanceNorm2d(4, track_running_stats=True).double()
        block = Block([norm], "forward_euler", num_steps=4, backprop=backprop)
        block(make_features(requires_grad=True)).square().sum().backward()
        found[backprop] = dict(norm.named_buffers())
    for name, buffer in found["stored"].items():
        assert torch.equal(found["checkpointed"][name], buffer), name


def test_checkpointed_batch_norm_in_evaluation():
    found = {}
    for backprop in ("stored", "checkpointed"):
        block = make_block("runge_kutta_4", normalization="batch", backprop=backprop)
        block(make_features())
        block.eval()
        found[backprop] = gradients_of(block, make_features(seed=7))
    assert largest_relative_error(found["checkpointed"], found["stored"])[0] <= 1e-14


def test_dropping_the_graph_frees_a_reversible_block():
    """No reference cycle keeps the states alive until the garbage collector comes."""
    block = make_block("leapfrog", backprop="reversible")
    gc.disable()
    try:
        outputs = block(make_features())
        node = weakref.ref(outputs)
        del outputs
        assert node() is None
    finally:
        gc.enable()


def test_layers_are_shared_not_copied():
    layer = SymmetricLayer(4)
    block = Block([layer], "leapfrog", num_steps=5, backprop="reversible")
    assert sum(1 for _ in block.parameters()) == 3
    assert all(step[0] is layer for step in block.steps)


@every_combination
def test_copies_of_data_parallel_have_all_gradients_or_are_refused(integrator, backprop):
    """They have tensors in place of parameters; those of blocks run backwards got none."""
    block = make_block(integrator, backprop=backprop)
    replica = replica_of(block)
    if backprop in ("reversible", "exact"):
        with pytest.raises(ConfigError, match="DistributedDataParallel"):
            replica(make_features(requires_grad=True))
        with torch.no_grad():
            assert torch.equal(replica(make_features()), block(make_features()))
        return
    replica(make_features()).sum().backward()
    assert all(weight.grad is not None for weight in block.parameters())
