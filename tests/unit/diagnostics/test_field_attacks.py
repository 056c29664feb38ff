"""Attacks on networks with an answer for each pixel."""

import pytest
import torch

from pdecnn.diagnostics.field_attacks import attack_fields
from pdecnn.errors import ConfigError, DivergedError
from pdecnn.fast.acceleration import fast_layout
from pdecnn.learning.metrics import compute_scores
from pdecnn.learning.tasks import Denoising, Segmentation
from pdecnn.learning.training_config import ObjectiveConfig
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Preprocessing
from pdecnn.networks.registry import model_config

TASKS = (Denoising("squared", 25), Denoising("charbonnier", 25), Segmentation("cross_entropy_dice"))


def losses_of(task):
    return lambda outputs, wanted: task.losses(ObjectiveConfig(), outputs, wanted)


def make_field(task):
    """A small network, and two images of other sizes with what is wanted of them."""
    torch.manual_seed(0)
    segments = isinstance(task, Segmentation)
    config = model_config(
        f"parabolic_{'segmentation' if segments else 'denoising'}",
        in_channels=1,
        num_classes=3 if segments else 1,
        channels=(4, 4),
        hidden_channels=4,
        num_steps=1,
    )
    standardize = "image" if segments else "none"
    network = Network(config, Preprocessing(standardize=standardize)).eval()
    examples = []
    for size in ((9, 12), (8, 7)):
        clean = torch.rand(1, 1, *size)
        wanted = torch.randint(3, (1, *size)) if segments else clean
        examples.append((clean if segments else clean + 0.1 * torch.randn_like(clean), wanted))
    return network, examples


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_the_loss_rises_within_the_ball_and_alike_each_time(task, norm):
    network, examples = make_field(task)
    losses = losses_of(task)
    epsilons = (0.0, 0.02, 0.1) if norm == "linf" else (0.0, 0.2, 1.0)
    how = {"epsilons": epsilons, "norm": norm, "num_steps": 4, "restarts": 2}
    clean, *found = attack_fields(network, examples, losses, **how)
    again = attack_fields(network, examples, losses, **how)[1:]
    for one, other in zip(found, again, strict=True):
        for k, (pixels, wanted) in enumerate(examples):
            moved = one.pixels[k]
            assert torch.equal(moved, other.pixels[k])
            change = (moved - pixels).flatten()
            length = change.abs().amax() if norm == "linf" else change.norm()
            assert float(length) <= one.epsilon * (1 + 1e-5)
            outside = (-moved).clamp(min=0) + (moved - 1).clamp(min=0)
            assert (outside <= (-pixels).clamp(min=0) + (pixels - 1).clamp(min=0)).all()
            before, after = losses(clean.answers[k], wanted), losses(one.answers[k], wanted)
            assert (after > before) if one.epsilon else torch.equal(after, before)
    rises = [
        sum(
            float(losses(answer, wanted))
            for answer, (_, wanted) in zip(one.answers, examples, strict=True)
        )
        for one in found
        if one.attack == "pgd"
    ]
    assert rises == sorted(rises)
    assert all((one.amplification is None) == (one.epsilon == 0) for one in found)


@pytest.mark.parametrize("task", [TASKS[0], TASKS[2]], ids=lambda task: task.kind)
def test_answers_without_an_attack_are_those_of_an_evaluation_to_the_bit(task):
    """Else a label may differ where two scores nearly tie, as on the grid of exact waves."""
    network, examples = make_field(task)
    clean, *_ = attack_fields(network, examples, losses_of(task), epsilons=[0], methods=["fgsm"])
    with torch.no_grad():
        for answer, (pixels, _) in zip(clean.answers, examples, strict=True):
            wanted = compute_scores(network, fast_layout(network.preprocess(pixels)), "float32")
            assert torch.equal(answer, wanted)


def test_what_cannot_be_attacked_is_refused():
    network, examples = make_field(TASKS[0])
    losses = losses_of(TASKS[0])
    for wrong, message in (
        ({"methods": ["dlr"]}, "dlr"),
        ({"methods": []}, "a method of fgsm, pgd, apgd"),
        ({"norm": "l1"}, "l1"),
        ({"epsilons": [-1.0]}, "epsilon"),
    ):
        with pytest.raises(ConfigError, match=message):
            attack_fields(network, examples, losses, **{"epsilons": [0.1]} | wrong)
    infinite = [(pixels / 0, wanted) for pixels, wanted in examples]
    with pytest.raises(DivergedError, match="not finite"):
        attack_fields(network, infinite, losses, epsilons=[0.1])
