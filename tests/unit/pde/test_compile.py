"""torch.compile: one graph in mode `stored`, breaks in the others, always the same numbers."""

import pytest
import torch

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


@pytest.mark.filterwarnings("ignore")  # of the compiler, about what it does itself
@pytest.mark.parametrize(
    "backprop",
    [
        "checkpointed",
        pytest.param("reversible", marks=pytest.mark.slow),
        pytest.param("exact", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_block_that_computes_states_again_equals_the_eager_one(backprop):
    torch.compiler.reset()
    block = make_block("verlet", num_steps=2, backprop=backprop)
    compiled = torch.compile(block, backend="aot_eager")
    expected = gradients_of(block, make_features())
    found = gradients_of(compiled, make_features())
    found = {name.removeprefix("_orig_mod."): gradient for name, gradient in found.items()}
    error, name = largest_relative_error(found, expected)
    assert error <= 1e-12, f"{name}: relative error {error}"


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
