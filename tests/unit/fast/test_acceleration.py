"""Compiled code is chosen by rule, in whichever thread it is made."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as generation
from torch._inductor.graph import GraphLowering

from pdecnn.fast.acceleration import compiled


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
