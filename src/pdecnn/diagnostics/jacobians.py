"""Jacobians without matrices: of F, of a block's system and of one of its steps (Sec. 3)."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from pdecnn.errors import ConfigError
from pdecnn.networks.network import Network, evaluation_mode
from pdecnn.pde.block import Block, copy_in_mode
from pdecnn.pde.convolution import Convolution
from pdecnn.pde.facts import declared
from pdecnn.pde.integrators import AbstractIntegrator, Layers, State, evaluate
from pdecnn.pde.repeatability import replaced_methods
from pdecnn.pde.stable import following

_DENSE_CHUNK = 64
_Module = TypeVar("_Module", bound=nn.Module)
Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearMap:
    """A matrix known by its products with flat float64 vectors."""

    size: int
    """Its number of columns."""
    device: torch.device
    apply: Product
    """x -> A x."""
    adjoint: Product
    """y -> A^T y."""

    def after(self, first: "LinearMap") -> "LinearMap":
        """The product A B of this map A and `first`, B."""
        return LinearMap(
            size=first.size,
            device=self.device,
            apply=lambda vector: self.apply(first.apply(vector)),
            adjoint=lambda vector: first.adjoint(self.adjoint(vector)),
        )

    def symmetric_part(self) -> "LinearMap":
        """(A + A^T)/2 of a square A."""
        return self._symmetric(lambda vector: (self.apply(vector) + self.adjoint(vector)) / 2)

    def gram(self) -> "LinearMap":
        """A^T A."""
        return self._symmetric(lambda vector: self.adjoint(self.apply(vector)))

    def _symmetric(self, apply: Product) -> "LinearMap":
        return LinearMap(size=self.size, device=self.device, apply=apply, adjoint=apply)

    def dense(self) -> Tensor:
        """The matrix, column by column."""
        units = torch.eye(self.size, dtype=torch.float64, device=self.device)
        columns: Tensor = torch.vmap(self.apply, chunk_size=_DENSE_CHUNK)(units)
        return columns.T.contiguous()


def jacobian_at(function: Callable[[State], State], point: State) -> LinearMap:
    """The Jacobian of a function of states at a point, the function being evaluated once."""
    flat = _flatten(point).double()

    apply, adjoint = products_at(lambda at: _flatten(function(_unflatten(at, point))), flat)
    return LinearMap(size=flat.numel(), device=flat.device, apply=apply, adjoint=adjoint)


def products_at(function: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Product, Product]:
    """x -> J x and y -> J^T y at a point, by reverse differentiation.

    J is the transpose of y -> J^T y, which is linear: both keep their graphs, so that a product
    costs one pass, ten times less than differentiating forwards anew.
    """
    # Only with has_aux=True there would be a third.
    value, pull, *_ = torch.func.vjp(function, point)

    def transposed(cotangent: Tensor) -> Tensor:
        product: Tensor = pull(cotangent)[0]
        return product

    push = torch.func.vjp(transposed, torch.zeros_like(value))[1]

    def apply(direction: Tensor) -> Tensor:
        product: Tensor = push(direction)[0].detach()
        return product

    return apply, lambda cotangent: transposed(cotangent).detach()


def layer_jacobian(layer: nn.Module, features: Tensor) -> LinearMap:
    """J = dF/dY at `features`, in float64; examples of a batch do not meet in it.

    -K^T D K for F_sym (eq. 7) without normalisation, D = diag(sigma'(K Y)).
    """
    double = frozen_copy(layer)
    return jacobian_at(lambda state: (evaluate(double, state[0]),), (features.detach().double(),))


def system_jacobian(block: Block, state: State, *, step: int = 0) -> LinearMap:
    """The Jacobian of the system of differential equations that a step of the block discretises.

    dF/dY for Y' = F(Y) (eqs. 5 and 8), [[0, dF_1/dZ], [-dF_2/dY, 0]] for the Hamiltonian network
    (eq. 10), [[0, I], [dF/dY, 0]] for position and velocity (eq. 11). `state` is one of
    `block.trajectory`, `step` the place of the layers in time.
    """
    plain = plain_copy(block)
    layers = plain.steps[_checked_step(block, step)]
    return jacobian_at(*_system(plain.integrator, layers, double_state(state)))


def step_jacobian(block: Block, state: State, *, step: int = 0) -> LinearMap:
    """The Jacobian of one discrete step at `state`: what it multiplies perturbations by.

    The grid of mode 'exact' is left out; its rounding is differentiated straight through.
    """
    plain = plain_copy(block)
    layers = plain.steps[_checked_step(block, step)]
    return jacobian_at(
        lambda at: plain.integrator.step(layers, at, plain.step_size), double_state(state)
    )


def convolution_map(convolution: Convolution, size: tuple[int, ...]) -> LinearMap:
    """K on images of that size as a map of flat vectors (eq. 2)."""
    double = frozen_copy(convolution)
    device = double.stencil.device
    inputs = torch.zeros((1, double.in_channels, *size), dtype=torch.float64, device=device)
    outputs = (1, double.out_channels, *size)
    return LinearMap(
        size=inputs.numel(),
        device=device,
        apply=lambda vector: double(vector.view(inputs.shape)).flatten(),
        adjoint=lambda vector: double.adjoint(vector.view(outputs)).flatten(),
    )


@torch.no_grad()
def block_inputs(network: Network, images: Tensor) -> list[Tensor]:
    """The features each block starts from, for standardised images, in evaluation mode.

    On invertible levels a velocity goes on with them, which a block by itself begins anew.
    """
    with evaluation_mode(network):
        after = network.forward_intermediates(images)
        pairs = zip(network.connectors, after[:-1], strict=False)
        return [network.open(images), *(connector(features) for connector, features in pairs)]


def frozen_copy(module: _Module) -> _Module:
    """A float64 copy in evaluation mode whose weights take no gradients."""
    return _frozen(deepcopy(module))


def plain_copy(block: Block) -> Block:
    """The block as `frozen_copy`, in mode 'stored' and without a grid.

    A method replaced on an object goes on computing with the original, in its dtype.
    """
    for name, part in block.layers.named_modules():
        other = any(weight.dtype != torch.float64 for weight in part.parameters())
        for method in replaced_methods(part) if other else ():
            raise ConfigError(
                f"layers.{name} has a method of its own, {method}, which a copy in float64 does "
                f"not follow; write a class that defines it, or take block.double() first"
            )
    return _frozen(copy_in_mode(block))


def _frozen(module: _Module) -> _Module:
    for part in module.modules():
        # They look at gradients, or change them; derivatives are those of the function.
        part._backward_hooks.clear()
        part._backward_pre_hooks.clear()
    module.double().eval().requires_grad_(False)
    for part in following(module):  # now: a derivative cannot be taken of what writes buffers
        part.refresh()
    return module


def double_state(state: State) -> State:
    """The state in float64, cut from any graph."""
    return tuple(part.detach().double() for part in state)


def is_wave(integrator: AbstractIntegrator) -> bool:
    """Whether the equation is one of waves: of second order, or of unknowns that drive others."""
    return any(part.order == 2 or part.unknown != part.argument for part in integrator.equations)


def has_symmetric_layers(block: Block) -> bool:
    """Whether all layers are F_sym (eq. 7), as their classes declare."""
    return all(declared(type(layer), "symmetric") is True for layer in block.layers)


def _system(
    integrator: AbstractIntegrator, layers: Layers, state: State
) -> tuple[Callable[[State], State], State]:
    """The rates of all unknowns as functions of them, and their values in a state.

    An unknown of second order is followed by its velocity, which no F depends on.
    """
    equations = integrator.equations
    if len(equations) != len(layers):
        raise ConfigError(
            f"the differential equation behind {integrator.name} is not known: it declares none "
            f"for each of its {len(layers)} layer(s); take step_jacobian"
        )
    places: dict[str, int] = {}
    point: list[Tensor] = []
    for equation in equations:
        places[equation.unknown] = len(point)
        value = state[integrator.place(equation.unknown)]
        point += [value] if equation.order == 1 else [value, torch.zeros_like(value)]

    def rate(values: State) -> State:
        rates: list[Tensor] = []
        for equation, layer in zip(equations, layers, strict=True):
            if equation.order == 2:
                rates.append(values[places[equation.unknown] + 1])
            rates.append(equation.sign * evaluate(layer, values[places[equation.argument]]))
        return tuple(rates)

    return rate, tuple(point)


def _checked_step(block: Block, step: int) -> int:
    if not 0 <= step < block.num_steps:
        raise ConfigError(f"step must be from 0 to {block.num_steps - 1}, found {step!r}")
    return step


def _flatten(state: State) -> Tensor:
    return torch.cat([part.flatten() for part in state])


def _unflatten(vector: Tensor, like: State) -> State:
    # All parts of a state have one shape.
    parts = vector.chunk(len(like))
    return tuple(part.view(wanted.shape) for part, wanted in zip(parts, like, strict=True))
