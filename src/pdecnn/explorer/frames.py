"""One input on its way through artificial time: states, curves, and the way back (Sec. 3)."""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.data.image_file import seen_pixels
from pdecnn.diagnostics.energy import energy_curves
from pdecnn.diagnostics.guarantees import guaranteed_bound
from pdecnn.diagnostics.jacobians import has_symmetric_layers
from pdecnn.files import finite_number
from pdecnn.networks.network import Network
from pdecnn.networks.reversal import relative_error
from pdecnn.networks.stages import InvertibleConnector
from pdecnn.pde.block import Block
from pdecnn.pde.chain import chain_trajectories
from pdecnn.pde.facts import EULER_RULE, HEAT, declared
from pdecnn.pde.integrators import AbstractReversibleIntegrator, Layers, State
from pdecnn.pde.layers import AbstractLayer

LEVELS = 254
"""Bytes 0 to 254, so that 127 is the very middle: zero is drawn as zero."""
MOST_PIXELS = 128
"""Wider features are averaged; nobody sees more in a picture of a channel."""
MOST_POINTS = 512
"""The same for signals."""
_SHARE = 0.995


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """What every block makes of one input, (1, channels, *spatial) each."""

    inputs: list[Tensor]
    """The features each block begins with."""
    states: list[list[State]]
    """Of each block at t_0 ... t_N."""
    scales: list[list[float]]
    """Of each block, for each component of its state and all of its times."""
    probabilities: list[float]
    """Of each class; empty where each pixel has an answer."""
    answer: Tensor | None = None
    """That of each pixel, (outputs, *spatial)."""

    def features(self, block: Block, index: int) -> list[Tensor]:
        """Y at t_0 ... t_N of a block."""
        return [block.integrator.finish(state) for state in self.states[index]]


@torch.no_grad()
def compute_trajectory(network: Network, pixels: Tensor) -> Trajectory:
    """All states of the blocks for one sample (channels, *spatial), and what the network says."""
    images = network.preprocess(pixels.unsqueeze(0))
    features = network.open(images)
    inputs, states = [], []
    if network.config.is_field:
        return _field_trajectory(network, images, features)
    for block, connector in zip(blocks_of(network), network.connectors, strict=True):
        inputs.append(features)
        states.append(block.trajectory(features))
        features = connector(block.integrator.finish(states[-1][-1]).to(features.dtype))
    probabilities: list[float] = network.forward_head(features)[0].softmax(0).tolist()
    return Trajectory(inputs, states, [common_scales(path) for path in states], probabilities)


def _field_trajectory(network: Network, images: Tensor, features: Tensor) -> Trajectory:
    """The same through levels, on which the whole state goes on."""
    blocks = blocks_of(network)
    parts = (part for part in network.connectors if isinstance(part, InvertibleConnector))
    states = chain_trajectories(blocks, [part.change for part in parts], features)
    inputs = [block.integrator.finish(path[0]) for block, path in zip(blocks, states, strict=True)]
    last = network.connectors[-1](blocks[-1].integrator.finish(states[-1][-1]))
    answer = network.close(last.to(features.dtype), images)[0]
    return Trajectory(inputs, states, [common_scales(path) for path in states], [], answer)


def common_scales(states: list[State]) -> list[float]:
    """The scale of each component, for all states."""
    return [symmetric_scale(frames) for frames in zip(*states, strict=True)]


def blocks_of(network: Network) -> list[Block]:
    """The blocks, in order."""
    return [block for block in network.blocks if isinstance(block, Block)]


def component_names(block: Block, state: State) -> tuple[str, ...]:
    """What the parts of a block's state are."""
    components = block.integrator.components
    if len(components) != len(state):
        return tuple(f"part {place + 1} of the state" for place in range(len(state)))
    return tuple(part.name for part in components)


def norm_and_energy(block: Block, features: Tensor) -> dict[str, Any]:
    """|Y| and an energy along a block, in float64 on the CPU (eq. 12).

    The energy is the one that waves conserve and heat never raises, where it is known; else that
    of eq. 12, which is second order only; else none. A note says which.
    """
    curves = energy_curves(deepcopy(block).cpu(), features.cpu())
    known = curves.raw if curves.centred is None else curves.centred
    energy = curves.printed_centred if known is None else known
    note = _energy_note(block, features.shape[2:], known is not None, energy is not None)
    if energy is not None and bool((energy < 0).any()):  # biases may take it there
        energy, note = None, "Its energy falls below zero: no share of the start can be drawn."
    return {
        "norms": finite(curves.norms[:, 0].tolist()),
        "energy": None if energy is None else finite(energy[:, 0].tolist()),
        "energy_note": note,
    }


def norm_alone(features: Sequence[Tensor]) -> dict[str, Any]:
    """|Y| along a block whose state began in an earlier one."""
    return {
        "norms": finite([float(one.double().norm()) for one in features]),
        "energy": None,
        "energy_note": "No energy is shown of a state that comes from another level.",
    }


def _energy_note(block: Block, size: Sequence[int], known: bool, printed: bool) -> str:
    if known and declared(type(block.integrator), "conserves_energy"):
        return "With weights constant in time a wave keeps its energy, up to small swings."
    rule = declared(type(block.integrator), "stability")
    if known and (rule is None or rule.contractive == 0):
        return "It never rises along the exact solution, with weights constant in time."
    if known and rule is EULER_RULE and len(set(block.steps)) == 1:
        return _constant_heat_note(block, size)
    if known:
        return "With weights constant in time and small steps heat never raises its energy."
    if printed:
        return "It is the energy of eq. 12, which is in general not conserved."
    layers = [layer for layer in block.layers if isinstance(layer, AbstractLayer)]
    if not has_symmetric_layers(block):
        return "No energy is known for layers that are not symmetric."
    if any(layer.activation.antiderivative is None for layer in layers):
        return "No energy is known for this activation."
    return "No energy is known for normalised layers."


def _constant_heat_note(block: Block, size: Sequence[int]) -> str:
    """Up to which step size energy cannot rise: above it often does, where stencils are large."""
    bound = guaranteed_bound(block.integrator, block.steps[0], size)
    if bound is None:
        return "In small steps heat never raises its energy."
    factor = block.step_sizes[0] / block.step_size
    said = f"Steps of at most {factor * bound:.3g} never raise heat's energy (eq. 8)"
    if block.step_size <= bound:
        return f"{said}, and these are {block.step_sizes[0]:.3g}."
    return f"{said}; these are {block.step_sizes[0]:.3g}, and may."


def distances(block: Block, index: int, one: Trajectory, other: Trajectory) -> dict[str, Any]:
    """|Y_j - Y~_j| along a block and |Y_j - Y~_j| / |Y_j|, and by what factors they grew (eq. 6).

    Where features shrink a smaller distance may be a larger share of them.
    """
    pairs = zip(one.features(block, index), other.features(block, index), strict=True)
    # On the CPU: not every device has float64.
    wide = [(first.cpu().double(), second.cpu().double()) for first, second in pairs]
    lengths = [float((first - second).norm()) for first, second in wide]
    sizes = [float(first.norm()) for first, _ in wide]
    relative = [length / size if size else 0.0 for length, size in zip(lengths, sizes, strict=True)]
    return {
        "distances": finite(lengths),
        "relative": finite(relative),
        "growth": _growth(lengths),
        "relative_growth": _growth(relative),
    }


def _growth(values: Sequence[float]) -> float | None:
    """The last over the first, where that is a number."""
    return finite([values[-1] / values[0]])[0] if values[0] > 0 else None


def roughness(features: Sequence[Tensor]) -> list[float | None]:
    """|grad Y| / |Y| at t_0 ... t_N, with differences of neighbours: 0 for what is constant."""
    found = []
    for one in features:
        wide = one.cpu().double()
        squares = sum(float(wide.diff(dim=axis).square().sum()) for axis in range(2, wide.dim()))
        size = float(wide.norm())
        found.append(squares**0.5 / size if size else 0.0)
    return finite(found)


@dataclass(frozen=True, slots=True, eq=False)
class Reversal:
    """A block run backwards from its final state."""

    expected: list[Tensor]
    """Y at t_0 ... t_N on the way out; in mode 'exact' rounded to the grid, as the block does."""
    recovered: list[Tensor]
    """The same on the way back."""
    errors: list[float]
    """|recovered - expected| / |expected| at t_0 ... t_N."""
    reason: str | None
    """Why it cannot be run backwards; `recovered` is then what the attempt gives."""


@torch.no_grad()
def run_backwards(block: Block, states: Sequence[State]) -> Reversal:
    """Y at t_N ... t_0 from the state at t_N alone.

    Where steps cannot be undone they are taken with -dt instead, to see how far that misses.
    """
    path = [states[-1]]
    for layers in reversed(block.steps):
        path.append(_step_back(block, layers, path[-1]))
    expected, recovered = (
        [block.integrator.finish(state) for state in found] for found in (states, path[::-1])
    )
    errors = [relative_error([back], [out]) for back, out in zip(recovered, expected, strict=True)]
    reason = None if block.integrator.reversible else _why_not(block)
    return Reversal(expected, recovered, errors, reason)


def _step_back(block: Block, layers: Layers, state: State) -> State:
    integrator = block.integrator
    if not isinstance(integrator, AbstractReversibleIntegrator):
        return integrator.step(layers, state, -block.step_size)
    if block.grid is not None:
        return block.stepping().walk_on_grid(state, (layers,), back=True)
    return integrator.step_back(layers, state, block.step_size)


def _why_not(block: Block) -> str:
    method = block.integrator.title
    if has_symmetric_layers(block) and block.integrator.equations == HEAT:
        cause = (
            "It is a heat equation: what its stencils respond to is damped, and going back would "
            "multiply what is left of it, rounding errors included"
        )
    else:
        cause = "Its layers have no structure by which a step could be undone"
    return (
        f"This block cannot be run backwards. {cause}. A step of {method} has no exact step back; "
        f"those of hamiltonian and second_order networks have one."
    )


def finite(values: Sequence[float]) -> list[float | None]:
    """For JSON, which has no infinity: None for what is not finite."""
    return list(map(finite_number, values))


# Tensors as the page draws them: bytes on a fixed scale, in base64.


def picture(values: Tensor, low: float, high: float) -> dict[str, Any]:
    """(channels, *spatial) on the scale from `low` to `high`; what lies beyond is at its ends.

    `clipped` is the share of what lies beyond. A volume is shown by its middle slice along the
    first axis.
    """
    shown = _small(flat_slice(values.detach().float().cpu()))
    clipped = float(((shown < low) | (shown > high)).float().mean())
    middle = (low + high) / 2
    shown = torch.nan_to_num(shown, nan=middle, posinf=high, neginf=low)
    span = high - low if high > low else 1.0
    levels = ((shown - low) / span * LEVELS).round().clamp(0, LEVELS).to(torch.uint8)
    return {
        "shape": list(levels.shape),
        "data": b64encode(levels.contiguous().numpy().tobytes()).decode("ascii"),
        "low": low,
        "high": high,
        "clipped": clipped,
    }


def answer_picture(answer: Tensor, *, classes: bool) -> dict[str, Any]:
    """What a network makes of each pixel: an image, or the likeliest classes as colours."""
    if classes:
        return labels_picture(answer.argmax(0, keepdim=True))
    return picture(answer, 0.0, 1.0)


def labels_picture(labels: Tensor) -> dict[str, Any]:
    """Classes (1, *spatial) as colours."""
    seen = seen_pixels(flat_slice(labels).cpu().numpy())
    return picture(torch.from_numpy(seen.copy()), 0.0, 255.0)


def flat_slice(values: Tensor) -> Tensor:
    """The middle slice of a volume (channels, z, y, x); signals and images as they are."""
    return values[:, values.shape[1] // 2] if values.dim() == 4 else values


def symmetric_scale(frames: Iterable[Tensor]) -> float:
    """One scale for all frames: in each of them 99.5 % of the finite values lie within it."""
    largest = 0.0
    for frame in frames:
        sizes = frame.detach().cpu().abs().flatten()
        sizes = sizes[sizes.isfinite()]
        if sizes.numel():
            place = max(1, round(_SHARE * sizes.numel()))
            # Sparse features would vanish within a share of all values: then the largest counts.
            size = float(sizes.kthvalue(place).values) or float(sizes.max())
            largest = max(largest, size)
    return largest or 1.0


def _small(values: Tensor) -> Tensor:
    if values.dim() == 2:
        if values.shape[1] <= MOST_POINTS:
            return values
        return functional.adaptive_avg_pool1d(values, MOST_POINTS)
    factor = -(-max(values.shape[1:]) // MOST_PIXELS)
    return values if factor == 1 else functional.avg_pool2d(values, factor, ceil_mode=True)
