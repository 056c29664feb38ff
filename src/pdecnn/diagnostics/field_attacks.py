"""Attacks on networks with an answer for each pixel: they raise the loss of the task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pdecnn.diagnostics.attacks import NORMS, Bounds, Norm, OwnLoss, Rule, apgd, fgsm, walk
from pdecnn.diagnostics.robustness import (
    METHODS,
    NUM_STEPS,
    RESTARTS,
    AttackMethod,
    scores_of_pixels,
)
from pdecnn.errors import ConfigError, DivergedError, unknown_name
from pdecnn.fast.acceleration import fast_layout
from pdecnn.networks.network import Network
from pdecnn.settings import check_count, check_number

_IMAGE = 4
"""Axes of a batch of images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackedFields:
    """What one attack made of images, and the network of that."""

    attack: str
    """One of METHODS; '': none."""
    epsilon: float
    pixels: list[Tensor]
    """(1, channels, *spatial) of each."""
    answers: list[Tensor]
    amplification: float | None
    """The largest |change of the answer| / |change of the image|, in L2; None: no change."""


def attack_fields(
    network: Network,
    examples: Sequence[tuple[Tensor, Tensor]],
    losses: OwnLoss,
    *,
    epsilons: Sequence[float],
    norm: Norm = "linf",
    methods: Sequence[AttackMethod] = METHODS,
    restarts: int = RESTARTS,
    num_steps: int = NUM_STEPS,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> list[AttackedFields]:
    """First without an attack, then what each method does to each of `examples` at each epsilon.

    An example is an image (1, channels, *spatial), in its own numbers, and what is wanted of it;
    `losses` compares that with what the network gives. Images are attacked one by one.
    """
    if norm not in NORMS:
        raise unknown_name("norm", norm, NORMS)
    if not methods or not epsilons:
        raise ConfigError(f"there must be an epsilon, and a method of {', '.join(METHODS)}")
    for method in methods:
        if method not in METHODS:
            raise unknown_name("attack", method, METHODS)
    for epsilon in epsilons:
        check_number("epsilon", epsilon, smallest=0.0)
    check_count("seed", seed, smallest=0)
    budget: dict[str, Any] = {"restarts": restarts, "num_steps": num_steps, "seed": seed}
    images = [pixels for pixels, _ in examples]
    with scores_of_pixels(network) as scores:

        def outputs(pixels: Tensor) -> Tensor:
            # As in an evaluation: in another layout sums round otherwise, and labels may differ.
            return scores(fast_layout(pixels))

        clean = _answers(outputs, images)
        if not all(bool(answer.isfinite().all()) for answer in clean):
            raise DivergedError(
                "there are answers that are not finite: the features leave the range of "
                "floating-point numbers on their way; take other weights"
            )
        found = [
            AttackedFields(attack="", epsilon=0.0, pixels=images, answers=clean, amplification=None)
        ]
        for epsilon in epsilons:
            for method in (name for name in METHODS if name in methods):
                say(f"{method}, epsilon {epsilon:g}")
                moved = [
                    raise_loss(
                        outputs, *example, losses, method, epsilon=epsilon, norm=norm, **budget
                    )
                    for example in examples
                ]
                answers = _answers(outputs, moved)
                found.append(
                    AttackedFields(
                        attack=method,
                        epsilon=epsilon,
                        pixels=moved,
                        answers=answers,
                        amplification=_amplification(images, moved, clean, answers),
                    )
                )
    return found


def raise_loss(
    outputs: Callable[[Tensor], Tensor],
    pixels: Tensor,
    wanted: Tensor,
    losses: OwnLoss,
    method: AttackMethod,
    *,
    epsilon: float,
    norm: Norm = "linf",
    **budget: Any,
) -> Tensor:
    """Of one image, the point of the largest loss that an attack finds in the ball.

    The image itself and the fast gradient's are tried too, the latter not by APGD: no loss is
    smaller than without an attack, and none of PGD smaller than that of FGSM.
    """
    rule: dict[str, Any] = {"epsilon": epsilon, "norm": norm, "bounds": _bounds(pixels)}
    rule["loss"] = losses
    tried = [pixels]
    if method == "apgd":
        tried.append(apgd(outputs, pixels, wanted, **rule, **budget).pixels)
    else:
        tried.append(fgsm(outputs, pixels, wanted, **rule))
    if method == "pgd":
        tried.append(walk(outputs, pixels, wanted, Rule(**rule), **budget).pixels)
    with torch.no_grad():
        values = [float(losses(outputs(points), wanted)) for points in tried]
    return tried[values.index(max(values))]


@torch.no_grad()
def _answers(outputs: Callable[[Tensor], Tensor], images: Sequence[Tensor]) -> list[Tensor]:
    return [outputs(pixels) for pixels in images]


def _bounds(pixels: Tensor) -> Bounds:
    """No pixel of an image leaves [0, 1], nor goes further out where noise has taken it."""
    if pixels.dim() != _IMAGE:
        return None
    return pixels.clamp(max=0), pixels.clamp(min=1)


def _amplification(
    images: Sequence[Tensor],
    moved: Sequence[Tensor],
    clean: Sequence[Tensor],
    answers: Sequence[Tensor],
) -> float | None:
    before = [float((one - two).double().norm()) for one, two in zip(moved, images, strict=True)]
    after = [float((one - two).double().norm()) for one, two in zip(answers, clean, strict=True)]
    ratios = [one / two for one, two in zip(after, before, strict=True) if two > 0]
    return max(ratios, default=None)
