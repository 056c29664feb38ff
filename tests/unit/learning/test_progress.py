"""The counters of a training go to JSON and back; anything else is refused."""

import json
import math

import pytest

from pdecnn.errors import CheckpointError
from pdecnn.learning.checkpoint import Progress, progress_from_dict
from tests.unit.learning.trainings import field_names

INTEGERS = [
    "epoch", "batch", "step", "best_epoch", "nonfinite_in_row", "nonfinite_steps",
    "level",
]  # fmt: skip
NUMBERS = ["best_accuracy", "work"]


def test_every_field_is_tested_here():
    others = ["nonfinite_batches"]
    others += ["best_loss", "reversal_error", "checkpointed_blocks", "stopped"]
    assert sorted([*INTEGERS, *NUMBERS, *others]) == sorted(field_names(Progress))


@pytest.mark.parametrize("stopped", [None, "completed", "early_stopping"])
def test_progress_comes_back_from_json(stopped):
    progress = Progress(
        epoch=3,
        batch=2,
        step=11,
        best_accuracy=0.1 + 0.2,
        best_loss=None if stopped is None else 0.1 + 0.7,
        reversal_error=None if stopped is None else 0.3,
        checkpointed_blocks=[] if stopped is None else [0, 2],
        stopped=stopped,
    )
    assert progress_from_dict(json.loads(json.dumps(progress.to_dict()))) == progress


def test_a_new_training_has_done_nothing():
    progress = Progress()
    assert all(getattr(progress, name) == 0 for name in INTEGERS)
    assert (progress.best_accuracy, progress.stopped) == (-1.0, None)


@pytest.mark.parametrize("values", [None, [], "x", 3, {}, {"epoch": 1}])
def test_other_values_are_refused(values):
    with pytest.raises(CheckpointError, match="other fields"):
        progress_from_dict(values)


def test_unknown_fields_are_refused():
    with pytest.raises(CheckpointError, match="other fields"):
        progress_from_dict(Progress().to_dict() | {"clock": 1})


NO_COUNTS = (-1, 1.0, "1", None, True, [1], math.nan)
NO_NUMBERS = ("1", True, [1.0], math.nan, math.inf, 10**400)
NO_INDICES = (None, 1, "0", [-1], [0.0], [True], [None], {})
WRONG = {
    **dict.fromkeys(INTEGERS, NO_COUNTS),
    **dict.fromkeys(NUMBERS, (*NO_NUMBERS, None)),
    **dict.fromkeys(["best_loss", "reversal_error"], NO_NUMBERS),
    **dict.fromkeys(["nonfinite_batches", "checkpointed_blocks"], NO_INDICES),
    "stopped": ["crashed", 1, False, [], {}],
}


@pytest.mark.parametrize("name", field_names(Progress))
def test_values_that_a_counter_cannot_have_are_refused(name):
    for value in WRONG[name]:
        with pytest.raises(CheckpointError, match=name):
            progress_from_dict(Progress().to_dict() | {name: value})
