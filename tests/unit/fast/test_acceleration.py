"""Compiled code is chosen by rule, in whichever thread it is made."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as generation
from torch._inductor.graph import GraphLowering

from pdecnn.fast import acceleration
from pdecnn.fast.acceleration import FastPropagator, accelerated, compiled, fast_layout
from pdecnn.networks import Opening
from pdecnn.pde.backprop import Propagator
from tests.blocks import make_block, make_features


def _cube(values: torch.Tensor) -> torch.Tensor:
    return values**3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own
def test_gradients_compiled_in_another_thread_are_not_chosen_by_the_clock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a GPU autograd has threads of its own; two processes got other kernels, other bits."""
    seen: list[bool] = []
    lower = GraphLowering.__init__

    def spy(self: GraphLowering, *args: Any, **kwargs: Any) -> None:
        seen.append(generation.deterministic)
        lower(self, *args, **kwargs)

    monkeypatch.setattr(GraphLowering, "__init__", spy)
    # A cached graph would not be lowered.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    values = torch.ones(3, requires_grad=True)
    total = compiled(_cube, "inductor")(values).sum()
    thread = threading.Thread(target=total.backward)
    thread.start()
    thread.join()
    torch.testing.assert_close(values.grad, torch.full((3,), 3.0))
    assert len(seen) == 2
    assert all(seen)


def test_few_channels_are_padded_within_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the matrix units of a GPU: eight channels meet the convolution, with the same sums."""
    seen: list[int] = []

    def is_padded(stage: Opening, features: torch.Tensor) -> bool:
        seen.append(stage.convolution.in_channels)
        return features.shape[1] % 8 != 0

    monkeypatch.setattr(acceleration, "_is_padded", is_padded)
    torch.compiler.reset()
    opening = Opening(3, 8).eval()
    images = torch.randn(2, 3, 5, 4)
    expected = opening(images)
    with accelerated(opening, "eager"):
        found = opening(images)
    assert seen == [3]
    torch.testing.assert_close(found, expected)
    assert "carrier" not in vars(opening)
    torch.testing.assert_close(opening(images), expected)
    assert seen == [3]


@torch.no_grad()
def test_within_accelerated_blocks_are_compiled_and_afterwards_plain() -> None:
    torch.compiler.reset()
    block = make_block("verlet", num_steps=2, dtype=torch.float32)
    features = make_features(dtype=torch.float32)
    expected = block(features)
    with accelerated(block, "eager"):
        assert isinstance(block.propagator, FastPropagator)
        found = block(features)
    assert type(block.propagator) is Propagator
    torch.testing.assert_close(found, expected)


def test_what_is_asked_of_layers_grows_with_the_number_of_steps_not_with_its_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether there is a hook was asked of every layer of a block for each of its increments."""
    asked: list[int] = []
    monkeypatch.setattr(acceleration, "has_foreign_code", lambda layer: asked.append(1))
    monkeypatch.setattr(acceleration, "compiled", lambda function, backend: function)

    def number_of_questions(num_steps: int) -> int:
        block = make_block("verlet", num_steps=num_steps, backprop="reversible")
        features = make_features().requires_grad_()
        asked.clear()
        with accelerated(block, "eager"):
            block(features).sum().backward()
        return len(asked)

    assert 0 < number_of_questions(8) <= 2 * number_of_questions(4)


@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_fast_layout_has_strides_of_channels_last(channels: int, dimension: int) -> None:
    """By which torch goes; of one channel they were left as they came."""
    images = make_features(channels=channels, dimension=dimension)
    turned = fast_layout(images)
    assert (turned.stride(1), turned.stride(-1)) == (1, channels)
    assert torch.equal(turned, images)


def test_elsewhere_a_single_channel_is_not_copied() -> None:
    """A GPU would turn each batch; whether that pays, nobody has measured."""
    images = make_features(channels=1).to("meta")
    assert fast_layout(images) is images


@pytest.mark.gpu
def test_compiled_blocks_run_channels_last_whatever_the_opening_leaves() -> None:
    """Convolutions of a GPU turned every state around and back: a third of a stable step."""
    seen: list[bool] = []

    class Watched(FastPropagator):
        def advance(self, stepping, state, steps):  # type: ignore[no-untyped-def]
            last = torch.channels_last
            seen.extend(part.is_contiguous(memory_format=last) for part in state)
            return super().advance(stepping, state, steps)

    block = make_block("forward_euler").cuda()
    features = make_features().cuda()
    assert not features.is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = block(features)
        vars(block)["propagator"] = Watched("eager")
        torch.testing.assert_close(block(features), expected)
    assert seen == [True]
