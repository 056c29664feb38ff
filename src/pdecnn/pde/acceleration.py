"""How fast the steps of a block run, never what they compute.

Within `accelerated` a step is compiled code, or fused kernels where these fit its layers; the
operators of PyTorch, one by one, elsewhere.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

_backend: str | None = None
_compiled: dict[tuple[object, str], Callable[..., Any]] = {}


def is_accelerated() -> bool:
    """Whether this happens within `accelerated`."""
    return _backend is not None


@contextmanager
def accelerated(backend: str = "inductor") -> Iterator[None]:
    """Within it blocks step by compiled code."""
    global _backend
    before, _backend = _backend, backend
    try:
        with ExitStack() as stack:
            for settings in _compiler_settings():
                stack.enter_context(settings)
            yield
    finally:
        _backend = before


def _compiler_settings() -> Iterator[AbstractContextManager[None]]:
    from torch._dynamo import config as tracing

    # Each width and each network of a process has its own graph of the same function.
    yield tracing.patch(recompile_limit=1000, accumulated_recompile_limit=100_000)


def is_captured(device: torch.device) -> bool:
    """Whether what is computed there now is recorded for a CUDA graph: it cannot be waited for."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def has_hooks(module: nn.Module) -> bool:
    """Whether a user's function runs with a part of the module or the gradient of a weight."""
    return any(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        or any(
            weight is not None and weight._backward_hooks for weight in part._parameters.values()
        )
        for part in module.modules()
    )


def compile_settings(backend: str) -> dict[str, Any]:
    """What torch.compile is told: one graph for each shape of the arguments, no break in it.

    Kernels are chosen by rule, not by the clock: another process must get the same bits. This
    is an option of the call, since gradients are compiled in threads of autograd's own, where a
    patched setting does not hold.
    """
    options = {"deterministic": True} if backend == "inductor" else None
    return {"backend": backend, "fullgraph": True, "dynamic": False, "options": options}


def compile_function(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """The function as compiled code."""
    compiled: Callable[..., Any] = torch.compile(function, **compile_settings(backend))
    return compiled


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or its compiled form within `accelerated`."""
    if _backend is None:
        return function
    key = (function, _backend)
    if key not in _compiled:
        _compiled[key] = compile_function(function, _backend)
    return _compiled[key]


@contextmanager
def compiled_modules(modules: Iterable[nn.Module], backend: str) -> Iterator[None]:
    """Within it calls of these modules run compiled."""
    before = [(module, module._compiled_call_impl) for module in modules]
    for module, _ in before:
        module.compile(**compile_settings(backend))
    try:
        yield
    finally:
        for module, own in before:
            module._compiled_call_impl = own
