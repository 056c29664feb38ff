"""torchrun -m pdecnn: one result whatever the number of ranks, and no hang when one is lost."""

import json
import os
import signal
import time
from contextlib import suppress

import pytest

import pdecnn
from benchmarks.scaling_kills import workers
from tests.ranks import run_ranks, start_ranks
from tests.runs import (
    Recorder,
    call,
    fingerprint,
    finish,
    small_config,
    small_options,
)

RANKS = 2
SETTINGS = {"data__fraction": 1.0, "training__batch_size": 24, "training__epochs": 3}


def train(folder, *options, **settings):
    return ["train", "--output", folder, *options, *small_options(**settings)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two ranks, and what torchrun said of it."""
    folder = tmp_path_factory.mktemp("ranks") / "run"
    return folder, run_ranks(RANKS, *train(folder, "--json", **SETTINGS))


@pytest.fixture(scope="module")
def whole(trained):
    """The fingerprint of an undisturbed run of two ranks."""
    return fingerprint(trained[0])


@pytest.mark.slow
def test_promise_4_rank_0_alone_writes_and_speaks(trained, tmp_path):
    folder, done = trained
    assert done.code == 0, done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert json.loads(done.stdout) == {"run": str(folder), **summary}
    assert done.stderr.count("3 epochs on cpu with 2 ranks, seed 0") == 1
    assert done.stderr.count("epoch   2") == 1
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    assert len((folder / "timing.jsonl").read_text().splitlines()) == 3
    assert not list(folder.rglob(".*"))
    assert json.loads((folder / "environment.json").read_text())["hardware"]["ranks"] == RANKS


@pytest.mark.slow
def test_two_ranks_report_what_one_does(tmp_path):
    """To rounding, which grows with the steps: on little data."""
    settings = {"training__batch_size": 26, "training__epochs": 3}
    done = run_ranks(RANKS, *train(tmp_path / "two", "--quiet", **settings))
    assert done.code == 0, done.stderr
    run = pdecnn.train(small_config(**settings), output=tmp_path / "one", device="cpu")
    two = pdecnn.runs.Run(tmp_path / "two")
    for found, expected in zip(two.metrics, run.metrics, strict=True):
        assert found.pop("reversal_error") is expected.pop("reversal_error") is None
        assert found.pop("nonfinite_batches") == expected.pop("nonfinite_batches") == []
        assert found == pytest.approx(expected, rel=1e-5)


def test_going_on_with_another_number_of_ranks_is_said(tmp_path):
    settings = {"training__time_limit_seconds": 1e-9, "training__epochs": 2}
    config = small_config(**settings)
    run = pdecnn.train(config, output=tmp_path / "run")
    path = run.folder / "environment.json"
    environment = json.loads(path.read_text())
    environment["hardware"]["ranks"] = 2
    path.write_text(json.dumps(environment))
    listener = Recorder()
    pdecnn.train(config, output=run.folder, resume=True, listener=listener)
    assert (
        f"{run.folder} began with 2 ranks and goes on with 1: its figures will agree to rounding, "
        f"not to the bit"
    ) in listener.notes


def test_other_commands_refuse_torchrun(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = call(capsys, monkeypatch, "recipes")
    assert done.code == 2
    assert done.stderr == (
        "pdecnn: torchrun is for train and evaluate; run `pdecnn recipes` without it\n"
    )


@pytest.mark.slow
def test_two_ranks_evaluate_as_one_does(trained):
    folder, _ = trained
    several = run_ranks(RANKS, "evaluate", folder, "--split", "train", "--json")
    assert several.code == 0, several.stderr
    assert json.loads(several.stdout) == pdecnn.evaluate(folder, split="train", device="cpu")


@pytest.mark.slow
def test_what_ranks_cannot_evaluate_is_said_once(trained):
    done = run_ranks(RANKS, "evaluate", trained[0], "--split", "best")
    assert done.code != 0
    assert done.stderr.count("pdecnn: split must be one of") == 1
    assert done.stderr.count("pdecnn (rank") == 0


def wait_for_epoch(process, folder, number):
    """Until so many epochs are saved; the ranks' process ids."""
    while process.poll() is None:
        try:
            if (folder / "timing.jsonl").read_text().count("\n") >= number:
                break
        except FileNotFoundError:
            pass
        time.sleep(0.01)
    return workers(process.pid)


@pytest.mark.slow
def test_promise_21_a_signal_to_one_rank_stops_all_with_a_checkpoint(whole, tmp_path):
    folder = tmp_path / "run"
    process = start_ranks(RANKS, *train(folder, **SETTINGS))
    os.kill(wait_for_epoch(process, folder, 1)[1], signal.SIGTERM)
    done = finish(process)
    assert f"interrupted; go on with `pdecnn train --output {folder} --resume`" in done.stdout
    assert done.stderr.count("pdecnn: interrupted by SIGTERM") == 1
    assert "exitcode  : 143" in done.stderr  # torchrun tells of the first that ended
    done = run_ranks(RANKS, "train", "--quiet", "--output", folder, "--resume")
    assert done.code == 0, done.stderr
    assert fingerprint(folder) == whole


@pytest.mark.slow
def test_promise_22_a_killed_rank_is_restarted_to_the_same_bits(whole, tmp_path):
    folder = tmp_path / "run"
    options = train(folder, "--quiet", "--resume", **SETTINGS)
    process = start_ranks(RANKS, *options, restarts=2, static=True)
    ranks = wait_for_epoch(process, folder, 1)
    while not ranks and process.poll() is None:
        ranks = workers(process.pid)
    with suppress(ProcessLookupError):  # a quick machine may have ended by now
        os.kill(ranks[1], signal.SIGKILL)
    done = finish(process)
    assert done.code == 0, done.stderr
    assert fingerprint(folder) == whole


@pytest.mark.slow
def test_promise_22_without_restarts_a_killed_rank_is_an_error(tmp_path):
    folder = tmp_path / "run"
    process = start_ranks(RANKS, *train(folder, "--quiet", **SETTINGS))
    ranks = wait_for_epoch(process, folder, 1)
    os.kill(ranks[0], signal.SIGKILL)
    done = finish(process)  # which has an end
    assert done.code != 0
    assert "rank 1" in done.stderr
    assert "--resume" in done.stderr
