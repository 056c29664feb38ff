"""Adversarial attacks, L-infinity and L2: the fast gradient (FGSM), projected gradients (PGD) and
projected gradients that choose their steps themselves (APGD).

`scores` is a differentiable function from pixels in [0, 1] to class scores, or to whatever a loss
of one's own compares with `labels`: then no image counts as wrong, and the loss alone is raised.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from math import inf
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from pdecnn.errors import ConfigError, DataError, unknown_name
from pdecnn.settings import check_count, check_number, check_positive

Norm = Literal["linf", "l2"]
NORMS: tuple[Norm, ...] = get_args(Norm)
Loss = Literal["ce", "dlr"]
"""Cross entropy, or the difference of logits ratio."""
Classifier = Callable[[Tensor], Tensor]
"""From inputs (batch, channels, *spatial) to class scores (batch, num_classes)."""
Bounds = tuple[float, float] | tuple[Tensor, Tensor] | None
"""Between which all pixels stay, or each of them; None: there are none."""
OwnLoss = Callable[[Tensor, Tensor], Tensor]
"""Of each example, from what comes out and what is wanted."""
PIXELS = (0.0, 1.0)
DLR_CLASSES = 3
"""Below so many the difference of logits ratio is not defined."""
_MOMENTUM, _RISES = 0.75, 0.75
"""alpha and rho of APGD."""
_PROJECTIONS = 5


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


class Attacked(NamedTuple):
    """What an attack made of images."""

    pixels: Tensor
    """One that is classified wrong where it was found, else that of the largest loss."""
    resists: Tensor
    """Whether the clean image and every image that was tried are classified right."""


def fgsm(
    scores: Classifier,
    pixels: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    norm: Norm = "linf",
    loss: Loss | OwnLoss = "ce",
    bounds: Bounds = PIXELS,
) -> Tensor:
    """clip(x + epsilon d): d = sign(g) for linf, g/|g| for l2, g the gradient of the loss at x."""
    _check(epsilon, norm)
    _, gradient, _ = _evaluate(scores, pixels, labels, loss)
    return clip(pixels + epsilon * _direction(gradient, norm), bounds)


def pgd(
    scores: Classifier,
    pixels: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    norm: Norm = "linf",
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
    norm: Norm = "linf",
    config: PGDConfig | None = None,
) -> Iterator[Tensor]:
    """x_{k+1} = P(x_k + a d_k), from a random point of the ball around x: Madry et al. 2018.

    d_k is the direction of `fgsm` at x_k, a = relative_step * epsilon; P projects onto the ball of
    radius epsilon around x, as far as it lies in [0, 1].
    """
    config = PGDConfig() if config is None else config
    rule = Rule(epsilon=epsilon, norm=norm, relative_step=config.relative_step)
    generator = torch.Generator().manual_seed(config.seed)
    ascent = _Ascent.begin(rule, pixels, labels, _random_in_ball(pixels, norm, generator))
    for _ in _ascend(scores, rule, ascent, config.num_steps):
        yield ascent.iterate


def apgd(
    scores: Classifier,
    pixels: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    norm: Norm = "linf",
    loss: Loss | OwnLoss = "ce",
    num_steps: int = 100,
    restarts: int = 1,
    seed: int = 0,
    bounds: Bounds = PIXELS,
) -> Attacked:
    """Projected gradients with momentum and steps that halve themselves: Croce & Hein 2020.

    z = P(x_k + a d_k), x_{k+1} = P(x_k + 0.75 (z - x_k) + 0.25 (x_k - x_{k-1})), from random points
    of the ball and a = 2 epsilon on. At checkpoints an image whose loss rose in less than 0.75 of
    the steps, or found no new largest value at an unchanged a, goes back to its best point and
    halves its a. `loss` is 'ce', the cross entropy, 'dlr', the difference of logits ratio, which
    needs three classes, or one of one's own. `bounds` must contain the pixels; None: there are
    none. All is computed where the pixels are, which waits for a GPU a few times a start only.
    """
    rule = Rule(
        epsilon=epsilon, norm=norm, loss=loss, bounds=bounds, relative_step=2.0, adaptive=True
    )
    return walk(scores, pixels, labels, rule, num_steps=num_steps, restarts=restarts, seed=seed)


def clip(points: Tensor, bounds: Bounds) -> Tensor:
    """Within the bounds, if there are any."""
    limits: Any = bounds  # two numbers or two tensors, which clamp knows as two functions
    return points if limits is None else points.clamp(*limits)


@torch.no_grad()
def is_right(scores: Classifier, pixels: Tensor, labels: Tensor) -> Tensor:
    """For each image, whether its label has the largest score; never where scores are NaN."""
    found = scores(pixels)
    if int(labels.max()) >= found.shape[1]:
        raise DataError(
            f"there is a label {int(labels.max())}, but the classifier has {found.shape[1]} scores"
        )
    return _right(found, labels)


def _right(found: Tensor, labels: Tensor) -> Tensor:
    # The largest of scores with a NaN among them is the NaN.
    return (found.argmax(1) == labels) & found.isfinite().all(1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """How far an attack may go, what it maximises and how it walks."""

    epsilon: float
    norm: Norm
    relative_step: float = 0.1
    loss: Loss | OwnLoss = "ce"
    bounds: Bounds = PIXELS
    adaptive: bool = False

    def __post_init__(self) -> None:
        _check(self.epsilon, self.norm)
        if isinstance(self.loss, str) and self.loss not in _LOSSES:
            raise unknown_name("loss", self.loss, _LOSSES)

    def project(self, points: Tensor, clean: Tensor) -> Tensor:
        """The nearest points within epsilon of the clean ones and within the bounds."""
        offset = points - clean
        if self.norm == "linf":
            return self.clip(clean + offset.clamp(-self.epsilon, self.epsilon))
        # clip(x + s (p - x)) with the largest s <= 1 that stays in the ball, found from below:
        # clipping takes away from the length, so that s may grow.
        share = (self.epsilon / _lengths(offset)).clamp(max=1)
        for _ in range(0 if self.bounds is None else _PROJECTIONS):
            reached = _lengths(self.clip(clean + share * offset) - clean)
            share = (share * (self.epsilon / reached)).clamp(max=1)
        return self.clip(clean + share * offset)

    def clip(self, points: Tensor) -> Tensor:
        """Within the bounds."""
        return clip(points, self.bounds)


@dataclass(slots=True)
class _Ascent:
    """Where the images still attacked are on their way: a row of each tensor is one of them."""

    places: Tensor
    """In the batch."""
    clean: Tensor
    labels: Tensor
    iterate: Tensor
    previous: Tensor
    gradient: Tensor
    value: Tensor
    """Of the loss; infinite where the class is wrong, so that such a point is the best."""
    best: Tensor
    best_gradient: Tensor
    best_value: Tensor
    step_size: Tensor
    rises: Tensor
    """Steps since the last checkpoint on which the loss rose."""
    checked_value: Tensor
    """The best of the last checkpoint."""
    halved: Tensor
    """Whether the step size was, at the last checkpoint."""

    @classmethod
    def begin(cls, rule: Rule, clean: Tensor, labels: Tensor, start: Tensor) -> "_Ascent":
        """At a start in the unit ball, before the first evaluation."""
        point = rule.project(clean + rule.epsilon * start, clean)
        lowest = clean.new_full((len(clean),), -inf)
        return cls(
            places=torch.arange(len(clean), device=clean.device),
            clean=clean,
            labels=labels,
            iterate=point,
            previous=point,
            gradient=torch.zeros_like(point),
            value=lowest,
            best=point,
            best_gradient=torch.zeros_like(point),
            best_value=lowest,
            step_size=torch.full_like(lowest, rule.relative_step * rule.epsilon),
            rises=torch.zeros_like(lowest),
            checked_value=lowest,
            halved=torch.zeros_like(lowest, dtype=torch.bool),
        )

    def keep(self, rows: Tensor) -> None:
        """Go on with these alone."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[rows])

    def evaluate(self, scores: Classifier, loss: Loss | OwnLoss) -> None:
        """The loss at the iterate, and whether it is the best so far."""
        value, self.gradient, right = _evaluate(scores, self.iterate, self.labels, loss)
        value = value.where(right, inf)
        self.rises = self.rises + (value > self.value)
        self.value = value
        better = value > self.best_value
        self.best_value = value.where(better, self.best_value)
        self.best = self.iterate.where(_rows(better, self.best), self.best)
        self.best_gradient = self.gradient.where(_rows(better, self.best), self.best_gradient)

    def check(self, num_steps: int) -> None:
        """After so many steps: back to the best point with half the step, where it is stuck."""
        stale = ~self.halved & (self.best_value == self.checked_value)
        self.halved = (self.rises < _RISES * num_steps) | stale
        self.step_size = self.step_size.where(~self.halved, self.step_size / 2)
        back = _rows(self.halved, self.best)
        self.iterate = self.best.where(back, self.iterate)
        self.gradient = self.best_gradient.where(back, self.gradient)
        self.value = self.best_value.where(self.halved, self.value)
        self.checked_value = self.best_value
        self.rises = torch.zeros_like(self.rises)


def _ascend(scores: Classifier, rule: Rule, ascent: _Ascent, num_steps: int) -> Iterator[None]:
    """Walk from the start, resting at each point; rows may be dropped meanwhile."""
    ascent.evaluate(scores, rule.loss)
    ascent.checked_value, ascent.rises = ascent.best_value, torch.zeros_like(ascent.rises)
    yield
    checkpoints = _checkpoints(num_steps) if rule.adaptive else {}
    for step in range(1, num_steps + 1):
        here, clean = ascent.iterate, ascent.clean
        length = _rows(ascent.step_size, here)
        point = rule.project(here + length * _direction(ascent.gradient, rule.norm), clean)
        if rule.adaptive and step > 1:
            inertia = (1 - _MOMENTUM) * (here - ascent.previous)
            point = rule.project(here + _MOMENTUM * (point - here) + inertia, clean)
        ascent.previous, ascent.iterate = here, point
        ascent.evaluate(scores, rule.loss)
        if step in checkpoints:
            ascent.check(checkpoints[step])
        yield


def _checkpoints(num_steps: int) -> dict[int, int]:
    """After which steps APGD looks back, and over how many: 22, 41, 57, ... of 100."""
    shares = [0, 22]
    while shares[-1] < 100:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 3, 6))
    steps = [-(-share * num_steps // 100) for share in shares]
    return {end: end - begin for begin, end in pairwise(steps) if end > begin}


def walk(
    scores: Classifier,
    pixels: Tensor,
    labels: Tensor,
    rule: Rule,
    *,
    num_steps: int = 100,
    restarts: int = 1,
    seed: int = 0,
) -> Attacked:
    """From several starts, each on the images that still resist, until there is none."""
    check_count("num_steps", num_steps)
    check_count("restarts", restarts)
    generator = torch.Generator().manual_seed(seed)
    attacked = pixels.detach().clone()
    by_class = isinstance(rule.loss, str)
    right = is_right(scores, pixels, labels) if by_class else _none_wrong(pixels)
    value = pixels.new_full((len(pixels),), -inf).where(right, inf)
    for _ in range(restarts):
        # Drawn for all images, so that the start of one does not depend on how others fare.
        start = _random_in_ball(pixels, rule.norm, generator)
        ascent = _Ascent.begin(rule, pixels, labels, start)
        ascent.keep((value < inf).nonzero()[:, 0])
        if not len(ascent.places):
            break
        for step, _ in enumerate(_ascend(scores, rule, ascent, num_steps)):
            # Most images that fall do so soon. Asking how many is what a GPU would wait for.
            if step & (step - 1) == 0 or step == num_steps:
                _record(ascent, attacked, value)
                ascent.keep((ascent.best_value < inf).nonzero()[:, 0])
                if not len(ascent.places):
                    break
    return Attacked(attacked, value < inf)


def _record(ascent: _Ascent, attacked: Tensor, value: Tensor) -> None:
    """Keep the best points where they are better than those of earlier starts."""
    places, best = ascent.places, ascent.best
    better = ascent.best_value > value[places]
    attacked[places] = best.where(_rows(better, best), attacked[places])
    value[places] = ascent.best_value.where(better, value[places])


def _evaluate(
    scores: Classifier, pixels: Tensor, labels: Tensor, loss: Loss | OwnLoss
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of each image, its gradient with respect to the pixels, and whether it is right."""
    leaf = pixels.detach().clone().requires_grad_()
    with torch.enable_grad():
        found = scores(leaf)
        values = (_LOSSES[loss] if isinstance(loss, str) else loss)(found, labels)
    if not values.requires_grad:
        raise ConfigError(
            "the scores have no gradient with respect to the pixels, so there is nothing to attack "
            "along; take a differentiable classifier, outside of torch.inference_mode"
        )
    (gradient,) = torch.autograd.grad(values.sum(), leaf)
    # An image that is no image any more would be no example of anything.
    right = _right(found.detach(), labels) if isinstance(loss, str) else _none_wrong(pixels)
    return values.detach().to(pixels.dtype), gradient.nan_to_num(), right


def _none_wrong(pixels: Tensor) -> Tensor:
    return torch.ones(len(pixels), dtype=torch.bool, device=pixels.device)


def _cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """log(exp(CE) - 1) of the cross entropy CE: it rises with CE and along the same direction.

    Where CE is 1e-8 or less it rounds to 0, and its gradient to that of the other classes alone.
    """
    own = scores.gather(1, labels[:, None])
    return scores.scatter(1, labels[:, None], -inf).logsumexp(1) - own[:, 0]


def _logits_ratio(scores: Tensor, labels: Tensor) -> Tensor:
    """DLR = -(z_y - max_{i != y} z_i) / (z_1 - z_3), z_1 >= z_2 >= z_3 the largest scores."""
    if scores.shape[1] < DLR_CLASSES:
        raise ConfigError(
            f"the difference of logits ratio needs at least {DLR_CLASSES} classes, found "
            f"{scores.shape[1]}; take loss='ce'"
        )
    own = scores.gather(1, labels[:, None])[:, 0]
    other = scores.scatter(1, labels[:, None], -inf).amax(1)
    largest = scores.topk(DLR_CLASSES, dim=1).values
    return (other - own) / (largest[:, 0] - largest[:, 2] + 1e-12)


_LOSSES = {"ce": _cross_entropy, "dlr": _logits_ratio}


def _direction(gradient: Tensor, norm: Norm) -> Tensor:
    """The unit step that increases the loss most; 0 where the gradient vanishes."""
    if norm == "linf":
        return gradient.sign()
    # The squares of a sure classifier's gradients, 1e-22 and less, are no numbers of float32.
    largest = gradient.flatten(1).abs().amax(1).clamp(min=torch.finfo(gradient.dtype).tiny)
    scaled = gradient / _rows(largest, gradient)
    return scaled / _lengths(scaled)


def _random_in_ball(pixels: Tensor, norm: Norm, generator: torch.Generator) -> Tensor:
    """Uniform in the unit ball around 0."""
    if norm == "linf":
        drawn = 2 * torch.rand(pixels.shape, generator=generator, dtype=pixels.dtype) - 1
        return drawn.to(pixels.device)
    drawn = torch.randn(pixels.shape, generator=generator, dtype=pixels.dtype)
    radius = torch.rand(len(pixels), generator=generator, dtype=pixels.dtype)
    radius = _rows(radius.pow(1 / pixels[0].numel()), pixels)
    return (radius * drawn / _lengths(drawn)).to(pixels.device)


def _lengths(values: Tensor) -> Tensor:
    """|values| of each example, never 0."""
    lengths: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return _rows(lengths.clamp(min=torch.finfo(values.dtype).tiny), values)


def _rows(values: Tensor, like: Tensor) -> Tensor:
    """A number for each example, to be multiplied with examples."""
    return values.view(-1, *(1,) * (like.dim() - 1))


def _check(epsilon: float, norm: Norm) -> None:
    check_number("epsilon", epsilon, smallest=0.0)
    if norm not in NORMS:
        raise unknown_name("norm", norm, NORMS)
