"""One process trains a run directory at a time; what a dead one left behind is no lock."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import pdecnn
from pdecnn.errors import BusyError, CheckpointError, ConfigError
from pdecnn.runs import runs as directories
from pdecnn.runs import training
from pdecnn.runs.leveling import coarsen
from pdecnn.runs.runs import HOLDER, LOCK, locked_folder
from tests.ranks import start_ranks
from tests.runs import (
    Recorder,
    call,
    fingerprint,
    finish,
    modification_times,
    small_config,
    small_options,
    start,
)

# Waits for a word after its second epoch, so that others may meet it at work.
PAUSING = """
import sys, time
from pathlib import Path
from pdecnn.reports import terminal as console
class Pausing(console.ConsoleListener):
    def epoch(self, report, timing):
        folder = Path(sys.argv[sys.argv.index("--output") + 1]).parent
        if report.epoch == 2 and not (folder / "go").exists():
            (folder / "paused").touch()
            while not (folder / "go").exists():
                time.sleep(0.01)
console.ConsoleListener = Pausing
"""


def wait_for(path, process, seconds=400):
    deadline = time.monotonic() + seconds
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists(), finish(process).stderr


@pytest.fixture
def impatient(monkeypatch):
    """Refusals take no time."""
    monkeypatch.setattr(training, "RUN_WAIT_SECONDS", 0.0)


@pytest.fixture
def at_work(tmp_path):
    """A run that another process trains, which pauses after the second epoch."""
    folder = tmp_path / "run"
    process = start("train", "--output", folder, *small_options(), code=PAUSING)
    try:
        wait_for(tmp_path / "paused", process)
        yield folder, process
    finally:
        (tmp_path / "go").touch()
        finish(process)


def test_a_second_process_is_refused_and_the_first_is_not_disturbed(
    at_work, undisturbed, impatient, capsys, monkeypatch
):
    folder, process = at_work
    before = modification_times(folder)
    done = call(capsys, monkeypatch, "train", "--output", folder, "--resume")
    assert done.code == 8
    assert done.stderr == (
        f"pdecnn: {folder}: process {process.pid} on {socket.gethostname()} is at work there; "
        f"wait until it has ended, or choose another --output\n"
    )
    assert modification_times(folder) == before
    # Reading a run that is being trained is allowed.
    assert 0 <= pdecnn.evaluate(folder)["accuracy"] <= 1
    assert call(capsys, monkeypatch, "diagnose", folder, "--json").code == 0
    assert pdecnn.load(folder).num_weights
    (folder.parent / "go").touch()
    assert finish(process).code == 0
    assert fingerprint(folder) == fingerprint(undisturbed.folder)
    assert not (folder / LOCK).exists()


def test_the_lock_of_a_dead_process_is_recognised(at_work, undisturbed, impatient):
    folder, process = at_work
    process.kill()
    assert finish(process).code == -9
    assert (folder / LOCK).exists()
    notes = Recorder()
    pdecnn.train(small_config(), output=folder, resume=True, listener=notes)
    assert notes.notes[-1].startswith("resumed from epoch-0002")
    assert fingerprint(folder) == fingerprint(undisturbed.folder)
    assert not (folder / LOCK).exists()


def test_a_process_number_used_again_is_no_lock(undisturbed, impatient, tmp_path):
    """A living process has the number that a dead one left in the file."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).write_text(f"process {os.getppid()} on {socket.gethostname()}\n")
    run = pdecnn.train(small_config(), output=tmp_path / "run")
    assert fingerprint(run.folder) == fingerprint(undisturbed.folder)


def test_two_threads_of_one_process_are_refused_too(impatient, tmp_path):
    began, go_on = threading.Event(), threading.Event()

    def pause(progress):
        began.set()
        assert go_on.wait(60)

    config = small_config(training__epochs=1)
    thread = threading.Thread(
        target=pdecnn.train,
        args=(config,),
        kwargs={"output": tmp_path / "run", "listener": Recorder(on_step=pause)},
    )
    thread.start()
    assert began.wait(60)
    try:
        with pytest.raises(BusyError, match=f"process {os.getpid()} "):
            pdecnn.train(config, output=tmp_path / "run", resume=True)
    finally:
        go_on.set()
        thread.join()
    assert pdecnn.train(config, output=tmp_path / "run", resume=True).is_finished


def test_of_two_that_begin_at_once_one_trains(impatient, tmp_path, monkeypatch):
    """Both find the folder free, then both want the lock."""
    original = training.locked_folder

    def late(folder, **options):
        training.locked_folder = original
        pdecnn.train(config, output=folder)
        return original(folder, **options)

    config = small_config(training__epochs=1)
    monkeypatch.setattr(training, "locked_folder", late)
    with pytest.raises(Exception, match="holds a run already"):
        pdecnn.train(config, output=tmp_path / "run")
    assert pdecnn.runs.Run(tmp_path / "run").is_finished


def test_who_waits_gets_the_lock_of_who_ends(tmp_path):
    """The file is removed by its holder: whoever waits for it must take the new one."""
    waiting, entered = threading.Event(), threading.Event()

    def wait():
        with locked_folder(tmp_path, wait_seconds=300, on_wait=waiting.set):
            entered.set()
            assert (tmp_path / LOCK).exists()

    with locked_folder(tmp_path, wait_seconds=0):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(100)
        assert not entered.is_set()
    thread.join(100)
    assert entered.is_set()
    assert not (tmp_path / LOCK).exists()


def test_who_waits_for_a_folder_that_is_taken_back_makes_it_anew(tmp_path):
    """A start that fails removes its folder; the lock of who comes next is not its to remove."""
    folder = tmp_path / "run"
    waiting, entered, go_on = threading.Event(), threading.Event(), threading.Event()
    left = []

    def wait():
        with locked_folder(folder, wait_seconds=300, on_wait=waiting.set):
            entered.set()
            assert go_on.wait(300)
            left.append((folder / LOCK).exists())

    with locked_folder(folder, wait_seconds=0):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(100)
        (folder / HOLDER).unlink()
        (folder / LOCK).unlink()
        folder.rmdir()
        assert entered.wait(100)
    go_on.set()
    thread.join(100)
    assert left == [True]


def test_a_lock_is_no_way_out_of_the_folder(tmp_path):
    (tmp_path / "thesis.txt").write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "thesis.txt")
    with pytest.raises(ConfigError, match="holds other files"):
        pdecnn.train(small_config(), output=tmp_path / "run")
    with (
        pytest.raises(OSError, match="symbolic links"),
        locked_folder(tmp_path / "run", wait_seconds=0),
    ):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "x"


def test_a_disk_without_locks_is_told(tmp_path, monkeypatch):
    def acquire(lock, **options):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(directories.FileLock, "acquire", acquire)
    with pytest.raises(Exception, match=r"cannot be locked \(No locks available\)"):
        pdecnn.train(small_config(), output=tmp_path / "run")


def test_a_failed_start_leaves_no_lock(tmp_path):
    with pytest.raises(Exception, match="batch_size"):
        pdecnn.train(small_config(training__batch_size=10**6), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_child_of_the_trainer_does_not_keep_its_lock(tmp_path, impatient):
    """A process that a run started, and that outlives it, holds nothing."""
    with locked_folder(tmp_path, wait_seconds=0):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with locked_folder(tmp_path, wait_seconds=0):
            pass
    finally:
        child.communicate()


def test_who_resumes_a_run_that_is_just_being_coarsened_waits_for_its_weights(
    undisturbed, impatient, tmp_path, monkeypatch
):
    config = coarsen(undisturbed, space=2, output=tmp_path / "twin").config
    original = pdecnn.Network.save_pretrained
    seen = []

    def save(network, folder):
        monkeypatch.setattr(pdecnn.Network, "save_pretrained", original)
        with pytest.raises(BusyError):
            pdecnn.train(config, output=tmp_path / "coarse", resume=True)
        seen.append(folder)
        return original(network, folder)

    monkeypatch.setattr(pdecnn.Network, "save_pretrained", save)
    run = coarsen(undisturbed, space=2, output=tmp_path / "coarse")
    assert seen == [tmp_path / "coarse" / "initial"]
    assert not (run.folder / LOCK).exists()
    assert pdecnn.train(run.config, output=run.folder, resume=True).is_finished


def test_a_folder_that_cannot_be_made_is_one_line_for_coarsen_too(undisturbed, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be used"):
        coarsen(undisturbed, space=2, output=tmp_path / "file" / "run")


@pytest.mark.slow
def test_ranks_share_a_folder_and_a_second_torchrun_is_refused(tmp_path):
    options = ["train", "--output", tmp_path / "run", "--resume", "--device", "cpu"]
    settings = small_options(training__batch_size=24, training__epochs=4000)
    first = start_ranks(2, *options, *settings)
    wait_for(tmp_path / "run" / "timing.jsonl", first)
    second = finish(start_ranks(2, *options, *settings))
    first.send_signal(signal.SIGTERM)
    stopped = finish(first)
    assert second.code == 1  # torchrun's own
    said = [line for line in second.stderr.splitlines() if line.startswith("pdecnn:")]
    assert len(said) == 1
    assert "is at work there" in said[0]
    assert "interrupted by SIGTERM" in stopped.stderr
    assert not (tmp_path / "run" / LOCK).exists()
