"""TensorBoard events are written where TensorBoard is, and nothing fails where it is not."""

import importlib.util
import subprocess
import sys
from ast import literal_eval

import pytest

import pdecnn
from pdecnn.runs import training
from tests.runs import fingerprint, small_config

installed = importlib.util.find_spec("tensorboard") is not None


@pytest.mark.skipif(not installed, reason="TensorBoard is not installed")
def test_every_figure_of_an_epoch_is_an_event(undisturbed):
    # In another process: the reader of TensorBoard warns about itself.
    code = (
        "import sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator(sys.argv[1])\n"
        "events.Reload()\n"
        "for tag in events.Tags()['scalars']:\n"
        "    print(tag, [(event.step, event.value) for event in events.Scalars(tag)])\n"
    )
    folder = undisturbed.folder / "tensorboard"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=True, capture_output=True, text=True
    )
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    # What was not measured is no event: nothing is reversed in this run.
    values = undisturbed.metrics[0].items()
    there = {name for name, value in values if isinstance(value, int | float)}
    assert "reversal_error" not in there
    assert set(found) == (there | {"seconds", "images_per_second"}) - {"epoch"}
    for name, text in found.items():
        assert [step for step, _ in literal_eval(text)] == [1, 2, 3, 4], name
    accuracies = [entry["validation_accuracy"] for entry in undisturbed.metrics]
    assert [value for _, value in literal_eval(found["validation_accuracy"])] == pytest.approx(
        accuracies
    )


def test_without_tensorboard_a_run_is_the_same(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "find_spec", lambda name: None)
    run = pdecnn.train(small_config(), output=tmp_path / "run")
    assert not (run.folder / "tensorboard").exists()
    assert fingerprint(run.folder) == fingerprint(undisturbed.folder)


def test_events_that_cannot_be_written_are_said_in_one_line(tmp_path, monkeypatch):
    def fail(self, report, timing):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training.EventWriter, "write", fail)
    with pytest.raises(pdecnn.CheckpointError, match="No space left on device"):
        pdecnn.train(small_config(training__epochs=1), output=tmp_path / "run")
    # The epoch itself is saved.
    monkeypatch.undo()
    run = pdecnn.train(small_config(training__epochs=1), output=tmp_path / "run", resume=True)
    assert run.is_finished
