"""A queue of runs: each to its end, whatever happens to the others or to the queue."""

import errno
import fcntl
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from pdecnn.runs.worker import is_complete

import pdecnn
from pdecnn.errors import BusyError, ConfigError, DataError
from pdecnn.files import write_json
from pdecnn.runs import folder_lock, queue, worker
from pdecnn.runs.config import differing_keys
from pdecnn.runs.environment import cpu_threads
from pdecnn.runs.queue import run_queue
from pdecnn.runs.runs import Run
from tests.runs import Recorder, fingerprint, modification_times, small_config

TINY = {"training__epochs": 1}


def configs(**dynamics):
    """Runs of half a second by name."""
    return {name: small_config(f"{value}_digits", **TINY) for name, value in dynamics.items()}


def without_data():
    """A run that cannot even start."""
    return pdecnn.recipe("hamiltonian_cifar10")


def test_each_run_is_trained_and_measured_on_its_training_images(tmp_path):
    runs = configs(heat="parabolic", wave="second_order")
    recorder = Recorder()
    assert run_queue(runs, tmp_path, device="cpu", listener=recorder) == {}
    for name, config in runs.items():
        run = Run(tmp_path / name)
        assert run.is_finished
        assert differing_keys(run.config, config) == ["training.precision"]
        stored = json.loads((run.folder / "training_evaluation.json").read_bytes())
        assert stored == pdecnn.evaluate(run, split="train", device="cpu")
    assert recorder.notes[0] == (
        f"2 runs in {tmp_path}: 0 finished before, 2 to go, 1 at a time on cpu"
    )
    accuracy = Run(tmp_path / "heat").summary["test"]["accuracy"]
    assert recorder.notes[1].startswith(f"  1 of 2  heat: test accuracy {accuracy:.2%}; about ")
    assert recorder.notes[2].endswith("; all done")


def test_finished_runs_are_left_alone(tmp_path):
    runs = configs(heat="parabolic")
    run_queue(runs, tmp_path, device="cpu")
    before = modification_times(tmp_path / "heat")
    recorder = Recorder()
    run_queue(runs, tmp_path, device="cpu", listener=recorder)
    assert modification_times(tmp_path / "heat") == before
    assert "1 finished before, 0 to go" in recorder.notes[0]


def test_a_run_killed_before_its_last_file_is_completed(tmp_path):
    runs = configs(heat="parabolic")
    run_queue(runs, tmp_path, device="cpu")
    (tmp_path / "heat" / "training_evaluation.json").unlink()
    weights = (tmp_path / "heat" / "best" / "model.safetensors").stat().st_mtime_ns
    run_queue(runs, tmp_path, device="cpu")
    assert (tmp_path / "heat" / "training_evaluation.json").exists()
    assert (tmp_path / "heat" / "best" / "model.safetensors").stat().st_mtime_ns == weights


@pytest.mark.parametrize(
    "content",
    ['{"accuracy": 0.', "null", '{"loss": 1.0}', '{"accuracy": NaN}', '{"accuracy": 98.2}'],
)
def test_a_damaged_measurement_is_made_again(tmp_path, content):
    runs = configs(heat="parabolic")
    run_queue(runs, tmp_path, device="cpu")
    path = tmp_path / "heat" / "training_evaluation.json"
    measured = path.read_bytes()
    path.write_text(content)
    recorder = Recorder()
    assert run_queue(runs, tmp_path, device="cpu", listener=recorder) == {}
    assert "0 finished before, 1 to go" in recorder.notes[0]
    assert path.read_bytes() == measured


def test_a_damaged_summary_does_not_stop_the_queue(tmp_path):
    runs = configs(heat="parabolic", wave="second_order")
    run_queue(runs, tmp_path, device="cpu")
    write_json(tmp_path / "heat" / "summary.json", {"stopped": "completed"})
    for name in runs:
        (tmp_path / name / "training_evaluation.json").unlink()
    assert run_queue(runs, tmp_path, device="cpu") == {}
    assert is_complete(tmp_path / "wave")


@pytest.mark.parametrize("num_parallel", [1, 2])
def test_a_run_stopped_by_its_time_limit_is_not_done(tmp_path, num_parallel):
    limit = {"training__epochs": 2, "training__time_limit_seconds": 1e-6}
    runs = {"heat": small_config("parabolic_digits", **limit)}
    recorder = Recorder()
    options = {"device": "cpu", "num_parallel": num_parallel, "listener": recorder}
    failures = run_queue(runs, tmp_path, **options)
    stopped = "stopped at its time limit; run the same command again to go on"
    assert failures == {"heat": stopped}
    assert not (tmp_path / "heat" / "training_evaluation.json").exists()
    assert len(recorder.notes) == 2  # a run that begins has nothing to say
    assert run_queue(runs, tmp_path, **options) == {}
    assert is_complete(tmp_path / "heat")
    # What a run says is passed on with its name, and how many shared the device is kept.
    assert "heat: resumed from epoch-0001" in recorder.notes
    stored = json.loads((tmp_path / "heat" / "conditions.json").read_bytes())
    assert stored == {"runs_at_a_time": num_parallel}


def test_the_training_images_are_measured_with_the_threads_of_the_config(tmp_path, monkeypatch):
    seen = []

    def evaluate(*arguments, **options):
        seen.append(torch.get_num_threads())
        return {"accuracy": 0.5}

    monkeypatch.setattr(worker, "evaluate", evaluate)
    config = small_config("parabolic_digits", training__num_threads=2, **TINY)
    with cpu_threads(1):
        run_queue({"heat": config}, tmp_path, device="cpu")
    assert seen == [2]


def test_a_failed_run_does_not_stop_the_others(tmp_path):
    runs = {"bad": without_data(), **configs(heat="parabolic")}
    recorder = Recorder()
    failures = run_queue(runs, tmp_path, device="cpu", listener=recorder)
    assert list(failures) == ["bad"]
    assert "pass --data DIR" in failures["bad"]
    assert Run(tmp_path / "heat").is_finished
    assert recorder.notes[1].startswith("  1 of 2  bad: failed: data set 'cifar10' is not built in")


def test_an_unexpected_error_is_one_line_with_its_kind(tmp_path, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(queue, "complete_run", fail)
    failures = run_queue(configs(heat="parabolic"), tmp_path, device="cpu")
    assert failures == {"heat": "RuntimeError: two lines"}


def test_a_damaged_run_is_reported_and_the_others_are_trained(tmp_path):
    runs = configs(heat="parabolic", wave="second_order")
    (tmp_path / "heat").mkdir()
    (tmp_path / "heat" / "config.json").write_text("{")
    failures = run_queue(runs, tmp_path, device="cpu")
    assert list(failures) == ["heat"]
    assert "config.json: cannot be read" in failures["heat"]
    assert Run(tmp_path / "wave").is_finished


def test_other_settings_are_refused_before_anything_is_trained(tmp_path):
    run_queue(configs(heat="parabolic"), tmp_path, device="cpu")
    changed = {"new": small_config(), "heat": small_config("parabolic_digits", training__epochs=2)}
    with pytest.raises(ConfigError, match=r"other settings \(training.epochs=1\)"):
        run_queue(changed, tmp_path, device="cpu")
    assert not (tmp_path / "new").exists()


def test_runs_of_before_are_refused_until_their_rule_for_ties_is_asked_for(tmp_path):
    before = small_config("parabolic_digits", **TINY, training__ties="first")
    run_queue({"heat": before}, tmp_path, device="cpu")
    values = before.to_dict()
    del values["training"]["ties"], values["format_version"]
    write_json(tmp_path / "heat" / "config.json", values)
    with pytest.raises(ConfigError, match=r"other settings \(training.ties=first\)"):
        run_queue(configs(heat="parabolic"), tmp_path, device="cpu")
    recorder = Recorder()
    assert run_queue({"heat": before}, tmp_path, device="cpu", listener=recorder) == {}
    assert "1 finished before" in recorder.notes[0]


def test_finished_runs_of_other_data_are_refused_before_anything_is_trained(tmp_path):
    def runs(place, *names):
        config = pdecnn.recipe("hamiltonian_signals").with_settings(
            {"network.channels": [4, 4], "network.num_steps": 1, "data.folder": str(place)}
            | {"training.batch_size": 8, "training.epochs": 1}
        )
        return dict.fromkeys(names, config)

    for name, shift in (("here", 0), ("moved", 0), ("other", 1)):
        x = np.random.default_rng(0).normal(shift, size=(60, 1, 16)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(60) % 2)
    output = tmp_path / "runs"
    assert run_queue(runs(tmp_path / "here.npz", "wave"), output, device="cpu") == {}
    with pytest.raises(DataError, match="wave was begun with other data"):
        run_queue(runs(tmp_path / "other.npz", "new", "wave"), output, device="cpu")
    assert not (output / "new").exists()
    recorder = Recorder()
    moved = runs(tmp_path / "moved.npz", "wave")
    assert run_queue(moved, output, device="cpu", listener=recorder) == {}
    assert recorder.notes[0].startswith(f"1 run in {output}: 1 finished before, 0 to go")


def test_processes_of_their_own_give_the_same_bits(tmp_path):
    runs = configs(heat="parabolic")
    run_queue(runs, tmp_path / "here", device="cpu")
    apart = {**runs, "bad": without_data()}
    failures = run_queue(apart, tmp_path / "apart", device="cpu", num_parallel=2)
    assert list(failures) == ["bad"]
    assert failures["bad"].startswith("data set 'cifar10' is not built in")
    assert fingerprint(tmp_path / "apart" / "heat") == fingerprint(tmp_path / "here" / "heat")
    environment = json.loads((tmp_path / "apart" / "heat" / "environment.json").read_bytes())
    assert environment["command"] == [Path(sys.argv[0]).name, *sys.argv[1:]]


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("pass", None),
        ("import sys; print('first\\nlast', file=sys.stderr); sys.exit(3)", "last"),
        ("raise SystemExit(7)", "ended with exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
)
def test_why_a_process_ended(code, failure):
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen([sys.executable, "-c", code], stderr=errors)
    process.wait()
    worker = queue._Worker(process, errors, tempfile.TemporaryFile())  # noqa: SIM115
    assert worker.failure() == failure
    worker.close()


def test_two_queues_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(queue, "QUEUE_WAIT_SECONDS", 0.2)
    recorder = Recorder()
    with (tmp_path / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="another process is at work there"):
            run_queue(configs(heat="parabolic"), tmp_path, device="cpu", listener=recorder)
    assert recorder.notes == [f"waiting for the runs that are still at work in {tmp_path}"]
    assert not (tmp_path / "heat").exists()
    assert run_queue({}, tmp_path, device="cpu") == {}


def test_a_disk_that_knows_no_locks_is_told(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folder_lock.fcntl, "flock", fail)
    with pytest.raises(ConfigError, match=r"cannot be locked \(No locks available\); choose an"):
        run_queue({}, tmp_path, device="cpu")


@pytest.mark.parametrize("num_parallel", [0, -1])
def test_no_runs_at_a_time_are_refused(tmp_path, num_parallel):
    with pytest.raises(ConfigError, match="at least 1 run at a time"):
        run_queue({}, tmp_path, device="cpu", num_parallel=num_parallel)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be used .*choose another --output"):
        run_queue({}, tmp_path / "file" / "runs", device="cpu")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (99, "99 s"), (150, "2 min"), (7200, "2.0 h")]
)
def test_durations(seconds, text):
    assert queue._duration(seconds) == text


def test_a_worker_ends_when_its_input_does(tmp_path):
    # Its queue was killed: it must not go on training on its own.
    order = {
        "folder": str(tmp_path / "run"),
        "config": small_config(training__epochs=1000).to_dict(),
        "device": "cpu",
        "num_parallel": 1,
        "command": [],
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pdecnn.runs.worker"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()
    while process.poll() is None and not (tmp_path / "run" / "timing.jsonl").exists():
        time.sleep(0.02)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 128 + signal.SIGTERM
    assert errors == b"interrupted by SIGTERM\n"
    assert (tmp_path / "run" / "last" / "state.safetensors").exists()
