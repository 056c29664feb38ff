"""The counters of a training go to JSON and back; anything else is refused."""

import json
import math

import pytest

from pdecnn.errors import CheckpointError
from pdecnn.learning.progress import Progress, progress_from_dict
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


@pytest.mark.parametrize("value", [[-1], [1.0], "1", None, 3, [None]])
def test_skipped_batches_are_counts(value):
    with pytest.raises(CheckpointError, match="nonfinite_batches"):
        progress_from_dict(Progress().to_dict() | {"nonfinite_batches": value})


@pytest.mark.parametrize("values", [None, [], "x", 3, {}, {"epoch": 1}])
def test_other_values_are_refused(values):
    with pytest.raises(CheckpointError, match="other fields"):
        progress_from_dict(values)


def test_unknown_fields_are_refused():
    with pytest.raises(CheckpointError, match="other fields"):
        progress_from_dict(Progress().to_dict() | {"clock": 1})


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [-1, 1.0, "1", None, True, [1], math.nan])
def test_counters_must_be_counts(name, value):
    with pytest.raises(CheckpointError, match=name):
        progress_from_dict(Progress().to_dict() | {name: value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["1", None, True, [1.0], math.nan, math.inf, 10**400])
def test_numbers_must_be_finite(name, value):
    with pytest.raises(CheckpointError, match=name):
        progress_from_dict(Progress().to_dict() | {name: value})


@pytest.mark.parametrize("value", ["crashed", 1, False, [], {}])
def test_the_reason_must_be_a_known_one(value):
    with pytest.raises(CheckpointError, match="stopped"):
        progress_from_dict(Progress().to_dict() | {"stopped": value})


@pytest.mark.parametrize("name", ["best_loss", "reversal_error"])
@pytest.mark.parametrize("value", ["1", True, [1.0], math.nan, math.inf])
def test_what_may_be_unknown_must_be_finite_or_none(name, value):
    with pytest.raises(CheckpointError, match=name):
        progress_from_dict(Progress().to_dict() | {name: value})


@pytest.mark.parametrize("value", [None, 1, "0", [-1], [0.0], [True], {}])
def test_switched_blocks_must_be_a_list_of_indices(value):
    with pytest.raises(CheckpointError, match="checkpointed_blocks"):
        progress_from_dict(Progress().to_dict() | {"checkpointed_blocks": value})


@pytest.mark.parametrize(
    "values",
    [{"best_accuracy": 5.0}, {"best_accuracy": -0.5}, {"best_epoch": 1}, {"best_epoch": 9}],
)
def test_a_best_epoch_that_cannot_be_is_refused(values):
    done = Progress(epoch=4, best_accuracy=0.5, best_epoch=3).to_dict()
    assert progress_from_dict(done).best_epoch == 3
    if "best_accuracy" not in values:
        done["best_accuracy"] = -1.0
    with pytest.raises(CheckpointError, match="cannot have best_accuracy"):
        progress_from_dict(done | values)
