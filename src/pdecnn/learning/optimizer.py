"""Steps against the gradient with projection onto a box (Secs. 4 and 5)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from pdecnn.errors import ConfigError
from pdecnn.learning.training_config import OptimizerConfig
from pdecnn.learning.update_rules import RULES, State, Tensors
from pdecnn.networks.network import Network
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import Convolution
from pdecnn.pde.stable import FollowsWeights, following
from pdecnn.pde.stencil import mesh_growth
from pdecnn.settings import check_number, formerly

Entry = tuple[nn.Module, str]
"""A weight by the module it belongs to and its name there."""
_OWN = ("config", "rule", "_following", "_boxes")
"""What `ProjectedSGD` has beside what every optimiser of torch has."""


class ProjectedSGD(torch.optim.Optimizer):
    """x <- P(x - move), with P the projection of some weights onto a box.

    The move is that of the config's `optimizer`, the velocity of gradient descent by default.
    For any module; the stencils that its config may keep in the box are those of the `Block`s in
    it. A torch optimiser like any other: set the rate with `optimizer.learning_rate = ...`. The
    moving average of the config is not its business: see `MovingAverage`.
    """

    @formerly(network="pass module")
    def __init__(
        self, module: nn.Module, *, learning_rate: float, config: OptimizerConfig | None = None
    ) -> None:
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"ProjectedSGD takes a module, whose stencils it keeps in their box, found "
                f"{type(module).__name__}; pass the network itself, not its parameters()"
            )
        learning_rate = check_number("learning_rate", learning_rate, smallest=0)
        self.config = OptimizerConfig() if config is None else config
        super().__init__(module.parameters(), {"lr": learning_rate})
        self._following = list(following(module))
        self.rule = RULES[self.config.optimizer](self.config)
        self._boxes = _boxes(module, self.config.box, self.config.box_bound)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """More weights, with a rate of their own where the group has `lr`; all else is shared."""
        # PyTorch keeps whatever a group says, and what nobody reads would be ignored.
        for name in ("learning_rate", *OptimizerConfig.__dataclass_fields__):
            if name in param_group:
                remedy = "call it lr" if name == "learning_rate" else "set it in config"
                raise ConfigError(
                    f"groups of ProjectedSGD have a rate lr of their own and nothing else; found "
                    f"{name} in a group: {remedy}"
                )
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        # PyTorch copies and pickles nothing but what it knows.
        return super().__getstate__() | {name: vars(self)[name] for name in _OWN}

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
            states = [self.state_of(weight) for weight in weights]
            self.rule.update_(weights, states, gradients_of(weights), group["lr"])
        for bound, weights in self.boxes:
            project_(weights, bound)
        for part in self._following:
            part.follow_()

    def velocity(self, weight: Tensor) -> Tensor:
        """The velocity of a weight, zero before its first step; AdamW has none."""
        return self.state_of(weight)["velocity"]

    def state_of(self, weight: Tensor) -> State:
        """What the rule keeps of a weight; zeros before its first step."""
        state: State = self.state[weight]
        if not state:
            state |= self.rule.new_state(weight)
        return state

    def named_states(self, module: nn.Module) -> dict[str, Tensor]:
        """The states of a module's weights as tensors: 'velocity/classifier.bias', for example."""
        return {
            f"{key}/{name}": tensor
            for name, weight in module.named_parameters()
            for key, tensor in self.state_of(weight).items()
        }

    def _weights(self) -> list[Tensor]:
        return [weight for group in self.param_groups for weight in group["params"]]


def blocks_of(module: nn.Module) -> list[Block]:
    """The blocks within a module, wherever they stand."""
    return [part for part in module.modules() if isinstance(part, Block)]


def matrices(parts: Iterable[nn.Module]) -> list[Entry]:
    """The convolutions and matrices among the modules' own weights, each with its bias.

    A module of vectors alone, the scales and shifts of a normalisation, has none.
    """
    found = []
    for part in parts:
        if isinstance(part, ParametrizationList):  # its result stands in the module itself
            continue
        names = [*part._parameters, *getattr(part, "parametrizations", ())]
        own = [(part, name) for name in names if getattr(part, name) is not None]
        if any(getattr(part, name).dim() > 1 for _, name in own):
            found += own
    return found


def _boxes(module: nn.Module, box: str, bound: float) -> list[tuple[float, list[Tensor]]]:
    """The weights that a box setting keeps bounded, with the bound of their box.

    The box of a stencil scales with it from the mesh of its drawing to its own: what a change of
    mesh makes of a stencil in the box is in the box.
    """
    boxed: list[Tensor] = []
    if box == "all":
        boxed = list(module.parameters())
    elif box == "stencils":
        # Stable steps are the same for every multiple of a stencil: a box says nothing of them.
        layers = (layer for block in blocks_of(module) for layer in block.layers)
        free = (layer for layer in layers if not isinstance(layer, FollowsWeights))
        parts = (part for layer in free for part in layer.modules())
        boxed = [getattr(part, name) for part, name in matrices(parts)]
    growth, scaled = 1.0, set[int]()
    if isinstance(module, Network):
        config = module.config
        growth = mesh_growth(1.0, config.mesh_size, dimension=config.dimension)
        scaled = {
            id(part.stencil)
            for part in module.modules()
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
    return torch.cat([*map(torch.flatten, tensors)])


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
        changes: Tensors = torch._foreach_sub(self.weights, self.averages)
        torch._foreach_mul_(changes, 1 - self.decay)
        if accepted is not None:  # a factor of 0 would leave what is not finite as it is
            chosen = torch.where(accepted, flatten(changes), 0)
            changes = unflatten(chosen, self.averages)
        torch._foreach_add_(self.averages, changes)
        if self.counts:
            torch._foreach_copy_(self.counts, self.counted)
