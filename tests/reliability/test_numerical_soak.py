"""Training steps in bfloat16 on blocks that run backwards: nothing creeps up (promises 25, 26)."""

import sys

import pytest

from tests.numerical_soak import DYNAMICS, MODES, soak

MAX_GROWTH_BYTES = 8 * 2**20
"""What one step saves for backward is a hundredth of it."""

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads the memory in use from /proc"
)


@pytest.mark.parametrize("num_steps", [125, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("backprop", MODES)
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_gradients_stay_right_and_memory_flat(dynamics, backprop, num_steps):
    done = soak(dynamics, backprop, num_steps)
    assert done["steps"] == num_steps
    assert done["skipped_steps"] == 0
    tolerance = 0.0 if backprop == "exact" else done["tolerance"]
    assert done["largest_gradient_error"] <= tolerance
    assert done["switched_blocks"] == []
    assert len(done["saved_bytes_a_step"]) == 1
    assert done["rss_bytes_at_most"] <= done["rss_bytes_after_warm_up"] + MAX_GROWTH_BYTES
    assert done["validation_accuracy"] > 0.3
