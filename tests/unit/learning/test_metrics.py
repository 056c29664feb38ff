"""Accuracies, confusion and loss against scikit-learn's."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from pdecnn.errors import ConfigError, DataError
from pdecnn.learning import evaluate_network
from pdecnn.learning.metrics import class_scores, summarize
from pdecnn.networks import Network
from tests.unit.learning.trainings import digits, image_set, make_network, scatter_weights_

NAMES = tuple("abcd")


@pytest.fixture(scope="module")
def network():
    return scatter_weights_(make_network("second_order"), size=0.5)


@pytest.fixture(scope="module")
def images():
    return digits()[1]


@given(
    pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60),
)
def test_figures_are_those_of_scikit_learn(pairs):
    labels, predictions = (np.array(column) for column in zip(*pairs, strict=True))
    found = summarize(torch.tensor(predictions), torch.tensor(labels), NAMES, loss=0.5)
    assert found.accuracy == pytest.approx(sklearn_metrics.accuracy_score(labels, predictions))
    confusion = sklearn_metrics.confusion_matrix(labels, predictions, labels=range(4))
    assert found.confusion == confusion.tolist()
    present = sorted(set(labels.tolist()))
    recalls = sklearn_metrics.recall_score(
        labels, predictions, labels=present, average=None, zero_division=0
    )
    expected = dict.fromkeys(NAMES)
    expected |= {NAMES[k]: float(r) for k, r in zip(present, recalls, strict=True)}
    assert found.per_class == pytest.approx(expected)
    assert found.balanced_accuracy == pytest.approx(float(np.mean(recalls)))
    assert found.num_images == len(labels)
    assert found.loss == 0.5


def test_a_class_without_images_has_no_accuracy_and_does_not_count():
    found = summarize(torch.tensor([0, 3, 3]), torch.tensor([0, 0, 3]), NAMES, loss=0.0)
    assert found.per_class == {"a": 0.5, "b": None, "c": None, "d": 1.0}
    assert found.balanced_accuracy == 0.75
    assert found.accuracy == pytest.approx(2 / 3)


def test_evaluation_is_that_of_the_networks_scores(network, images):
    found = evaluate_network(network, images)
    with torch.no_grad():
        scores = network.eval()(network.preprocess(images.images))
    labels = images.labels.numpy()
    probabilities = scores.double().softmax(1).numpy()
    assert found.loss == pytest.approx(
        sklearn_metrics.log_loss(labels, probabilities, labels=range(10)), rel=1e-6
    )
    predictions = scores.argmax(1).numpy()
    assert found.accuracy == sklearn_metrics.accuracy_score(labels, predictions)
    assert found.balanced_accuracy == pytest.approx(
        sklearn_metrics.balanced_accuracy_score(labels, predictions)
    )
    assert list(found.per_class) == list(images.class_names)


@pytest.mark.parametrize("batch_size", [1, 7, 39, 40, 41, 1000])
def test_figures_do_not_depend_on_the_batch_size(network, images, batch_size):
    """But for the rounding of the scores, whose kernels depend on the number of images."""
    one = evaluate_network(network, images)
    other = evaluate_network(network, images, batch_size=batch_size)
    assert other.confusion == one.confusion
    assert (other.accuracy, other.per_class) == (one.accuracy, one.per_class)
    assert other.loss == pytest.approx(one.loss, rel=1e-6)
    assert other.num_images == one.num_images


def test_figures_are_those_of_evaluation_mode_and_statistics_stay(network, images):
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    training = evaluate_network(network.train(), images)
    evaluating = evaluate_network(network.eval(), images)
    assert training == evaluating
    for name, buffer in network.named_buffers():
        assert torch.equal(buffer, before[name]), name


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_every_part_is_restored(images, training):
    network = make_network().train(training)
    network.opening.train(not training)
    modes = [part.training for part in network.modules()]
    evaluate_network(network, images)
    assert [part.training for part in network.modules()] == modes


def test_the_mode_is_restored_after_an_interruption(images):
    network = make_network().train()

    def poll():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_network(network, images, poll=poll)
    assert all(part.training for part in network.modules())


def test_the_poll_runs_before_each_batch(network, images):
    polls = []
    evaluate_network(network, images, batch_size=16, poll=lambda: polls.append(1))
    assert len(polls) == 3


def test_evaluation_needs_no_gradients(network, images):
    scores = class_scores(network, images.images, batch_size=16)
    assert not scores.requires_grad
    assert all(weight.grad is None for weight in network.parameters())


@pytest.mark.parametrize("precision", ["bfloat16"])
def test_half_precision_gives_nearly_the_same_figures(network, images, precision):
    one = class_scores(network, images.images, batch_size=40)
    other = class_scores(network, images.images, batch_size=40, precision=precision)
    assert other.dtype == torch.float32
    assert not torch.equal(one, other)
    assert (one - other).norm() < 0.1 * one.norm()


def test_float64_networks_are_evaluated_in_float64(images):
    network = make_network(dtype=torch.float64)
    assert class_scores(network, images.images, batch_size=40).dtype == torch.float64


def test_another_number_of_classes_is_refused(network, images):
    fewer = image_set(images.images, images.labels.clamp(max=4), "01234")
    with pytest.raises(DataError, match="10 classes apart but the data has 5"):
        evaluate_network(network, fewer)


def test_another_number_of_channels_is_refused(network, images):
    colour = image_set(images.images.repeat(1, 3, 1, 1), images.labels, images.class_names)
    with pytest.raises(DataError, match="takes 1 channels but the data has 3"):
        evaluate_network(network, colour)


def test_the_same_number_of_other_classes_is_refused(network, images):
    named = replace(network.preprocessing, class_names=tuple("0123456789"))
    network = Network(network.config, named)
    evaluate_network(network, image_set(images.images, images.labels, "0123456789"))
    with pytest.raises(DataError, match="a class '8' where the data has 'x'"):
        evaluate_network(network, image_set(images.images, images.labels, "01234567x9"))


def test_another_dimension_is_refused(network, images):
    signals = image_set(images.images.flatten(2), images.labels, images.class_names)
    with pytest.raises(DataError, match="takes 2D samples but those of the data have 1"):
        evaluate_network(network, signals)


def test_bad_settings_are_refused(network, images):
    with pytest.raises(ConfigError, match="precision"):
        evaluate_network(network, images, precision="float8")
    with pytest.raises(ConfigError, match="batch_size"):
        evaluate_network(network, images, batch_size=0)


def test_the_figures_are_json(network, images):
    values = evaluate_network(network, images).to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert set(values) == {"accuracy", "loss", "balanced_accuracy", "per_class", "num_images"}
