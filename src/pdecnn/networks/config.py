"""What defines a network: the three axes of its blocks, its widths, its input and output."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from typing import Any, Literal, get_args

from torch import Tensor

from pdecnn.errors import ConfigError, unknown_name
from pdecnn.pde.activations import Activation, list_activations, resolve_activation
from pdecnn.pde.backprop import Backprop
from pdecnn.pde.block import check_backprop
from pdecnn.pde.convolution import Boundary
from pdecnn.pde.grid import Grid, choose_bits
from pdecnn.pde.integrators import AbstractIntegrator, resolve_integrator
from pdecnn.pde.layers import AbstractLayer, resolve_layer
from pdecnn.pde.normalization import Normalization
from pdecnn.settings import Settings, documented, setting

STABLE = "stable"
Pooling = Literal["average", "space_to_depth", "haar"]
Closing = Literal["field", "residual", "transpose"]
CLOSINGS: tuple[Closing, ...] = get_args(Closing)


@documented
@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Settings):
    """The network of Sec. 5: opening, blocks with connectors between them, classifier."""

    section = "network"
    channels: tuple[int, ...] = setting(
        meaning="The width of each block, then the last connector's output. Between invertible "
        "connectors it says the level: coarser with 2^dimension times the width, and back.",
        allowed="[1, inf)",
    )
    in_channels: int = setting(3, "Channels of the images.", "[1, inf)")
    num_classes: int = setting(
        10,
        "Outputs of the classifier, of a field numbers a pixel; 0: none, the network returns its "
        "features.",
        "[0, inf)",
    )
    layer: str = setting(
        "symmetric",
        "The spatial operator: 'symmetric' (eq. 7), 'residual' (eq. 1) or one registered.",
    )
    integrator: str = setting("forward_euler", "How time is discretised, by name; of a plugin too.")
    num_steps: int | tuple[int, ...] = setting(
        3, "Time steps a block: one number, or one per block.", "[1, inf)"
    )
    step_size: float | tuple[float, ...] | str = setting(
        1.0,
        "dt: one number, or one per block; or 'stable': each step has the largest dt for which "
        "Theorem 1 holds, 2/|K|^2, following the weights.",
        "(0, 1e30]",
    )
    train_step_size: bool = setting(
        False,
        "Whether dt is trained: each layer has a positive factor of its own, 1 at the beginning.",
    )
    hidden_channels: int | tuple[int, ...] | None = setting(
        None,
        "Channels between K and K^T: one number, or one per block; None: as many as outside.",
        "[1, inf)",
    )
    activation: str | Activation | Callable[[Tensor], Tensor] = setting(
        "relu", "sigma in the blocks; opening and connectors of the paper always have ReLU."
    )
    normalization: Normalization = setting(
        "tv",
        "N in the blocks: 'none', 'bias' (none, a number added to each channel), 'tv' or 'batch'.",
    )
    epsilon: float = setting(1e-3, "The epsilon of the total-variation norm (eq. 9).", "(0, inf)")
    backprop: Backprop = setting(
        "stored",
        "What is kept for the gradient; does not change what the network computes, but for "
        "'exact', which rounds the state to a grid.",
        kind="backprop mode",
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
    opening: Literal["convolution", "linear", "pad", "bounded"] = setting(
        "convolution",
        "'convolution' with batch norm and ReLU; 'linear': a convolution and nothing else; 'pad': "
        "zeros for the channels that images lack; "
        "'bounded': a convolution divided by its norm.",
    )
    patch_size: int = setting(
        1,
        "Cells of this many pixels an axis become channels of one pixel before the opening 'pad' "
        "or 'bounded'.",
        "[1, inf)",
    )
    connector: Literal["batch_norm", "bounded", "invertible"] = setting(
        "batch_norm",
        "'batch_norm' and ReLU; 'bounded': a matrix of norm 1 and nothing else, none at the end; "
        "'invertible': nothing but a change of resolution, through which the whole state goes.",
    )
    pooling: Pooling = setting(
        "average",
        "From block to block: 'average' over 2 pixels an axis; in bounded and invertible "
        "connectors 'space_to_depth' (pixels become channels) or 'haar' (their sums and "
        "differences).",
    )
    classifier: Literal["linear", "unit_rows", "flat_unit_rows", Closing] = setting(
        "linear",
        "'linear' on the mean over the pixels; 'unit_rows', which no perturbation passes enlarged; "
        "'flat_unit_rows', the same on all pixels, for images of one size. A field instead of "
        "classes: 'field', a convolution; 'residual', the image less one; 'transpose', the "
        "transpose of the opening.",
    )
    boundary: Boundary = setting(
        "zero",
        "What lies outside of images: 'zero', 'reflect' (they are mirrored at their edge) or "
        "'periodic' (they are repeated).",
    )
    certified_size: tuple[int, ...] | None = setting(
        None,
        "The largest image, in pixels along each axis, for which stable steps and bounded "
        "convolutions are bounded; needed by them. From field to field they are for any image, "
        "and this is the size at which norms are computed.",
        "[1, inf)",
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
                f"network.channels must list the width of each block, then the last connector's "
                f"output, so at least 2 numbers; found {self.channels!r}"
            )
        for name in ("num_steps", "step_size", "hidden_channels"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != self.num_blocks:
                raise ConfigError(
                    f"network.{name} must be one value or one for each of {self.num_blocks} "
                    f"blocks, found {value!r}"
                )
        resolve_activation(self.activation)
        resolve_layer(self.layer)
        integrator = self.resolved_integrator
        for width in self.channels[:-1]:
            integrator.layer_channels(width)
        check_backprop(self.backprop, integrator)
        if self.grid_bits is None and self.backprop == "exact":
            choose_bits(min(self.block_step_sizes))
        self._check_bounded()
        self._check_invertible()

    def _check_invertible(self) -> None:
        """Widths that are levels, and closings where the size of the images comes back."""
        invertible, cells = self.connector == "invertible", 2**self.dimension
        levels = [_level(width, self.channels[0], cells) for width in self.channels]
        is_padded = self.cell > self.smallest_size  # which is known from now on
        problems = {
            f"invertible connectors make 2^{self.dimension} channels of one, or one of them: all "
            f"of network.channels must be the first times or divided by a power of {cells}, and "
            f"none less than the first; found {self.channels}": invertible
            and any(level is None or level < 0 for level in levels),
            "invertible connectors need network.pooling=space_to_depth, or haar": invertible
            and self.pooling == "average",
            f"network.classifier={self.classifier} gives every pixel an answer: it needs "
            f"network.connector=invertible and the last of network.channels equal to the first, "
            f"found {self.channels}": self.is_field
            and not (invertible and self.channels[-1] == self.channels[0]),
            f"network.classifier={self.classifier} gives images: network.num_classes must be "
            f"network.in_channels={self.in_channels}, found {self.num_classes}": self.classifier
            in CLOSINGS[1:]
            and self.num_classes != self.in_channels,
            f"network.classifier={self.classifier} gives every pixel an answer: "
            f"network.num_classes must be at least 1, found 0": self.is_field
            and self.num_classes == 0,
            "network.classifier=transpose is that of network.opening=pad": self.classifier
            == "transpose"
            and self.opening != "pad",
            f"network.classifier={self.classifier} needs network.patch_size=1": self.classifier
            in CLOSINGS[:2]
            and self.patch_size > 1,
            "stable steps need network.boundary=zero, or reflect on one level": self.step_size
            == STABLE
            and (self.boundary == "periodic" or (self.boundary == "reflect" and is_padded)),
        }
        for problem, is_there in problems.items():
            if is_there:
                raise ConfigError(problem)

    def _check_bounded(self) -> None:
        """Stable steps and bounded parts where they make sense, with what they need."""
        stable, bounded = self.step_size == STABLE, self.connector == "bounded"
        if isinstance(self.step_size, str) and not stable:
            raise unknown_name("network.step_size", self.step_size, (STABLE,))
        size = self.certified_size
        if size is not None and len(size) == 1:
            object.__setattr__(self, "certified_size", size * self.dimension)
        elif size is not None and len(size) != self.dimension:
            raise ConfigError(
                f"network.certified_size must be one number or {self.dimension}, one an axis, "
                f"found {size}"
            )
        sized = stable or self.opening == "bounded" or self.classifier == "flat_unit_rows"
        problems = {
            "network.train_step_size has factors before symmetric layers, and stable steps have a "
            "dt that follows the weights: set network.layer=symmetric and numbers for "
            "network.step_size, or leave network.train_step_size out": self.train_step_size
            and (stable or self.layer != "symmetric"),
            "stable steps are those of forward Euler with symmetric layers (Theorem 1): set "
            "network.integrator=forward_euler and network.layer=symmetric": stable
            and (self.integrator, self.layer) != ("forward_euler", "symmetric"),
            "stable steps need layers without normalisation (Theorem 1): set "
            "network.normalization=bias, or none": stable
            and self.normalization not in ("none", "bias"),
            "network.patch_size belongs to network.opening=pad and bounded": self.patch_size > 1
            and self.opening in ("convolution", "linear"),
            f"{self.in_channels} channels of cells of {self.patch_size} pixels an axis do not fit "
            f"into {self.channels[0]}, which network.opening=pad only pads": self.opening == "pad"
            and self.in_channels * self.patch_size**self.dimension > self.channels[0],
            f"network.pooling={self.pooling} is for network.connector=bounded or "
            f"invertible": self.pooling != "average" and self.connector == "batch_norm",
            "the last of bounded connectors does nothing: the last two of network.channels must be "
            f"equal, found {self.channels}": bounded and self.channels[-1] != self.channels[-2],
            "stable steps, network.opening=bounded and network.classifier=flat_unit_rows need "
            "network.certified_size, the largest size of images": sized
            and self.certified_size is None,
        }
        for problem, is_there in problems.items():
            if is_there:
                raise ConfigError(problem)
        if self.certified_size is not None and any(min(n) < 1 for n in self.block_sizes):
            raise ConfigError(
                f"network.certified_size={self.certified_size} is too small for {self.num_blocks} "
                f"blocks, which need {self.smallest_size}"
            )

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
        """The step size of each block; with stable steps 1, since dt is part of F."""
        sizes = self.step_size
        if isinstance(sizes, str):  # the layers know their dt
            sizes = 1.0
        return sizes if isinstance(sizes, tuple) else (sizes,) * self.num_blocks

    @property
    def block_hidden_channels(self) -> tuple[int | None, ...]:
        """The channels within the layers of each block; None: as many as outside."""
        hidden = self.hidden_channels
        return hidden if isinstance(hidden, tuple) else (hidden,) * self.num_blocks

    @property
    def block_sizes(self) -> tuple[tuple[int, ...], ...]:
        """The sizes of the features of each block for images of `certified_size`."""
        assert self.certified_size is not None
        cell = self.cell if self.connector == "invertible" else 1  # to which images are padded
        padded = (n + -n % cell for n in self.certified_size)
        first = tuple(n // self.patch_size for n in padded)
        return tuple(tuple(n >> level for n in first) for level in self.block_levels)

    @property
    def block_levels(self) -> tuple[int, ...]:
        """How many times each block has half as many pixels an axis as the first."""
        return self.levels[:-1]

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """The same, and after the last connector, which pools only if it is invertible."""
        if self.connector != "invertible":
            return (*range(self.num_blocks), self.num_blocks - 1)
        cells = 2**self.dimension
        return tuple(_level(width, self.channels[0], cells) or 0 for width in self.channels)

    @cached_property
    def cell(self) -> int:
        """The pixels an axis that are one on the coarsest level."""
        return int(self.patch_size * 2 ** max(self.levels))

    @cached_property
    def is_field(self) -> bool:
        """Whether every pixel of an image has an answer."""
        return self.classifier in CLOSINGS

    @cached_property
    def smallest_size(self) -> int:
        """The smallest image side that survives the pooling; invertible levels are padded."""
        return 1 if self.connector == "invertible" else self.cell

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


def _level(width: int, first: int, cells: int) -> int | None:
    """k where width = first cells^k; None: there is none."""
    level = round(log(width / first, cells))
    return level if width * cells ** max(-level, 0) == first * cells ** max(level, 0) else None


def with_old_grid(values: dict[str, Any]) -> dict[str, Any]:
    """The JSON values of a network with the grid that was meant before files said which."""
    return {"grid_bits": Grid().bits} | values
