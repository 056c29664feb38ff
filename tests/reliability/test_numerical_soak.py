"""Training steps in bfloat16 on blocks that run backwards: nothing creeps up (promises 25, 26)."""

import sys

import pytest

from tests.numerical_soak import MAX_GROWTH_BYTES, SUBJECTS, soak

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads the memory in use from /proc"
)


@pytest.mark.parametrize("num_steps", [15, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("subject", SUBJECTS, ids="-".join)
def test_gradients_stay_right_and_memory_flat(subject, num_steps):
    done = soak(subject, num_steps, interval=5)
    assert done["steps"] == num_steps
    assert done["skipped_steps"] == 0
    tolerance = 0.0 if done["backprop"] == "exact" else done["tolerance"]
    assert done["largest_gradient_error"] <= tolerance
    assert done["switched_blocks"] == []
    assert len(done["saved_bytes_a_step"]) == 1
    assert done["rss_bytes_at_most"] <= done["rss_bytes_after_warm_up"] + MAX_GROWTH_BYTES
