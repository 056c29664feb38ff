"""Networks across levels: the same PDE on another mesh or with other time steps (Sec. 2).

Weights are coefficients of a PDE, so they carry over between resolutions and numbers of steps.
Every function returns a new network and leaves the old one, with its hooks, alone.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from math import isclose
from typing import Literal, get_args

import torch
from torch import Tensor

from pdecnn.errors import ConfigError, unknown_name
from pdecnn.networks.config import STABLE, NetworkConfig
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Preprocessing
from pdecnn.pde.activations import resolve_activation
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import Convolution
from pdecnn.pde.stable import HOMOGENEOUS, StableLayer
from pdecnn.pde.stencil import galerkin_coarsen, rediscretize
from pdecnn.settings import check_count

Interpolation = Literal["constant", "linear"]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
MeshMethod = Literal["rediscretize", "galerkin"]
METHODS: tuple[MeshMethod, ...] = get_args(MeshMethod)


def refine_in_time(
    network: Network,
    factor: int = 2,
    *,
    interpolation: Interpolation = "constant",
    grid_bits: int | None = None,
) -> Network:
    """The network with `factor` times as many steps to the same final time.

    `interpolation` is what the weights are between the old times t_j: 'constant', theta(t_j), or
    'linear', from theta(t_j) to theta(t_{j+1}) and constant after the last. Only small steps
    have a limit to be near to: three steps of size 1 do not. In mode 'exact' the grid is chosen
    anew for the smaller steps unless `grid_bits` are given.
    """
    factor = check_count("factor", factor)
    steps = tuple(factor * number for number in network.config.block_num_steps)
    return _retimed(network, steps, interpolation, grid_bits)


def coarsen_in_time(
    network: Network,
    factor: int = 2,
    *,
    interpolation: Interpolation = "constant",
    grid_bits: int | None = None,
) -> Network:
    """The network with one step for `factor` old ones, to the same final time.

    The weights of a step are the mean over the old ones ('constant') or those at its beginning
    ('linear'): the inverse of `refine_in_time` with the same interpolation. The grid is chosen as
    it is there.
    """
    factor = check_count("factor", factor)
    steps = network.config.block_num_steps
    if any(number % factor for number in steps):
        raise ConfigError(
            f"{factor} steps cannot become one in blocks of {steps} steps; take a factor that "
            f"divides them"
        )
    fewer = tuple(number // factor for number in steps)
    return _retimed(network, fewer, interpolation, grid_bits)


def refine_in_space(network: Network, factor: int = 2) -> Network:
    """The network on a mesh `factor` times as fine: every 3-point stencil re-discretised.

    The b's of each stencil are kept (Sec. 2.2). Its images are averaged over cells `factor` times
    as small, or resized to be `factor` times as large where they were not averaged.
    """
    finer = finer_preprocessing(network.preprocessing, check_count("factor", factor))
    return _remeshed(network, 1 / factor, finer, "rediscretize")


def finer_preprocessing(preprocessing: Preprocessing, factor: int) -> Preprocessing:
    """What makes images `factor` times as fine."""
    if preprocessing.pooling % factor == 0:
        return replace(preprocessing, pooling=preprocessing.pooling // factor)
    if preprocessing.size is not None:
        return replace(preprocessing, size=tuple(factor * n for n in preprocessing.size))
    return preprocessing  # images as they come: finer ones are the caller's


def coarsen_in_space(
    network: Network, factor: int = 2, *, method: MeshMethod = "rediscretize"
) -> Network:
    """The network on a mesh `factor` times as wide, for images averaged over cells of pixels.

    'rediscretize' keeps the b's of each stencil and undoes `refine_in_space`; 'galerkin' takes
    R K P with R the average over cells and P linear interpolation. Images are standardised as
    before, then averaged.
    """
    factor = check_count("factor", factor)
    preprocessing = network.preprocessing
    coarser = replace(preprocessing, pooling=factor * preprocessing.pooling)
    _check_size(network.config, coarser)
    return _remeshed(network, float(factor), coarser, method)


def _check_size(config: NetworkConfig, preprocessing: Preprocessing) -> None:
    """Refuse images too small for the pooling between blocks, where their size is known."""
    size = tuple(n // preprocessing.pooling for n in preprocessing.size or ())
    if min(size, default=config.smallest_size) < config.smallest_size:
        raise ConfigError(
            f"images of size {size} are too small for {config.num_blocks} blocks, which need "
            f"{config.smallest_size}; take a smaller factor"
        )


def freeze_steps(network: Network) -> Network:
    """The same network with numbers for its stable steps, which then can change its levels.

    For sigma(c y) = c sigma(y) a step of dt with K and b is one of 1 with sqrt(dt) K and
    sqrt(dt) b, which from then on is an ordinary symmetric layer: training may make it unstable.
    """
    config = network.config
    if config.step_size != STABLE:
        raise ConfigError("the steps of this network are numbers already; there is none to freeze")
    if resolve_activation(config.activation) not in HOMOGENEOUS:
        raise ConfigError(
            f"steps can be frozen where sigma(c y) = c sigma(y), as of relu; {config.activation} "
            f"is none such"
        )
    network.check_described()
    with torch.random.fork_rng(devices=()):
        frozen = Network(replace(config, step_size=1.0), network.preprocessing)
    copy = deepcopy(network).eval()
    with torch.no_grad():
        for layer in copy.modules():
            if not isinstance(layer, StableLayer):
                continue
            root = layer.factor**0.5
            for weight in layer.parameters():
                weight.mul_(root)
    tensors = copy.state_dict()
    frozen.load_state_dict({name: tensors[name] for name in frozen.state_dict()})
    like = network.weight
    return frozen.to(like.device, like.dtype).train(network.training)


def _retimed(
    network: Network,
    num_steps: tuple[int, ...],
    interpolation: Interpolation,
    grid_bits: int | None,
) -> Network:
    config = network.config
    if config.step_size == STABLE:
        raise ConfigError(
            "stable steps follow their weights, so that fewer or more of them are another "
            "equation, not the same one at other times; make numbers of them first with "
            "pdecnn.freeze_steps(network)"
        )
    times = zip(config.block_num_steps, config.block_step_sizes, num_steps, strict=True)
    step_sizes = tuple(_scaled(size, Fraction(old, new)) for old, size, new in times)
    new_config = replace(
        config,
        num_steps=num_steps if isinstance(config.num_steps, tuple) else num_steps[0],
        step_size=step_sizes
        if isinstance(config.num_steps, tuple) or isinstance(config.step_size, tuple)
        else step_sizes[0],
        grid_bits=grid_bits,
    )
    return _moved(network, new_config, network.preprocessing, interpolation=interpolation)


def _scaled(step_size: float, ratio: Fraction) -> float:
    """The product; a short fraction stays one, so that three thirds of 0.3 are 0.3 again."""
    short = Fraction(step_size).limit_denominator(10**6)
    exact = short if isclose(short, step_size, rel_tol=1e-14) else Fraction(step_size)
    return float(exact * ratio)


def _remeshed(
    network: Network, ratio: float, preprocessing: Preprocessing, method: MeshMethod
) -> Network:
    if network.config.certified_size is not None:
        raise ConfigError(
            f"this network is bounded for images of at most {network.config.certified_size} "
            f"pixels; on another mesh it would be another network: train one for that size"
        )
    config = replace(network.config, mesh_size=network.config.mesh_size * ratio)
    return _moved(network, config, preprocessing, method=method)


def _moved(
    network: Network,
    config: NetworkConfig,
    preprocessing: Preprocessing,
    *,
    interpolation: Interpolation = "constant",
    method: MeshMethod = "rediscretize",
) -> Network:
    """A network of that config with the weights of the old one, on its device and in its mode."""
    network.check_described()
    # The weights drawn here are overwritten: this must not use up random numbers.
    with torch.random.fork_rng(devices=()):
        new = Network(config, preprocessing)
    tensors = transfer_tensors(
        network, new, network.state_dict(), interpolation=interpolation, method=method
    )
    for name, tensor in new.state_dict(keep_vars=True).items():
        tensor.data = tensors[name]
    trained = {name: torch.tensor(w.requires_grad) for name, w in network.named_parameters()}
    for name, flag in change_steps(network, new, trained, interpolation).items():
        new.get_parameter(name).requires_grad_(bool(flag))
    for old_block, new_block in zip(network.blocks, new.blocks, strict=True):
        new_block.backprop = old_block.backprop
    return new.train(network.training)


def transfer_tensors(
    network: Network,
    new_network: Network,
    named_tensors: Mapping[str, Tensor],
    *,
    interpolation: Interpolation = "constant",
    method: MeshMethod = "rediscretize",
) -> dict[str, Tensor]:
    """What belongs to the network's weights, by their names, as it belongs to the new network's.

    For weights, statistics, their moving averages and velocities. They all go by one linear map
    L, that of the weights: a velocity is a change of the weights or, with the rate outside, such
    a change divided by the rate, so that in either convention the next step of the new network
    is L times that of the old one.

    A part of the names will do, if it has all steps of a block of what it has.
    """
    check_transfer(interpolation, method)
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


def _change_mesh(stencil: Tensor, ratio: float, dimension: int, method: MeshMethod) -> Tensor:
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
    network: Network,
    new_network: Network,
    values: Mapping[str, Tensor],
    interpolation: Interpolation,
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


def _shares(old: int, new: int, interpolation: Interpolation) -> list[list[tuple[int, float]]]:
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


def check_transfer(interpolation: Interpolation, method: MeshMethod = "rediscretize") -> None:
    """Refuse unknown ways to another level, whether or not the factors ask for them."""
    if interpolation not in INTERPOLATIONS:
        raise unknown_name("interpolation", interpolation, INTERPOLATIONS)
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
