"""torchrun -m pdecnn: one result whatever the number of ranks, and no hang when one is lost."""

import json
import signal

import pytest

import pdecnn
from tests.end_to_end.rank_commands import Fault, plan
from tests.ranks import run_ranks
from tests.runs import Recorder, call, fingerprint, small_config, small_options

SETTINGS = {"training__batch_size": 26, "training__epochs": 3}
STEPS = 10  # of 8 in an epoch


def run_commands(*commands, faults=(), **options):
    """What two ranks of one torchrun do, one command after another."""
    module = "tests.end_to_end.rank_commands"
    return run_ranks(2, plan(*commands, faults=faults), module=module, **options)


def train(folder, *options):
    return ["train", "--output", folder, *options, *small_options(**SETTINGS)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An undisturbed run, what its ranks wrote, and what torchrun said: the last command fails."""
    folder = tmp_path_factory.mktemp("ranks") / "run"
    done = run_commands(
        train(folder, "--json"),
        ["evaluate", folder, "--split", "train", "--json"],
        ["evaluate", folder, "--split", "best"],
    )
    return folder, list(documents(done.stdout)), done


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """The same run, one rank stopped by a signal and later killed; torchrun starts both anew."""
    folder = tmp_path_factory.mktemp("ranks") / "run"
    faults = [Fault(1, signal.SIGTERM, STEPS), Fault(1, signal.SIGKILL, STEPS)]
    return folder, run_commands(train(folder, "--resume"), faults=faults, restarts=2, static=True)


def documents(text):
    """The JSON documents of a text that holds nothing else."""
    while text := text.strip():
        document, end = json.JSONDecoder().raw_decode(text)
        yield document
        text = text[end:]


@pytest.mark.slow
def test_promise_4_rank_0_alone_writes_and_speaks(trained):
    folder, printed, done = trained
    assert len(printed) == 2, done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert printed[0] == {"run": str(folder), **summary}
    assert done.stderr.count("3 epochs on cpu with 2 ranks, seed 0") == 1
    assert done.stderr.count("epoch 2/3") == 1
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    assert len((folder / "timing.jsonl").read_text().splitlines()) == 3
    assert not list(folder.rglob(".*"))
    assert json.loads((folder / "environment.json").read_text())["hardware"]["ranks"] == 2


@pytest.mark.slow
def test_two_ranks_report_what_one_does(trained, tmp_path):
    """To rounding, which grows with the steps: on little data."""
    run = pdecnn.train(small_config(**SETTINGS), output=tmp_path / "one", device="cpu")
    two = pdecnn.runs.Run(trained[0])
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
    folder, printed, _ = trained
    assert printed[1] == pdecnn.evaluate(folder, split="train", device="cpu")


@pytest.mark.slow
def test_what_ranks_cannot_evaluate_is_said_once(trained):
    done = trained[2]
    assert done.code != 0
    assert done.stderr.count("pdecnn: split must be one of") == 1
    assert done.stderr.count("pdecnn (rank") == 0


@pytest.mark.slow
def test_promise_21_a_signal_to_one_rank_stops_all_with_a_checkpoint(trained, disturbed):
    folder, done = disturbed
    assert f"interrupted; go on with `pdecnn train --output {folder} --resume`" in done.stdout
    assert done.stderr.count("pdecnn: interrupted by SIGTERM") == 1
    assert "exitcode: 143" in done.stderr  # torchrun tells of the first that ended
    assert fingerprint(folder) == fingerprint(trained[0])


@pytest.mark.slow
def test_promise_22_a_killed_rank_is_restarted_to_the_same_bits(trained, disturbed):
    folder, done = disturbed
    assert "exitcode: -9" in done.stderr
    assert done.code == 0, done.stderr
    assert fingerprint(folder) == fingerprint(trained[0])


@pytest.mark.slow
def test_promise_22_without_restarts_a_killed_rank_is_an_error(tmp_path):
    fault = Fault(0, signal.SIGKILL, STEPS)
    done = run_commands(train(tmp_path / "run", "--quiet"), faults=[fault])  # which has an end
    assert done.code != 0
    assert "rank 1" in done.stderr
    assert "--resume" in done.stderr
