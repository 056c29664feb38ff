"""Killed anywhere, damaged or refused: a resumed run ends with the bits of the undisturbed one."""

import json
import os
import shutil
from dataclasses import replace

import pytest

import pdecnn
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.files import write_json
from pdecnn.learning import evaluate_network
from pdecnn.learning.checkpoint import FILES
from pdecnn.runs import training
from pdecnn.runs.recipes import resolve_run
from tests.manifests import write_manifest
from tests.runs import (
    SOPHISTICATED,
    Killed,
    Recorder,
    fingerprint,
    modification_times,
    small_config,
)


def kill_at(epoch, batch):
    def on_step(progress):
        if (progress.epoch, progress.batch) == (epoch, batch):
            raise Killed

    return Recorder(on_step=on_step)


def kill_after(epoch):
    def on_epoch(report):
        if report.epoch == epoch:
            raise Killed

    return Recorder(on_epoch=on_epoch)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------ promise 1: killed anywhere


@pytest.mark.parametrize(
    ("settings", "whole"),
    [({}, "undisturbed"), (SOPHISTICATED, "undisturbed_sophisticated")],
    ids=["plain", "sophisticated"],
)
def test_promise_1_killed_thrice_and_resumed_gives_the_same_bits(
    settings, whole, tmp_path, request
):
    config, whole = small_config(**settings), request.getfixturevalue(whole)
    for place in ((0, 3), (1, 9), (3, 1)):
        with pytest.raises(Killed):
            pdecnn.train(config, output=tmp_path / "run", resume=True, listener=kill_at(*place))
    run = pdecnn.train(config, output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(whole.folder)


def test_promise_1_holds_for_stable_steps_which_keep_vectors(tmp_path):
    config = small_config(
        "parabolic_stable_digits",
        training__epochs=2,
        training__accumulation=5,
        training__average_decay=0.9,
    )
    whole = pdecnn.train(config, output=tmp_path / "whole")
    for place in ((0, 3), (1, 2)):
        with pytest.raises(Killed):
            pdecnn.train(config, output=tmp_path / "run", resume=True, listener=kill_at(*place))
    run = pdecnn.train(config, output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(whole.folder)


def test_promise_1_holds_across_a_change_of_level(tmp_path):
    levels = {
        "training__level_epochs": [1, 1],
        "training__level_sizes": [4, 8],
        "training__level_steps": [1, 2],
        "training__average_decay": 0.9,
    }
    config = small_config(**levels)
    whole = pdecnn.train(config, output=tmp_path / "whole")
    assert [entry["level"] for entry in whole.metrics] == [0, 0, 1, 1]
    folder = tmp_path / "run"
    for listener in (kill_at(1, 9), kill_after(2), kill_at(2, 1), kill_after(3)):
        with pytest.raises(Killed):
            pdecnn.train(config, output=folder, resume=True, listener=listener)
        assert pdecnn.load(folder, "last").num_weights > 0

    def interrupt(progress):
        if (progress.epoch, progress.batch) == (3, 2):
            os.kill(os.getpid(), 15)

    with pytest.raises(Exception, match="SIGTERM"):
        pdecnn.train(config, output=folder, resume=True, listener=Recorder(on_step=interrupt))
    run = pdecnn.train(config, output=folder, resume=True)
    assert fingerprint(run.folder) == fingerprint(whole.folder)
    assert run.summary["best_epoch"] > 2


class Mortal:
    """Counts calls that change files; from call `deadline` on the process is as good as dead.

    Nothing changes a file any more then, not even the cleaning up after errors: what is left on
    the disk is what kill -9 leaves.
    """

    FUNCTIONS = ("open", "replace", "rename", "symlink", "unlink", "rmdir", "mkdir")

    def __init__(self, monkeypatch, deadline):
        self.calls, self.deadline = [], deadline
        for name in self.FUNCTIONS:
            monkeypatch.setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name, function):
        def call(*arguments, **options):
            if self.is_about_the_run(arguments):
                self.calls.append(name)
                if len(self.calls) > self.deadline:
                    raise Killed
            return function(*arguments, **options)

        return call

    def is_about_the_run(self, arguments):
        # Modules that are imported meanwhile are none of our business.
        return ".venv" not in str(arguments[0]) and "__pycache__" not in str(arguments[0])


TINY = {
    "network__channels": [2, 2],
    "network__num_steps": 1,
    "data__fraction": 0.05,
    "training__epochs": 3,
    "training__batch_size": 25,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The undisturbed tiny run and how often it changes files."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(training, "find_spec", lambda name: None)
        folder = tmp_path_factory.mktemp("tiny") / "run"
        pdecnn.train(small_config(**TINY), output=folder.with_name("warm-up"))
        life = Mortal(monkeypatch, deadline=10**9)
        run = pdecnn.train(small_config(**TINY), output=folder)
    return fingerprint(run.folder), len(life.calls)


def check_death_at(deadline, expected, folder, monkeypatch):
    monkeypatch.setattr(training, "find_spec", lambda name: None)
    with monkeypatch.context() as dying:
        Mortal(dying, deadline)
        with pytest.raises(Killed):
            pdecnn.train(small_config(**TINY), output=folder)
    run = pdecnn.train(small_config(**TINY), output=folder, resume=True)
    assert fingerprint(folder) == expected
    assert names_in(run.folder / "checkpoints") == [path.name for path in run.checkpoints]
    # A run killed when all was done has nothing to resume: its lock, which nobody holds, stays.
    assert {name for name in names_in(folder) if name.startswith(".")} <= {".lock", ".holder"}


@pytest.mark.parametrize("part", range(4))
def test_promise_1_and_3_killed_between_writes(part, tiny, tmp_path, monkeypatch):
    expected, num_calls = tiny
    assert num_calls > 60
    check_death_at(num_calls * part // 4 + 3 * part, expected, tmp_path / "run", monkeypatch)


@pytest.mark.slow
def test_promise_1_and_3_killed_at_every_write(tiny, tmp_path, monkeypatch):
    expected, num_calls = tiny
    for deadline in range(num_calls):
        check_death_at(deadline, expected, tmp_path / str(deadline), monkeypatch)
        shutil.rmtree(tmp_path / str(deadline))


# ------------------------------------------------------------------ promises 6, 7 and 8: damage


def flip_a_bit(folder):
    path = folder / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)


def lose_everything(folder):
    for path in folder.iterdir():
        path.unlink()


def become_newer(folder):

    values = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(values | {"format_version": 99}))
    write_manifest(folder, FILES)


DAMAGES = [flip_a_bit, lose_everything, become_newer]
"""One for each way to notice; `test_checkpoint.py` has more of each kind."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run killed after its third epoch of four, to be copied."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    with pytest.raises(Killed):
        pdecnn.train(small_config(), output=folder, listener=kill_after(3))
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_promise_7_a_damaged_newest_checkpoint_is_named_and_skipped(
    damage, killed, undisturbed, tmp_path
):
    folder = shutil.copytree(killed, tmp_path / "run", symlinks=True)
    newest = folder / "checkpoints" / "epoch-0003"
    damage(newest)
    damaged = {path.name: path.read_bytes() for path in newest.iterdir()}
    notes = Recorder()
    pdecnn.train(small_config(), output=folder, resume=True, listener=notes)
    assert len(notes.notes) == 2
    assert "skipped a checkpoint" in notes.notes[0]
    assert "epoch-0003" in notes.notes[0]
    assert notes.notes[1] == "resumed from epoch-0002"
    assert fingerprint(folder) == fingerprint(undisturbed.folder)
    aside = [p for p in (folder / "checkpoints").iterdir() if ".damaged-" in p.name]
    assert len(aside) == 1
    assert {path.name: path.read_bytes() for path in aside[0].iterdir()} == damaged


def test_promise_7_several_damaged_checkpoints_do_not_confuse_what_is_kept(undisturbed, tmp_path):
    config, folder = small_config(), tmp_path / "run"
    for place in ((2, 4), (2, 6), (2, 8)):
        # A signal leaves a checkpoint within the epoch.
        def interrupt(progress, place=place):
            if (progress.epoch, progress.batch) == place:
                os.kill(os.getpid(), 15)

        with pytest.raises(Exception, match="SIGTERM"):
            pdecnn.train(config, output=folder, resume=True, listener=Recorder(on_step=interrupt))
    assert names_in(folder / "checkpoints") == [
        "epoch-0001",
        "epoch-0002",
        "epoch-0002-batch-000004",
        "epoch-0002-batch-000006",
        "epoch-0002-batch-000008",
    ]
    for name in names_in(folder / "checkpoints")[1:]:
        flip_a_bit(folder / "checkpoints" / name)
    notes = kill_after(2)
    with pytest.raises(Killed):
        pdecnn.train(config, output=folder, resume=True, listener=notes)
    assert notes.notes[-1] == "resumed from epoch-0001"
    assert len(notes.notes) == 5
    # The epoch that was done again is there, and with it the weights that `last` means.
    assert (folder / "last").resolve().name == "epoch-0002"
    pdecnn.load(folder, "last")
    notes = Recorder()
    pdecnn.train(config, output=folder, resume=True, listener=notes)
    assert notes.notes == ["resumed from epoch-0002"]
    assert fingerprint(folder) == fingerprint(undisturbed.folder)
    assert len([n for n in names_in(folder / "checkpoints") if ".damaged-" in n]) == 4


def test_promise_7_without_an_intact_checkpoint_nothing_is_touched(killed, tmp_path):
    folder = shutil.copytree(killed, tmp_path / "run", symlinks=True)
    for name in ("epoch-0002", "epoch-0003"):
        flip_a_bit(folder / "checkpoints" / name)
    for name in names_in(folder / "checkpoints"):
        if name not in ("epoch-0002", "epoch-0003"):
            shutil.rmtree(folder / "checkpoints" / name)
    before = modification_times(folder)
    del before[str(folder)]  # which has held the lock meanwhile
    with pytest.raises(CheckpointError, match=r"none of its 2 checkpoints is intact .* anew"):
        pdecnn.train(small_config(), output=folder, resume=True)
    after = modification_times(folder)
    del after[str(folder)]
    assert after == before


def test_lost_metrics_are_noticed_and_not_written_over(killed, tmp_path):
    folder = shutil.copytree(killed, tmp_path / "run", symlinks=True)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text(lines[0])
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: has 1 of 3 epochs"):
        pdecnn.train(small_config(), output=folder, resume=True)
    assert (folder / "metrics.jsonl").read_text() == lines[0]


@pytest.mark.parametrize("line", ['{"epoch": 7}\n', "[]\n", "{}\n"])
def test_metrics_of_other_epochs_are_noticed_too(line, killed, tmp_path):
    folder = shutil.copytree(killed, tmp_path / "run", symlinks=True)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text(lines[0] + line + "".join(lines[2:]))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: line 2 is not of epoch 2"):
        pdecnn.train(small_config(), output=folder, resume=True)


# ------------------------------------------------------------------ what resuming means


def test_a_finished_run_is_left_as_it_is(undisturbed):
    before = modification_times(undisturbed.folder)
    notes = Recorder()
    run = pdecnn.train(
        small_config(), output=undisturbed.folder, resume=True, initial="nowhere", listener=notes
    )
    assert run.folder == undisturbed.folder
    assert notes.notes == [f"{run.folder} is finished; nothing to do"]
    assert modification_times(undisturbed.folder) == before


def test_a_run_without_a_checkpoint_starts_anew(undisturbed, tmp_path):
    with pytest.raises(Killed):
        pdecnn.train(small_config(), output=tmp_path / "run", listener=kill_at(0, 2))
    assert not (tmp_path / "run" / "checkpoints").exists()
    notes = Recorder()
    run = pdecnn.train(small_config(), output=tmp_path / "run", resume=True, listener=notes)
    assert notes.notes == []
    assert fingerprint(run.folder) == fingerprint(undisturbed.folder)


def test_a_folder_that_does_not_exist_starts(undisturbed, tmp_path):
    run = pdecnn.train(small_config(), output=tmp_path / "a" / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(undisturbed.folder)


def test_a_foreign_folder_is_refused_when_resuming_too(tmp_path):
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="holds other files"):
        pdecnn.train(small_config(), output=tmp_path, resume=True)
    assert names_in(tmp_path) == ["thesis.txt"]


def test_other_settings_are_refused_by_name(killed):
    before = modification_times(killed)
    other = small_config(training__epochs=9, network__num_steps=3, seed=4)
    with pytest.raises(ConfigError) as error:
        pdecnn.train(other, output=killed, resume=True)
    for key in ("training.epochs", "network.num_steps", "seed"):
        assert key in str(error.value)
    assert "data.fraction" not in str(error.value)
    assert modification_times(killed) == before


def test_what_changes_no_result_may_differ(killed, undisturbed, tmp_path):
    folder = shutil.copytree(killed, tmp_path / "run", symlinks=True)
    config = small_config(training__time_limit_seconds=1e9)
    pdecnn.train(config, output=folder, resume=True)
    assert fingerprint(folder) == fingerprint(undisturbed.folder)
    # What 'auto' meant when the run was made is written down, and 'auto' means that from then on.
    assert config.training.precision == "auto"
    assert pdecnn.runs.Run(folder).config == small_config(training__precision="float32")


def as_of_before(folder):
    """The config as it was when there was no setting for ties."""
    values = json.loads((folder / "config.json").read_bytes())
    del values["training"]["ties"], values["format_version"]
    write_json(folder / "config.json", values)


def test_a_run_of_before_goes_on_with_the_first_of_equal_epochs(tmp_path, monkeypatch):
    losses = iter([0.9, 0.8, 0.7, 0.6])

    def evaluate(network, image_set, **_settings):
        found = evaluate_network(network, image_set)
        return replace(found, accuracy=0.8, loss=next(losses, 0.6))  # the last: of the test

    monkeypatch.setattr("pdecnn.learning.tasks.evaluate_network", evaluate)
    folder = tmp_path / "run"
    first = small_config(training__ties="first")
    with pytest.raises(Killed):
        pdecnn.train(first, output=folder, listener=kill_after(2))
    as_of_before(folder)
    said_again = {"output": folder, "resume": True}
    config, _ = resolve_run("hamiltonian_digits", assignments=[], **said_again)
    assert config.training.ties == "first"
    by_loss, _ = resolve_run(None, assignments=["training.ties=loss"], **said_again)
    with pytest.raises(ConfigError, match=r"other settings \(training.ties=first\)"):
        pdecnn.train(by_loss, **said_again)
    run = pdecnn.train(config, **said_again)
    assert (run.summary["epochs"], run.summary["best_epoch"]) == (4, 1)
    assert (folder / "best").resolve().name == "epoch-0001"


def test_a_moved_run_goes_on(killed, undisturbed, tmp_path):
    folder = shutil.copytree(killed, tmp_path / "elsewhere", symlinks=True)
    pdecnn.train(small_config(), output=folder, resume=True)
    assert fingerprint(folder) == fingerprint(undisturbed.folder)
