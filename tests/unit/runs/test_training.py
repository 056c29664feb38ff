"""A run from config to summary: repeatable, bounded in time, started from other weights."""

import json
import signal
import threading
import weakref
from contextlib import contextmanager, nullcontext

import pytest
import torch
from safetensors.torch import load_file

import pdecnn
from pdecnn.errors import CheckpointError, ConfigError, DivergedError
from pdecnn.learning.distributed import ALONE
from pdecnn.runs import training
from pdecnn.runs.preparation import Interrupted
from tests.runs import Recorder, fingerprint, modification_times, small_config
from tests.unit.learning.trainings import Rehearsed, rehearsed_graphs


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def test_a_run_directory_holds_what_the_documentation_says(undisturbed):
    names = {path.name for path in undisturbed.folder.iterdir()} - {"tensorboard"}
    assert names == {
        "config.json",
        "environment.json",
        "data.json",
        "metrics.jsonl",
        "timing.jsonl",
        "summary.json",
        "predictions.safetensors",
        "checkpoints",
        "best",
        "last",
    }
    summary = undisturbed.summary
    best = undisturbed.checkpoint_path(summary["best_epoch"], 0)
    assert (undisturbed.folder / "best").resolve() == best.resolve()
    assert (undisturbed.folder / "last").resolve().name == "epoch-0004"
    kept = [path.name for path in undisturbed.checkpoints]
    assert kept == sorted({best.name, "epoch-0003", "epoch-0004"})


@pytest.mark.parametrize(("normalization", "is_said"), [("batch", True), ("tv", False)])
def test_it_is_said_that_shared_batch_norms_fit_no_step(tmp_path, caplog, normalization, is_said):
    caplog.set_level("INFO", logger="pdecnn")
    settings = {"network__normalization": normalization, "training__epochs": 1}
    pdecnn.train(small_config(network__share_weights=True, **settings), output=tmp_path / "run")
    assert ("the steps of a block share a batch norm" in caplog.text) == is_said


def test_the_summary_is_that_of_the_best_epoch(undisturbed):
    summary, metrics = undisturbed.summary, undisturbed.metrics
    accuracies = [entry["validation_accuracy"] for entry in metrics]
    assert summary["stopped"] == "completed"
    assert summary["epochs"] == len(metrics) == 4
    assert summary["best_validation_accuracy"] == max(accuracies)
    assert summary["best_epoch"] == accuracies.index(max(accuracies)) + 1
    assert summary["class_names"] == [str(digit) for digit in range(10)]
    confusion = torch.tensor(summary["test"]["confusion"])
    assert confusion.sum() == summary["test"]["num_images"] == 360
    assert summary["test"]["accuracy"] == pytest.approx(float(confusion.diagonal().sum()) / 360)


def test_the_best_weights_score_on_validation_what_they_were_chosen_for(tmp_path):
    """With re-estimated statistics: those of `best` are the ones it was validated with."""
    config = small_config(training__batch_norm_statistics="reestimated")
    run = pdecnn.train(config, output=tmp_path / "run", device="cpu")
    found = pdecnn.evaluate(run.folder, split="validation")
    assert found["accuracy"] == run.summary["best_validation_accuracy"]


def test_shown_predictions_are_real_images_with_probabilities(undisturbed):
    shown = load_file(undisturbed.folder / "predictions.safetensors")
    assert shown["images"].shape == (6, 1, 8, 8)
    assert shown["images"].dtype == torch.uint8
    assert shown["labels"].shape == (6,)
    torch.testing.assert_close(shown["probabilities"].sum(1), torch.ones(6))


def test_metrics_hold_nothing_that_depends_on_the_clock(undisturbed):
    for epoch, entry in enumerate(undisturbed.metrics, start=1):
        assert list(entry) == [
            "epoch",
            "step",
            "learning_rate",
            "loss",
            "data_loss",
            "smoothness",
            "decay",
            "accuracy",
            "validation_loss",
            "validation_accuracy",
            "nonfinite_steps",
            "nonfinite_batches",
            "reversal_error",
            "checkpointed_blocks",
            "level",
            "work",
        ]
        assert entry["epoch"] == epoch
        parts = entry["data_loss"] + entry["smoothness"] + entry["decay"]
        assert entry["loss"] == pytest.approx(parts)


def test_timing_has_a_line_an_epoch(undisturbed):
    lines = (undisturbed.folder / "timing.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["epoch"] for entry in entries] == [1, 2, 3, 4]
    assert all(set(e) == {"epoch", "seconds", "images_per_second"} for e in entries)
    assert all(entry["seconds"] > 0 for entry in entries)
    images = [entry["seconds"] * entry["images_per_second"] for entry in entries]
    assert images == pytest.approx([225] * 4, rel=0.05)  # 9 batches of 25


def test_equal_configs_give_equal_bits_whatever_was_random_before(undisturbed, tmp_path):
    torch.manual_seed(12345)
    state = torch.get_rng_state()
    again = pdecnn.train(small_config(), output=tmp_path / "again")
    assert fingerprint(again.folder) == fingerprint(undisturbed.folder)
    # And it uses up nobody else's random numbers.
    assert torch.equal(torch.get_rng_state(), state)


def test_promise_24_another_seed_gives_another_run(undisturbed, tmp_path):
    other = pdecnn.train(small_config(seed=1, training__epochs=1), output=tmp_path / "other")
    assert other.metrics[0] != undisturbed.metrics[0]
    one, two = weights_of(undisturbed.weights("last")), weights_of(other.weights("last"))
    assert not torch.equal(one["opening.convolution.stencil"], two["opening.convolution.stencil"])


def test_training_in_another_thread_gives_the_same_bits(undisturbed, tmp_path):
    runs = []

    def work():
        torch.set_num_threads(1)
        runs.append(pdecnn.train(small_config(), output=tmp_path / "run"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=400)
    assert fingerprint(runs[0].folder) == fingerprint(undisturbed.folder)


def test_without_a_folder_each_run_gets_a_fresh_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = small_config(training__epochs=1, data__fraction=0.05)
    folders = [str(pdecnn.train(config).folder) for _ in range(2)]
    assert folders == ["runs/hamiltonian_digits-1", "runs/hamiltonian_digits-2"]


def test_an_existing_run_is_refused_and_not_touched(undisturbed):
    before = modification_times(undisturbed.folder)
    with pytest.raises(ConfigError, match="holds a run already; pass --resume"):
        pdecnn.train(small_config(), output=undisturbed.folder)
    assert modification_times(undisturbed.folder) == before


def test_a_start_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pdecnn.DataError, match="--data"):
        pdecnn.train(pdecnn.recipe("hamiltonian_cifar10"))
    with pytest.raises(ConfigError, match="batch_size"):
        pdecnn.train(small_config(training__batch_size=5000), output=tmp_path / "run")
    with pytest.raises(CheckpointError):
        pdecnn.train(small_config(), output=tmp_path / "run", initial=tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_divergence_is_named_and_the_run_can_be_looked_at(tmp_path):
    config = small_config(training__learning_rates=[1e30, 1e30, 1e30])
    with pytest.raises(DivergedError, match=r"diverged at step \d+ .*learning rate 1e\+30"):
        pdecnn.train(config, output=tmp_path / "run")
    assert (tmp_path / "run" / "config.json").exists()
    assert not (tmp_path / "run" / "summary.json").exists()


# ------------------------------------------------------------------ when training ends


def test_early_stopping_ends_a_run_that_gets_no_better(tmp_path):
    # Hardly any learning: the accuracy stays what it is.
    config = small_config(
        training__learning_rates=[1e-9, 1e-9, 1e-9],
        training__momentum=0.0,
        training__patience=2,
        training__epochs=50,
        training__average_decay=0.5,
        data__fraction=0.05,
    )
    run = pdecnn.train(config, output=tmp_path / "run")
    summary = run.summary
    assert summary["stopped"] == "early_stopping"
    assert summary["epochs"] == summary["best_epoch"] + 2 < 50
    before = modification_times(run.folder)
    notes = Recorder()
    pdecnn.train(config, output=run.folder, resume=True, listener=notes)
    assert modification_times(run.folder) == before
    assert notes.notes == [f"{run.folder} is finished; nothing to do"]


def test_a_time_limit_ends_at_an_epoch_and_resuming_reaches_the_same_end(undisturbed, tmp_path):
    limited = small_config(training__time_limit_seconds=1e-3)
    run = pdecnn.train(limited, output=tmp_path / "run")
    assert run.summary["stopped"] == "time_limit"
    assert run.summary["epochs"] == len(run.metrics) == 1
    assert not run.is_finished
    # Again with the limit: one more epoch. Then without.
    assert pdecnn.train(limited, output=run.folder, resume=True).summary["epochs"] == 2
    pdecnn.train(small_config(), output=run.folder, resume=True)
    assert run.is_finished
    assert fingerprint(run.folder) == fingerprint(undisturbed.folder)


def test_a_time_limit_in_the_last_epoch_is_no_reason(tmp_path):
    config = small_config(training__epochs=1, training__time_limit_seconds=1e-3)
    assert pdecnn.train(config, output=tmp_path / "run").summary["stopped"] == "completed"


@pytest.mark.parametrize("interrupted", [False, True])
def test_graphs_go_before_the_ranks_part(tmp_path, monkeypatch, interrupted):
    """nccl would wait for ever for a graph that holds its messages."""
    made, left = [], []

    class Graph(Rehearsed):
        def __init__(self, function, state):
            super().__init__(function, state)
            made.append(weakref.ref(self))

    @contextmanager
    def joined(device):
        try:
            yield ALONE
        finally:
            left.extend(graph() for graph in made)

    def on_step(progress):
        if interrupted:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(training, "joined_ranks", joined)
    listener = Recorder(on_step=on_step)  # it keeps the trainer
    with rehearsed_graphs(Graph), pytest.raises(Interrupted) if interrupted else nullcontext():
        config = small_config(training__epochs=1)
        pdecnn.train(config, output=tmp_path / "run", listener=listener)
    assert left == [None]


# ------------------------------------------------------------------ other weights to start from


@pytest.fixture
def starts(monkeypatch):
    """The weights of every trainer when its first epoch begins."""
    seen = []
    original = training._Walk.train

    def look(walk):
        weights = walk.trainer.network.state_dict()
        seen.append({name: tensor.clone() for name, tensor in weights.items()})
        original(walk)

    monkeypatch.setattr(training._Walk, "train", look)
    return seen


@pytest.mark.parametrize("part", ["", "best", "last"])
def test_a_run_starts_from_the_weights_of_a_run_or_of_a_folder(undisturbed, tmp_path, starts, part):
    source = undisturbed.folder / part
    pdecnn.train(small_config(training__epochs=1), output=tmp_path / "run", initial=source)
    expected = weights_of(undisturbed.weights(part or "best"))
    assert starts[0].keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(starts[0][name], tensor), name


def test_with_another_number_of_classes_the_classifier_is_fresh(tmp_path, starts, undisturbed):
    torch.manual_seed(1)
    source = pdecnn.Network(
        pdecnn.create_model(
            "hamiltonian_digits", channels=(8, 8), num_steps=2, num_classes=4
        ).config
    )
    source.save_pretrained(tmp_path / "source")
    config = small_config(training__epochs=1)
    pdecnn.train(config, output=tmp_path / "fresh")
    pdecnn.train(config, output=tmp_path / "run", initial=tmp_path / "source")
    fresh, started = starts
    for name, tensor in source.state_dict().items():
        if name.startswith("classifier"):
            assert torch.equal(started[name], fresh[name]), name
        else:
            assert torch.equal(started[name], tensor), name


def test_weights_of_another_architecture_are_refused(tmp_path, undisturbed):
    for settings in ({"network__channels": [8, 16]}, {"network__num_steps": 3}):
        with pytest.raises(CheckpointError, match="another architecture"):
            pdecnn.train(
                small_config(**settings), output=tmp_path / "run", initial=undisturbed.folder
            )
    with pytest.raises(CheckpointError, match="another architecture"):
        pdecnn.train(
            small_config("parabolic_digits"), output=tmp_path / "run", initial=undisturbed.folder
        )


@pytest.mark.parametrize("killed_after", ["begin", "epoch"])
def test_resuming_does_not_need_the_other_weights_again(undisturbed, tmp_path, killed_after):
    from tests.runs import Killed

    config = small_config(training__epochs=2)
    whole = pdecnn.train(config, output=tmp_path / "whole", initial=undisturbed.folder)

    def kill(*arguments):
        raise Killed

    dying = Recorder(on_epoch=kill)
    if killed_after == "begin":
        dying.begin = kill
    with pytest.raises(Killed):
        pdecnn.train(config, output=tmp_path / "run", initial=undisturbed.folder, listener=dying)
    run = pdecnn.train(config, output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(whole.folder)


# ------------------------------------------------------------------ from Python


def test_load_gives_the_network_of_a_run_or_of_a_folder(undisturbed):
    images = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)

    def scores(network):
        with torch.no_grad():
            return network.eval()(network.preprocess(images))

    best = scores(pdecnn.load(undisturbed.folder))
    assert torch.equal(best, scores(pdecnn.load(undisturbed.folder / "best")))
    assert torch.equal(best, scores(pdecnn.load(str(undisturbed.folder), "best")))
    last = scores(pdecnn.load(undisturbed.folder, "last"))
    assert torch.equal(last, scores(pdecnn.load(undisturbed.folder / "last")))


def test_load_refuses_what_is_neither(tmp_path):
    for path in (tmp_path, tmp_path / "none", tmp_path / ("x" * 300)):
        with pytest.raises(CheckpointError, match="not a run directory"):
            pdecnn.load(path)


def test_initial_weights_are_taken_again_where_no_checkpoint_was_written(undisturbed, tmp_path):
    config = small_config(training__learning_rates=(1e-9,), training__phases=(1,))
    first = pdecnn.train(config, output=tmp_path / "first", initial=undisturbed.folder)
    assert first.config.initial == str(undisturbed.folder.absolute())
    # Killed before its first checkpoint: only the config is there.
    second = tmp_path / "second"
    second.mkdir()
    (second / "config.json").write_bytes((first.folder / "config.json").read_bytes())
    resumed = pdecnn.train(config, output=second, resume=True)
    assert fingerprint(resumed.folder) == fingerprint(first.folder)


def test_wrong_class_weights_are_refused_before_a_run_is_made(tmp_path):
    config = small_config(training__class_weights=(1.0, 2.0))
    with pytest.raises(ConfigError, match="2 entries for 10 classes"):
        pdecnn.train(config, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loaded_network_is_ready_to_predict(undisturbed):
    assert not pdecnn.load(undisturbed.folder).training


def test_a_weights_folder_is_not_a_run(undisturbed):
    with pytest.raises(CheckpointError, match="not a run; pass the run directory"):
        pdecnn.evaluate(undisturbed.folder / "best")
