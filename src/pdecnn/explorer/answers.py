"""What the page asks and is told, as JSON values; one question at a time."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pdecnn.data.augmentation import cpu_generator
from pdecnn.diagnostics.energy import block_times, features_symbol
from pdecnn.diagnostics.jacobians import has_symmetric_layers, is_wave
from pdecnn.errors import ConfigError
from pdecnn.explorer.frames import (
    Reversal,
    Trajectory,
    blocks_of,
    common_scales,
    component_names,
    compute_trajectory,
    distances,
    finite,
    flat_slice,
    norm_and_energy,
    picture,
    run_backwards,
    symmetric_scale,
)
from pdecnn.explorer.subject import Subject
from pdecnn.pde.block import Block
from pdecnn.pde.facts import HEAT
from pdecnn.pde.integrators import State

NUM_EXAMPLES = 12
MOST_NOISE = 2.0
MAX_UPLOAD_BYTES = 16 * 2**20
VIEWS = ("clean", "noisy", "difference")
_MOST_UPLOADS = 4
_MOST_TRAJECTORIES = 3
_MOST_COMPARED = 16


class Explorer:
    """Answers for one network. A trajectory is computed once and its frames are served from it."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.blocks = blocks_of(subject.network)
        self._uploads: dict[str, Tensor] = {}
        self._num_uploads = 0
        self._trajectory: Callable[[str, float], Trajectory]
        self._trajectory = lru_cache(_MOST_TRAJECTORIES)(self._compute)

    def describe(self) -> dict[str, Any]:
        """All that stays the same: the network, its classes, and inputs to begin with."""
        subject = self.subject
        network = subject.network
        return {
            "name": subject.name,
            "equation": _equation(self.blocks),
            "symbol": features_symbol(self.blocks[0]),
            "dimension": network.config.dimension,
            "num_weights": network.num_weights,
            "class_names": subject.class_names,
            "blocks": [_describe_block(block) for block in self.blocks],
            "num_samples": subject.num_samples,
            "has_test": subject.test is not None,
            "examples": [
                {"sample": str(index), "label": subject.label(index), **self._input(str(index))}
                for index in subject.examples(NUM_EXAMPLES)
            ],
            "notice": subject.notice,
            "takes_images": subject.takes_images,
            "max_upload_bytes": MAX_UPLOAD_BYTES,
            "most_noise": MOST_NOISE,
        }

    def upload(self, content: bytes) -> dict[str, Any]:
        """Take in the content of an image file; the name by which to ask for it."""
        pixels = self.subject.read(content, "the file")
        self._num_uploads += 1
        sample = f"upload-{self._num_uploads}"
        self._uploads[sample] = pixels
        if len(self._uploads) > _MOST_UPLOADS:
            del self._uploads[next(iter(self._uploads))]
        return {"sample": sample}

    def sample(self, sample: str) -> dict[str, Any]:
        """An input, its class probabilities, and norm and energy along each block."""
        trajectory = self._trajectory(sample, 0.0)
        return {
            "sample": sample,
            "label": self._label(sample),
            **self._input(sample),
            "probabilities": finite(trajectory.probabilities),
            "blocks": [
                {"size": list(features.shape[2:]), **norm_and_energy(block, features)}
                for block, features in zip(self.blocks, trajectory.inputs, strict=True)
            ],
        }

    def noise(self, sample: str, amount: float) -> dict[str, Any]:
        """The same with noise, and how far apart both are along each block."""
        clean, noisy = self._trajectory(sample, 0.0), self._trajectory(sample, amount)
        return {
            "amount": amount,
            **self._input(sample, amount),
            "probabilities": finite(noisy.probabilities),
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
        chosen = self._block(block)
        if not 0 <= step <= chosen.num_steps:
            raise ConfigError(f"block {block} has the steps 0 to {chosen.num_steps}, found {step}")
        states, scales = self._shown(sample, block, view, amount)
        return {
            "block": block,
            "step": step,
            "components": [
                {"name": name, **picture(part[0], -scale, scale)}
                for name, part, scale in zip(
                    component_names(chosen, states[step]), states[step], scales, strict=True
                )
            ],
        }

    def reverse(self, sample: str, block: int) -> dict[str, Any]:
        """The input features of a block recovered from its final state, beside the originals."""
        trajectory = self._trajectory(sample, 0.0)
        chosen = self._block(block)
        found = run_backwards(chosen, trajectory.inputs[block], trajectory.states[block][-1])
        return {
            "block": block,
            "reversible": found.reason is None,
            "reason": found.reason,
            "error": finite([found.error])[0],
            "channels": found.expected.shape[1],
            **_compared(found),
        }

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
        return compute_trajectory(self.subject.network, self._pixels(sample, amount))

    def _pixels(self, sample: str, amount: float = 0.0) -> Tensor:
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

    def _label(self, sample: str) -> str | None:
        return None if sample in self._uploads else self.subject.label(self._index(sample))

    def _input(self, sample: str, amount: float = 0.0) -> dict[str, Any]:
        """The input as a picture, on the scale it has without noise."""
        low, high = 0.0, 1.0
        if self._raw(sample).dtype != torch.uint8:
            clean = flat_slice(self._pixels(sample))
            low, high = float(clean.min()), float(clean.max())
        return {"picture": picture(self._pixels(sample, amount), low, high)}

    def _block(self, index: int) -> Block:
        if not 0 <= index < len(self.blocks):
            raise ConfigError(f"there are the blocks 0 to {len(self.blocks) - 1}, found {index}")
        return self.blocks[index]


def _describe_block(block: Block) -> dict[str, Any]:
    return {
        "integrator": block.integrator.name,
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
        "A wave equation: features swing and travel"
        if is_wave(block.integrator)
        else "A partial differential equation that its integrator does not declare"
    )
    return f"{kind}, and every step can be undone." if reversible else f"{kind}."


def _compared(found: Reversal) -> dict[str, Any]:
    """The first channels of both and of their difference, which has a scale of its own."""
    expected, recovered = (part[0, :_MOST_COMPARED] for part in (found.expected, found.recovered))
    scale = symmetric_scale([expected])
    difference = recovered - expected
    largest = symmetric_scale([difference]) if bool(difference.any()) else scale
    return {
        "expected": picture(expected, -scale, scale),
        "recovered": picture(recovered, -scale, scale),
        "difference": picture(difference, -largest, largest),
    }


# What may be asked, and how a request's fields become arguments.

Query = dict[str, str]
GET: dict[str, Callable[[Explorer, Query], dict[str, Any]]] = {
    "describe": lambda explorer, query: explorer.describe(),
    "sample": lambda explorer, query: explorer.sample(_text(query, "sample")),
    "noise": lambda explorer, query: explorer.noise(
        _text(query, "sample"), _number(query, "amount")
    ),
    "frame": lambda explorer, query: explorer.frame(
        _text(query, "sample"),
        _index(query, "block"),
        _index(query, "step"),
        view=_text(query, "view"),
        amount=_number(query, "amount"),
    ),
    "reverse": lambda explorer, query: explorer.reverse(
        _text(query, "sample"), _index(query, "block")
    ),
}
POST: dict[str, Callable[[Explorer, bytes], dict[str, Any]]] = {
    "upload": lambda explorer, content: explorer.upload(content),
}


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
