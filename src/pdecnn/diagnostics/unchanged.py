"""Whether a module computes what its class is known to: only of such ones anything is proved."""

from collections.abc import Iterable, Iterator

from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from pdecnn.pde.activations import Activation
from pdecnn.pde.facts import is_deterministic
from pdecnn.pde.layers import AbstractLayer


def departure(module: nn.Module, *, with_parts: bool = True) -> str | None:
    """How a module, or a part of it, departs from what its class computes; None: it does not.

    Every part must be exactly of a class that declares itself `deterministic`, since a subclass
    may compute anything; no forward
    hook may be registered, not even one that only looks; no method may be replaced on the object.
    Backward hooks, which change no features, are allowed, and so are parametrizations: weights
    are read through them wherever they are used.
    """
    if _global_forward_hooks or _global_forward_pre_hooks:
        return "a hook is registered for all modules"
    for name, part in _parts(module) if with_parts else [("", module)]:
        kind = type_before_parametrizations(part)
        found = _attached([part]) if is_deterministic(kind) else f"is of class {kind.__name__}"
        if found is None and with_parts and isinstance(part, AbstractLayer):
            name, found = _joined(name, "activation"), _activation_departure(part.activation)
        if found is not None:
            return f"its {name} {found}" if name else f"it {found}"
    return None


def _parts(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The module and its children's parts, with their names; not what computes the weights."""
    yield name, module
    for child_name, child in module.named_children():
        if not (child_name == "parametrizations" and is_parametrized(module)):
            yield from _parts(child, _joined(name, child_name))


def _activation_departure(activation: object) -> str | None:
    """Its slopes are what is declared of it, whatever module computes it."""
    if type(activation) is not Activation:
        return f"is of class {type(activation).__name__}"
    function = activation.function
    return _attached(function.modules()) if isinstance(function, nn.Module) else None


def _attached(modules: Iterable[nn.Module]) -> str | None:
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks:
            return "has a hook"
        for name in vars(module):
            if callable(getattr(type(module), name, None)):
                return f"has a method of its own, {name}"
    return None


def _joined(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part
