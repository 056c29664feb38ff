"""The training loop: its seed, its steps, its reports, its end, and it learns."""

import math

import pytest
import torch

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import training_batches
from pdecnn.errors import ConfigError, DataError
from pdecnn.learning import Evaluation, evaluate_network
from pdecnn.learning import tasks as tasks_module
from tests.unit.learning.trainings import (
    DYNAMICS,
    POLLS_PER_EPOCH,
    assert_same_bits,
    digits,
    first_step,
    image_set,
    make_network,
    make_trainer,
    run,
    snapshot,
)


def test_promise_24_a_training_is_a_function_of_its_seed_alone():
    """The global generator is neither read nor moved."""
    first = make_trainer(seed=3)
    reports = run(first)
    torch.manual_seed(1234)
    state = torch.get_rng_state()
    network = make_network()
    torch.set_rng_state(state)
    second = make_trainer(network, seed=3)
    assert run(second) == reports
    assert torch.equal(torch.get_rng_state(), state)
    assert run(make_trainer(seed=4)) != reports


@pytest.mark.parametrize("accumulation", [2, 4, 5, 20])
def test_accumulated_gradients_are_those_of_the_whole_batch(accumulation):
    """With batch norm in evaluation mode, which does not look at the other images of a part."""
    found = []
    for parts in (1, accumulation):
        trainer = make_trainer(
            make_network(dtype=torch.float64), accumulation=parts, class_weights=range10()
        )
        trainer.begin_epoch()
        trainer.network.eval()
        for _ in range(trainer.steps_per_epoch):
            trainer.step()
        trainer.synchronize()
        found.append(snapshot(trainer))
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-10, atol=1e-13)


def test_weights_may_be_frozen_and_thawed_between_epochs():
    trainer = make_trainer()
    stencil = trainer.network.opening.convolution.stencil
    stencil.requires_grad_(False)
    before = stencil.detach().clone()
    first_step(trainer)
    assert torch.equal(stencil, before)
    stencil.requires_grad_(True)
    first_step(trainer)
    assert not torch.equal(stencil, before)


def test_a_parametrised_classifier_trains():
    network = make_network()
    torch.nn.utils.parametrizations.weight_norm(network.classifier, "weight")
    trainer = make_trainer(network)
    before = network.classifier.weight.detach().clone()
    trainer.begin_epoch()
    for _ in range(2):
        trainer.step()
    trainer.synchronize()
    assert not torch.equal(network.classifier.weight, before)


def range10():
    return tuple(0.5 + k / 10 for k in range(10))


def test_batch_norm_sees_a_part_at_a_time():
    """So accumulation changes the training, as the config says."""
    one, many = make_trainer(), make_trainer(accumulation=5)
    for trainer in (one, many):
        first_step(trainer)
    assert int(many.network.opening.normalization.num_batches_tracked) == 5
    assert int(one.network.opening.normalization.num_batches_tracked) == 1
    assert not torch.equal(
        one.network.opening.normalization.running_mean,
        many.network.opening.normalization.running_mean,
    )


@pytest.mark.parametrize("backprop", ["stored", "checkpointed", "reversible", "exact"])
def test_promise_27_recomputation_counts_a_batch_once(backprop):
    trainer = make_trainer(make_network(backprop=backprop), epochs=1)
    run(trainer)
    for part in (trainer.network.opening, *trainer.network.connectors):
        assert int(part.normalization.num_batches_tracked) == 3


def script_validation(monkeypatch, accuracies, losses=None):
    figures = zip(accuracies, losses or [1.0] * len(accuracies), strict=True)

    def evaluate(*_arguments, **_settings):
        accuracy, loss = next(figures)
        return Evaluation(
            loss=loss,
            accuracy=accuracy,
            balanced_accuracy=0.0,
            per_class={},
            confusion=[],
            num_images=1,
        )

    monkeypatch.setattr(tasks_module, "evaluate_network", evaluate)


def test_early_stopping_waits_for_its_patience(monkeypatch):
    script_validation(monkeypatch, [0.5, 0.7, 0.7, 0.6, 0.9, 0.9])
    trainer = make_trainer(epochs=20, patience=2)
    reports = run(trainer)
    assert len(reports) == 4
    assert trainer.progress.stopped == "early_stopping"
    assert (trainer.progress.best_epoch, trainer.progress.best_accuracy) == (2, 0.7)


TIED = [0.2, 0.8, 0.3, 0.8, 0.8]


@pytest.mark.parametrize(
    ("ties", "losses", "best"),
    [
        ("loss", [0.1, 0.7, 0.1, 0.6, 0.6], (4, 0.6)),  # then the earlier one
        ("loss", [0.1, 0.7, 0.1, 0.7, 0.8], (2, 0.7)),
        ("loss", [0.1, math.nan, 0.1, 0.6, math.nan], (4, 0.6)),
        ("loss", [0.1, math.inf, 0.1, math.nan, math.inf], (2, None)),
        ("first", [0.1, 0.7, 0.1, 0.6, 0.6], (2, 0.7)),
        ("first", [0.1, math.nan, 0.1, 0.6, 0.6], (2, None)),
    ],
)
def test_of_equal_accuracies_the_lower_loss_is_the_best(monkeypatch, ties, losses, best):
    script_validation(monkeypatch, TIED, losses)
    trainer = make_trainer(epochs=5, ties=ties)
    run(trainer)
    progress = trainer.progress
    assert (progress.best_epoch, progress.best_loss) == best
    assert (progress.best_accuracy, progress.stopped) == (0.8, "completed")


def test_patience_counts_from_the_best_of_equal_epochs(monkeypatch):
    accuracies, losses = [0.8, 0.8, 0.8, 0.8, 0.8], [0.9, 0.8, 0.9, 0.9, 0.9]
    for ties, length in (("loss", 4), ("first", 3)):
        script_validation(monkeypatch, accuracies, losses)
        trainer = make_trainer(epochs=5, patience=2, ties=ties)
        assert len(run(trainer)) == length, ties


def test_a_validation_accuracy_of_zero_is_a_best(monkeypatch):
    script_validation(monkeypatch, [0.0, 0.0, 0.0])
    trainer = make_trainer(epochs=3, patience=5)
    run(trainer)
    assert trainer.progress.best_epoch == 1


def test_the_last_epoch_is_completed_though_patience_ends_too(monkeypatch):
    script_validation(monkeypatch, [0.5, 0.4, 0.4])
    trainer = make_trainer(epochs=3, patience=2)
    assert len(run(trainer)) == 3
    assert trainer.progress.stopped == "completed"


def test_the_evaluated_network_is_the_average():
    trainer = make_trainer(average_decay=0.9)
    assert trainer.evaluated is trainer.average
    expected = {k: v.clone() for k, v in trainer.network.state_dict().items()}

    def follow():
        for name, tensor in trainer.network.state_dict().items():
            if tensor.is_floating_point():
                expected[name] = 0.9 * expected[name] + 0.1 * tensor
            else:
                expected[name] = tensor.clone()

    report = run(trainer, on_step=follow)[-1]
    for name, tensor in trainer.average.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)
    evaluation = evaluate_network(trainer.average, trainer.validation)
    assert report.validation_accuracy == evaluation.accuracy
    assert report.validation_loss == pytest.approx(evaluation.loss, rel=1e-6)
    assert report.validation_loss != evaluate_network(trainer.network, trainer.validation).loss


def test_without_an_average_the_network_itself_is_evaluated():
    trainer = make_trainer()
    assert trainer.evaluated is trainer.network


def test_the_average_does_not_change_the_training():
    plain, averaged = make_trainer(), make_trainer(average_decay=0.9)
    run(plain)
    run(averaged)
    found = snapshot(averaged)
    expected = snapshot(plain)
    assert_same_bits({name: found[name] for name in expected}, expected)


def test_other_classes_are_refused_at_once():
    train, validation = digits()
    fewer = image_set(train.images, train.labels.clamp(max=4), "01234")
    with pytest.raises(DataError, match="10 classes apart but the data has 5"):
        make_trainer(sets=(fewer, validation))
    with pytest.raises(DataError, match="10 classes apart but the data has 5"):
        make_trainer(sets=(train, fewer))


def test_other_channels_are_refused_at_once():
    train, validation = digits()
    colour = image_set(train.images.repeat(1, 3, 1, 1), train.labels, train.class_names)
    with pytest.raises(DataError, match="takes 1 channels but the data has 3"):
        make_trainer(sets=(colour, validation))
    with pytest.raises(DataError, match="takes 1 channels but the data has 3"):
        make_trainer(sets=(train, colour))


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ConfigError, match="batch_size=63 is larger than the 62"):
        make_trainer(batch_size=63)
    assert make_trainer(batch_size=62).steps_per_epoch == 1


def test_class_weights_of_another_length_are_refused():
    with pytest.raises(ConfigError, match="2 entries for 10 classes"):
        run(make_trainer(class_weights=(1.0, 2.0)))


def test_reports_are_the_means_over_the_epoch():
    trainer = make_trainer(
        make_network(dtype=torch.float64),
        learning_rates=(0.1, 0.02, 0.004),
        epochs=3,
        label_smoothing=0.1,
    )
    reports = run(trainer)
    for epoch, (report, rate) in enumerate(zip(reports, (0.1, 0.02, 0.004), strict=True)):
        assert (report.epoch, report.step, report.learning_rate) == (epoch + 1, 3 * epoch + 3, rate)
        parts = report.data_loss + report.smoothness + report.decay
        assert report.loss == pytest.approx(parts, rel=1e-12)
        assert 0 <= report.accuracy <= 1
        assert (report.accuracy * 60) % 1 == pytest.approx(0, abs=1e-9)


def test_the_first_report_is_that_of_the_objective_by_hand():
    trainer = make_trainer(make_network(dtype=torch.float64), epochs=1, batch_size=62)
    by_hand = make_network(dtype=torch.float64).train()
    (batch,) = training_batches(62, 62, seed=0, epoch=0)
    images = by_hand.preprocess(trainer.train.images[batch])
    images = trainer.augmentation.augment(images, batch, seed=0, epoch=0)
    labels = trainer.train.labels[batch]
    scores = by_hand(images)
    expected = trainer.objective(by_hand, scores, labels)
    report = run(trainer)[0]
    assert report.loss == pytest.approx(float(expected.total.detach()), rel=1e-13)
    assert report.decay == pytest.approx(float(expected.decay.detach()), rel=1e-13)
    assert report.smoothness == 0
    assert report.accuracy == float((scores.argmax(1) == labels).double().mean())


def test_steps_and_polls_are_announced():
    steps, polls = [], []
    trainer = make_trainer(epochs=2, evaluation_batch_size=16)
    run(trainer, poll=lambda: polls.append(1), on_step=lambda: steps.append(trainer.progress.step))
    assert steps == [1, 2, 3, 4, 5, 6]
    assert len(polls) == 2 * POLLS_PER_EPOCH


@pytest.mark.parametrize(
    ("dynamics", "precision"),
    [
        *((dynamics, "float32") for dynamics in DYNAMICS),
        pytest.param("hamiltonian", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_twenty_steps_reduce_the_loss(dynamics, precision):
    trainer = make_trainer(
        make_network(dynamics, channels=(16, 32, 32)),
        sets=digits(1000, 40),
        augmentation=Augmentation(flip=False, padding=0.0),
        epochs=1,
        batch_size=50,
        precision=precision,
    )
    losses = []

    def collect():
        losses.append(float(trainer.sums[1] / trainer.sums[5]))
        trainer.sums.zero_()

    run(trainer, on_step=collect)
    assert len(losses) == 20
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert max(float(weight.detach().abs().max()) for weight in trainer.optimizer.boxed) <= 1


def test_backprop_modes_train_alike():
    """stored, checkpointed and reversible differ in memory, not in numbers (tanh, float64).

    One epoch: later ones magnify the rounding of the reversal, as they would any other.
    """
    stored, checkpointed, reversible = (
        run(
            make_trainer(
                make_network(activation="tanh", dtype=torch.float64, backprop=backprop), epochs=1
            )
        )
        for backprop in ("stored", "checkpointed", "reversible")
    )
    assert checkpointed == stored
    assert reversible[0].reversal_error <= 1e-9
    found, expected = reversible[0]._asdict(), stored[0]._asdict()
    del found["reversal_error"], expected["reversal_error"]
    assert found.pop("nonfinite_batches") == expected.pop("nonfinite_batches") == []
    assert found == pytest.approx(expected, rel=1e-9)


def test_gradients_shorter_than_clip_norm_stay_as_they_are():
    found = [run(make_trainer(epochs=1, clip_norm=norm))[0].loss for norm in (None, 1e6)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)
