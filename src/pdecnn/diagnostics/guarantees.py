"""What is proved of a step, for all features: the assumptions of Theorem 1 and its step bound."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, prod, sqrt

from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from pdecnn.diagnostics.jacobians import is_wave
from pdecnn.diagnostics.spectra import DENSE_SIZE, convolution_norm_bound
from pdecnn.pde.activations import BUILT_IN, Activation
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import Convolution, convolution_of
from pdecnn.pde.facts import HEAT, declared, is_deterministic
from pdecnn.pde.integrators import AbstractIntegrator, Layers
from pdecnn.pde.layers import AbstractLayer
from pdecnn.pde.normalization import ChannelAffine, ChannelBias, TotalVariationNorm
from pdecnn.pde.repeatability import replaced_methods

_PLAIN = (nn.Identity, ChannelAffine, ChannelBias)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """A condition of a theorem, in words, and whether it is met."""

    statement: str
    holds: bool
    otherwise: str = ""
    """What is the case where it is not met."""

    @property
    def words(self) -> str:
        """What is the case."""
        return self.statement if self.holds else self.otherwise


def monotone_assumptions(layer: nn.Module) -> tuple[Assumption, ...]:
    """What Theorem 1 needs of a layer for -F to be co-coercive, hence F monotone.

    F_sym without normalisation, slopes of sigma in [0, L], scale s >= 0, any bias; or total
    variation denoising: sigma = identity and the TV norm without weights. The slopes are those
    an activation declares.
    """
    symmetric = Assumption(
        statement="the layers are F_sym (eq. 7)",
        holds=declared(type(layer), "symmetric") is True,
        otherwise=f"a layer is not F_sym (eq. 7) but of class {type(layer).__name__}",
    )
    if not isinstance(layer, AbstractLayer) or declared(type(layer), "symmetric") is None:
        return (symmetric,)
    found = departure(layer)
    unchanged = Assumption(
        statement="the layers are pdecnn's own, unchanged",
        holds=found is None,
        otherwise=f"a layer was changed: {found}",
    )
    if not unchanged.holds:
        return symmetric, unchanged
    return symmetric, unchanged, *_monotone_parts(layer)


def _monotone_parts(layer: AbstractLayer) -> tuple[Assumption, ...]:
    normalization = layer.normalization
    name, slopes = layer.activation.name, layer.activation.slope_range
    bare = type(normalization) is TotalVariationNorm and normalization.affine is None
    if bare and slopes == (1.0, 1.0):
        denoising = "total variation denoising: sigma = identity, TV norm without weights"
        return (Assumption(statement=denoising, holds=True),)
    is_ours = layer.activation in BUILT_IN
    assumptions = (
        Assumption(
            statement="the layers have no normalisation",
            holds=type(normalization) in _PLAIN,
            otherwise="the layers have a normalisation",
        ),
        Assumption(
            statement=f"{name} is {'known' if is_ours else 'declared'} not to decrease",
            holds=slopes is not None and slopes[0] >= 0,
            otherwise=f"{name} declares no slopes"
            if slopes is None
            else f"the slopes of {name} begin at {slopes[0]:g}",
        ),
    )
    if not isinstance(normalization, ChannelAffine):
        return assumptions
    non_negative = Assumption(
        statement="every scale is at least 0",
        holds=bool((normalization.scale >= 0).all()),
        otherwise="a scale is negative",
    )
    return *assumptions, non_negative


def is_monotone(layer: nn.Module) -> bool:
    """Whether all of `monotone_assumptions` hold: J is symmetric and negative semi-definite."""
    return all(assumption.holds for assumption in monotone_assumptions(layer))


def is_linear(layer: nn.Module) -> bool:
    """Whether F is affine in the features: one slope, not 0, everywhere and no normalisation."""
    if not isinstance(layer, AbstractLayer) or declared(type(layer), "symmetric") is None:
        return False  # who knows what it makes of K, N and sigma
    if type(layer.normalization) not in _PLAIN or departure(layer) is not None:
        return False
    slopes = layer.activation.slope_range
    return slopes is not None and slopes[0] == slopes[1] != 0


def scaled_norm_bound(
    layer: AbstractLayer, size: Sequence[int], *, dense_size: int = DENSE_SIZE
) -> float:
    """At least |(c S)^(1/2) K| on images of `size`: S the scale after K, c the layer's factor."""
    return convolution_norm_bound(scaled_convolution(layer), tuple(size), dense_size=dense_size)


def scaled_convolution(layer: AbstractLayer) -> Convolution:
    """(c S)^(1/2) K as a convolution of its own; |S| where a scale is negative."""
    given = layer.convolution
    stencil = given.stencil.detach().double() * sqrt(layer.factor)
    if isinstance(layer.normalization, ChannelAffine):
        root = layer.normalization.scale.detach().double().abs().sqrt()
        stencil = stencil * root.view(-1, *(1,) * (stencil.dim() - 1))
    # A new one: the stencil of a weight-normalised K is computed, and cannot be written to.
    convolution = convolution_of(stencil, given.boundary)
    convolution.padding = given.padding
    return convolution


def guaranteed_bound(
    integrator: AbstractIntegrator,
    layers: Layers,
    size: Sequence[int],
    *,
    dense_size: int = DENSE_SIZE,
) -> float | None:
    """The step size up to which a step provably never expands distances; None: there is none.

    Where -F is co-coercive with constant c = L |S^(1/2) K|^2 (or |K|^2/sqrt(epsilon) for total
    variation denoising), that is what the integrator's class declares: 2/c for forward Euler
    (eq. 8), and for Runge-Kutta 4 too, 2.7853/c for it where F is linear. |K| enters by its upper
    bound. Hyperbolic steps expand some distances at any step size: none.
    """
    rule = declared(type(integrator), "stability")
    if rule is None or rule.contractive == 0 or integrator.equations != HEAT:
        return None
    (layer,) = layers
    if not isinstance(layer, AbstractLayer) or not is_monotone(layer):
        return None
    constant = _cocoercivity(layer, scaled_norm_bound(layer, size, dense_size=dense_size))
    return quotient(rule.linear if is_linear(layer) else rule.contractive, constant)


def sufficient_linear_bound(
    integrator: AbstractIntegrator,
    layers: Layers,
    size: Sequence[int],
    *,
    dense_size: int = DENSE_SIZE,
) -> float | None:
    """Below it a linear hyperbolic step has only eigenvalues of magnitude 1; None: not linear.

    2/|K| for leapfrog (eq. 11), 2/(|K_1| |K_2|) for Verlet (eq. 10), with S^(1/2) K for K, the
    slope of sigma included and the norms' upper bounds. It needs a monotone F_sym besides.
    """
    rule = declared(type(integrator), "stability")
    signs = prod(equation.sign for equation in integrator.equations)
    oscillates = is_wave(integrator) and signs == (1 if len(layers) == 1 else -1)
    if rule is None or rule.linear == 0 or not oscillates:
        return None
    if not all(is_linear(layer) and is_monotone(layer) for layer in layers):
        return None
    constants = [
        _cocoercivity(layer, scaled_norm_bound(layer, size, dense_size=dense_size))
        for layer in layers
        if isinstance(layer, AbstractLayer)
    ]
    return quotient(sqrt(rule.linear), sqrt(prod(constants)))


def _cocoercivity(layer: AbstractLayer, norm: float) -> float:
    if isinstance(layer.normalization, TotalVariationNorm):
        return norm**2 / sqrt(layer.normalization.epsilon)
    assert layer.activation.slope_range is not None
    return layer.activation.slope_range[1] * norm**2


def quotient(numerator: float, denominator: float) -> float:
    """The quotient, infinite over 0: without K every step is stable."""
    return inf if denominator == 0 else numerator / denominator


def departure(module: nn.Module, *, with_parts: bool = True) -> str | None:
    """How a module, or a part of it, departs from what its class computes; None: it does not.

    Every part must be exactly of a class that declares itself `deterministic`, since a subclass
    may compute anything; no forward hook may be registered, not even one that only looks; no method
    may be replaced on the object. Backward hooks, which change no features, are allowed, and so are
    parametrizations: weights are read through them wherever they are used.
    """
    if _global_forward_hooks or _global_forward_pre_hooks:
        return "a hook is registered for all modules"
    for name, part in _parts(module) if with_parts else [("", module)]:
        kind = type_before_parametrizations(part)
        found = attached([part]) if is_deterministic(kind) else f"is of class {kind.__name__}"
        if found is None and with_parts and isinstance(part, AbstractLayer):
            name, found = _joined(name, "activation"), _activation_departure(part.activation)
        if found is not None:
            return f"its {name} {found}" if name else f"it {found}"
    return None


def _parts(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The module and its children's parts, with their names; not what computes the weights."""
    yield name, module
    for child_name, child in module.named_children():
        if not (child_name == "parametrizations" and is_parametrized(module)):
            yield from _parts(child, _joined(name, child_name))


def _activation_departure(activation: object) -> str | None:
    """Its slopes are what is declared of it, whatever module computes it."""
    if type(activation) is not Activation:
        return f"is of class {type(activation).__name__}"
    function = activation.function
    return attached(function.modules()) if isinstance(function, nn.Module) else None


def attached(modules: Iterable[nn.Module]) -> str | None:
    """What hangs on the first module that is not as its class made it; None: nothing."""
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks:
            return "has a hook"
        for name in replaced_methods(module):
            return f"has a method of its own, {name}"
        if isinstance(module, Block):
            for name in replaced_methods(module.integrator):
                return f"has an integrator with a method of its own, {name}"
    return None


def _joined(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part
