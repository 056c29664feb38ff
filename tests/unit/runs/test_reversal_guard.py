"""The drift guard in a run: said, recorded, and the same after a kill."""

import pytest

import pdecnn
from tests.runs import Killed, Recorder, fingerprint, small_config

# So strict that rounding is too much: every block is switched.
SETTINGS = {
    "network__backprop": "reversible",
    "network__channels": [4, 4, 4],
    "training__reversal_tolerance": 1e-12,
    "training__reversal_interval": 2,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    recorder = Recorder()
    folder = tmp_path_factory.mktemp("guarded") / "run"
    run = pdecnn.train(small_config(**SETTINGS), output=folder, listener=recorder, device="cpu")
    return run, recorder.notes


def test_promise_26_a_switch_is_said_and_recorded(whole):
    run, notes = whole
    assert len(notes) == 2
    for index, note in enumerate(notes):
        assert note.startswith(f"epoch 1: the gradient of reversible block {index} is wrong")
    measured = [entry["reversal_error"] is not None for entry in run.metrics]
    assert measured == [True, False, True, False]
    assert [entry["checkpointed_blocks"] for entry in run.metrics] == [2, 2, 2, 2]


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "place", [(0, 2), *(pytest.param(place, marks=slow) for place in ((1, 1), (2, 0)))], ids=str
)
def test_promise_1_a_killed_run_is_switched_again(whole, tmp_path, place):
    def kill(progress):
        if (progress.epoch, progress.batch) == place:
            raise Killed

    config = small_config(**SETTINGS)
    recorder = Recorder(on_epoch=None, on_step=kill)
    if place[1] == 0:
        recorder = Recorder(on_epoch=lambda report: kill(recorder.trainer.progress))
    with pytest.raises(Killed):
        pdecnn.train(config, output=tmp_path / "run", listener=recorder, device="cpu")
    resumed = Recorder()
    run = pdecnn.train(config, output=tmp_path / "run", resume=True, listener=resumed, device="cpu")
    assert fingerprint(run.folder) == fingerprint(whole[0].folder)
    assert {block.backprop for block in resumed.trainer.network.blocks} == {"checkpointed"}


def test_the_saved_network_keeps_the_mode_it_was_made_with(whole):
    network = pdecnn.load(whole[0].folder)
    assert network.config.backprop == "reversible"


def test_a_run_without_reversible_blocks_has_no_error(undisturbed):
    assert {entry["reversal_error"] for entry in undisturbed.metrics} == {None}
