"""What defines a network: the three axes of its blocks, its widths, its input and output."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from pdecnn.checks import check_count, check_positive
from pdecnn.errors import ConfigError, unknown_name
from pdecnn.pde.activations import Activation, list_activations, resolve_activation
from pdecnn.pde.block import check_backprop, refuse_batch_norm
from pdecnn.pde.convolution import check_dimension
from pdecnn.pde.grid import Grid, choose_bits
from pdecnn.pde.integrators import AbstractIntegrator, resolve_integrator
from pdecnn.pde.layers import LAYERS
from pdecnn.pde.normalization import NORMALIZATIONS

_PER_BLOCK = ("channels", "num_steps", "step_size")


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """The network of Sec. 5: opening, blocks with connectors between them, classifier."""

    channels: tuple[int, ...]
    """The width of each block, then the last connector's output."""
    in_channels: int = 3
    """Channels of the images."""
    num_classes: int = 10
    """Outputs of the classifier."""
    layer: str = "symmetric"
    """The spatial operator: 'symmetric' (eq. 7) or 'residual' (eq. 1)."""
    integrator: str = "forward_euler"
    """How time is discretised, by name."""
    num_steps: int | tuple[int, ...] = 3
    """Time steps a block: one number, or one per block."""
    step_size: float | tuple[float, ...] = 1.0
    """dt: one number, or one per block."""
    activation: str | Activation | Callable[[Tensor], Tensor] = "relu"
    """sigma in the blocks; opening and connectors always have ReLU."""
    normalization: str = "tv"
    """N in the blocks: 'none', 'tv' or 'batch'."""
    epsilon: float = 1e-3
    """The epsilon of the total-variation norm (eq. 9)."""
    backprop: str = "stored"
    """What is kept for the gradient; does not change what the network computes, but for
    'exact', which rounds the state to a grid."""
    grid_bits: int | None = None
    """The grid of mode 'exact', the multiples of 2^-grid_bits; other modes have none. None: chosen
    for the smallest step size, and a network or run says what was chosen."""
    dimension: int = 2
    """1 for signals, 2 for images, 3 for volumes."""
    share_weights: bool = False
    """Whether all steps of a block are one set of weights, constant in time."""
    mesh_size: float = 1.0
    """h, relative to the mesh for which the weights were drawn; `refine_in_space` and
    `coarsen_in_space` change it. The box of the stencils scales with it."""

    def __post_init__(self) -> None:
        for name in _PER_BLOCK:
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        self._check_numbers()
        self._check_names()
        integrator = self.resolved_integrator
        for width in self.channels[:-1]:
            integrator.layer_channels(width)
        check_backprop(self.backprop, integrator)
        self._check_grid()
        if self.normalization == "batch":
            refuse_batch_norm(integrator)

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return len(self.channels) - 1

    @property
    def block_num_steps(self) -> tuple[int, ...]:
        """The number of steps of each block."""
        steps = self.num_steps
        return steps if isinstance(steps, tuple) else (steps,) * self.num_blocks

    @property
    def block_step_sizes(self) -> tuple[float, ...]:
        """The step size of each block."""
        sizes = self.step_size
        return sizes if isinstance(sizes, tuple) else (sizes,) * self.num_blocks

    @property
    def smallest_size(self) -> int:
        """The smallest image side that survives the pooling."""
        return int(2 ** (self.num_blocks - 1))

    @property
    def resolved_integrator(self) -> AbstractIntegrator:
        """The integrator as an object."""
        return resolve_integrator(self.integrator)

    def with_grid(self) -> "NetworkConfig":
        """The config with its grid chosen, where it needs one and none is given."""
        if self.backprop != "exact" or self.grid_bits is not None:
            return self
        return replace(self, grid_bits=choose_bits(min(self.block_step_sizes)))

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON values; a callable activation must be registered for that."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        activation = resolve_activation(self.activation)
        known = activation.name in list_activations()
        if not known or resolve_activation(activation.name) is not activation:
            raise ConfigError(
                f"activation {activation.name!r} is a plain callable, which no file can hold; "
                f"register it first with pdecnn.register_activation(pdecnn.Activation(...))"
            )
        values["activation"] = activation.name
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def _check_numbers(self) -> None:
        if not isinstance(self.channels, tuple) or len(self.channels) < 2:
            raise ConfigError(
                f"channels must list the width of each block, then the last connector's output, "
                f"so at least 2 numbers; found {self.channels!r}"
            )
        for name, check in (
            ("channels", check_count),
            ("in_channels", check_count),
            ("num_classes", check_count),
            ("num_steps", check_count),
            ("step_size", check_positive),
            ("epsilon", check_positive),
            ("mesh_size", check_positive),
        ):
            value = getattr(self, name)
            per_block = name in _PER_BLOCK and isinstance(value, tuple)
            checked = tuple(check(name, v) for v in value) if per_block else check(name, value)
            object.__setattr__(self, name, checked)
        object.__setattr__(self, "dimension", check_dimension(self.dimension))
        for name in ("num_steps", "step_size"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != self.num_blocks:
                raise ConfigError(
                    f"{name} must be one value or one for each of {self.num_blocks} blocks, "
                    f"found {value!r}"
                )

    def _check_grid(self) -> None:
        if self.grid_bits is not None:
            object.__setattr__(self, "grid_bits", Grid(self.grid_bits).bits)
        elif self.backprop == "exact":
            choose_bits(min(self.block_step_sizes))

    def _check_names(self) -> None:
        for name in ("layer", "integrator", "normalization", "backprop"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} must be given by name, found {getattr(self, name)!r}")
        if self.layer not in LAYERS:
            raise unknown_name("layer", self.layer, LAYERS)
        if self.normalization not in NORMALIZATIONS:
            raise unknown_name("normalization", self.normalization, NORMALIZATIONS)
        if not isinstance(self.share_weights, bool):
            raise ConfigError(f"share_weights must be true or false, found {self.share_weights!r}")
        resolve_activation(self.activation)


def config_from_dict(values: object) -> NetworkConfig:
    """The config of JSON values; unknown and missing keys are errors."""
    if not isinstance(values, dict):
        raise ConfigError(f"a network config must be an object, found {type(values).__name__}")
    known = [field.name for field in fields(NetworkConfig)]
    for key in values:
        if key not in known:
            raise unknown_name("network setting", key, known)
    if "channels" not in values:
        raise ConfigError("a network config needs 'channels'")
    return NetworkConfig(**with_old_grid(values))


def with_old_grid(values: dict[str, Any]) -> dict[str, Any]:
    """The JSON values of a network with the grid that was meant before files said which."""
    return {"grid_bits": Grid().bits} | values
