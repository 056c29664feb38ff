"""Several ranks compute what one does, agree on everything, and never wait for ever."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from time import sleep
from unittest.mock import Mock

import pytest
import torch
from torch.distributed import HashStore

from pdecnn.errors import ConfigError, RankError
from pdecnn.learning.distributed import (
    ALONE,
    ANSWER_SECONDS,
    Ranks,
    agree_on_attempt,
    joined_ranks,
    num_ranks,
)
from tests.ranks import ROOT, run_forks
from tests.unit.learning.rank_checks import CASES
from tests.unit.learning.trainings import make_trainer, run

QUICK = ("hamiltonian exact", "batch norm recomputed", "everything")
SLOW = tuple(name for name in CASES if name not in QUICK)


def checked(folder, names=()):
    code = "from tests.unit.learning.rank_checks import main; main()"
    for done in run_forks(2, code, folder, *names, timeout=800):
        assert done.code == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def agreed(tmp_path_factory):
    return checked(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return checked(tmp_path_factory.mktemp("ranks"), QUICK)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    return checked(tmp_path_factory.mktemp("ranks"), SLOW)


def assert_as_alone(results, name):
    first, second = (result[name] for result in results)
    # Weights, velocities, averages, statistics and sums after 12 steps in float64.
    assert first["difference"] <= 1e-7
    assert first["sha256"] == second["sha256"]
    assert first["evaluation"] == first["evaluation alone"] == second["evaluation"]


@pytest.mark.parametrize("name", QUICK)
def test_two_ranks_train_and_evaluate_as_one_does(quick, name):
    assert_as_alone(quick, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_two_ranks_train_and_evaluate_as_one_does_in_other_cases(slow, name):
    assert_as_alone(slow, name)


def test_ranks_whose_processors_round_differently_have_one_loss(agreed):
    """Else ties of the accuracy, and with them patience, would part them."""
    first, second = (result["rounded differently"] for result in agreed)
    assert first == second > 0


def test_all_ranks_skip_the_step_whose_batch_one_of_them_cannot_use(agreed):
    for result in agreed:
        several, one, difference = result["skipped"]
        assert several == one == 1
        assert difference <= 1e-7


def test_ranks_send_each_other_one_message_a_step_besides_those_of_batch_norms(agreed):
    """Whatever the number of parts: gradient, loss, right answers and range."""
    for result in agreed:
        found = result["messages"]
        gradient, around = found["weights"] + 3, found["sizes"]
        assert around.count(gradient) == 1
        assert around[-1] == gradient
        assert len(around) == 1 + 2 * 2 * found["norms"]


def test_all_ranks_have_a_graph_of_their_step_or_none(agreed):
    """What one cannot compile or capture, none does; weights and figures have the same bits."""
    kinds = ("cannot be compiled: its kernels run", "cannot be captured: its operators run one")
    plain = agreed[0]["without graphs"]
    assert plain["difference"] <= 1e-7
    for number, (first, second) in enumerate(zip(*(r["by graphs"] for r in agreed), strict=True)):
        for found, reason in ((first, "another process cannot"), (second, "no graph")):
            assert found["captured"] == (number < 2)
            assert found["skipped"] == 1
            assert found["sha256"] == plain["sha256"]
            assert len(found["notes"]) == number
            for note, kind in zip(found["notes"], kinds, strict=False):
                assert note.startswith(f"the training step {kind}")
                assert reason in note


@pytest.mark.parametrize("place", ["before a message", "after all messages"])
def test_a_rank_that_alone_runs_out_of_memory_ends_the_others_at_once(tmp_path, place):
    """Its connections end with it: nobody waits for the time limit of an answer."""
    code = "from tests.unit.learning.rank_checks import exhausted; exhausted()"
    for done in run_forks(2, code, tmp_path, place, timeout=ANSWER_SECONDS / 2):
        assert done.code == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert (first[0], second[0]) == ("RankError", "TooLargeError")
    assert "Timed out" not in first[1]
    assert "not enough memory for a batch of 20 in 2 parts" in second[1]


def test_ranks_agree_on_statistics_that_one_would_estimate(agreed):
    first, second = (result["reestimated"] for result in agreed)
    assert first["reports"][0] == second["reports"][0]
    assert first["difference"] <= 1e-7


def test_ranks_go_through_levels_and_switch_blocks_together(agreed):
    first, second = (result["in levels"] for result in agreed)
    assert first["reports"][0] == second["reports"][0]
    several, one = first["reports"]
    assert [report["level"] for report in several] == [report["level"] for report in one]
    assert several[-1]["checkpointed_blocks"] == len(first["modes"])
    assert several[-1]["loss"] == pytest.approx(one[-1]["loss"], rel=1e-7)
    for found in (first, second):
        assert found["difference"] <= 1e-7
        assert set(found["modes"]) == {"checkpointed"}


def test_all_ranks_diverge_at_once(agreed):
    messages = [result["agreements"]["diverged"] for result in agreed]
    assert messages[0] == messages[1]
    assert messages[0][0] == "DivergedError"


def test_ranks_agree(agreed):
    first, second = (result["agreements"] for result in agreed)
    for found in (first, second):
        assert found["first"] == {"rank": 0, "text": "Gauß"}
        assert found["largest"] == 7
        assert found["copied"] == [[0.0, 0.0], 0]
    assert (first["together"], second["together"]) == (0, 1)


def test_an_error_of_one_rank_is_one_of_all_and_said_once(agreed):
    first, second = (result["agreements"] for result in agreed)
    assert first["first fails"] == ["ConfigError", "no such folder", None]
    assert second["first fails"] == ["RankError", "rank 0 failed: no such folder", True]
    assert first["one fails"] == ["RankError", "rank 1: bad data", True]
    assert second["one fails"] == ["ConfigError", "bad data", None]
    assert first["both fail"] == ["ConfigError", "bad", None]
    assert second["both fail"] == ["RankError", "rank 0: bad", True]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the names of threads")
def test_no_thread_of_a_group_outlives_it(agreed):
    """One that sees the interpreter end aborts its process: "terminate called"."""
    for result in agreed:
        threads = result["threads"]
        assert threads["within"]
        assert threads["after"] == threads["after an error"] == []


def test_promise_4_waiting_for_another_rank_has_an_end(agreed):
    kind, text, told = agreed[0]["silence"]
    assert (kind, told) == ("RankError", False)
    assert "does not answer (Timed out waiting 2000ms" in text
    assert "--resume" in text


def test_promise_22_a_step_that_waits_for_another_rank_has_an_end(monkeypatch):
    """In a graph nobody else looks how long a message takes."""
    event = Mock(**{"query.side_effect": [False, True, *[False] * 10_000]})
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    ranks, gpu = Ranks(0, 2), torch.device("cuda")
    ranks.wait_for(gpu)
    assert event.query.call_count == 2
    with pytest.raises(RankError, match=r"does not answer \(a step does not end\).*--resume"):
        ranks.wait_for(gpu, seconds=0.05)
    ALONE.wait_for(gpu)
    ranks.wait_for(torch.device("cpu"))


def test_who_learns_that_a_rank_is_gone_does_not_wait_for_the_steps_taken(monkeypatch):
    trainer = make_trainer()
    monkeypatch.setattr(trainer, "synchronize", lambda: pytest.fail("waits"))

    def poll():
        raise RankError("gone")

    with pytest.raises(RankError, match="gone"):
        run(trainer, poll=poll)


@pytest.mark.parametrize(
    ("settings", "size", "text"),
    [
        ({"batch_size": 20}, 3, "batch_size=20 cannot be divided among 3 ranks"),
        (
            {"batch_size": 20, "accumulation": 5},
            3,
            "batch_size=20 in 5 parts cannot be divided among 3 ranks; set it to a multiple of 15",
        ),
    ],
)
def test_batches_that_do_not_divide_are_refused(settings, size, text):
    with pytest.raises(ConfigError, match=text):
        make_trainer(ranks=Ranks(0, size), **settings)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_shares_of_the_ranks_are_the_parts_of_the_batch(accumulation):
    batches = torch.arange(60).view(3, 20)
    shares = [
        make_trainer(ranks=Ranks(rank, 5), accumulation=accumulation)._share(batches)
        for rank in range(5)
    ]
    for part in range(accumulation):
        together = torch.cat([share.chunk(accumulation, 1)[part] for share in shares], 1)
        assert torch.equal(together, batches.chunk(accumulation, 1)[part])


def test_a_process_that_torchrun_did_not_start_is_alone(monkeypatch):
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    with joined_ranks(torch.device("cpu")) as ranks:
        assert ranks is ALONE
    assert ranks.is_first
    assert ranks.together(lambda: 3) == ranks.first(lambda: 3) == ranks.largest(3) == 3


def test_a_copied_network_belongs_to_the_same_ranks():
    ranks = Ranks(0, 2, control=object())
    trainer = make_trainer(ranks=ranks)
    norm = deepcopy(trainer.network).opening.normalization
    assert norm.sum_.__self__ is ranks
    assert norm.weight is not trainer.network.opening.normalization.weight


def test_half_an_environment_of_torchrun_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError, match=r"MASTER_ADDR.*torchrun"):
        num_ranks()
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match="WORLD_SIZE must be a whole number"):
        num_ranks()


def meet(store, size, *, seconds=20.0, late=()):
    """All ranks agree on an attempt, each in a thread; `late` ones come after the others."""

    def come(rank):
        sleep(0.3 if rank in late else 0)
        return agree_on_attempt(store, rank, size, seconds)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(come, range(size)))


@pytest.mark.parametrize("late", [(), (0,), (1, 2)])
def test_ranks_meet_apart_from_what_earlier_attempts_left(late):
    store, names = HashStore(), set()
    for _ in range(3):
        found = meet(store, 3, late=late)
        assert len(set(found)) == 1
        names |= set(found)
    assert len(names) == 3


def test_promise_22_a_rank_that_never_comes_is_an_error():
    with pytest.raises(RuntimeError, match="not all ranks have come"):
        agree_on_attempt(HashStore(), 1, 2, 0.1)
    with pytest.raises(RuntimeError, match="not all ranks have come"):
        agree_on_attempt(HashStore(), 0, 2, 0.1)


@pytest.fixture(scope="module")
def nccl(tmp_path_factory):
    """In a process of its own, with a limit: nccl has ways of its own to wait for ever."""
    file = tmp_path_factory.mktemp("nccl") / "found.json"
    command = [sys.executable, "-m", "tests.unit.learning.nccl_checks", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text())


@pytest.mark.gpu
def test_a_captured_step_sends_its_message_each_time_it_is_replayed(nccl):
    """And moves to the bits of the step without ranks, by the same kernels."""
    for found in nccl["one message"]:
        assert found["captured"]
        assert not found["notes"]
        assert found["parts"] == ["_prepare", "_keep_statistics", "_gradient", "_apply"]
        assert found["sent"] == 2 + 500 // 64  # trial runs, then each step of the epoch
        assert found["same bits"]
        assert found["sums"] < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["whole", "reestimated"])
def test_a_captured_training_of_a_rank_is_the_eager_one_and_repeats(nccl, name):
    found = nccl[name]
    assert found["captured"] == [True, False]
    assert not found["notes"]
    assert found["repeats"]
    captured, eager = found["losses"]
    assert captured == pytest.approx(eager, rel=1e-3)


@pytest.mark.gpu
def test_a_message_that_cannot_be_captured_is_sent_operator_by_operator(nccl):
    found = nccl["refused"]
    assert not found["captured"]
    first, second = found["notes"]
    assert first.startswith("the training step cannot be compiled: its kernels run as they are")
    assert second.startswith("the training step cannot be captured: its operators run one by one")
    assert found["loss"] > 0


@pytest.mark.gpu
def test_promise_22_a_step_on_a_gpu_that_does_not_end_is_an_error(nccl):
    assert "does not answer (a step does not end)" in nccl["patience"]
