"""`pdecnn reproduce`: from data to picture, interrupted, failed, and in the real formats."""

import csv
import json
import signal
import subprocess
import time

import pytest

from pdecnn.data.published import CIFAR10, CIFAR100
from tests.forks import Fork
from tests.runs import call, command, fingerprint, finish, modification_times, start
from tests.unit.data import test_cifar, test_stl10

FIGURES = [f"figure{k}.{suffix}" for k in range(1, 5) for suffix in ("png", "svg")]
PAGES = ["README.md", "table1.md", *(f"figure{k}.md" for k in range(1, 5))]
FILES = [*PAGES, *FIGURES, "table1.csv", "table1.tex"]
TINY = ("--seeds", 1, "--set", "training.epochs=1", "--set", "data.fraction=0.3")


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def table_rows(output):
    return list(csv.DictReader((output / "table1.csv").read_text().splitlines()))


@pytest.fixture
def run_command(capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", Fork)
    return lambda *arguments: call(capsys, monkeypatch, *arguments)


def test_a_figure_from_data_to_picture(run_command, tmp_path):
    options = ("reproduce", "figure4", "--quick", "--output", tmp_path / "out", *TINY)
    done = run_command(*options, "--device", "cpu")
    assert (done.code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].endswith("runs: 0 finished before, 6 to go, 1 at a time on cpu")
    assert len(lines) == 1 + 6 + 1
    # Wherever a run is named after a data set it says that digits stand in for it.
    assert done.stdout.count("cifar") == done.stdout.count("_digits-for-cifar") == 6
    files = ["figure4.png", "figure4.svg", "figure4.md", "README.md"]
    assert lines[-1] == f"in {tmp_path / 'out'}: {', '.join(files)}"
    assert names(tmp_path / "out") == sorted([*files, "runs"])
    again = run_command(*options, "--json", "--device", "cpu")
    assert "6 finished before, 0 to go" in again.stderr
    paths = [str(tmp_path / "out" / name) for name in files]
    assert json.loads(again.stdout) == {"files": paths, "failures": {}}
    # A run damaged since then is told, and the figure is drawn without it.
    damaged = "parabolic_digits-for-cifar10-seed0"
    (tmp_path / "out" / "runs" / damaged / "environment.json").write_text('{"versions": ')
    done = run_command(*options, "--quiet", "--json", "--device", "cpu")
    assert done.code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"pdecnn: {damaged} failed: ")
    assert "environment.json: damaged" in line
    assert list(json.loads(done.stdout)["failures"]) == [damaged]
    assert f"- `{damaged}`: " in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("option", ["--datasets", "--dynamics"])
def test_an_empty_choice_is_refused(run_command, tmp_path, option):
    done = run_command("reproduce", "all", "--quick", "--output", tmp_path / "out", option, " ,")
    assert done.code == 2
    assert done.stderr == f"pdecnn: {option} names nothing; say which, or leave it out for all\n"
    assert not (tmp_path / "out").exists()


def test_a_failed_run_is_reported_and_the_rest_is_drawn(run_command, tmp_path):
    output = tmp_path / "out"
    broken = output / "runs" / "hamiltonian_digits-for-cifar10-seed0"
    broken.mkdir(parents=True)
    (broken / "foreign").write_text("")
    options = ("--datasets", "cifar10", "--dynamics", "hamiltonian,parabolic", "--quiet", *TINY)
    done = run_command("reproduce", "table1", "--quick", "--output", output, *options)
    assert (done.code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"pdecnn: {broken.name} failed: ")
    assert "holds other files" in line
    rows = table_rows(output)
    assert [(row["network"], row["seeds"]) for row in rows] == [
        ("parabolic", "1"),
        ("hamiltonian", "0"),
    ]
    assert f"`{broken.name}`: " + line.split("failed: ")[1] in (output / "README.md").read_text()
    # The cause removed, the same command does what is left.
    (broken / "foreign").unlink()
    done = run_command("reproduce", "table1", "--quick", "--output", output, *options)
    assert (done.code, done.stderr) == (0, "")
    assert [row["seeds"] for row in table_rows(output)] == ["1", "1"]


def test_all_three_data_sets_in_their_published_formats(run_command, tmp_path):
    data = tmp_path / "data"
    (data / "cifar10").mkdir(parents=True)
    test_cifar.write_files(data / "cifar10", CIFAR10, records_per_file=8)
    test_cifar.write_files(data, CIFAR100, records_per_file=40)
    test_stl10.write_files(data, num_train=40, num_test=10)
    settings = {
        "network.channels": "2,2,2",
        "network.num_steps": 1,
        "training.epochs": 1,
        "training.batch_size": 4,
    }
    options = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    options += ["--seeds", 1, "--dynamics", "hamiltonian", "--device", "cpu", "--quiet"]
    output = tmp_path / "out"
    done = run_command("reproduce", "table1", "--data", data, "--output", output, *options)
    assert (done.code, done.stderr, done.stdout) == (0, "", "")
    assert names(output) == ["README.md", "runs", "table1.csv", "table1.md", "table1.tex"]
    table = [f"hamiltonian_{dataset}-seed0" for dataset in ("stl10", "cifar10", "cifar100")]
    assert names(output / "runs") == sorted(table)
    summaries = [json.loads((output / "runs" / n / "summary.json").read_bytes()) for n in table]
    assert [summary["test"]["num_images"] for summary in summaries] == [10, 8, 40]
    trained = output / "runs" / table[0] / "training_evaluation.json"
    assert json.loads(trained.read_bytes())["num_images"] == 32  # 8 of 40 validate
    assert "Quick" not in (output / "README.md").read_text()


def test_data_that_is_missing_is_told_before_anything_is_trained(run_command, tmp_path):
    test_cifar.write_files(tmp_path, CIFAR10)
    output = tmp_path / "out"
    done = run_command("reproduce", "table1", "--data", tmp_path, "--output", output)
    assert (done.code, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert "neither stl10_binary nor train_X.bin" in line
    assert line.endswith("; or leave stl10 out with --datasets")
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_paper_in_its_quick_version(tmp_path):
    options = ("reproduce", "all", "--quick", "--seeds", 1, "--device", "cpu")
    done = finish(start(*options, cwd=tmp_path), timeout=1500)
    assert (done.code, done.stderr) == (0, "")
    output = tmp_path / "reproduction-quick"
    assert names(output) == sorted([*FILES, "runs"])
    rows = table_rows(output)
    assert len(rows) == 15
    assert all(row["seeds"] == "1" for row in rows)
    # Small networks for a few epochs, yet all of them learn.
    assert min(float(row["test_accuracy"]) for row in rows) > 0.3
    assert min(float(row["training_accuracy"]) for row in rows) > 0.3
    assert "Quick version" in (output / "README.md").read_text()
    before = modification_times(output / "runs")
    again = command(*options, cwd=tmp_path)
    assert "24 finished before, 0 to go" in again.stdout
    del before[str(output / "runs")]  # the lock was there for a moment
    after = modification_times(output / "runs")
    assert {path: after[path] for path in before} == before


INTERRUPTED = (
    *("reproduce", "figure4", "--quick", "--seeds", 1, "--dynamics", "parabolic", "--jobs", 2),
    *("--device", "cpu", "--set", "training.epochs=12"),
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    done = command(*INTERRUPTED, "--output", folder)
    assert done.code == 0, done.stderr
    return {run.name: fingerprint(run) for run in folder.glob("runs/*-seed0")}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_interrupted_and_run_again(undisturbed, tmp_path, number, code):
    process = start(*INTERRUPTED, "--output", tmp_path)
    while process.poll() is None and len(list(tmp_path.glob("runs/*/timing.jsonl"))) < 2:
        time.sleep(0.01)
    process.send_signal(number)
    done = finish(process)
    assert done.code == code
    if code > 0:
        assert done.stderr == f"pdecnn: interrupted by {number.name}\n"
        assert done.stdout.endswith("interrupted; run the same command again to go on\n")
        # Both were stopped in order: each has a checkpoint and nobody writes any more.
        assert len(list(tmp_path.glob("runs/*/last/state.safetensors"))) == 2
        assert not list(tmp_path.glob("runs/*/summary.json"))
    done = command(*INTERRUPTED, "--output", tmp_path)
    assert (done.code, done.stderr) == (0, "")
    assert {run.name: fingerprint(run) for run in tmp_path.glob("runs/*-seed0")} == undisturbed
