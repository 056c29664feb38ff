"""The linear map by which weights, and what belongs to them, change their level (Sec. 2)."""

from collections.abc import Mapping
from dataclasses import replace
from math import isclose

import torch
from torch import Tensor

from pdecnn.errors import ConfigError, unknown_name
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import Convolution
from pdecnn.pde.stencil import galerkin_coarsen, rediscretize

INTERPOLATIONS = ("constant", "linear")
METHODS = ("rediscretize", "galerkin")


def transfer_tensors(
    network: Network,
    new_network: Network,
    named_tensors: Mapping[str, Tensor],
    *,
    interpolation: str = "constant",
    method: str = "rediscretize",
) -> dict[str, Tensor]:
    """What belongs to the network's weights, by their names, as it belongs to the new network's.

    For weights, statistics, their moving averages and velocities. They all go by one linear map
    L, that of the weights: a velocity is a change of the weights or, with the rate outside, such
    a change divided by the rate, so that in either convention the next step of the new network
    is L times that of the old one.

    A part of the names will do, if it has all steps of a block of what it has.
    """
    _check_choice("interpolation", interpolation, INTERPOLATIONS)
    _check_choice("method", method, METHODS)
    old, new = network.config, new_network.config
    _check_same_but_levels(old, new)
    for name in named_tensors.keys() - network.state_dict().keys():
        raise ConfigError(f"the network has no tensor named {name!r}")
    values = dict(named_tensors)
    if new.mesh_size != old.mesh_size:
        ratio = new.mesh_size / old.mesh_size
        for name in _three_point_stencils(network) & values.keys():
            values[name] = _change_mesh(values[name], ratio, old.dimension, method)
    values = change_steps(network, new_network, values, interpolation)
    return {name: values[name].clone() for name in new_network.state_dict() if name in values}


def _three_point_stencils(network: Network) -> set[str]:
    """The names of the stencils that a change of mesh changes; those of one point do not."""
    names = set()
    for name, part in network.named_modules():
        if not isinstance(part, Convolution) or max(part.stencil_size) == 1:
            continue
        if set(part.stencil_size) != {3}:
            raise ConfigError(
                f"{name} has stencils of size {part.stencil_size}; only 3-point stencils have "
                f"PDE coefficients that carry over to another mesh"
            )
        names.add(f"{name}.stencil")
    return names


def _change_mesh(stencil: Tensor, ratio: float, dimension: int, method: str) -> Tensor:
    wide = stencil.double()
    if method == "galerkin":
        if ratio < 1 or not isclose(ratio, round(ratio)):
            raise ConfigError(
                "Galerkin's R K P is a way to coarsen by a whole factor; use "
                "method='rediscretize' to refine"
            )
        changed = galerkin_coarsen(wide, round(ratio), dimension=dimension)
    else:
        changed = rediscretize(wide, 1.0, ratio, dimension=dimension)
    return changed.to(stencil.dtype)


def change_steps(
    network: Network, new_network: Network, values: Mapping[str, Tensor], interpolation: str
) -> dict[str, Tensor]:
    """The tensors of each step as combinations of those of the old steps; others as they are."""
    result = {name: value for name, value in values.items() if not name.startswith("blocks.")}
    for index, (block, new_block) in enumerate(
        zip(network.blocks, new_network.blocks, strict=True)
    ):
        assert isinstance(block, Block)
        assert isinstance(new_block, Block)
        width = block.integrator.layers_per_step
        shares = _shares(len(block.layers) // width, len(new_block.layers) // width, interpolation)
        prefix = f"blocks.{index}.layers."
        for name in new_block.layers.state_dict():
            number, _, rest = name.partition(".")
            step, place = divmod(int(number), width)
            parts = [
                (values.get(f"{prefix}{width * old_step + place}.{rest}"), share)
                for old_step, share in shares[step]
            ]
            there = [(value, share) for value, share in parts if value is not None]
            if len(there) == len(parts):
                result[prefix + name] = _combined(there)
            elif there:
                raise ConfigError(
                    f"{prefix}*.{rest} is there for some steps only; pass those of all steps"
                )
    return result


def _combined(parts: list[tuple[Tensor, float]]) -> Tensor:
    first, _ = parts[0]
    if len(parts) == 1 or not first.is_floating_point():
        return first
    total = torch.stack([share * tensor.double() for tensor, share in parts]).sum(0)
    return total.to(first.dtype)


def _shares(old: int, new: int, interpolation: str) -> list[list[tuple[int, float]]]:
    """For each new step, which old ones it comes from and with what weights."""
    linear = interpolation == "linear"
    if new % old == 0:
        factor = new // old
        shares = []
        for step in range(new):
            begin, part = divmod(step, factor)
            between = linear and part > 0 and begin + 1 < old
            later = part / factor if between else 0.0
            shares.append([(begin, 1 - later)] + [(begin + 1, later)] * between)
        return shares
    if old % new == 0:
        factor = old // new
        if linear:
            return [[(step * factor, 1.0)] for step in range(new)]
        return [[(step * factor + k, 1 / factor) for k in range(factor)] for step in range(new)]
    raise ConfigError(f"{old} steps do not become {new}: one must be a multiple of the other")


def _check_same_but_levels(old: NetworkConfig, new: NetworkConfig) -> None:
    same = replace(
        new,
        num_steps=old.num_steps,
        step_size=old.step_size,
        mesh_size=old.mesh_size,
        backprop=old.backprop,
        grid_bits=old.grid_bits,
    )
    if same != old:
        raise ConfigError(
            "the two networks must be alike but for num_steps, step_size, mesh_size, backprop and "
            "grid_bits"
        )


def _check_choice(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise unknown_name(what, value, known)
