"""Radii within which no perturbation changes the class a network gives to an image, proved."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import Any, cast

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from pdecnn.diagnostics.jacobians import frozen_copy, plain_copy
from pdecnn.diagnostics.lipschitz import (
    Bound,
    Factor,
    check_known,
    gamma,
    network_bounds,
    pooling_bound,
    rounded_up_product,
    standardization_bound,
)
from pdecnn.errors import ConfigError, DataError, DivergedError
from pdecnn.fast.acceleration import accelerate
from pdecnn.networks.network import Network, evaluation_mode
from pdecnn.networks.preprocessing import as_tensor
from pdecnn.networks.pretrained import nonfinite_weights
from pdecnn.networks.stages import Classifier
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import UNIT, without_autocast
from pdecnn.pde.stable import OperatorNorm, following
from pdecnn.settings import check_count, check_number

BATCH_SIZE = 25
_LARGEST = 1e9
"""No larger radius is claimed, so that the images within it have a length."""
_UNDERFLOW = 1e-250
"""More than what numbers below float64's smallest can add to a score."""
_ROOM = 1.01
"""For the rounding of the bounds on rounding."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Certificate:
    """For each image a radius around it within which the class it is given is the same.

    Every stage has a Lipschitz constant, and L is their product: with the rows w_j of the
    classifier a perturbation of length r changes f_y - f_j by at most L |w_y - w_j| r. So for the
    class y of an image

        radius = min over j != y of (f_y - f_j - e)/(L |w_y - w_j|).

    What is certified is the network in float64, with the weights as they are. e bounds what
    rounding can do to f_y - f_j, at the image and at every other within the radius: an error made
    in a stage, `lipschitz.Bound`, is passed on enlarged by the constants of the stages after it,
    so that with constants of 1 errors add up. Numbers are proved for sums in any order, but not
    for convolutions by FFT or Winograd's method, which float64 is kept from.

    Where each image is divided by s = max(its deviation, 1/sqrt(n)), n its numbers, a radius R of
    the standardised image is one of s R/(1 + R/sqrt(n)) of the image. Proof: with c the image minus
    its mean and m = max(|c|, 1) = s sqrt(n), it becomes sqrt(n) P(c), P the projection onto the
    unit ball. Let c' belong to an image at a distance d < m, m' likewise, and q = min(m, m'), which
    is at least max(m - d, 1). Then P(c) = P_q(c)/q and P(c') = P_q(c')/q with P_q the projection
    onto the ball of radius q, which expands no distance: the standardised images are at most
    sqrt(n) d/q <= sqrt(n) d/(m - d) apart, which is R for d = m R/(sqrt(n) + R).
    """

    labels: Tensor
    predictions: Tensor
    """The classes that the network in float64 gives."""
    radii: Tensor
    """float64: L2, in units of the input after resizing, [0, 1] for images. 0: none."""
    disagreeing: Tensor
    """The places of images whose class is another one in the precision that is used to predict;
    nothing is certified of them."""
    lipschitz: float
    """L, from the input to what the rows of the classifier multiply; where each image is
    standardised, from standardised images on."""
    factors: tuple[Factor, ...]
    """Their product, rounded up, is L."""

    @property
    def num_images(self) -> int:
        """How many images there are."""
        return len(self.labels)

    @property
    def clean_accuracy(self) -> float:
        """The share of images with a right prediction."""
        return _share(self.predictions == self.labels)

    @property
    def largest_factor(self) -> Factor:
        """The part that expands distances most."""
        return max(self.factors, key=lambda factor: factor.value)

    def certified(self, radius: float) -> Tensor:
        """For each image, whether the prediction is right and stays so within `radius`."""
        check_number("radius", radius, smallest=0.0)
        agreeing = torch.ones_like(self.labels, dtype=torch.bool)
        agreeing[self.disagreeing] = False
        return (self.predictions == self.labels) & agreeing & (self.radii >= radius)

    def certified_accuracy(self, radius: float) -> float:
        """The share of images with a right prediction and a radius of at least this."""
        return _share(self.certified(radius))


def certify(
    network: Network,
    images: Tensor | npt.NDArray[Any],
    labels: Tensor | npt.NDArray[Any],
    *,
    batch_size: int = BATCH_SIZE,
    predicted: Tensor | None = None,
) -> Certificate:
    """L2 radii within which no perturbation changes the class of an image, see `Certificate`.

    `images` as `network.preprocess` takes them; on the network's device. `predicted` are the
    classes given to them in the precision that is used to predict, by default the network's own.
    A part whose Lipschitz constant is not known is a ConfigError that names it.
    """
    _check_network(network)
    check_count("batch_size", batch_size)
    images = as_tensor(images)
    labels = _checked_labels(torch.as_tensor(labels), len(images), network.num_classes)
    device = network.weight.device
    with torch.no_grad(), without_autocast(device), evaluation_mode(network):
        exact = float64_copy(network)
        batches = torch.split(images, batch_size)
        if predicted is None:
            scores = [network(network.preprocess(batch)) for batch in batches]
            predicted = torch.cat(scores).argmax(1)
        chain = _Chain(exact, images[:1])
        found = [chain.certify(batch) for batch in batches]
    predictions, radii = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
    disagrees = predicted.cpu() != predictions
    return Certificate(
        labels=labels,
        predictions=predictions,
        radii=radii.masked_fill(disagrees, 0.0),
        disagreeing=disagrees.nonzero()[:, 0],
        lipschitz=chain.lipschitz,
        factors=chain.factors,
    )


def lipschitz_factors(network: Network, images: Tensor) -> tuple[Factor, ...]:
    """The constant of each part of a network, for images of this size; see `Certificate`."""
    _check_network(network)
    with torch.no_grad(), evaluation_mode(network):
        return _Chain(float64_copy(network), images[:1]).factors


def float64_copy(network: Network) -> Network:
    """The network that is certified: in float64, without a grid, its steps bounded anew."""
    for part in following(network):
        part.refresh()  # weights may have changed by means that leave no trace
    copy = accelerate(frozen_copy(network), enabled=False)
    blocks = (plain_copy(block) for block in network.blocks if isinstance(block, Block))
    copy.blocks = nn.ModuleList(blocks).eval()
    given = dict(network.named_modules())
    for name, part in copy.named_modules():
        own = given[name]
        if isinstance(part, OperatorNorm) and isinstance(own, OperatorNorm):
            room = 16 * max(torch.finfo(kind).eps for kind in (own.bound.dtype, torch.float32))
            if abs(float(own.bound) / float(part.bound) - 1) > room:
                raise ConfigError(
                    f"{name} of the network is {float(own.bound):.6g}, but |K| is bounded by "
                    f"{float(part.bound):.6g}: it was changed by hand; load the weights anew"
                )
    return copy


class _Chain:
    """A network in float64, and what is proved of it for images of one size."""

    def __init__(self, network: Network, example: Tensor) -> None:
        preprocessing = network.preprocessing
        self.network = network
        self.resizing = replace(preprocessing, standardize="none", mean=None, std=None, pooling=1)
        self.standardizing = replace(preprocessing, size=None)
        self.by_image = preprocessing.standardize == "image"
        pixels = self.resize(example)
        self.size, channels = tuple(pixels.shape[2:]), pixels.shape[1]
        self.num_values = channels * prod(self.size)
        size = tuple(n // preprocessing.pooling for n in self.size)
        _check_size(network, size)
        parts = {"standardisation": standardization_bound(preprocessing, self.size, channels)}
        if preprocessing.pooling > 1:
            parts["averaging of the images"] = pooling_bound(preprocessing.pooling, len(size))
        parts |= network_bounds(network, size)
        self.features = Bound()
        for part in parts.values():
            self.features = self.features.then(part)
        if self.by_image:
            del parts["standardisation"]  # its radii are converted image by image
        self.factors = tuple(Factor(name, part.lipschitz) for name, part in parts.items())
        self.lipschitz = rounded_up_product([factor.value for factor in self.factors])
        classifier = cast(Classifier, network.classifier)
        self.rows = classifier.rows.detach()
        self.bias = float(classifier.bias.abs().amax())
        distances = (self.rows[:, None] - self.rows).norm(dim=2)
        self.distances = distances * (1 + 2 * gamma(self.rows.shape[1] + 8))

    def resize(self, images: Tensor) -> Tensor:
        """Images in the unit of the radii, on the network's device."""
        return self.resizing.apply(images.to(self.network.weight.device), torch.float64)

    def score_error(self, lengths: Tensor) -> Tensor:
        """At least how far rounding can take f_y - f_j of images of these lengths.

        Of features that are right to E and at most N long, scores are right to |w| E, to
        gamma(n + 2) |w| (N + E) for the n products of a row, and to the rounding of the bias.
        """
        bound = self.features
        longest = bound.lipschitz * lengths + bound.offset
        error = bound.relative * lengths + bound.absolute
        row = float(self.rows.norm(dim=1).amax()) * _ROOM
        products = gamma(self.rows.shape[1] + 4) * (row * (longest + error) + self.bias)
        return 2 * _ROOM * (row * error + products) + _UNDERFLOW

    def certify(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Classes and radii of some images."""
        pixels = self.resize(images)
        # Native kernels: those of cuDNN may sum by FFT or Winograd's method.
        with torch.backends.cudnn.flags(enabled=False):
            scores = self.network(self.standardizing.apply(pixels, torch.float64))
        classes = scores.argmax(1)
        own = scores.gather(1, classes[:, None])
        lengths = pixels.flatten(1).norm(dim=1) * (1 + 2 * gamma(self.num_values + 8))
        reach = self.lipschitz * self.distances[classes] * (1 + 8 * UNIT)
        others = torch.ones_like(scores, dtype=torch.bool).scatter_(1, classes[:, None], False)

        def radii(margins: Tensor) -> Tensor:
            found = (margins / reach).where(others, _LARGEST)
            return self._of_pixels(pixels, found.amin(1).clamp(0, _LARGEST))

        margins = own - scores
        # Without rounding: the images that count are no longer than this together.
        farthest = lengths + radii(margins * (1 + 4 * UNIT)) * (1 + 1e-9)
        error = self.score_error(lengths) + self.score_error(farthest)
        found = radii(margins * (1 - 4 * UNIT) - error[:, None]) * (1 - 1e-12)
        return classes, found.where(scores.isfinite().all(1), 0.0).nan_to_num(0.0)

    def _of_pixels(self, pixels: Tensor, radii: Tensor) -> Tensor:
        """Radii of standardised images as radii of images."""
        if not self.by_image:
            return radii
        values, root = pixels.flatten(1), sqrt(self.num_values)
        centred = values - values.mean(1, keepdim=True)
        deviation = (centred.norm(dim=1) / root).clamp(min=1 / root)
        # c is right to gamma(n + 2) |x|, which its length may take from s.
        wrong = 2 * gamma(self.num_values + 8) * (values.norm(dim=1) / root + deviation)
        found: Tensor = (deviation - wrong).clamp(min=0) * radii / (1 + radii / root)
        return found


def _check_network(network: Network) -> None:
    if network.num_classes == 0:
        raise ConfigError(
            "the network has no classes to certify (num_classes=0); give it some with "
            "reset_classifier and train it"
        )
    if _global_forward_hooks or _global_forward_pre_hooks:
        raise ConfigError(
            "a hook is registered for all modules, which may change what a network computes; "
            "remove it to certify"
        )
    check_known(network)
    found = nonfinite_weights(network)
    if found is not None:
        raise DivergedError(f"{found}, so that there is nothing to certify; take other weights")


def _check_size(network: Network, size: Sequence[int]) -> None:
    largest = network.config.certified_size
    if largest is not None and any(n > most for n, most in zip(size, largest, strict=True)):
        raise ConfigError(
            f"images of size {tuple(size)} are larger than network.certified_size={largest}, for "
            f"which the steps are stable; resize them, or set certified_size before training"
        )


def _checked_labels(labels: Tensor, num_images: int, num_classes: int) -> Tensor:
    if labels.dim() != 1 or len(labels) != num_images or num_images == 0:
        raise DataError(
            f"there must be one label for each image and at least one image, found {num_images} "
            f"images and labels of shape {tuple(labels.shape)}"
        )
    if labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise DataError(f"labels must be whole numbers from 0 to {num_classes - 1}")
    return labels.detach().cpu().long()


def _share(right: Tensor) -> float:
    return float(right.double().mean())
