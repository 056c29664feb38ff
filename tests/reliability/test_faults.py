"""A training disturbed at random ends with the bits of the undisturbed one (promises 1, 5 to 7)."""

import sys
from collections import Counter

import pytest

from tests.faults import KINDS, disturb

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits the files of another process by prlimit"
)


@pytest.mark.parametrize(
    ("num_faults", "seed"), [(2, 3), pytest.param(10, 0, marks=pytest.mark.slow)]
)
def test_faults_over_one_training_change_no_bit_and_nothing_outside(num_faults, seed, tmp_path):
    done = disturb(tmp_path, num_faults, seed)
    kinds = Counter(fault["kind"] for fault in done["faults"])
    assert kinds.total() == num_faults
    assert len(kinds) == min(num_faults, len(KINDS))
    assert done["found"] == done["expected"]
    assert done["damaged"] == done["set_aside"]
    assert done["touched_outside"] == []
    assert done["surroundings_unchanged"]
