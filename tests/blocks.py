"""Small layers and blocks with random weights, the same for the same seed."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import count

import pytest
import torch
from torch import Tensor, nn

from pdecnn.pde import BACKPROP_MODES, INTEGRATORS, AbstractIntegrator, Block, SymmetricLayer

IRREVERSIBLE = tuple(integrator for integrator in INTEGRATORS if not integrator.reversible)
REVERSIBLE = tuple(integrator for integrator in INTEGRATORS if integrator.reversible)

SIZES = {1: (6,), 2: (5, 4), 3: (3, 4, 3)}


def integrator_name(integrator: object) -> str | None:
    """A test id for integrators; None, so pytest's own, for all else."""
    return integrator.name if isinstance(integrator, AbstractIntegrator) else None


every_integrator = pytest.mark.parametrize("integrator", INTEGRATORS, ids=integrator_name)
every_reversible = pytest.mark.parametrize("integrator", REVERSIBLE, ids=integrator_name)
every_combination = pytest.mark.parametrize(
    ("integrator", "backprop"),
    [
        (integrator, backprop)
        for integrator in INTEGRATORS
        for backprop in BACKPROP_MODES
        if integrator.reversible or backprop in ("stored", "checkpointed")
    ],
    ids=integrator_name,
)
both_reversing_modes = pytest.mark.parametrize("backprop", ["reversible", "exact"])


def randomize_(module: nn.Module, seed: int, *, deviation: float = 0.3) -> nn.Module:
    """Give every parameter random values: stencils and biases around 0, scales around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            center = 1.0 if name.endswith("scale") else 0.0
            parameter.copy_(center + deviation * noise)
    return module


def make_block(
    integrator: str | AbstractIntegrator,
    *,
    channels: int = 4,
    num_steps: int = 3,
    step_size: float = 0.5,
    backprop: str = "stored",
    grid_bits: int | None = None,
    share_weights: bool = False,
    dimension: int = 2,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    layer_class: type[nn.Module] = SymmetricLayer,
    **layer_options: object,
) -> Block:
    """A block of random weights that depend on the seed, not on the backprop mode."""
    (resolved,) = [known for known in INTEGRATORS if integrator in (known, known.name)]
    options = {"activation": "tanh", "dimension": dimension, **layer_options}
    num_layers = resolved.layers_per_step * (1 if share_weights else num_steps)
    layers = [
        randomize_(layer_class(resolved.layer_channels(channels), **options), seed + index)
        for index in range(num_layers)
    ]
    block = Block(
        layers,
        resolved,
        step_size=step_size,
        num_steps=num_steps,
        backprop=backprop,
        grid_bits=grid_bits,
    )
    return block.to(dtype)


def make_features(
    *,
    batch: int = 2,
    channels: int = 4,
    size: Sequence[int] | None = None,
    dimension: int = 2,
    dtype: torch.dtype = torch.float64,
    seed: int = 100,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal features."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, channels, *(SIZES[dimension] if size is None else size))
    features = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return features.requires_grad_(requires_grad)


def gradients_of(block: nn.Module, features: Tensor) -> dict[str, Tensor]:
    """The gradients of a generic scalar of block(features), by name, features among them."""
    leaf = features.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    outputs = block(leaf)
    seed_gradient = torch.cos(
        torch.arange(outputs.numel(), dtype=torch.float64).reshape(outputs.shape)
    )
    names, weights = zip(*block.named_parameters(), strict=True)
    gradients = torch.autograd.grad(
        outputs, (leaf, *weights), seed_gradient.to(outputs.dtype), allow_unused=True
    )
    missing = [
        name for name, found in zip(("features", *names), gradients, strict=True) if found is None
    ]
    assert not missing, f"no gradient reaches {missing}"
    return dict(zip(("features", *names), gradients, strict=True))


def relative_error(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|; 0 where both are 0."""
    difference = (found.double() - expected.double()).norm()
    return 0.0 if difference == 0 else float(difference / expected.double().norm())


def largest_relative_error(
    found: dict[str, Tensor], expected: dict[str, Tensor]
) -> tuple[float, str]:
    """The worst of all tensors, and its name."""
    assert found.keys() == expected.keys()
    tie_break = count()
    worst = max((relative_error(found[n], expected[n]), next(tie_break), n) for n in expected)
    return worst[0], worst[2]


def replica_of(module: nn.Module) -> nn.Module:
    """The copy that nn.DataParallel makes for a device, here for the same one."""
    replica = module._replicate_for_data_parallel()
    replica._former_parameters = OrderedDict()
    for name, child in module._modules.items():
        setattr(replica, name, replica_of(child))
    for name, weight in module._parameters.items():
        setattr(replica, name, weight.clone())
    return replica
