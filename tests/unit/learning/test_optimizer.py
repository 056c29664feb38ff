"""The optimiser against torch's own, against its formulas, and its box."""

import math
import pickle
from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pdecnn import Block, SymmetricLayer
from pdecnn.errors import ConfigError
from pdecnn.learning import Objective, OptimizerConfig, ProjectedSGD
from pdecnn.learning.optimizer import MovingAverage, clip_, project_
from pdecnn.learning.update_rules import orthogonalize
from tests.unit.learning.trainings import DYNAMICS, make_network, scatter_weights_

RATES = [0.1, 0.1, 0.02, 0.02, 0.5]
finite = st.floats(-1e6, 1e6, width=32)


def set_gradients(network, seed, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    for weight in network.parameters():
        weight.grad = size * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)


def weights_of(network):
    return {name: weight.detach().clone() for name, weight in network.named_parameters()}


def trajectory(make_optimizer, rates, dtype=torch.float64):
    """The weights after one step for each rate, with prescribed gradients."""
    network = make_network(dtype=dtype)
    optimizer = make_optimizer(network)
    states = []
    for k, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        set_gradients(network, seed=k)
        optimizer.step()
        states.append(torch.cat([w.detach().flatten() for w in network.parameters()]))
    return states


def projected(**settings):
    config = OptimizerConfig(**{"box": "none", **settings})
    return lambda network: ProjectedSGD(network, learning_rate=0.1, config=config)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_rate_outside_is_torchs_sgd(momentum):
    found = trajectory(projected(momentum=momentum, momentum_convention="rate_outside"), RATES)
    expected = trajectory(
        lambda network: torch.optim.SGD(network.parameters(), lr=0.1, momentum=momentum), RATES
    )
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-14, atol=1e-14)


TWENTY_RATES = [0.1 * 0.8 ** (k // 3) * (1 + k % 2) for k in range(20)]


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_nesterov_is_torchs(momentum):
    found = trajectory(projected(optimizer="nesterov", momentum=momentum), TWENTY_RATES)
    expected = trajectory(
        lambda network: torch.optim.SGD(
            network.parameters(), lr=0.1, momentum=momentum, nesterov=True
        ),
        TWENTY_RATES,
    )
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.8, 0.95), (0.0, 0.5)])
def test_adamw_is_torchs(betas, weight_decay):
    settings = {"betas": betas, "weight_decay": weight_decay}
    found = trajectory(projected(optimizer="adamw", **settings), TWENTY_RATES)
    expected = trajectory(
        lambda network: torch.optim.AdamW(network.parameters(), **settings), TWENTY_RATES
    )
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "muon"])
def test_weight_decay_shrinks_every_weight_before_it_is_moved(optimizer):
    """x <- (1 - lr w) x - move, the move being that without decay."""
    start = torch.cat(
        [w.detach().flatten() for w in make_network(dtype=torch.float64).parameters()]
    )
    (plain,) = trajectory(projected(optimizer=optimizer), [0.1])
    (decayed,) = trajectory(projected(optimizer=optimizer, weight_decay=0.5), [0.1])
    torch.testing.assert_close(decayed, plain - 0.05 * start, rtol=1e-13, atol=1e-13)


def test_muon_moves_matrices_along_their_orthogonal_factors_and_vectors_as_adamw():
    network = make_network(dtype=torch.float64)
    before = weights_of(network)
    optimizer = projected(optimizer="muon", momentum=0.9)(network)
    velocities = {name: torch.zeros_like(weight) for name, weight in before.items()}
    vectors = deepcopy(network)
    adamw = torch.optim.AdamW(
        [weight for weight in vectors.parameters() if weight.dim() == 1], weight_decay=0.0
    )
    for k, rate in enumerate(RATES):
        optimizer.learning_rate = adamw.param_groups[0]["lr"] = rate
        set_gradients(network, seed=k)
        set_gradients(vectors, seed=k)
        optimizer.step()
        adamw.step()
        for name, weight in network.named_parameters():
            if weight.dim() == 1:
                torch.testing.assert_close(
                    weight, vectors.get_parameter(name), rtol=1e-12, atol=1e-12
                )
                continue
            velocities[name] = 0.9 * velocities[name] + weight.grad
            direction = (weight.grad + 0.9 * velocities[name]).flatten(1)
            u, _, v = torch.linalg.svd(direction, full_matrices=False)
            size = rate * 0.2 * max(direction.shape) ** 0.5
            move = (before[name] - weight.detach()).flatten(1) / size
            # U S V^T with S near 1, so nothing but its diagonal is left between U and V.
            between = u.mT @ move @ v.mT
            torch.testing.assert_close(between, torch.diag(between.diagonal()), rtol=0, atol=1e-10)
            assert 0.6 < between.diagonal().min() <= between.diagonal().max() < 1.3, name
        before = weights_of(network)


def test_orthogonalize_takes_zero_and_any_scale_and_shape():
    assert torch.equal(orthogonalize(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(3, 7, 4, generator=generator, dtype=torch.float64)
    found = orthogonalize(matrices)
    torch.testing.assert_close(orthogonalize(1e-20 * matrices), found, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(orthogonalize(matrices.mT), found.mT, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(orthogonalize(matrices[1:2]), found[1:2], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_rate_inside_is_its_formula(momentum):
    """v <- lr g + m v; x <- x - v, number by number."""
    found = trajectory(projected(momentum=momentum), RATES)
    network = make_network(dtype=torch.float64)
    x = torch.cat([w.detach().flatten() for w in network.parameters()]).tolist()
    v = [0.0] * len(x)
    for k, rate in enumerate(RATES):
        set_gradients(network, seed=k)
        g = torch.cat([w.grad.flatten() for w in network.parameters()]).tolist()
        v = [rate * gi + momentum * vi for gi, vi in zip(g, v, strict=True)]
        x = [xi - vi for xi, vi in zip(x, v, strict=True)]
        assert found[k].tolist() == pytest.approx(x, rel=1e-13, abs=1e-13)


def test_conventions_agree_while_the_rate_is_constant_and_differ_once_it_changes():
    inside = trajectory(projected(), RATES)
    outside = trajectory(projected(momentum_convention="rate_outside"), RATES)
    for k in (0, 1):
        torch.testing.assert_close(inside[k], outside[k], rtol=1e-13, atol=1e-13)
    for k in (2, 3, 4):
        assert (inside[k] - outside[k]).abs().max() > 1e-3


def test_the_default_is_the_recipe():
    config = OptimizerConfig()
    assert (config.momentum, config.momentum_convention) == (0.9, "rate_inside")
    assert (config.box, config.box_bound) == ("stencils", 1.0)
    assert config.clip_norm is None
    assert config.average_decay is None


@pytest.mark.parametrize("dynamics", DYNAMICS)
@pytest.mark.parametrize("box", ["stencils", "all", "none"])
def test_the_box_bounds_exactly_the_weights_it_names(dynamics, box):
    network = make_network(dynamics)
    optimizer = ProjectedSGD(network, learning_rate=1.0, config=OptimizerConfig(box=box))
    with torch.no_grad():
        for weight in network.parameters():
            weight.fill_(3.0)
            weight.view(-1)[0] = -3.0
    for weight in network.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    bounded = {name for name, w in network.named_parameters() if w.detach().abs().max() == 1}
    untouched = {name for name, w in network.named_parameters() if w.detach().abs().min() == 3}
    names = {name for name, _ in network.named_parameters()}
    expected = {
        "stencils": {n for n in names if n.startswith("blocks.") and n.endswith("stencil")},
        "all": names,
        "none": set(),
    }[box]
    assert bounded == expected
    assert untouched == names - expected
    if box == "stencils":
        assert not any("opening" in name or "connectors" in name for name in bounded)
        assert len(bounded) == {"resnet": 12, "hamiltonian": 12}.get(dynamics, 6)


def test_the_box_clips_the_weights_and_not_the_velocity():
    network = make_network(dtype=torch.float64)
    optimizer = ProjectedSGD(network, learning_rate=1.0, config=OptimizerConfig(box_bound=0.5))
    stencil = network.blocks[0].layers[0].convolution.stencil
    for weight in network.parameters():
        weight.grad = torch.full_like(weight, 7.0)
    optimizer.step()
    assert (stencil == -0.5).all()
    assert (optimizer.velocity(stencil) == 7.0).all()


@given(
    weights=st.lists(finite, min_size=1, max_size=20),
    others=st.lists(finite, min_size=20, max_size=20),
    bound=st.floats(2.0**-10, 2.0**10),
)
def test_projection_is_inside_idempotent_and_non_expansive(weights, others, bound):
    x = torch.tensor(weights, dtype=torch.float64)
    y = torch.tensor(others[: len(weights)], dtype=torch.float64)
    distance = (x - y).norm()
    inside = x.abs() <= bound
    before = x.clone()
    project_([x, y], bound)
    assert x.abs().max() <= bound
    assert y.abs().max() <= bound
    assert (x - y).norm() <= distance * (1 + 1e-12)
    assert torch.equal(x[inside], before[inside])
    once = x.clone()
    project_([x], bound)
    assert torch.equal(x, once)


def test_projection_is_the_nearest_point_of_the_box():
    x = torch.randn(50, dtype=torch.float64) * 3
    nearest = x.clone()
    project_([nearest], 1.0)
    for _ in range(100):
        other = torch.rand(50, dtype=torch.float64) * 2 - 1
        assert (x - nearest).norm() <= (x - other).norm()


def test_boxed_weights_are_the_networks_own_tensors():
    network = make_network()
    ids = {id(weight) for weight in network.parameters()}
    assert all(id(weight) in ids for weight in ProjectedSGD(network, learning_rate=0.1).boxed)


@pytest.mark.parametrize(("size", "clipped"), [(10.0, True), (1e-4, False)])
def test_clipping_shortens_only_long_gradients(size, clipped):
    network = make_network(dtype=torch.float64)
    set_gradients(network, seed=0, size=size)
    before = torch.cat([w.grad.flatten() for w in network.parameters()])
    optimizer = projected(clip_norm=2.0, momentum=0.0)(network)
    start = torch.cat([w.detach().flatten() for w in network.parameters()])
    optimizer.step()
    moved = start - torch.cat([w.detach().flatten() for w in network.parameters()])
    expected = before * (2.0 / before.norm() if clipped else 1.0)
    assert (before.norm() > 2) == clipped
    torch.testing.assert_close(moved, 0.1 * expected, rtol=1e-12, atol=1e-15)


def test_clipping_takes_a_zero_gradient():
    gradients = [torch.zeros(3), torch.zeros(2, 2)]
    clip_(gradients, 1.0)
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)
    clip_([], 1.0)


def test_moving_average_is_its_formula():
    network = make_network("parabolic", dtype=torch.float64)
    average = make_network("parabolic", seed=5, dtype=torch.float64)
    network(torch.randn(4, 1, 8, 8, dtype=torch.float64))
    before = {name: tensor.clone() for name, tensor in average.state_dict().items()}
    source = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    MovingAverage(average, network, 0.75).update_()
    for name, tensor in average.state_dict().items():
        if tensor.is_floating_point():
            expected = 0.75 * before[name] + 0.25 * source[name]
            torch.testing.assert_close(tensor, expected, rtol=1e-14, atol=1e-14)
        else:
            assert torch.equal(tensor, source[name])
        assert torch.equal(network.state_dict()[name], source[name])
    assert any("running_mean" in name for name in before)
    assert all(weight.requires_grad for weight in average.parameters())


def test_a_closure_is_refused():
    optimizer = ProjectedSGD(make_network(), learning_rate=0.1)
    with pytest.raises(ConfigError, match="takes no closure"):
        optimizer.step(lambda: 0.0)


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf, "0.1", None, True, 10**400])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ConfigError, match="learning_rate"):
        ProjectedSGD(make_network(), learning_rate=rate)


def test_it_is_an_ordinary_torch_optimizer():
    """A schedule of torch's, zero_grad, hooks: what users do with any optimiser."""
    network = make_network()
    optimizer = ProjectedSGD(network, learning_rate=0.4)
    assert isinstance(optimizer, torch.optim.Optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(optimizer.learning_rate))
    images, labels = torch.randn(8, 1, 8, 8), torch.arange(8)
    for _ in range(3):
        optimizer.zero_grad()
        Objective()(network, network(images), labels).total.backward()
        optimizer.step()
        scheduler.step()
    assert calls == [0.4, 0.2, 0.1]
    optimizer.learning_rate = 0.3
    assert optimizer.param_groups[0]["lr"] == 0.3


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adamw", "muon"])
def test_its_state_dict_comes_back(optimizer):
    config = OptimizerConfig(optimizer=optimizer)

    def steps(network, optimizer, seeds):
        for seed in seeds:
            set_gradients(network, seed=seed)
            optimizer.step()

    first, second = make_network(), make_network()
    one = ProjectedSGD(first, learning_rate=0.1, config=config)
    steps(first, one, range(3))
    second.load_state_dict(first.state_dict())
    two = ProjectedSGD(second, learning_rate=0.7, config=config)
    two.load_state_dict(deepcopy(one.state_dict()))
    steps(first, one, range(3, 6))
    steps(second, two, range(3, 6))
    for name, weight in weights_of(first).items():
        assert torch.equal(weight, weights_of(second)[name]), name


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adamw", "muon"])
@pytest.mark.parametrize("copy", [deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_together_with_its_network_steps_as_the_original(copy, optimizer):
    network = scatter_weights_(make_network(dtype=torch.float64))
    config = OptimizerConfig(optimizer=optimizer, clip_norm=1.0, box_bound=0.2)
    pair = network, ProjectedSGD(network, learning_rate=0.1, config=config)
    images, labels = torch.randn(4, 1, 8, 8, dtype=torch.float64), torch.arange(4)

    def step(network, optimizer):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    step(*pair)
    copied = copy(pair)
    step(*copied)
    step(*pair)
    assert copied[1].boxed
    for one, other in zip(network.parameters(), copied[0].parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["weight_decay", "momentum", "betas", "learning_rate"])
def test_a_setting_of_an_added_group_is_not_ignored_in_silence(name):
    optimizer = ProjectedSGD(nn.Linear(2, 2), learning_rate=0.1)
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(ConfigError, match=f"{name} in a group"):
        optimizer.add_param_group({"params": [weight], name: 0.5})
    optimizer.add_param_group({"params": [weight], "lr": 0.5, "name": "head"})


def test_weights_without_a_gradient_stay():
    network = scatter_weights_(make_network(), size=0.01)
    optimizer = ProjectedSGD(network, learning_rate=0.1)
    before = weights_of(network)
    optimizer.step()
    for name, weight in weights_of(network).items():
        assert torch.equal(weight, before[name])
    network.classifier.weight.grad = torch.ones_like(network.classifier.weight)
    optimizer.step()
    changed = {name for name, w in weights_of(network).items() if not torch.equal(w, before[name])}
    assert changed == {"classifier.weight"}


def test_weights_of_an_added_group_are_updated_too():
    network = make_network()
    optimizer = ProjectedSGD(network, learning_rate=0.5, config=OptimizerConfig(clip_norm=1e9))
    extra = torch.nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [extra], "lr": 0.25})
    extra.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(extra.detach(), torch.full((3,), 0.75))


def test_a_frozen_network_part_is_left_alone():
    network = make_network()
    network.opening.requires_grad_(False)
    before = network.opening.convolution.stencil.clone()
    optimizer = ProjectedSGD(network, learning_rate=0.1, config=OptimizerConfig(clip_norm=0.1))
    scores = network(torch.randn(4, 1, 8, 8))
    Objective()(network, scores, torch.arange(4)).total.backward()
    optimizer.step()
    assert torch.equal(network.opening.convolution.stencil, before)


@pytest.mark.parametrize("box", ["stencils", "all", "none"])
def test_any_module_that_contains_blocks_is_projected(box):
    block = Block([SymmetricLayer(4) for _ in range(2)], "forward_euler")
    module = nn.Sequential(nn.Conv2d(1, 4, 3), block)
    config = OptimizerConfig(box=box, box_bound=0.01)
    optimizer = ProjectedSGD(module, learning_rate=1.0, config=config)
    module(torch.randn(2, 1, 6, 6)).square().sum().backward()
    optimizer.step()
    stencils = {id(layer.convolution.stencil) for layer in block.layers}
    for weight in module.parameters():
        bounded = float(weight.detach().abs().max()) <= 0.01
        assert bounded == (box == "all" or (box == "stencils" and id(weight) in stencils))


def test_parameters_in_place_of_their_module_are_refused():
    with pytest.raises(ConfigError, match="found generator; pass the network itself"):
        ProjectedSGD(nn.Linear(2, 2).parameters(), learning_rate=0.1)
