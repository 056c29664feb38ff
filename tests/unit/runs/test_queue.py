"""A queue of runs: each to its end, whatever happens to the others or to the queue."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from subprocess import Popen

import numpy as np
import pytest
import torch
from filelock import FileLock

import pdecnn
from pdecnn.errors import BusyError, ConfigError, DataError
from pdecnn.files import write_json
from pdecnn.runs import queue
from pdecnn.runs.config import differing_keys
from pdecnn.runs.preparation import cpu_threads
from pdecnn.runs.queue import is_complete, run_queue
from pdecnn.runs.runs import Run
from tests.forks import Fork
from tests.runs import Recorder, environment, fingerprint, modification_times, small_config

TINY = {"training__epochs": 1, "data__fraction": 0.05}


def configs(**dynamics):
    """Runs of half a second by name."""
    return {name: small_config(f"{value}_digits", **TINY) for name, value in dynamics.items()}


def without_data():
    """A run that cannot even start."""
    return pdecnn.recipe("hamiltonian_cifar10")


@pytest.fixture(autouse=True, scope="module")
def _forks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Fork)
        yield


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """Two runs that a queue has trained, one that failed, and what was said."""
    folder, recorder = tmp_path_factory.mktemp("queue"), Recorder()
    runs = {"bad": without_data(), **configs(heat="parabolic", wave="second_order")}
    failures = run_queue(runs, folder, device="cpu", num_parallel=2)
    return folder, failures, list(recorder.notes)


@pytest.fixture
def trained(worked, tmp_path):
    """A copy of those that were trained."""
    folder = tmp_path / "runs"
    return Path(shutil.copytree(worked[0], folder, symlinks=True))


def test_each_run_is_trained_and_measured_on_its_training_images(worked):
    folder, _, notes = worked
    for name, config in configs(heat="parabolic", wave="second_order").items():
        run = Run(folder / name)
        assert run.is_finished
        assert differing_keys(run.config, config) == ["training.precision"]
        stored = json.loads((run.folder / "training_evaluation.json").read_bytes())
        assert stored == pdecnn.evaluate(run, split="train", device="cpu")
        conditions = json.loads((run.folder / "conditions.json").read_bytes())
        assert conditions == {"runs_at_a_time": 2}
        written = json.loads((run.folder / "environment.json").read_bytes())
        assert written["command"] == [Path(sys.argv[0]).name, *sys.argv[1:]]
        accuracy = run.summary["test"]["accuracy"]
        assert any(f"{name}: test accuracy {accuracy:.2%}; " in note for note in notes)
    assert notes[0] == f"3 runs in {folder}: 0 finished before, 3 to go, 2 at a time on cpu"
    assert len(notes) == 4  # runs that begin have nothing to say
    assert notes[-1].endswith("; all done")


def test_a_process_of_a_queue_gives_the_bits_of_a_run_by_itself(worked, tmp_path):
    alone = pdecnn.train(configs(heat="parabolic")["heat"], output=tmp_path / "run", device="cpu")
    assert fingerprint(worked[0] / "heat") == fingerprint(alone.folder)


def test_a_failed_run_does_not_stop_the_others_and_leaves_nothing(worked):
    folder, failures, notes = worked
    assert list(failures) == ["bad"]
    assert failures["bad"].startswith("data set 'cifar10' is not built in")
    assert not (folder / "bad").exists()
    assert any("  bad: failed: data set 'cifar10' is not built in" in note for note in notes)


def test_finished_runs_are_left_alone(trained):
    before = modification_times(trained / "heat")
    recorder = Recorder()
    assert run_queue(configs(heat="parabolic"), trained, device="cpu") == {}
    assert modification_times(trained / "heat") == before
    assert "1 finished before, 0 to go" in recorder.notes[0]


@pytest.mark.parametrize(
    "content",
    [None, '{"accuracy": 0.', "null", '{"loss": 1.0}', '{"accuracy": NaN}', '{"accuracy": 98.2}'],
)
def test_a_measurement_that_is_missing_or_damaged_is_made_again(trained, content):
    path = trained / "heat" / "training_evaluation.json"
    measured = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_text(content)
    weights = (trained / "heat" / "best" / "model.safetensors").stat().st_mtime_ns
    recorder = Recorder()
    assert run_queue(configs(heat="parabolic"), trained, device="cpu") == {}
    assert "0 finished before, 1 to go" in recorder.notes[0]
    assert path.read_bytes() == measured
    assert (trained / "heat" / "best" / "model.safetensors").stat().st_mtime_ns == weights


def test_damaged_runs_are_reported_and_do_not_stop_the_queue(trained):
    write_json(trained / "heat" / "summary.json", {"stopped": "completed"})
    (trained / "wave" / "config.json").write_text("{")
    (trained / "heat" / "training_evaluation.json").unlink()
    failures = run_queue(configs(wave="second_order", heat="parabolic"), trained, device="cpu")
    assert list(failures) == ["wave"]
    assert "config.json: cannot be read" in failures["wave"]
    assert is_complete(trained / "heat")


@pytest.mark.slow
def test_a_run_stopped_by_its_time_limit_is_not_done(tmp_path):
    limit = TINY | {"training__epochs": 2, "training__time_limit_seconds": 1e-6}
    runs = {"heat": small_config("parabolic_digits", **limit)}
    failures = run_queue(runs, tmp_path, device="cpu")
    assert failures == {"heat": "stopped at its time limit; run the same command again to go on"}
    assert not (tmp_path / "heat" / "training_evaluation.json").exists()
    recorder = Recorder()
    assert run_queue(runs, tmp_path, device="cpu") == {}
    assert is_complete(tmp_path / "heat")
    assert "heat: resumed from epoch-0001" in recorder.notes  # what a run says, with its name


def test_the_training_images_are_measured_with_the_threads_of_the_config(trained, monkeypatch):
    seen = []

    def evaluate(*arguments, **options):
        seen.append(torch.get_num_threads())
        return {"accuracy": 0.5}

    monkeypatch.setattr(queue, "evaluate", evaluate)
    config = small_config("parabolic_digits", training__num_threads=2, **TINY)
    with cpu_threads(1):
        assert queue._measure(trained / "heat", config, torch.device("cpu")) is None
    assert seen == [2]


def test_an_unexpected_error_is_one_line_with_its_kind(trained, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(queue, "evaluate", fail)
    (trained / "heat" / "training_evaluation.json").unlink()
    failures = run_queue(configs(heat="parabolic"), trained, device="cpu")
    assert failures == {"heat": "RuntimeError: two lines"}


def test_other_settings_are_refused_before_anything_is_trained(trained):
    changed = {"new": small_config(), "heat": small_config("parabolic_digits", **TINY, seed=2)}
    with pytest.raises(ConfigError, match=r"other settings \(seed=0\)"):
        run_queue(changed, trained, device="cpu")
    assert not (trained / "new").exists()


def test_runs_of_before_are_refused_until_their_rule_for_ties_is_asked_for(trained):
    path = trained / "heat" / "config.json"
    values = json.loads(path.read_bytes())
    del values["training"]["ties"], values["format_version"]
    write_json(path, values)
    with pytest.raises(ConfigError, match=r"other settings \(training.ties=first\)"):
        run_queue(configs(heat="parabolic"), trained, device="cpu")
    before = small_config("parabolic_digits", **TINY, training__ties="first")
    assert run_queue({"heat": before}, trained, device="cpu") == {}


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
    assert run_queue(runs(tmp_path / "moved.npz", "wave"), output, device="cpu") == {}
    assert recorder.notes[0].startswith(f"1 run in {output}: 1 finished before, 0 to go")


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("pass", None),
        ("import sys; print('first\\npdecnn: last', file=sys.stderr); sys.exit(3)", "last"),
        ("raise SystemExit(7)", "ended with exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
)
def test_why_a_process_ended(code, failure):
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stderr=errors)
    process.wait()
    worker = queue._Worker(process, errors, tempfile.TemporaryFile())  # noqa: SIM115
    assert worker.failure() == failure
    worker.close()


def test_two_queues_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(queue, "QUEUE_WAIT_SECONDS", 0.2)
    recorder = Recorder()
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(BusyError, match="another process is at work there"),
    ):
        run_queue(configs(heat="parabolic"), tmp_path, device="cpu")
    assert recorder.notes == [f"waiting for the runs that are still at work in {tmp_path}"]
    assert not (tmp_path / "heat").exists()
    assert run_queue({}, tmp_path, device="cpu") == {}


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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_queue_leaves_no_worker_behind(tmp_path, number):
    program = (
        "import sys; from pathlib import Path; from pdecnn.runs.queue import run_queue\n"
        "from tests.runs import small_config\n"
        "config = small_config('parabolic_digits', training__epochs=100_000)\n"
        "run_queue({'heat': config}, Path(sys.argv[1]), device='cpu')\n"
    )
    root = Path(__file__).parents[3]
    process = Popen(  # a fresh interpreter, as are its workers
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=root,
        env=environment() | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
        stderr=subprocess.DEVNULL,
    )
    run, deadline = tmp_path / "heat", time.monotonic() + 400
    while not (run / "timing.jsonl").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    worker = int((run / ".holder").read_text().split()[1])
    process.send_signal(number)
    process.wait(400)
    while (run / ".holder").exists():  # the worker removes it when it has saved and ends
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (run / "last" / "state.safetensors").exists()
    assert "-batch-" in os.readlink(run / "last") or Run(run).metrics
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
