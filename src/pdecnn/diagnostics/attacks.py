"""Adversarial attacks: the fast gradient (FGSM) and projected gradients (PGD), L-infinity and L2.

`scores` is a differentiable function from pixels in [0, 1] to class scores.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.checks import check_count, check_number, check_positive
from pdecnn.errors import ConfigError, unknown_name

NORMS = ("linf", "l2")
Classifier = Callable[[Tensor], Tensor]
"""From inputs (batch, channels, *spatial) to class scores (batch, num_classes)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PGDConfig:
    """Settings of projected gradient descent."""

    num_steps: int = 40
    """Iterates after the random start."""
    relative_step: float = 0.1
    """The length of a step as a share of epsilon."""
    seed: int = 0
    """Of the random start."""

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)
        check_positive("relative_step", self.relative_step)


def fgsm(
    scores: Classifier, pixels: Tensor, labels: Tensor, *, epsilon: float, norm: str = "linf"
) -> Tensor:
    """clip(x + epsilon d): d = sign(g) for linf, g/|g| for l2, g the gradient of the loss at x."""
    _check(epsilon, norm)
    direction = _ascent(_loss_gradient(scores, pixels, labels), norm)
    return (pixels + epsilon * direction).clamp(0, 1)


def pgd(
    scores: Classifier,
    pixels: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    norm: str = "linf",
    config: PGDConfig | None = None,
) -> Tensor:
    """The last of `pgd_iterates`."""
    *_, last = pgd_iterates(scores, pixels, labels, epsilon=epsilon, norm=norm, config=config)
    return last


def pgd_iterates(
    scores: Classifier,
    pixels: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    norm: str = "linf",
    config: PGDConfig | None = None,
) -> Iterator[Tensor]:
    """x_{k+1} = P(x_k + a d_k), from a random point of the ball around x: Madry et al. 2018.

    d_k is the direction of `fgsm` at x_k, a = relative_step * epsilon; P projects onto the ball of
    radius epsilon around x, then clips to [0, 1], which cannot leave the ball.
    """
    _check(epsilon, norm)
    config = PGDConfig() if config is None else config
    generator = torch.Generator().manual_seed(config.seed)
    start = _random_in_ball(pixels, norm, generator)
    iterate = (pixels + epsilon * start).clamp(0, 1)
    yield iterate
    for _ in range(config.num_steps):
        direction = _ascent(_loss_gradient(scores, iterate, labels), norm)
        moved = iterate + config.relative_step * epsilon * direction
        iterate = (pixels + _project(moved - pixels, epsilon, norm)).clamp(0, 1)
        yield iterate


def _loss_gradient(scores: Classifier, pixels: Tensor, labels: Tensor) -> Tensor:
    leaf = pixels.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = functional.cross_entropy(scores(leaf), labels, reduction="sum")
    if not loss.requires_grad:
        raise ConfigError(
            "the scores have no gradient with respect to the pixels, so there is nothing to attack "
            "along; take a differentiable classifier, outside of torch.inference_mode"
        )
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


def _ascent(gradient: Tensor, norm: str) -> Tensor:
    """The unit step that increases the loss most; 0 where the gradient vanishes."""
    if norm == "linf":
        return gradient.sign()
    # The squares of a sure classifier's gradients, 1e-22 and less, are no numbers of float32.
    largest = gradient.flatten(1).abs().amax(1).clamp(min=torch.finfo(gradient.dtype).tiny)
    scaled = gradient / largest.view(-1, *(1,) * (gradient.dim() - 1))
    return scaled / _lengths(scaled)


def _project(offset: Tensor, epsilon: float, norm: str) -> Tensor:
    """The nearest offset in the ball of radius epsilon."""
    if norm == "linf":
        return offset.clamp(-epsilon, epsilon)
    return offset * (epsilon / _lengths(offset)).clamp(max=1)


def _random_in_ball(pixels: Tensor, norm: str, generator: torch.Generator) -> Tensor:
    """Uniform in the unit ball around 0."""
    if norm == "linf":
        drawn = 2 * torch.rand(pixels.shape, generator=generator, dtype=pixels.dtype) - 1
        return drawn.to(pixels.device)
    drawn = torch.randn(pixels.shape, generator=generator, dtype=pixels.dtype)
    radius = torch.rand(len(pixels), generator=generator, dtype=pixels.dtype)
    radius = radius.pow(1 / pixels[0].numel()).view(-1, *(1,) * (pixels.dim() - 1))
    return (radius * drawn / _lengths(drawn)).to(pixels.device)


def _lengths(values: Tensor) -> Tensor:
    """|values| of each example, never 0."""
    lengths: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    lengths = lengths.clamp(min=torch.finfo(values.dtype).tiny)
    return lengths.view(-1, *(1,) * (values.dim() - 1))


def _check(epsilon: float, norm: str) -> None:
    check_number("epsilon", epsilon, smallest=0.0)
    if norm not in NORMS:
        raise unknown_name("norm", norm, NORMS)
