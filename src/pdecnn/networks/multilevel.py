"""Networks across levels: the same PDE on another mesh or with other time steps (Sec. 2).

Weights are coefficients of a PDE, so they carry over between resolutions and numbers of steps.
Every function returns a new network and leaves the old one, with its hooks, alone.
"""

from dataclasses import replace
from fractions import Fraction
from math import isclose

import torch

from pdecnn.checks import check_count
from pdecnn.errors import ConfigError
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.description import check_described
from pdecnn.networks.level_transfer import change_steps
from pdecnn.networks.level_transfer import transfer_tensors as transfer_tensors
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Preprocessing


def refine_in_time(
    network: Network,
    factor: int = 2,
    *,
    interpolation: str = "constant",
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
    interpolation: str = "constant",
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


def coarsen_in_space(network: Network, factor: int = 2, *, method: str = "rediscretize") -> Network:
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


def _retimed(
    network: Network, num_steps: tuple[int, ...], interpolation: str, grid_bits: int | None
) -> Network:
    config = network.config
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


def _remeshed(network: Network, ratio: float, preprocessing: Preprocessing, method: str) -> Network:
    config = replace(network.config, mesh_size=network.config.mesh_size * ratio)
    return _moved(network, config, preprocessing, method=method)


def _moved(
    network: Network,
    config: NetworkConfig,
    preprocessing: Preprocessing,
    *,
    interpolation: str = "constant",
    method: str = "rediscretize",
) -> Network:
    """A network of that config with the weights of the old one, on its device and in its mode."""
    check_described(network)
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
