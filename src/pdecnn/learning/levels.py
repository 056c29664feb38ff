"""Training from coarse to fine: which level an epoch is on, and how one goes up (Sec. 2)."""

from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

from pdecnn.errors import ConfigError
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.multilevel import finer_preprocessing, refine_in_space, refine_in_time
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Preprocessing
from pdecnn.settings import Settings, documented, setting


@documented
@dataclass(frozen=True, kw_only=True)
class LevelsConfig(Settings):
    """The resolutions in space and time a network is trained at, from coarse to fine.

    A run's network config describes the last level, but for its mesh size, which is that of the
    first: there the weights are drawn and the box has its bound.
    """

    section = "training"
    level_epochs: tuple[float, ...] | None = setting(
        None,
        "The lengths of the levels relative to each other; scaled to the number of epochs. None: a "
        "single level.",
        "(0, 1e30]",
    )
    level_sizes: tuple[int, ...] | None = setting(
        None,
        "The width of the images at each level, the last being their own; coarser ones are "
        "averages of standardised images. None: the same at all levels.",
        "[1, inf)",
    )
    level_steps: tuple[int, ...] | None = setting(
        None,
        "The time steps a block at each level, the last being the network's, to the same final "
        "time. None: the same at all levels.",
        "[1, inf)",
    )
    level_stencils: Literal["keep", "rediscretize"] = setting(
        "keep",
        "What finer images do to stencils: 'keep' leaves their entries, 'rediscretize' their PDE "
        "coefficients. The features of natural images are rough on every mesh, where second "
        "differences do not grow as the coefficients say.",
    )

    def check_together(self) -> None:
        """Each level a length, and numbers that multiply from one to the next."""
        super().check_together()
        given = {"level_sizes": self.level_sizes, "level_steps": self.level_steps}
        given = {name: values for name, values in given.items() if values is not None}
        if self.level_epochs is None:
            for name in given:
                raise ConfigError(
                    f"training.{name} needs training.level_epochs: how long is each level?"
                )
            return
        if not given:
            raise ConfigError(
                "training.level_epochs needs training.level_sizes, training.level_steps or both"
            )
        for name, values in given.items():
            assert values is not None
            if len(values) != self.num_levels:
                raise ConfigError(
                    f"training.{name} must have one number for each of {self.num_levels} levels"
                )
            if any(fine % coarse for coarse, fine in pairwise(values)):
                raise ConfigError(
                    f"each of training.{name} must be a multiple of the one before, found {values}"
                )

    @property
    def num_levels(self) -> int:
        """How many levels there are."""
        return 1 if self.level_epochs is None else len(self.level_epochs)

    def level_of(self, epoch: int, epochs: int) -> int:
        """The level, from 0, of an epoch counted from 0."""
        if self.level_epochs is None:
            return 0
        ends = phase_ends(self.level_epochs, epochs)
        return sum(epoch >= end for end in ends[:-1])

    def first_level(
        self, network: NetworkConfig, preprocessing: Preprocessing, size: tuple[int, ...]
    ) -> tuple[NetworkConfig, Preprocessing]:
        """The network and preprocessing training starts with, given those of the last level.

        `size` is that of the last level's input. All levels have the grid of the last one, whose
        steps are the smallest.
        """
        network = network.with_grid()
        if self.level_sizes is not None:
            if size[-1] != self.level_sizes[-1]:
                raise ConfigError(
                    f"the last of training.level_sizes must be the images' own width {size[-1]}, "
                    f"found {self.level_sizes}"
                )
            factor = self.level_sizes[-1] // self.level_sizes[0]
            preprocessing = replace(preprocessing, pooling=factor * preprocessing.pooling)
        if self.level_steps is not None:
            if set(network.block_num_steps) != {self.level_steps[-1]}:
                raise ConfigError(
                    f"the last of training.level_steps must be "
                    f"network.num_steps={network.num_steps}, found {self.level_steps}"
                )
            factor = self.level_steps[-1] // self.level_steps[0]
            sizes = tuple(factor * step_size for step_size in network.block_step_sizes)
            network = replace(
                network,
                num_steps=self.level_steps[0],
                step_size=sizes if isinstance(network.step_size, tuple) else sizes[0],
            )
        return network, preprocessing

    def check_first_level(self, network: Network) -> None:
        """Refuse a network that is not at the first level."""
        pooling, steps = network.preprocessing.pooling, set(network.config.block_num_steps)
        sizes = self.level_sizes or (1,)
        other_steps = self.level_steps is not None and steps != {self.level_steps[0]}
        if pooling % (sizes[-1] // sizes[0]) or other_steps:
            raise ConfigError(
                f"a training in levels starts with the network of the first one; found "
                f"{network.config.num_steps} steps and images averaged by {pooling}"
            )

    def refine(self, network: Network, level: int) -> Network:
        """The network of the level below as that of this level, the same PDE."""
        factor = _factor(self.level_sizes, level)
        if self.level_stencils == "rediscretize":
            network = refine_in_space(network, factor)
        else:
            network = deepcopy(network)
            network.preprocessing = finer_preprocessing(network.preprocessing, factor)
        factor, grid_bits = _factor(self.level_steps, level), network.config.grid_bits
        return refine_in_time(network, factor, grid_bits=grid_bits)


def _factor(values: tuple[int, ...] | None, level: int) -> int:
    return 1 if values is None else values[level] // values[level - 1]


def phase_ends(phases: tuple[float, ...], epochs: int) -> list[int]:
    """The epoch after the last of each phase, the phases being scaled to so many epochs."""
    whole, num_phases = sum(phases), len(phases)
    ends: list[int] = []
    for k, total in enumerate(accumulate(phases)):
        end = round(epochs * (total / whole))
        if epochs >= num_phases:  # room for each phase: at least one epoch, and one for later
            begin = ends[-1] if ends else 0
            end = min(max(end, begin + 1), epochs - (num_phases - 1 - k))
        ends.append(end)
    return ends
