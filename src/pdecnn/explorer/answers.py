"""What the page asks and is told, as JSON values; one question at a time."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.data.augmentation import cpu_generator
from pdecnn.diagnostics.energy import block_times
from pdecnn.diagnostics.jacobians import has_symmetric_layers, is_wave
from pdecnn.errors import ConfigError
from pdecnn.explorer.frames import (
    Reversal,
    Trajectory,
    answer_picture,
    blocks_of,
    common_scales,
    component_names,
    compute_trajectory,
    distances,
    finite,
    flat_slice,
    labels_picture,
    norm_alone,
    norm_and_energy,
    picture,
    roughness,
    run_backwards,
    symmetric_scale,
)
from pdecnn.explorer.subject import Subject
from pdecnn.networks.config import CLOSINGS, STABLE
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import SUBJECTS
from pdecnn.pde.facts import HEAT, declared
from pdecnn.pde.integrators import State
from pdecnn.pde.layers import AbstractLayer
from pdecnn.pde.normalization import ChannelAffine, ChannelBias

NUM_EXAMPLES = 12
MOST_NOISE = 2.0
MAX_UPLOAD_BYTES = 16 * 2**20
_INSIDE = {nn.Identity: "{}", ChannelBias: "{} + b", ChannelAffine: "s {} + b"}
"""What stands in σ without a normalisation."""  # noqa: RUF001
VIEWS = ("clean", "noisy", "difference")
_MOST_UPLOADS = 4
_MOST_TRAJECTORIES = 3
_MOST_COMPARED = 16


class Inputs:
    """The samples of a subject and images of one's own, by name; networks may share them."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._uploads: dict[str, Tensor] = {}
        self._num_uploads = 0

    def upload(self, content: bytes) -> dict[str, Any]:
        """Take in the content of an image file; the name by which to ask for it."""
        pixels = self.subject.read(content, "the file")
        self._num_uploads += 1
        sample = f"upload-{self._num_uploads}"
        self._uploads[sample] = pixels
        if len(self._uploads) > _MOST_UPLOADS:
            del self._uploads[next(iter(self._uploads))]
        return {"sample": sample}

    def label(self, sample: str) -> str | None:
        """Its class, where that is known."""
        return None if sample in self._uploads else self.subject.label(self._index(sample))

    def wanted(self, sample: str) -> dict[str, Any] | None:
        """The classes of its pixels as colours, where they are known."""
        classes = None if sample in self._uploads else self.subject.wanted(self._index(sample))
        return None if classes is None else labels_picture(classes)

    def stands_in(self, sample: str) -> bool:
        """Whether it is a photograph of something that no class is for."""
        missing = self.subject.test is None and sample not in self._uploads
        return missing and self.label(sample) is None

    def pixels(self, sample: str, amount: float = 0.0) -> Tensor:
        """A sample in [0, 1] or its own units, with noise of `amount` times its deviation."""
        if not 0 <= amount <= MOST_NOISE:
            raise ConfigError(f"noise must be in 0 to {MOST_NOISE:g}, found {amount}")
        pixels = self._raw(sample)
        values = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        if amount == 0:
            return values
        generator = cpu_generator("explorer noise", sample)
        noise = torch.randn(values.shape, generator=generator)
        return values + amount * values.std(correction=0) * noise

    def picture(self, sample: str, amount: float = 0.0) -> dict[str, Any]:
        """The input as a picture, on the scale it has without noise."""
        low, high = 0.0, 1.0
        if self._raw(sample).dtype != torch.uint8:
            clean = flat_slice(self.pixels(sample))
            low, high = float(clean.min()), float(clean.max())
        return picture(self.pixels(sample, amount), low, high)

    def examples(self) -> list[dict[str, Any]]:
        """Some to begin with."""
        return [
            {
                "sample": str(index),
                "label": self.subject.label(index),
                "picture": self.picture(str(index)),
            }
            for index in self.subject.examples(NUM_EXAMPLES)
        ]

    def _raw(self, sample: str) -> Tensor:
        """A sample as it is stored."""
        if sample in self._uploads:
            return self._uploads[sample]
        return self.subject.pixels(self._index(sample))

    def _index(self, sample: str) -> int:
        number = self.subject.num_samples
        if sample.isascii() and sample.isdecimal() and len(sample) < 10 and int(sample) < number:
            return int(sample)
        raise ConfigError(f"there is no sample {sample[:20]!r}; pick one of 0 to {number - 1}")


class Explorer:
    """Answers for one network. A trajectory is computed once and its frames are served from it."""

    def __init__(self, subject: Subject, inputs: Inputs | None = None) -> None:
        self.subject = subject
        self.inputs = Inputs(subject) if inputs is None else inputs
        self.blocks = blocks_of(subject.network)
        self.most_channels: int | None = None
        """How many are shown of each part of a state; None: all."""
        self._trajectory: Callable[[str, float], Trajectory]
        self._trajectory = lru_cache(_MOST_TRAJECTORIES)(self._compute)
        self._reversal: Callable[[str, int], Reversal]
        self._reversal = lru_cache(1)(self._run_backwards)

    def describe(self) -> dict[str, Any]:
        """All that stays the same of the network."""
        subject, config = self.subject, self.subject.network.config
        return {
            "name": subject.name,
            "equation": _equation(self.blocks),
            "formula": _formula(self.blocks[0]),
            "in_channels": config.in_channels,
            "symbol": self.blocks[0].integrator.features_symbol,
            "num_weights": subject.network.num_weights,
            "class_names": subject.class_names,
            "output": "classes" if self._finds_classes else "output",
            "blocks": [_describe_block(block) for block in self.blocks],
            # With these steps Theorem 1 holds in discrete time, for any two inputs.
            "never_expands": config.step_size == STABLE,
        }

    def sample(self, sample: str) -> dict[str, Any]:
        """An input, its class probabilities, and norm, energy and roughness along each block."""
        trajectory = self._trajectory(sample, 0.0)
        return {
            "sample": sample,
            "label": self.inputs.label(sample),
            "picture": self.inputs.picture(sample),
            "size": list(self.inputs.pixels(sample).shape[1:]),
            "probabilities": self._probabilities(sample, trajectory),
            "answer": self._answer(trajectory),
            "wanted": self.inputs.wanted(sample),
            "blocks": [
                {
                    "channels": features.shape[1],
                    "size": list(features.shape[2:]),
                    "roughness": roughness(trajectory.features(block, index)),
                    **(
                        norm_and_energy(block, features)
                        if trajectory.answer is None
                        else norm_alone(trajectory.features(block, index))
                    ),
                }
                for index, (block, features) in enumerate(
                    zip(self.blocks, trajectory.inputs, strict=True)
                )
            ],
        }

    def noise(self, sample: str, amount: float) -> dict[str, Any]:
        """The same with noise, and how far apart both are along each block."""
        clean, noisy = self._trajectory(sample, 0.0), self._trajectory(sample, amount)
        return {
            "amount": amount,
            "picture": self.inputs.picture(sample, amount),
            "probabilities": self._probabilities(sample, noisy),
            "answer": self._answer(noisy),
            "blocks": [
                distances(block, index, clean, noisy) for index, block in enumerate(self.blocks)
            ],
        }

    def frame(
        self, sample: str, block: int, step: int, *, view: str = "clean", amount: float = 0.0
    ) -> dict[str, Any]:
        """The state at one time as pictures, on a scale that all times of the block share."""
        if view not in VIEWS:
            raise ConfigError(f"view must be one of {', '.join(VIEWS)}, found {view!r}")
        chosen = self._block(block, step)
        states, scales = self._shown(sample, block, view, amount)
        return {
            "block": block,
            "step": step,
            "components": [
                {
                    "name": name,
                    "channels": part.shape[1],
                    **picture(part[0, : self.most_channels], -scale, scale),
                }
                for name, part, scale in zip(
                    component_names(chosen, states[step]), states[step], scales, strict=True
                )
            ],
        }

    def reverse(self, sample: str, block: int, step: int = 0) -> dict[str, Any]:
        """The features of a block at one time of its way back, beside those of the way out.

        The way back begins with the final state and knows nothing else.
        """
        self._block(block, step)
        found = self._reversal(sample, block)
        most = min(self.most_channels or _MOST_COMPARED, _MOST_COMPARED)
        pairs = [
            (out[0, :most], back[0, :most] - out[0, :most])
            for out, back in zip(found.expected, found.recovered, strict=True)
        ]
        # One scale for all times, and one for all differences.
        scale = symmetric_scale(out for out, _ in pairs)
        apart = symmetric_scale(difference for _, difference in pairs)
        expected, difference = pairs[step]
        return {
            "block": block,
            "step": step,
            "reversible": found.reason is None,
            "reason": found.reason,
            "errors": finite(found.errors),
            "channels": found.expected[0].shape[1],
            "expected": picture(expected, -scale, scale),
            "recovered": picture(expected + difference, -scale, scale),
            "difference": picture(difference, -apart, apart),
        }

    def _probabilities(self, sample: str, found: Trajectory) -> list[float | None] | None:
        """Of each class; None for a photograph of something else, where they mean nothing."""
        if found.answer is not None or self.inputs.stands_in(sample):
            return None
        return finite(found.probabilities)

    def _answer(self, found: Trajectory) -> dict[str, Any] | None:
        """That of each pixel, where there is one."""
        if found.answer is None:
            return None
        return answer_picture(found.answer, classes=self._finds_classes)

    @property
    def _finds_classes(self) -> bool:
        """Whether outputs are scores of classes, of an input or of each of its pixels."""
        return self.subject.network.config.classifier not in CLOSINGS[1:]

    def _shown(
        self, sample: str, block: int, view: str, amount: float
    ) -> tuple[list[State], list[float]]:
        """The states of a block and their scale; with noise it is the one without."""
        clean = self._trajectory(sample, 0.0)
        if view == "clean":
            return clean.states[block], clean.scales[block]
        noisy = self._trajectory(sample, amount)
        if view == "noisy":
            return noisy.states[block], clean.scales[block]
        apart: list[State] = [
            tuple(second - first for first, second in zip(one, other, strict=True))
            for one, other in zip(clean.states[block], noisy.states[block], strict=True)
        ]
        return apart, common_scales(apart)

    def _compute(self, sample: str, amount: float) -> Trajectory:
        return compute_trajectory(self.subject.network, self.inputs.pixels(sample, amount))

    def _run_backwards(self, sample: str, block: int) -> Reversal:
        return run_backwards(self.blocks[block], self._trajectory(sample, 0.0).states[block])

    def _block(self, index: int, step: int) -> Block:
        if not 0 <= index < len(self.blocks):
            raise ConfigError(f"there are the blocks 0 to {len(self.blocks) - 1}, found {index}")
        chosen = self.blocks[index]
        if not 0 <= step <= chosen.num_steps:
            raise ConfigError(f"block {index} has the steps 0 to {chosen.num_steps}, found {step}")
        return chosen


def explore_together(subjects: Sequence[Subject]) -> list[Explorer]:
    """Explorers of several networks on the inputs of the first, which must suit all."""
    first, *others = subjects
    for other in others:
        if _takes(other) != _takes(first):
            raise ConfigError(
                f"{first.name} takes {_takes(first)} and {other.name} {_takes(other)}; explore "
                f"networks of the same inputs side by side"
            )
    inputs = Inputs(first)
    return [Explorer(subject, inputs) for subject in subjects]


def _takes(subject: Subject) -> str:
    network = subject.network
    size = network.preprocessing.size
    sized = "any size" if size is None else " x ".join(map(str, size))
    kind, channels = SUBJECTS[network.config.dimension], network.config.in_channels
    return f"{kind}s of {sized} with {channels} channel(s)"


def describe(explorers: Sequence[Explorer]) -> dict[str, Any]:
    """The networks, and the inputs that they share."""
    inputs = explorers[0].inputs
    subject = inputs.subject
    return {
        "networks": [explorer.describe() for explorer in explorers],
        "dimension": subject.network.config.dimension,
        "is_field": subject.network.config.is_field,
        "num_samples": subject.num_samples,
        "has_test": subject.test is not None,
        "examples": inputs.examples(),
        "notice": subject.notice,
        "takes_images": subject.takes_images,
        "max_upload_bytes": MAX_UPLOAD_BYTES,
        "recorded": False,
    }


def _describe_block(block: Block) -> dict[str, Any]:
    return {
        "integrator": block.integrator.name,
        "title": block.integrator.title,
        "num_steps": block.num_steps,
        "times": block_times(block),
        "reversible": block.integrator.reversible,
    }


def _equation(blocks: list[Block]) -> str:
    """What kind of PDE the network is, in a sentence."""
    block = blocks[0]
    reversible = block.integrator.reversible
    if not has_symmetric_layers(block):
        if reversible:
            return (
                "Every step can be undone; its layers have no special structure: it may be no wave."
            )
        return "A residual network: its layers have no special structure."
    if block.integrator.equations == HEAT:
        back = "but every step can be undone" if reversible else "and cannot be brought back"
        return f"A heat equation: what its stencils respond to is damped, {back}."
    kind = (
        "A wave equation: features oscillate and travel"
        if is_wave(block.integrator)
        else "A partial differential equation that its integrator does not declare"
    )
    return f"{kind}, and every step can be undone." if reversible else f"{kind}."


def _formula(block: Block) -> str | None:
    """The PDE in symbols, where layers and method declare theirs (eqs. 5, 10, 11)."""
    layer, equations = block.layers[0], block.integrator.equations
    if not isinstance(layer, AbstractLayer) or len(equations) != block.integrator.layers_per_step:
        return None
    symmetric = declared(type(layer), "symmetric")
    if symmetric is None:
        return None
    written = []
    for one in equations:
        power, sign = "" if one.order == 1 else "²", "−" if one.sign < 0 else ""  # noqa: RUF001
        written.append(f"∂ₜ{power}{one.unknown} = {sign}F({one.argument})")
    inside = _INSIDE.get(type(layer.normalization), "N({})")
    force = f"−Kᵀσ({inside.format('KY')})" if symmetric else f"K₂σ({inside.format('K₁Y')})"  # noqa: RUF001
    return f"{', '.join(written)}, with F(Y) = {force}, σ = {layer.activation.name}"  # noqa: RUF001


# What may be asked, and how a request's fields become arguments.

Query = dict[str, str]
GET: dict[str, Callable[[Sequence[Explorer], Query], dict[str, Any]]] = {
    "describe": lambda explorers, query: describe(explorers),
    "sample": lambda explorers, query: _chosen(explorers, query).sample(_text(query, "sample")),
    "noise": lambda explorers, query: _chosen(explorers, query).noise(
        _text(query, "sample"), _number(query, "amount")
    ),
    "frame": lambda explorers, query: _chosen(explorers, query).frame(
        _text(query, "sample"),
        _index(query, "block"),
        _index(query, "step"),
        view=_text(query, "view"),
        amount=_number(query, "amount"),
    ),
    "reverse": lambda explorers, query: _chosen(explorers, query).reverse(
        _text(query, "sample"), _index(query, "block"), _index(query, "step")
    ),
}
POST: dict[str, Callable[[Sequence[Explorer], bytes], dict[str, Any]]] = {
    "upload": lambda explorers, content: explorers[0].inputs.upload(content),
}


def _chosen(explorers: Sequence[Explorer], query: Query) -> Explorer:
    index = _index({"network": "0", **query}, "network")
    if index >= len(explorers):
        raise ConfigError(f"there are the networks 0 to {len(explorers) - 1}, found {index}")
    return explorers[index]


def _text(query: Query, name: str) -> str:
    if name not in query:
        raise ConfigError(f"{name} is missing")
    return query[name]


def _index(query: Query, name: str) -> int:
    text = _text(query, name)
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ConfigError(f"{name} must be a whole number from 0 on, found {text!r}")
    return int(text)


def _number(query: Query, name: str) -> float:
    text = _text(query, name)
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{name} must be a number, found {text!r}") from error
