"""Layers with a memory or with chance: a state that is computed a second time may meet others."""

import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from pdecnn.errors import ConfigError
from pdecnn.pde.activations import BUILT_IN
from pdecnn.pde.facts import is_deterministic
from pdecnn.pde.integrators import AbstractIntegrator
from pdecnn.pde.layers import AbstractLayer
from pdecnn.pde.normalization import BATCH_NORMS

_METHODS: dict[type, frozenset[str]] = {}  # of each class met so far


def is_captured(device: torch.device) -> bool:
    """Whether what is computed there now is recorded for a CUDA graph: it cannot be waited for."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def has_foreign_code(module: nn.Module) -> bool:
    """Whether a user's function runs with a part of the module or the gradient of a weight.

    A hook on it or on all modules, or a method replaced on the object.
    """
    return bool(_global_forward_hooks or _global_forward_pre_hooks) or any(
        replaced_methods(part)
        or part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        or any(
            weight is not None and weight._backward_hooks for weight in part._parameters.values()
        )
        for part in module.modules()
    )


def replaced_methods(thing: object) -> set[str]:
    """The methods of its class that the object itself has others for."""
    return vars(thing).keys() & _methods(type(thing))


def _methods(kind: type) -> frozenset[str]:
    if kind not in _METHODS:
        named = (name for name in dir(kind) if callable(getattr(kind, name, None)))
        _METHODS[kind] = frozenset(named)
    return _METHODS[kind]


def suspects_among(layers: Iterable[nn.Module]) -> str:
    """The kinds of layers that may draw random numbers; none if all are known to draw none."""
    kinds = dict.fromkeys(type(layer).__name__ for layer in layers if _may_be_random(layer))
    return " or ".join(kinds)


def _may_be_random(layer: nn.Module) -> bool:
    return (
        not all(is_deterministic(type(part)) for part in layer.modules())
        or (isinstance(layer, AbstractLayer) and layer.activation not in BUILT_IN)
        or has_foreign_code(layer)
    )


@contextmanager
def refused_random_numbers(
    suspects: str, integrator: AbstractIntegrator, device: torch.device
) -> Iterator[None]:
    """Raise at the end if random numbers were drawn within; without suspects it costs nothing.

    A generator of a layer's own is not seen.
    """
    # Within a capture the device's generator cannot be asked; there were trial runs before.
    if not suspects or is_captured(device):
        yield
        return
    before = _states(device)
    yield
    after = _states(device)
    moved = [name for name in before if before[name] != after[name]]
    if moved:
        raise ConfigError(
            f"random numbers were drawn while {suspects} ran ({moved[0]} generator moved): a "
            f"reversible block ({integrator.name}) refuses layers that draw them, since a state "
            f"computed backwards would meet others; draw them outside the blocks or, where no "
            f"state is reversed, use backprop='stored' or 'checkpointed'"
        )


def _states(device: torch.device) -> dict[str, object]:
    states = {
        "PyTorch's": _plain(torch.get_rng_state().numpy()),
        "Python's": random.getstate(),
        "NumPy's": _plain(_numpy_state()),
    }
    if device.type == "cuda":
        states["the GPU's"] = _plain(torch.cuda.get_rng_state(device).numpy())
    return states


def _plain(state: Any) -> object:
    """The state with bytes for arrays, so that it can be compared."""
    if isinstance(state, dict):
        return {name: _plain(part) for name, part in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state


def _numpy_state() -> Any:
    """The state of NumPy's generator; None if nobody has imported NumPy."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state(legacy=False)


class HostGenerators:
    """The states of Python's and NumPy's generators, as they are now, to be set again.

    PyTorch's own are looked after by `torch.utils.checkpoint`.
    """

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), _numpy_state()

    def restore(self) -> None:
        """Set the generators to these states."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def refuse_memory(layers: Iterable[nn.Module], integrator: AbstractIntegrator) -> list[nn.Module]:
    """Refuse layers with a memory where states are to be computed backwards; their batch norms.

    These alone are known to remember nothing that they compute with in training: the statistics
    of a batch of states are those of the same states computed backwards.
    """
    if not integrator.reversible:
        return []
    norms: dict[nn.Module, None] = {}
    for layer in dict.fromkeys(layers):
        for place, part in layer.named_modules():
            if isinstance(part, BATCH_NORMS) and is_deterministic(type(part)):
                norms[part] = None
                continue
            for name, buffer in part._buffers.items():
                if buffer is None:
                    continue
                name = f"{place}.{name}" if place else name
                raise ConfigError(
                    f"{type(layer).__name__} has the buffer {name!r}, which a step may change: in "
                    f"a reversible block ({integrator.name}) it is refused, since states computed "
                    f"backwards would differ; use layers whose only tensors are parameters, or "
                    f"PyTorch's batch norms"
                )
    return list(norms)


def refuse_replicas(modules: Iterable[nn.Module]) -> None:
    """Refuse the copies that nn.DataParallel makes, which have tensors but no parameters.

    What is computed backwards knows the parameters alone and would give these tensors no gradient.
    """
    if any("_is_replica" in vars(module) for module in modules):
        raise ConfigError(
            "nn.DataParallel runs copies without parameters, which neither networks nor blocks "
            "that are computed backwards can do with; use nn.parallel.DistributedDataParallel"
        )


class AsNow(AbstractContextManager[None]):
    """Within it modules have the buffers and the mode they have now, and change none.

    Recomputed norms, say, are as they were and do not count the batch a second time: modules
    work on copies meanwhile. If asked, the generators of the host too are as they are now and
    do not move. Can be entered again: a graph that is retained is recomputed at each backward.
    """

    def __init__(self, modules: Iterable[nn.Module], *, generators: bool = False) -> None:
        self._met = [
            (part, part.training, _copied(part._buffers)) for part in modules if part._buffers
        ]
        self._kept: list[tuple[nn.Module, bool, dict[str, Tensor | None]]] = []
        self._generators = HostGenerators() if generators else None
        self._kept_generators: HostGenerators | None = None

    def __enter__(self) -> None:
        # All copies first: where memory ends meanwhile, nothing has been exchanged.
        copies = [_copied(buffers) for _, _, buffers in self._met]
        if self._generators is not None:
            self._kept_generators = HostGenerators()
            self._generators.restore()
        self._kept = [(part, part.training, dict(part._buffers)) for part, _, _ in self._met]
        for (part, training, _), buffers in zip(self._met, copies, strict=True):
            part.training = training
            part._buffers.update(buffers)

    def __exit__(self, *exception: object) -> None:
        for part, training, buffers in self._kept:
            part.training = training
            part._buffers.update(buffers)
        self._kept.clear()
        if self._kept_generators is not None:
            self._kept_generators.restore()


def _copied(buffers: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if buffer is None else buffer.clone() for name, buffer in buffers.items()}
