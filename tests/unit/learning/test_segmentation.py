"""Dice and IoU of classes, and the loss, against what they are by definition."""

import pytest
import torch

from pdecnn.data.image_set import ImageSet
from pdecnn.errors import ConfigError, DataError
from pdecnn.learning.tasks import Segmentation, SegmentationEvaluation, TaskConfig, make_task
from pdecnn.learning.training_config import ObjectiveConfig
from pdecnn.networks.network import Network
from pdecnn.networks.registry import model_config


def scores_of(classes, num_classes=3, certainty=50.0):
    one_hot = torch.nn.functional.one_hot(classes, num_classes)
    return certainty * one_hot.movedim(-1, 1).float()


def losses(kind, scores, classes):
    return Segmentation(kind).losses(ObjectiveConfig(), scores, classes)


def test_the_loss_is_cross_entropy_plus_one_less_dice():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 3, 5, 6, generator=generator)
    classes = torch.randint(0, 3, (4, 5, 6), generator=generator)
    entropy = torch.nn.functional.cross_entropy(scores, classes, reduction="none").mean((1, 2))
    assert torch.allclose(losses("cross_entropy", scores, classes), entropy)
    dice = losses("dice", scores, classes)
    assert torch.allclose(losses("cross_entropy_dice", scores, classes), entropy + dice)
    wanted, p = classes == 1, scores.softmax(1)[:, 1]
    one = (2 * (p * wanted).sum((1, 2)) + 1) / (p.sum((1, 2)) + wanted.sum((1, 2)) + 1)
    wanted, p = classes == 2, scores.softmax(1)[:, 2]
    two = (2 * (p * wanted).sum((1, 2)) + 1) / (p.sum((1, 2)) + wanted.sum((1, 2)) + 1)
    assert torch.allclose(dice, 1 - (one + two) / 2)


def test_a_right_answer_costs_nothing_and_counts_one():
    classes = torch.tensor([[[0, 1], [2, 1]], [[0, 0], [0, 0]]])
    assert losses("cross_entropy_dice", scores_of(classes), classes).max() < 1e-6
    assert Segmentation("dice").measure(scores_of(classes), classes) == 2


def test_the_dice_of_a_batch_is_that_of_its_classes():
    wanted = torch.tensor([[[0, 1, 1, 2]]])
    found = torch.tensor([[[1, 1, 0, 2]]])
    measured = Segmentation("dice").measure(scores_of(found), wanted)
    assert measured == pytest.approx((2 * 1 / 4 + 1) / 2)


def test_figures_leave_out_classes_that_are_neither_there_nor_found():
    rows = [
        {"image": "a", "dice": {"1": 0.5, "2": None}, "iou": {"1": 1 / 3, "2": None}},
        {"image": "b", "dice": {"1": 1.0, "2": None}, "iou": {"1": 1.0, "2": None}},
        {"image": "c", "dice": {"1": 0.0, "2": None}, "iou": {"1": 0.0, "2": None}},
    ]
    found = SegmentationEvaluation(loss=1.0, class_names=("1", "2"), per_image=rows)
    assert found.score == 0.5
    figures = found.to_dict()
    assert figures["dice"] == figures["median_dice"] == {"1": 0.5, "2": None}
    assert figures["iou"] == {"1": pytest.approx(4 / 9), "2": None}
    empty = SegmentationEvaluation(loss=1.0, class_names=("2",), per_image=rows)
    assert empty.score == 1.0


def make_images(masks):
    return ImageSet(
        images=masks[:, None].float(),
        labels=torch.zeros(len(masks), dtype=torch.int64),
        class_names=("background", "1"),
        masks=masks,
        names=("a", "b"),
    )


def test_evaluation_scores_whole_images_one_by_one():
    masks = torch.zeros(2, 6, 7, dtype=torch.uint8)
    masks[0, :3], masks[1, 2:4, 1:5] = 1, 1
    config = model_config(
        "hamiltonian_segmentation", in_channels=1, channels=(8, 32, 8, 8), hidden_channels=4
    )
    network, task = Network(config), Segmentation("dice")
    how = {"batch_size": 1, "precision": "float32", "poll": lambda: None, "quick": lambda: None}
    found = task.evaluate(network, make_images(masks), **how)
    with torch.no_grad():
        answers = network(network.preprocess(masks[:, None].float())).argmax(1)
    for row, answer, mask in zip(found.per_image, answers, masks, strict=True):
        both = float(((answer == 1) & (mask == 1)).sum())
        assert row["dice"]["1"] == pytest.approx(2 * both / float((answer + mask).sum()))
        assert row["iou"]["1"] == pytest.approx(both / float(((answer + mask) > 0).sum()))
    assert [row["image"] for row in found.per_image] == ["a", "b"]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"unknown loss of segmentation 'squared'"):
        TaskConfig(name="segmentation", loss="squared")
    with pytest.raises(ConfigError, match=r"does not fit data\.name=pictures"):
        TaskConfig(name="segmentation").check_data("pictures")
    with pytest.raises(ConfigError, match=r"does not fit data\.name=segmented"):
        TaskConfig().check_data("segmented")
    plain = ImageSet(
        images=torch.zeros(1, 1, 4, 4), labels=torch.zeros(1, dtype=torch.int64), class_names=("a",)
    )
    task = make_task(TaskConfig(name="segmentation"), noise=None)
    with pytest.raises(DataError, match="no class for each pixel"):
        task.check_fit(Network(model_config("hamiltonian_segmentation")), plain)
