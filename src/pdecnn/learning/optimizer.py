"""Stochastic gradient descent with momentum and projection onto a box (Secs. 4 and 5)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.checks import check_number, check_positive
from pdecnn.errors import ConfigError, unknown_name
from pdecnn.networks.network import Network
from pdecnn.pde.convolution import Convolution
from pdecnn.pde.stencil import mesh_growth

Tensors = list[Tensor] | tuple[Tensor, ...]
BOXES = ("stencils", "all", "none")
MOMENTUM_CONVENTIONS = ("rate_inside", "rate_outside")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How a gradient becomes an update."""

    momentum: float = 0.9
    """The share of the velocity that survives a step."""
    momentum_convention: str = "rate_inside"
    """'rate_inside': v <- lr g + m v, x <- x - v (the authors'); 'rate_outside': v <- g + m v,
    x <- x - lr v (PyTorch's). They differ only when the rate changes."""
    box: str = "stencils"
    """Which weights are kept in [-box_bound, box_bound] after each step: the block 'stencils'
    theta^(1), as the paper says; 'all', as the authors' code does; 'none'."""
    box_bound: float = 1.0
    """Half the side of the box, on the mesh for which the weights were drawn; it scales with the
    stencils on another."""
    clip_norm: float | None = None
    """Gradients longer than this are shortened to it; None: never."""
    average_decay: float | None = None
    """The moving average of the weights keeps this share a step and is what `Trainer` evaluates;
    None: no average."""

    def __post_init__(self) -> None:
        momentum = check_number("momentum", self.momentum, smallest=0, below=1)
        object.__setattr__(self, "momentum", momentum)
        if self.momentum_convention not in MOMENTUM_CONVENTIONS:
            raise unknown_name(
                "momentum_convention", self.momentum_convention, MOMENTUM_CONVENTIONS
            )
        if self.box not in BOXES:
            raise unknown_name("box", self.box, BOXES)
        for name in ("box_bound", "clip_norm", "average_decay"):
            value = getattr(self, name)
            if value is not None or name == "box_bound":
                object.__setattr__(self, name, check_positive(name, value))
        if self.average_decay is not None and self.average_decay >= 1:
            raise ConfigError(f"average_decay must be below 1, found {self.average_decay!r}")


class ProjectedSGD(torch.optim.Optimizer):
    """x <- P(x - velocity), with P the projection of some weights onto a box.

    A torch optimiser like any other: set the rate with `optimizer.learning_rate = ...`. The
    moving average of the config is not its business: see `MovingAverage`.
    """

    def __init__(
        self, network: Network, *, learning_rate: float, config: OptimizerConfig | None = None
    ) -> None:
        learning_rate = check_number("learning_rate", learning_rate, smallest=0)
        self.config = OptimizerConfig() if config is None else config
        super().__init__(network.parameters(), {"lr": learning_rate})
        boxed = boxed_weights(network, self.config.box)
        self._boxes = _boxes(network, boxed, self.config.box_bound)

    @property
    def boxes(self) -> list[tuple[float, list[Tensor]]]:
        """Bounds, and the weights that are kept within each: none that is frozen."""
        return [
            (bound, [weight for weight in weights if weight.requires_grad])
            for bound, weights in self._boxes
        ]

    @property
    def boxed(self) -> list[Tensor]:
        """The weights that are kept in the box."""
        return [weight for _, weights in self.boxes for weight in weights]

    @property
    def learning_rate(self) -> float:
        """The rate of the next step."""
        rate: float = self.param_groups[0]["lr"]
        return rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        for group in self.param_groups:
            group["lr"] = value

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Clip, update every weight that has a gradient, then project."""
        if closure is not None:
            raise ConfigError("ProjectedSGD takes no closure; compute the gradient before step()")
        if self.config.clip_norm is not None:
            clip_(gradients_of(self._weights()), self.config.clip_norm)
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            velocities = [self.velocity(weight) for weight in weights]
            update_(weights, velocities, gradients_of(weights), group["lr"], self.config)
        for bound, weights in self.boxes:
            project_(weights, bound)

    def velocity(self, weight: Tensor) -> Tensor:
        """The velocity of a weight, zero before its first step."""
        state: dict[str, Any] = self.state[weight]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(weight)
        velocity: Tensor = state["velocity"]
        return velocity

    def _weights(self) -> list[Tensor]:
        return [weight for group in self.param_groups for weight in group["params"]]


@torch.no_grad()
def update_(
    weights: Tensors,
    velocities: Tensors,
    gradients: Tensors,
    learning_rate: float | Tensor,
    config: OptimizerConfig,
    accepted: Tensor | None = None,
) -> None:
    """One step of gradient descent with momentum, in place.

    Where `accepted` (0-dim, bool) is false nothing changes; the gradients must be finite then too.
    """
    if not weights:
        return
    momentum: float | Tensor = config.momentum
    if accepted is not None:
        zero = accepted.new_zeros((), dtype=gradients[0].dtype)
        momentum = torch.where(accepted, zero + momentum, zero + 1)
        learning_rate = torch.where(accepted, learning_rate, zero)
    torch._foreach_mul_(velocities, momentum)
    if config.momentum_convention == "rate_inside":
        if isinstance(learning_rate, Tensor):
            torch._foreach_add_(velocities, torch._foreach_mul(gradients, learning_rate))
        else:
            torch._foreach_add_(velocities, gradients, alpha=learning_rate)
        moves: Tensors = velocities
        if accepted is not None:
            moves = torch._foreach_mul(velocities, accepted.to(velocities[0].dtype))
    else:
        if accepted is not None:
            gradients = torch._foreach_mul(gradients, accepted.to(gradients[0].dtype))
        torch._foreach_add_(velocities, gradients)
        moves = torch._foreach_mul(velocities, learning_rate)
    torch._foreach_sub_(weights, moves)


def boxed_weights(network: Network, box: str) -> list[Tensor]:
    """The weights that a box setting keeps bounded."""
    if box == "none":
        return []
    if box == "all":
        return list(network.parameters())
    return [part.stencil for part in network.blocks.modules() if isinstance(part, Convolution)]


def _boxes(network: Network, boxed: list[Tensor], bound: float) -> list[tuple[float, list[Tensor]]]:
    """The boxed weights with the bound of their box.

    The box of a stencil scales with it from the mesh of its drawing to its own: what a change of
    mesh makes of a stencil in the box is in the box.
    """
    config = network.config
    growth = mesh_growth(1.0, config.mesh_size, dimension=config.dimension)
    scaled = {
        id(part.stencil)
        for part in network.modules()
        if isinstance(part, Convolution) and max(part.stencil_size) > 1
    }
    boxes: dict[float, list[Tensor]] = {}
    for weight in boxed:
        boxes.setdefault(bound * growth if id(weight) in scaled else bound, []).append(weight)
    return list(boxes.items())


@torch.no_grad()
def project_(weights: Iterable[Tensor], bound: float, accepted: Tensor | None = None) -> None:
    """Clamp the weights to [-bound, bound], in place.

    Where `accepted` (0-dim, bool) is false nothing changes.
    """
    boxed = list(weights)
    if not boxed:
        return
    if accepted is None:
        torch._foreach_clamp_min_(boxed, -bound)
        torch._foreach_clamp_max_(boxed, bound)
        return
    flat = flatten(boxed)
    chosen = torch.where(accepted, flat.clamp(-bound, bound), flat)
    torch._foreach_copy_(boxed, unflatten(chosen, boxed))


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers of the tensors as one vector."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def unflatten(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, in the shapes of `like`, of which `flatten` made the vector."""
    parts = torch.split(flat, [tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


def gradients_of(weights: Iterable[Tensor]) -> list[Tensor]:
    """The gradients of those weights that have one."""
    return [weight.grad for weight in weights if weight.grad is not None]


def norm_of(gradients: list[Tensor]) -> Tensor:
    """The Euclidean norm of all gradients together, on their device."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm


@torch.no_grad()
def clip_(gradients: list[Tensor], largest_norm: float) -> None:
    """Shorten the gradients, in place, to `largest_norm` together if they are longer."""
    if gradients:
        torch._foreach_mul_(gradients, (largest_norm / norm_of(gradients)).clamp(max=1))


class MovingAverage:
    """average <- decay average + (1 - decay) network, statistics of batch norms included."""

    def __init__(self, average: nn.Module, network: nn.Module, decay: float) -> None:
        pairs = list(zip(average.state_dict().values(), network.state_dict().values(), strict=True))
        averaged = [pair for pair in pairs if pair[0].is_floating_point()]
        counted = [pair for pair in pairs if not pair[0].is_floating_point()]
        self.averages, self.weights = [a for a, _ in averaged], [w for _, w in averaged]
        self.counts, self.counted = [a for a, _ in counted], [w for _, w in counted]
        self.decay = decay

    @torch.no_grad()
    def update_(self, accepted: Tensor | None = None) -> None:
        """Take the weights in; where `accepted` (0-dim, bool) is false nothing changes."""
        share: float | Tensor = 1 - self.decay
        if accepted is not None:
            share = accepted.to(self.averages[0].dtype) * share
        changes = torch._foreach_sub(self.weights, self.averages)
        torch._foreach_mul_(changes, share)
        torch._foreach_add_(self.averages, changes)
        if self.counts:
            torch._foreach_copy_(self.counts, self.counted)
