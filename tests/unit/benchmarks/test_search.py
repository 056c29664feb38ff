"""The search: which trials there are, what is written down, and where it goes on."""

import math
import os
import signal
import sys
import threading

import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks import search as module
from benchmarks.resnets import CifarResNet, TrainableResNet
from benchmarks.search import (
    ASKED,
    MOST_WEIGHTS,
    NETWORKS,
    SEARCHED,
    TURNS,
    Choice,
    Row,
    Trial,
    append_row,
    configured,
    draw,
    next_trials,
    read_rows,
    run_trial,
    rungs,
    search,
)
from pdecnn.data.image_set import ImageSet
from pdecnn.learning.capture import compiled_network
from pdecnn.networks.network import Network
from pdecnn.runs.preparation import Splits
from pdecnn.runs.recipes import recipe

NETWORK = "hamiltonian_cifar10_tuned"
PLAN = rungs(9, 2, 18)
CPU = torch.device("cpu")


class Oracle:
    """Workers that know the accuracy of a trial from its number."""

    def __init__(self, most=math.inf):
        self.ran, self.most, self.ended = [], most, 0

    def run(self, trial):
        if len(self.ran) >= self.most:
            return None
        self.ran.append(trial)
        return Row(trial, 0.1 + 0.05 * (trial.trial % 5) + 0.001 * trial.epochs, 3.0)

    def end(self):
        self.ended += 1


def images(number, seed):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (number, 3, 16, 16), dtype=torch.uint8, generator=generator)
    labels = torch.arange(number) % 10
    return ImageSet(images=pixels, labels=labels, class_names=tuple("abcdefghij"))


def test_each_rung_has_a_third_of_the_trials_for_three_times_as_long():
    assert PLAN == [(9, 2), (3, 6), (1, 18)]
    assert rungs(27, 6, 54) == [(27, 6), (9, 18), (3, 54)]
    assert rungs(4, 5, 12) == [(4, 5), (1, 12)]


def test_trials_are_the_same_in_every_call_and_differ():
    trials = [draw(NETWORK, number, 0) for number in range(12)]
    assert trials == [draw(NETWORK, number, 0) for number in range(12)]
    assert len({str(trial) for trial in trials}) == 12
    assert {trial["training.optimizer"] for trial in trials} == {"nesterov", "muon"}
    assert trials != [draw(NETWORK, number, 1) for number in range(12)]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("dynamics", MOST_WEIGHTS)
def test_the_recipe_is_tried_with_what_is_asked(dynamics, asked):
    network, wanted = f"{dynamics}_cifar10_tuned", ASKED[asked]
    own = recipe(network).with_settings({"training.epochs": 5, "data.validation_fraction": 0.2})
    trials = next_trials(network, [(len(wanted), 5)], 0, [], list(wanted))
    assert [trial.trial for trial in trials] == list(wanted)
    for trial, settings in zip(trials, wanted.values(), strict=True):
        config = configured(trial)
        assert config == own.with_settings(settings)
        assert Network(config.network).num_weights <= MOST_WEIGHTS[dynamics]


@pytest.mark.parametrize("dynamics", MOST_WEIGHTS)
def test_every_trial_is_a_config_within_its_weights(dynamics):
    network, seen = f"{dynamics}_cifar10_tuned", []
    for number in range(3 * len(NETWORKS[dynamics])):
        config = configured(Trial(network, 0, number, 7, 3, draw(network, number, 0)))
        assert (config.training.epochs, config.seed) == (7, 3)
        assert config.data.validation_fraction == 0.2
        if config.network not in seen:
            seen.append(config.network)
            assert Network(config.network).num_weights <= MOST_WEIGHTS[dynamics]
    with_steps = 2 if dynamics == SEARCHED else 1  # of one or of two
    assert len(NETWORKS[dynamics]) <= len(seen) <= with_steps * len(NETWORKS[dynamics])


def test_every_network_meets_every_optimiser():
    trials = [draw(NETWORK, number, 0) for number in range(15)]
    met = {(str(trial["network.num_steps"]), trial["training.optimizer"]) for trial in trials}
    assert len(met) == 2 * len(NETWORKS["hamiltonian"])


def test_a_trial_of_gradient_descent_decays_in_the_loss_alone():
    settings = next(draw(NETWORK, k, 0) for k in range(18) if TURNS[k % 3] == "nesterov")
    training = configured(Trial(NETWORK, 0, 0, 1, 0, settings)).training
    assert training.weight_decay == 0 < training.decay_weight


def test_resnets_are_searched_in_optimiser_rate_and_decay_alone():
    keys = {"optimizer", "learning_rates", "decay_weight", "weight_decay"}
    for number in range(4):
        assert {key.partition(".")[2] for key in draw("resnet20", number, 0)} <= keys


def test_the_best_of_a_rung_go_on(tmp_path):
    workers, path = Oracle(), tmp_path / "search.csv"
    assert search(NETWORK, PLAN, path=path, workers=workers, jobs=2)
    found = [(trial.rung, trial.trial, trial.epochs) for trial in workers.ran]
    assert sorted(found[:9]) == [(0, number, 2) for number in range(9)]
    assert sorted(found[9:12]) == [(1, 3, 6), (1, 4, 6), (1, 8, 6)]
    assert found[12:] == [(2, 4, 18)]
    assert workers.ended == 1
    rows = read_rows(path)
    assert len(rows) == 13
    for row in rows:
        config = configured(row.trial)
        assert config == configured(row.trial._replace(settings=draw(NETWORK, row.trial.trial, 0)))


def test_a_search_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "search.csv"
    first = Oracle(most=5)
    with pytest.raises(RuntimeError, match="has ended"):
        search(NETWORK, PLAN, path=path, workers=first, jobs=1)
    second = Oracle()
    assert search(NETWORK, PLAN, path=path, workers=second, jobs=1)
    assert [t.key for t in first.ran + second.ran] == [row.trial.key for row in read_rows(path)]
    assert len(first.ran + second.ran) == 13
    third = Oracle()
    assert search(NETWORK, PLAN, path=path, workers=third, jobs=1)
    assert third.ran == []


def finished(number):
    return Row(Trial(NETWORK, 0, number, 2, 0, draw(NETWORK, number, 0)), 0.5, 3.0)


def test_a_search_killed_while_it_writes_a_row_leaves_the_rows_before(tmp_path, monkeypatch):
    path = tmp_path / "search.csv"
    for number in range(2):
        append_row(path, finished(number))

    def killed(*arguments):
        raise KeyboardInterrupt

    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, killed)
            with pytest.raises(KeyboardInterrupt):
                append_row(path, finished(2))
        assert read_rows(path) == [finished(0), finished(1)]
    append_row(path, finished(2))
    assert read_rows(path) == list(map(finished, range(3)))


@pytest.mark.parametrize("damaged", [2, 3])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.9])
def test_a_row_that_is_not_whole_is_named_by_its_line(tmp_path, damaged, share):
    path = tmp_path / "search.csv"
    for number in range(2):
        append_row(path, finished(number))
    lines = path.read_text().splitlines(keepends=True)
    line = lines[damaged - 1]
    for end in ("", "\n"):
        lines[damaged - 1] = line[: int(share * len(line))] + end
        path.write_text("".join(lines))
        with pytest.raises(ValueError, match=rf"line {damaged} is no finished trial \(.*remove"):
            read_rows(path)


def test_a_trial_that_would_end_too_late_is_not_begun(tmp_path):
    path, workers = tmp_path / "search.csv", Oracle()
    append_row(path, Row(Trial(NETWORK, 0, 0, 2, 0, draw(NETWORK, 0, 0)), 0.5, 1000.0))
    assert not search(NETWORK, PLAN, path=path, workers=workers, jobs=2, seconds=60)
    assert workers.ran == []


def test_a_search_that_is_told_to_end_ends_its_trials(tmp_path, monkeypatch):
    ended = threading.Event()

    class Workers:
        def __init__(self, *arguments):
            pass

        def run(self, trial):
            os.kill(os.getpid(), signal.SIGTERM)
            ended.wait()  # as a trial of many epochs

        def end(self):
            ended.set()

    def untold(*arguments):
        raise AssertionError("it would end and leave its trials at work")

    monkeypatch.setattr(module, "Workers", Workers)
    output = str(tmp_path / "search.csv")
    monkeypatch.setattr(sys, "argv", ["search", "resnet20", "--jobs", "1", "--output", output])
    before = signal.signal(signal.SIGTERM, untold)
    try:
        with pytest.raises(SystemExit):
            module.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.is_set()


def test_the_settings_of_a_trial_stay_those_it_began_with(tmp_path, monkeypatch):
    """Whoever changes the space in the midst of a search changes what has not begun."""
    rows = [
        Row(Trial(NETWORK, 0, number, 2, 0, {"training.label_smoothing": number / 20}), 0.5, 1.0)
        for number in range(9)
    ]
    monkeypatch.setitem(module.OPTIMIZERS, "muon", {"training.label_smoothing": Choice((0.9,))})
    for trial in next_trials(NETWORK, PLAN, 0, rows):
        assert trial.settings == {"training.label_smoothing": trial.trial / 20}


@pytest.mark.parametrize("network", [NETWORK, "resnet20"])
def test_a_trial_trains_and_scores_validation_images_alone(network):
    settings = {"training.batch_size": 20}
    if network == NETWORK:
        settings |= {
            "network.channels": [4, 6, 6],
            "network.num_steps": 2,
            "training.average_decay": 0.9,
        }
    trial = Trial(network, 0, 0, 1, 0, settings)
    row = run_trial(trial, Splits(images(40, 0), images(30, 1), None), CPU)
    assert row.trial is trial
    assert 0 <= row.accuracy <= 1


def test_a_trial_that_diverges_is_the_last():
    settings = {"training.batch_size": 20, "training.learning_rates": [1e30]}
    trial = Trial(
        NETWORK, 0, 0, 3, 0, settings | {"network.channels": [4, 6, 6], "network.num_steps": 2}
    )
    assert run_trial(trial, Splits(images(40, 0), images(30, 1), None), CPU).accuracy == 0


@pytest.mark.parametrize(("depth", "num_weights"), [(20, 269_722), (32, 464_154)])
def test_the_resnet_of_our_trainer_is_the_plain_one(depth, num_weights):
    plain, ours = CifarResNet(depth), TrainableResNet(depth)
    assert ours.num_weights == num_weights
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), plain.parameters(), strict=True):
            mine.copy_(other)
    inputs = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(ours(inputs), plain(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_resnet_of_our_trainer_compiles():
    network, inputs = TrainableResNet(20), torch.randn(4, 3, 16, 16)
    expected = network(inputs)
    torch._dynamo.reset()
    counters.clear()
    with compiled_network(network, "aot_eager"):
        found = network(inputs)
        found.sum().backward()
    torch.testing.assert_close(found, expected)
    assert counters["stats"]["unique_graphs"] == 4  # the opening, and each of three stages
