"""How far apart a network can take two images: a constant for each of its parts, proved.

A part that is not exactly one of pdecnn's own has none, and is refused by its name. Constants are
computed in float64 from the weights as they are and rounded up.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, nextafter, prod, sqrt
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from pdecnn.diagnostics.guarantees import attached, departure, guaranteed_bound, is_monotone
from pdecnn.errors import ConfigError
from pdecnn.fast.acceleration import FastCarrier, FastPropagator
from pdecnn.networks.bounded import (
    BoundedConnector,
    BoundedOpening,
    PaddedOpening,
    UnitRowsClassifier,
)
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Preprocessing
from pdecnn.networks.stages import Classifier, Connector, Opening, Stage
from pdecnn.pde.activations import BUILT_IN
from pdecnn.pde.backprop import Propagator
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import UNIT, Convolution
from pdecnn.pde.integrators import ForwardEuler, Layers, Leapfrog, RungeKutta4, Verlet
from pdecnn.pde.layers import AbstractLayer, ResidualLayer, SymmetricLayer
from pdecnn.pde.normalization import ChannelAffine, ChannelBias, TotalVariationNorm
from pdecnn.pde.stable import BoundedConvolution, OperatorNorm, StableLayer

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_OPENINGS = (Opening, PaddedOpening, BoundedOpening)
_CONNECTORS = (Connector, BoundedConnector)
_CLASSIFIERS = (Classifier, UnitRowsClassifier)
_LAYERS = (SymmetricLayer, ResidualLayer, StableLayer)
_PARTS = {
    *(Network, Block, nn.ModuleList, nn.Identity, Convolution, BoundedConvolution, OperatorNorm),
    *(ChannelAffine, ChannelBias, TotalVariationNorm),
    *(*_BATCH_NORMS, *_OPENINGS, *_CONNECTORS, *_CLASSIFIERS, *_LAYERS),
}
_INTEGRATORS = (ForwardEuler, RungeKutta4, Verlet, Leapfrog)
Size = tuple[int, ...]


class Factor(NamedTuple):
    """A part of a network and its Lipschitz constant."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """What is proved of a map g, and of what float64 computes for it, h.

    |g(x) - g(y)| <= `lipschitz` |x - y|, |g(0)| <= `offset`, and
    |h(x) - g(x)| <= `relative` |x| + `absolute`, whatever the order of the sums. Dot products of n
    terms are right to gamma(n) = n u/(1 - n u) times the sum of |terms|, u = 2^-53 (Higham 2002,
    Sec. 3.1); where a map is K, the sum is at most |abs(K)| |x|. Underflow is left to who uses it.
    """

    lipschitz: float = 1.0
    offset: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0

    def then(self, last: "Bound") -> "Bound":
        """The map, and after it another: errors of the first pass through the second."""
        reached = self.lipschitz + self.relative
        return Bound(
            lipschitz=_times(self.lipschitz, last.lipschitz),
            offset=last.lipschitz * self.offset + last.offset,
            relative=last.relative * reached + last.lipschitz * self.relative,
            absolute=last.relative * (self.offset + self.absolute)
            + last.lipschitz * self.absolute
            + last.absolute,
        )

    def plus(self, other: "Bound", weight: float) -> "Bound":
        """x -> g(x) + weight other(x), computed with a product and a sum."""
        weight, rounding = abs(weight), 4 * UNIT
        large = self.lipschitz + self.relative + weight * (other.lipschitz + other.relative)
        fixed = self.offset + self.absolute + weight * (other.offset + other.absolute)
        return Bound(
            lipschitz=_plus(self.lipschitz, _times(weight, other.lipschitz)),
            offset=self.offset + weight * other.offset,
            relative=self.relative + weight * other.relative + rounding * large,
            absolute=self.absolute + weight * other.absolute + rounding * fixed,
        )


IDENTITY = Bound()


def gamma(num_terms: float) -> float:
    """n u/(1 - n u), the relative error of a sum of n products."""
    return num_terms * UNIT / (1 - num_terms * UNIT)


def rounded_up_product(factors: list[float]) -> float:
    """The product, exact but for one rounding upwards."""
    if not all(value < inf for value in factors):
        return inf
    exact = prod(map(Fraction, factors), start=Fraction(1))
    try:
        nearest = float(exact)
    except OverflowError:
        return inf
    return nearest if Fraction(nearest) >= exact else nextafter(nearest, inf)


def _times(first: float, second: float) -> float:
    """At least the product; exactly it where one of them is 1."""
    product = first * second
    return product if 1.0 in (first, second) else nextafter(product, inf)


def _plus(first: float, second: float) -> float:
    return first + second if 0.0 in (first, second) else nextafter(first + second, inf)


def check_known(network: nn.Module) -> None:
    """Raise a ConfigError that names the first part whose constant is not known."""
    if type(network) is not Network:
        raise ConfigError(
            f"certify takes a pdecnn.Network, found {type(network).__name__}: what another class "
            f"computes is not known"
        )
    for name, part in network.named_modules():
        if type(part) not in _PARTS:
            raise _unknown(name, f"is of class {type(part).__name__}")
        found = attached([part]) or _oddity(part)
        if found is not None:
            raise _unknown(name, found)
        if isinstance(part, AbstractLayer) and (found := departure(part)) is not None:
            raise _unknown(name, f"was changed: {found}")
    stages: dict[str, tuple[type, ...]] = {"opening": _OPENINGS, "classifier": _CLASSIFIERS}
    stages |= {f"blocks.{k}": (Block,) for k in range(len(network.blocks))}
    stages |= {f"connectors.{k}": _CONNECTORS for k in range(len(network.connectors))}
    for name, kinds in stages.items():
        part = network.get_submodule(name)
        if type(part) not in kinds:
            raise _unknown(name, f"is of class {type(part).__name__}")
    preprocessing = network.preprocessing
    if type(preprocessing) is not Preprocessing:
        raise _unknown("preprocessing", f"is of class {type(preprocessing).__name__}")
    if preprocessing.emphasis:
        raise ConfigError(
            f"preprocessing has emphasis={preprocessing.emphasis:g}, of which no Lipschitz "
            f"constant is known, and nothing can be certified; train with data.emphasis=0"
        )


def _oddity(part: nn.Module) -> str | None:
    """What makes one of pdecnn's own parts compute something else."""
    if isinstance(part, Block):
        if type(part.integrator) not in _INTEGRATORS:
            return f"has the integrator {type(part.integrator).__name__}"
        if type(part.propagator) not in (Propagator, FastPropagator):
            return f"has the propagator {type(part.propagator).__name__}"
        kinds = [type(layer).__name__ for layer in part.layers if type(layer) not in _LAYERS]
        return f"has a layer of class {kinds[0]}" if kinds else None
    if isinstance(part, Stage) and type(part.carrier) not in (type(None), FastCarrier):
        return f"has the carrier {type(part.carrier).__name__}"
    if isinstance(part, AbstractLayer) and part.activation not in BUILT_IN:
        known = ", ".join(activation.name for activation in BUILT_IN)
        name = getattr(part.activation, "name", type(part.activation).__name__)
        return f"has the activation {name}, not one whose slopes are known ({known})"
    if isinstance(part, Convolution):
        shape = (part.out_channels, part.in_channels, *part.stencil_size)
        centred = part.padding == tuple(n // 2 for n in part.stencil_size)
        return None if centred and part.stencil.shape == shape else "has a stencil of another shape"
    if isinstance(part, _BATCH_NORMS) and part.running_var is None:
        return "has no running statistics"
    return None


def _unknown(name: str, found: str) -> ConfigError:
    return ConfigError(
        f"{name or 'the network'} {found}, so that no Lipschitz constant of it is known, and "
        f"nothing can be certified; take pdecnn's own parts, without hooks"
    )


def network_bounds(network: Network, size: Size) -> dict[str, Bound]:
    """The bound of each part from standardised images of `size` to what the classifier multiplies.

    The network is in float64 and evaluation mode; see `check_known`.
    """
    opening: Any = network.opening
    found = {"opening": _opening(opening, size)}
    size = tuple(n // getattr(opening, "patch_size", 1) for n in size)
    for k, (block, connector) in enumerate(zip(network.blocks, network.connectors, strict=True)):
        assert isinstance(block, Block)
        assert isinstance(connector, Connector | BoundedConnector)
        found[f"block {k}"] = _block(block, size)
        found[f"connector {k}"] = _connector(connector, size)
        pools = connector.pool if isinstance(connector, Connector) else not connector.is_last
        size = tuple(n // 2 for n in size) if pools else size
    found["mean over the pixels"] = _mean(cast(Classifier, network.classifier), prod(size))
    return found


def standardization_bound(preprocessing: Preprocessing, size: Size, channels: int) -> Bound:
    """From pixels, after resizing, to standardised ones, before pooling.

    'mean' keeps distances, 'dataset' enlarges them by 1/std at most. That of each image keeps its
    length at most sqrt(n), n its numbers; its `lipschitz` is of no use and 0, see
    `certificate.Certificate`. c, the image minus its mean, is right to gamma(n + 2) |x|, and
    sqrt(n) c/max(|c|, 1) to sqrt(n) times that and to gamma(n + 8) of itself.
    """
    num_pixels = prod(size)
    if preprocessing.standardize == "image":
        root = sqrt(channels * num_pixels) * (1 + 4 * UNIT)
        error = 2 * root * gamma(channels * num_pixels + 8)
        return Bound(lipschitz=0.0, offset=root, relative=error, absolute=error)
    if preprocessing.mean is None:
        return IDENTITY
    scale = 1.0
    if preprocessing.std is not None:
        scale = nextafter(1 / min(preprocessing.std), inf)
    offset = scale * sqrt(num_pixels * sum(value**2 for value in preprocessing.mean))
    return _rounded(Bound(lipschitz=scale, offset=offset), 4)


def pooling_bound(factor: int, dimension: int) -> Bound:
    """Means over cells of `factor` pixels an axis: each has norm factor^(-d/2)."""
    if factor == 1:
        return IDENTITY
    norm = nextafter(factor ** (-dimension / 2), inf)
    return _rounded(Bound(lipschitz=norm), factor**dimension + 2)


def _rounded(bound: Bound, num_roundings: int) -> Bound:
    """A map each of whose numbers is right to so many roundings of the sum of its |terms|."""
    error = gamma(num_roundings)
    return replace(bound, relative=error * bound.lipschitz, absolute=error * bound.offset)


def _opening(opening: nn.Module, size: Size) -> Bound:
    if isinstance(opening, PaddedOpening):
        return IDENTITY
    if isinstance(opening, BoundedOpening):
        return _bounded(opening.convolution, tuple(n // opening.patch_size for n in size))
    assert isinstance(opening, Opening)
    return _activated(opening, size)


def _connector(connector: Connector | BoundedConnector, size: Size) -> Bound:
    dimension = len(size)
    if isinstance(connector, Connector):
        found = _activated(connector, size)
        return found.then(pooling_bound(2, dimension)) if connector.pool else found
    if connector.is_last:
        return IDENTITY
    # Averages times 2^(d/2); sums and differences of 2^d numbers, each times 2^(-d/2); or moved.
    errors = {
        "average": gamma(2**dimension + 4),
        "haar": gamma(dimension + 4) * 2 ** (dimension / 2),
    }
    pooled = Bound(relative=errors.get(connector.pooling, 0.0))
    return pooled.then(_bounded(connector.convolution, tuple(n // 2 for n in size)))


def _mean(classifier: Classifier, num_pixels: int) -> Bound:
    """The mean over P pixels, P^(-1/2); times its inverse, 1; or all pixels as they are."""
    if not isinstance(classifier, UnitRowsClassifier):
        norm = nextafter(num_pixels**-0.5, inf) if num_pixels > 1 else 1.0
        return _rounded(Bound(lipschitz=norm), num_pixels + 2)
    return IDENTITY if classifier.size is not None else Bound(relative=gamma(num_pixels + 4))


def _convolution(convolution: Convolution, size: Size, factor: float = 1.0) -> Bound:
    return _operator(convolution.norm_bound(size), convolution, factor)


def _operator(
    norm: float, convolution: Convolution, factor: float, *, transposed: bool = False
) -> Bound:
    """factor K, or factor K^T, of that norm.

    |abs(K)| is at most |sum over the points of abs(theta)|_F, with mirrored edges up to 2^(d/2)
    times that, see `Convolution.norm_bound`.
    """
    values = convolution.stencil.detach().double().flatten(2)
    absolute = float(values.abs().sum(2).norm()) * (1 + 1e-10)
    if convolution.boundary == "reflect":
        absolute *= 2 ** (convolution.dimension / 2)
    # Each output sums the inputs' points; 6 more roundings for the factor times the stencil, and
    # two an axis where K^T adds copies to their pixels.
    copies = 0 if convolution.boundary == "zero" else 2 * convolution.dimension
    terms = values[:, 0] if transposed else values[0]
    error = gamma(terms.numel() + copies + 6)
    return Bound(lipschitz=_times(factor, norm), relative=error * factor * absolute)


def _bounded(part: nn.Module, size: Size) -> Bound:
    assert isinstance(part, BoundedConvolution)
    used, size = float(part.norm(part.convolution)), _largest(part, size)
    return _convolution(part.convolution, size, factor=nextafter(1 / used, inf))


def _largest(part: BoundedConvolution | StableLayer, size: Size) -> Size:
    """The size for which a part is bounded, where that is no smaller.

    With zeros outside |K| grows with the size. Its bound, from the symbol at frequencies that
    depend on the size, need not: that of the larger size holds for the smaller one and is what the
    part is divided by. A matrix at each pixel has one norm for all sizes.
    """
    if part.convolution.stencil.shape[2:].numel() == 1:
        return (1,) * len(size)
    fits = all(n <= most for n, most in zip(size, part.norm.size, strict=True))
    grows = part.convolution.boundary == "zero"
    return part.norm.size if fits and grows else size


def _activated(stage: Opening | Connector, size: Size) -> Bound:
    """K, N, and ReLU, which keeps distances and is exact."""
    found = _convolution(stage.convolution, size)
    return found.then(_norm_bound(stage.normalization, prod(size)))


def _norm_bound(normalization: nn.Module, num_pixels: int) -> Bound:
    """N: |s|_max for channels scaled by s, |s|_max/sqrt(epsilon) with the TV norm (eq. 9)."""
    if isinstance(normalization, ChannelAffine):
        return _affine(normalization.scale, normalization.bias, num_pixels)
    if isinstance(normalization, ChannelBias):
        return _affine(torch.ones_like(normalization.bias), normalization.bias, num_pixels)
    if isinstance(normalization, TotalVariationNorm):
        slope = nextafter(1 / nextafter(sqrt(normalization.epsilon), 0.0), inf)
        found = _rounded(Bound(lipschitz=slope), normalization.channels + 24)
        affine = normalization.affine
        return found if affine is None else found.then(_norm_bound(affine, num_pixels))
    if isinstance(normalization, _BATCH_NORMS):
        mean, variance = normalization.running_mean, normalization.running_var
        assert mean is not None
        assert variance is not None
        scale = (variance.double() + normalization.eps).rsqrt()
        if normalization.weight is not None:
            scale = scale * normalization.weight
        shift = -mean * scale
        bias = torch.zeros_like(scale) if normalization.bias is None else normalization.bias
        found = _affine(scale, shift.abs() + bias.abs(), num_pixels)
        return replace(found, lipschitz=found.lipschitz * (1 + 16 * UNIT))
    assert isinstance(normalization, nn.Identity)
    return IDENTITY


def _affine(scale: Tensor, bias: Tensor, num_pixels: int) -> Bound:
    largest = float(scale.detach().double().abs().amax())
    offset = sqrt(num_pixels) * float(bias.detach().double().norm())
    return _rounded(Bound(lipschitz=largest, offset=offset), 12)


def _layer(layer: nn.Module, size: Size) -> Bound:
    """F: its operators one after the other; sigma's slopes are at most 1 and sigma(0) = 0."""
    assert isinstance(layer, AbstractLayer)
    sigma = Bound(relative=8 * UNIT)
    widest = _largest(layer, size) if isinstance(layer, StableLayer) else size
    first = _convolution(layer.convolution, widest)
    found = first.then(_norm_bound(layer.normalization, prod(size))).then(sigma)
    if isinstance(layer, ResidualLayer):
        return found.then(_convolution(layer.output_convolution, size))
    last = _operator(first.lipschitz, layer.convolution, layer.factor, transposed=True)
    return found.then(last)


def _block(block: Block, size: Size) -> Bound:
    known: dict[Layers, Bound] = {}  # steps may share their layers
    for layers in block.steps:
        if layers not in known:
            known[layers] = _STEPS[type(block.integrator)](block, layers, size)
    found = IDENTITY
    if isinstance(block.integrator, Leapfrog) and block.integrator.second_order_start:
        # (Y, -dt/2 F(Y)), orthogonal to each other
        rate = _layer(block.steps[0][0], size)
        found = IDENTITY.plus(rate, block.step_size / 2)
    for layers in block.steps:
        found = found.then(known[layers])
    return found


def _euler(block: Block, layers: Layers, size: Size) -> Bound:
    """Y + dt F(Y): 1 + dt |F|, or max(1, dt |F| - 1) where -F is a convex potential's gradient.

    Theorem 1: such an F with Lipschitz constant c has |g(x) - g(y)|^2 <= |x - y|^2
    - dt (2/c - dt) |F(x) - F(y)|^2, so that steps of dt <= 2/c never expand a distance.
    """
    rate = _layer(layers[0], size)
    found = IDENTITY.plus(rate, block.step_size)
    if not is_monotone(layers[0]):
        return found
    return replace(
        found, lipschitz=max(1.0, nextafter(_times(block.step_size, rate.lipschitz) - 1, inf))
    )


def _runge_kutta(block: Block, layers: Layers, size: Size) -> Bound:
    """1 + z + z^2/2 + z^3/6 + z^4/24 with z = dt |F|, or 1 below the guaranteed step bound."""
    rate, dt = _layer(layers[0], size), block.step_size
    first = rate
    second = IDENTITY.plus(first, dt / 2).then(rate)
    third = IDENTITY.plus(second, dt / 2).then(rate)
    fourth = IDENTITY.plus(third, dt).then(rate)
    total = first.plus(second, 2).plus(third, 2).plus(fourth, 1)
    found = IDENTITY.plus(total, nextafter(dt / 6, inf))
    bound = guaranteed_bound(block.integrator, layers, size, dense_size=0)
    stable = bound is not None and dt * (1 + 1e-9) <= bound
    return replace(found, lipschitz=1.0) if stable else found


def _verlet(block: Block, layers: Layers, size: Size) -> Bound:
    """Y += dt F_1(Z), then Z -= dt F_2(Y) (eq. 10)."""
    first, second = (_shear(_layer(layer, size), block.step_size) for layer in layers)
    return first.then(second)


def _leapfrog(block: Block, layers: Layers, size: Size) -> Bound:
    """v += dt F(Y), then Y += dt v (eq. 11), in (Y, v); what is left of it in the end is Y."""
    rate = _layer(layers[0], size)
    return _shear(rate, block.step_size).then(_shear(IDENTITY, block.step_size))


def _shear(rate: Bound, step_size: float) -> Bound:
    """(y, z) -> (y + dt F(z), z): the norm of [[1, c], [0, 1]], c = dt |F|."""
    constant = _times(step_size, rate.lipschitz)
    norm = (constant + sqrt(constant * constant + 4)) / 2 * (1 + 8 * UNIT)
    return replace(IDENTITY.plus(rate, step_size), lipschitz=norm)


_STEPS: dict[type, Callable[[Block, Layers, Size], Bound]] = {
    ForwardEuler: _euler,
    RungeKutta4: _runge_kutta,
    Verlet: _verlet,
    Leapfrog: _leapfrog,
}
