"""What defines a network: the three axes of its blocks, its widths, its input and output."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pdecnn.errors import ConfigError
from pdecnn.pde.activations import Activation, list_activations, resolve_activation
from pdecnn.pde.block import check_backprop, refuse_batch_norm
from pdecnn.pde.grid import Grid, choose_bits
from pdecnn.pde.integrators import AbstractIntegrator, resolve_integrator
from pdecnn.pde.layers import AbstractLayer, resolve_layer
from pdecnn.pde.normalization import NORMALIZATIONS
from pdecnn.settings import Settings, documented, setting


@documented
@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Settings):
    """The network of Sec. 5: opening, blocks with connectors between them, classifier."""

    group = "network"
    channels: tuple[int, ...] = setting(
        meaning="The width of each block, then the last connector's output.", allowed="[1, inf)"
    )
    in_channels: int = setting(3, "Channels of the images.", "[1, inf)")
    num_classes: int = setting(10, "Outputs of the classifier.", "[1, inf)")
    layer: str = setting(
        "symmetric",
        "The spatial operator: 'symmetric' (eq. 7), 'residual' (eq. 1) or one registered.",
    )
    integrator: str = setting("forward_euler", "How time is discretised, by name; of a plugin too.")
    num_steps: int | tuple[int, ...] = setting(
        3, "Time steps a block: one number, or one per block.", "[1, inf)"
    )
    step_size: float | tuple[float, ...] = setting(
        1.0, "dt: one number, or one per block.", "(0, 1e30]"
    )
    activation: str | Activation | Callable[[Tensor], Tensor] = setting(
        "relu", "sigma in the blocks; opening and connectors always have ReLU."
    )
    normalization: str = setting("tv", "N in the blocks: 'none', 'tv' or 'batch'.", NORMALIZATIONS)
    epsilon: float = setting(1e-3, "The epsilon of the total-variation norm (eq. 9).", "(0, inf)")
    backprop: str = setting(
        "stored",
        "What is kept for the gradient; does not change what the network computes, but for "
        "'exact', which rounds the state to a grid.",
    )
    grid_bits: int | None = setting(
        None,
        "The grid of mode 'exact', the multiples of 2^-grid_bits; other modes have none. None: "
        "chosen for the smallest step size, and a network or run says what was chosen.",
        "[1, 22]",
    )
    dimension: int = setting(2, "1 for signals, 2 for images, 3 for volumes.", "[1, 3]")
    share_weights: bool = setting(
        False, "Whether all steps of a block are one set of weights, constant in time."
    )
    mesh_size: float = setting(
        1.0,
        "h, relative to the mesh for which the weights were drawn; `refine_in_space` and "
        "`coarsen_in_space` change it. The box of the stencils scales with it.",
        "(0, inf)",
    )

    def check_together(self) -> None:
        """Numbers for each block, names that are known, modes that the integrator has."""
        if len(self.channels) < 2:
            raise ConfigError(
                f"channels must list the width of each block, then the last connector's output, "
                f"so at least 2 numbers; found {self.channels!r}"
            )
        for name in ("num_steps", "step_size"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != self.num_blocks:
                raise ConfigError(
                    f"{name} must be one value or one for each of {self.num_blocks} blocks, "
                    f"found {value!r}"
                )
        resolve_activation(self.activation)
        resolve_layer(self.layer)
        integrator = self.resolved_integrator
        for width in self.channels[:-1]:
            integrator.layer_channels(width)
        check_backprop(self.backprop, integrator)
        if self.grid_bits is None and self.backprop == "exact":
            choose_bits(min(self.block_step_sizes))
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

    @property
    def resolved_layer(self) -> type[AbstractLayer]:
        """The class of the layers."""
        return resolve_layer(self.layer)

    def with_grid(self) -> "NetworkConfig":
        """The config with its grid chosen, where it needs one and none is given."""
        if self.backprop != "exact" or self.grid_bits is not None:
            return self
        return replace(self, grid_bits=choose_bits(min(self.block_step_sizes)))

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON values; a callable activation must be registered for that."""
        activation = resolve_activation(self.activation)
        known = activation.name in list_activations()
        if not known or resolve_activation(activation.name) is not activation:
            raise ConfigError(
                f"activation {activation.name!r} is a plain callable, which no file can hold; "
                f"register it first with pdecnn.register_activation(pdecnn.Activation(...))"
            )
        return super().to_dict() | {"activation": activation.name}

    @classmethod
    def from_dict(cls, values: object) -> "NetworkConfig":
        """The config of JSON values; unknown and missing keys are errors."""
        return super().from_dict(with_old_grid(values) if isinstance(values, dict) else values)


def with_old_grid(values: dict[str, Any]) -> dict[str, Any]:
    """The JSON values of a network with the grid that was meant before files said which."""
    return {"grid_bits": Grid().bits} | values
