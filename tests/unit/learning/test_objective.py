"""Every formula of the objective against loops over plain numbers."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import pdecnn
from pdecnn import Block, SymmetricLayer
from pdecnn.errors import ConfigError
from pdecnn.learning import Objective, ObjectiveConfig
from tests.unit.learning.trainings import DYNAMICS, make_network, scatter_weights_

SCORES = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [3.0, 2.0, -40.0], [-1.0, 4.0, 0.25]])
LABELS = np.array([0, 2, 1, 1])
every_dynamics = pytest.mark.parametrize("dynamics", DYNAMICS)


def loss_of(dtype=torch.float64, scores=SCORES, **settings):
    objective = Objective(ObjectiveConfig(**settings))
    return objective.data_loss(torch.tensor(scores, dtype=dtype), torch.tensor(LABELS))


def naive_target(label, num_classes, label_smoothing):
    return [
        (1 - label_smoothing) * (k == label) + label_smoothing / num_classes
        for k in range(num_classes)
    ]


def naive_loss(
    loss="cross_entropy", class_weights=None, label_smoothing=0.0, offset=0.0, temperature=1.0
):
    total = 0.0
    for scores, label in zip(SCORES, LABELS, strict=True):
        row = [(s - offset * (k == label)) / temperature for k, s in enumerate(scores)]
        target = naive_target(label, len(row), label_smoothing)
        if loss == "cross_entropy":
            log_sum = math.log(sum(math.exp(score) for score in row))
            one = -sum(t * (score - log_sum) for t, score in zip(target, row, strict=True))
            one *= temperature
        else:
            one = sum((score - t) ** 2 for t, score in zip(target, row, strict=True)) / 2
        total += one * (1 if class_weights is None else class_weights[label])
    return total / len(LABELS)


def arrays(module):
    return [weight.detach().double().numpy().ravel() for weight in module.parameters()]


def steps_of(block, per_step):
    """The weights of each stored step as one row of numbers, found without the package's help."""
    layers = [np.concatenate(arrays(layer)) for layer in block.layers]
    return [np.concatenate(layers[k : k + per_step]) for k in range(0, len(layers), per_step)]


def naive_smoothness(network, dynamics, step_sizes, alpha, tau=1e-3, kind="tv"):
    per_step = 2 if dynamics == "hamiltonian" else 1
    total, floor = 0.0, 0.0
    for block, dt in zip(network.blocks, step_sizes, strict=True):
        rows = steps_of(block, per_step)
        for before, after in pairwise(rows):
            for rate in (after - before) / dt:
                if kind == "tv":
                    total += alpha * dt * math.sqrt(rate**2 + tau)
                else:
                    total += alpha / 2 * dt * rate**2
        floor += alpha * dt * (len(rows) - 1) * len(rows[0]) * math.sqrt(tau)
    return total - floor if kind == "tv" else total


def naive_decay(network, step_sizes, alpha, repeats=1):
    total = sum(
        float((values**2).sum())
        for module in (network.opening.convolution, network.classifier)
        for values in arrays(module)
    )
    for connector in network.connectors:
        total += sum(float((values**2).sum()) for values in arrays(connector.convolution))
    for block, dt in zip(network.blocks, step_sizes, strict=True):
        for name, weight in block.named_parameters():
            if name.endswith("stencil"):
                total += repeats * dt * float(weight.detach().double().square().sum())
    return alpha / 2 * total


@pytest.mark.parametrize("loss", ["cross_entropy", "least_squares"])
@pytest.mark.parametrize("class_weights", [None, (0.5, 2.0, 0.0)])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.9])
def test_loss_is_its_formula(loss, class_weights, label_smoothing):
    settings = {
        "loss": loss,
        "class_weights": class_weights,
        "label_smoothing": label_smoothing,
    }
    assert float(loss_of(**settings)) == pytest.approx(naive_loss(**settings), rel=1e-13)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("offset", "temperature"), [(0.4, 0.25), (2.0, 1.0), (0.0, 3.0)])
def test_margins_are_their_formula(offset, temperature, label_smoothing):
    """T S((scores - m e_label) / T), with class weights and smoothed labels too."""
    settings = {
        "class_weights": (0.5, 2.0, 0.0),
        "label_smoothing": label_smoothing,
        "temperature": temperature,
    }
    found = float(loss_of(margin_offset=offset, **settings))
    assert found == pytest.approx(naive_loss(offset=offset, **settings), rel=1e-13)


@pytest.mark.parametrize("setting", ["margin_offset", "temperature"])
def test_least_squares_has_no_margins(setting):
    with pytest.raises(ConfigError, match=rf"training\.{setting} has no use with training\.loss="):
        ObjectiveConfig(loss="least_squares", **{setting: 0.5})


def test_cross_entropy_has_no_factor_one_half():
    """Of undecided scores it is log(number of classes), not half of that."""
    scores, labels = torch.zeros(5, 10, dtype=torch.float64), torch.arange(5)
    assert float(Objective().data_loss(scores, labels)) == pytest.approx(math.log(10), rel=1e-14)


def test_cross_entropy_is_a_mean_over_examples():
    objective = Objective()
    scores, labels = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 4
    twice = objective.data_loss(torch.cat([scores, scores]), torch.cat([labels, labels]))
    assert float(twice) == pytest.approx(float(objective.data_loss(scores, labels)), rel=1e-14)


@pytest.mark.parametrize("loss", ["cross_entropy", "least_squares"])
def test_loss_takes_extreme_scores(loss):
    scores = torch.tensor([[3e4, -3e4], [-3e4, 3e4]], requires_grad=True)
    value = Objective(ObjectiveConfig(loss=loss)).data_loss(scores, torch.tensor([1, 1]))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(scores.grad).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_give_a_float32_loss(dtype):
    value = loss_of(dtype)
    assert value.dtype == torch.float32
    rounded = torch.tensor(SCORES, dtype=dtype).double().numpy()
    assert float(value) == pytest.approx(float(loss_of(scores=rounded)), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_keeps_wide_dtypes(dtype):
    assert loss_of(dtype).dtype == dtype
    assert loss_of(dtype, class_weights=(1, 2, 3)).dtype == dtype


@every_dynamics
@pytest.mark.parametrize("kind", ["tv", "h1"])
@pytest.mark.parametrize("step_size", [1.0, (0.25, 2.0)])
def test_smoothness_is_its_formula(dynamics, kind, step_size):
    """Over all weights of a block, norm weights too, none across blocks, with the factor dt."""
    network = scatter_weights_(make_network(dynamics, dtype=torch.float64, step_size=step_size))
    config = ObjectiveConfig(smoothness=kind, smoothness_weight=3e-4)
    found = float(Objective(config).regularization(network).smoothness.detach())
    sizes = network.config.block_step_sizes
    expected = naive_smoothness(network, dynamics, sizes, 3e-4, kind=kind)
    assert found == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("tau", [1e-30, 1e-8, 1.0])
def test_smoothness_takes_any_tau(tau):
    network = scatter_weights_(make_network(dtype=torch.float64))
    objective = Objective(ObjectiveConfig(smoothness_weight=1.0, smoothing=tau))
    found = float(objective.regularization(network).smoothness.detach())
    expected = naive_smoothness(network, "hamiltonian", (1.0, 1.0), 1.0, tau)
    assert found == pytest.approx(expected, rel=1e-10)


@every_dynamics
@pytest.mark.parametrize("step_size", [1.0, (0.25, 2.0)])
def test_decay_is_its_formula(dynamics, step_size):
    """dt over block stencils; opening, connectors, W and mu without; norm weights free."""
    network = scatter_weights_(make_network(dynamics, dtype=torch.float64, step_size=step_size))
    objective = Objective(ObjectiveConfig(decay_weight=7e-4))
    found = float(objective.regularization(network).decay.detach())
    expected = naive_decay(network, network.config.block_step_sizes, 7e-4)
    assert found == pytest.approx(expected, rel=1e-12)


def test_resnet_decay_counts_both_stencils_of_a_layer():
    network = make_network("resnet")
    stencils = [name for name, _ in network.blocks.named_parameters() if "stencil" in name]
    assert len(stencils) == 2 * 3 * 2


def test_norm_weights_are_free_of_decay():
    network = scatter_weights_(make_network(dtype=torch.float64))
    before = Objective().regularization(network).decay.detach().clone()
    norms = [weight for name, weight in network.named_parameters() if "normalization" in name]
    assert norms
    with torch.no_grad():
        for weight in norms:
            weight *= 10
    assert torch.equal(Objective().regularization(network).decay.detach(), before)


def test_norm_weights_count_in_smoothness():
    network = make_network(dtype=torch.float64)
    with torch.no_grad():
        network.blocks[0].layers[0].normalization.affine.bias += 1
    assert Objective().regularization(network).smoothness > 0


def test_weights_outside_the_blocks_do_not_count_in_smoothness():
    network = make_network(dtype=torch.float64)
    with torch.no_grad():
        for part in (network.opening, network.connectors, network.classifier):
            for weight in part.parameters():
                weight += torch.randn_like(weight)
    assert float(Objective().regularization(network).smoothness.detach()) == 0


@every_dynamics
def test_smoothness_is_zero_at_initialisation(dynamics):
    """Its constant floor is subtracted, and all steps of a block start equal."""
    regularization = Objective().regularization(make_network(dynamics))
    assert float(regularization.smoothness.detach()) == 0
    assert regularization.decay > 0


@pytest.mark.parametrize("kind", ["tv", "h1"])
@pytest.mark.parametrize("smoothing", [1e-3, 1e-30])
def test_smoothness_has_zero_gradient_where_steps_are_equal(kind, smoothing):
    network = make_network()
    config = ObjectiveConfig(smoothness=kind, smoothing=smoothing, smoothness_weight=1.0)
    Objective(config).regularization(network).smoothness.backward()
    for name, weight in network.blocks.named_parameters():
        assert torch.equal(weight.grad, torch.zeros_like(weight)), name


def test_smoothness_keeps_its_digits_for_tiny_changes():
    """sqrt(r^2 + tau) - sqrt(tau) would cancel to 0 in float32; r^2/(2 sqrt(tau)) is right."""
    network = make_network()
    with torch.no_grad():
        network.blocks[0].layers[-1].normalization.affine.bias += 1e-5
    value = Objective(ObjectiveConfig(smoothness_weight=1.0)).regularization(network).smoothness
    num_changed = network.blocks[0].layers[-1].normalization.affine.bias.numel()
    expected = num_changed * 1e-10 / (2 * math.sqrt(1e-3))
    assert float(value.detach()) == pytest.approx(expected, rel=1e-4)


@every_dynamics
def test_shared_weights_have_no_smoothness_but_decay_of_every_step(dynamics):
    network = scatter_weights_(
        make_network(dynamics, dtype=torch.float64, share_weights=True, num_steps=(3, 5))
    )
    smoothness, decay = Objective().regularization(network)
    assert float(smoothness.detach()) == 0
    # The naive formula with each block's own number of repetitions.
    expected = naive_decay(network, (3 * 1.0, 5 * 1.0), 2e-4)
    assert float(decay.detach()) == pytest.approx(expected, rel=1e-12)


@every_dynamics
def test_shared_weights_decay_like_separate_ones_that_are_equal(dynamics):
    shared = make_network(dynamics, dtype=torch.float64, share_weights=True)
    separate = make_network(dynamics, dtype=torch.float64)
    assert float(Objective().regularization(shared).decay.detach()) == pytest.approx(
        float(Objective().regularization(separate).decay.detach()), rel=1e-13
    )


def test_a_block_of_one_step_has_no_smoothness():
    network = scatter_weights_(make_network(num_steps=1))
    smoothness, decay = Objective().regularization(network)
    assert float(smoothness.detach()) == 0
    (smoothness + decay).backward()


def test_blocks_without_norm_weights_and_with_batch_norm_are_regularised_too():
    for dynamics, normalization in (("hamiltonian", "none"), ("parabolic", "batch")):
        network = make_network(dynamics, normalization=normalization, dtype=torch.float64)
        scatter_weights_(network)
        found = Objective().regularization(network)
        smoothness = naive_smoothness(network, dynamics, (1.0, 1.0), 2e-4)
        assert float(found.smoothness.detach()) == pytest.approx(smoothness, rel=1e-11)
        decay = naive_decay(network, (1.0, 1.0), 2e-4)
        assert float(found.decay.detach()) == pytest.approx(decay, rel=1e-12)


@every_dynamics
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_sum_to_the_total(dynamics, dtype):
    network = scatter_weights_(make_network(dynamics, dtype=dtype))
    scores = network(torch.randn(4, 1, 8, 8, dtype=dtype))
    value = Objective()(network, scores, torch.tensor([0, 1, 2, 3]))
    assert value._fields == ("total", "data_loss", "smoothness", "decay")
    assert all(part.dtype == dtype and part.dim() == 0 for part in value)
    assert torch.equal(value.total, value.data_loss + value.smoothness + value.decay)
    assert all(part > 0 for part in value)


def test_every_weight_gets_a_gradient():
    network = scatter_weights_(make_network())
    scores = network(torch.randn(4, 1, 8, 8))
    Objective()(network, scores, torch.tensor([0, 1, 2, 3])).total.backward()
    missing = [name for name, weight in network.named_parameters() if weight.grad is None]
    assert not missing


def test_weights_of_the_objective_scale_its_parts():
    network = scatter_weights_(make_network(dtype=torch.float64))
    one = Objective(ObjectiveConfig(smoothness_weight=1, decay_weight=1)).regularization(network)
    none = Objective(ObjectiveConfig(smoothness_weight=0, decay_weight=0)).regularization(network)
    paper = Objective(ObjectiveConfig(smoothness_weight=4e-4, decay_weight=1e-4)).regularization(
        network
    )
    assert float(none.smoothness.detach()) == float(none.decay.detach()) == 0
    assert float((paper.smoothness / one.smoothness).detach()) == pytest.approx(4e-4, rel=1e-13)
    assert float((paper.decay / one.decay).detach()) == pytest.approx(1e-4, rel=1e-13)


def test_the_floor_of_the_paper_network_is_as_documented():
    """alpha_1 dt (N-1) n sqrt(tau) is 2.0 for CIFAR-10 parabolic, and is not in the value."""
    network = pdecnn.create_model("parabolic_cifar10")
    weights = sum(weight.numel() for weight in network.blocks.parameters())
    floor = 2e-4 * 2 * (weights / 3) * math.sqrt(1e-3)
    assert floor == pytest.approx(2.0, abs=0.05)
    assert float(Objective().regularization(network).smoothness.detach()) == 0


def test_class_weights_of_another_length_are_refused():
    with pytest.raises(ConfigError, match="2 entries for 3 classes"):
        loss_of(class_weights=(1.0, 2.0))


def test_class_weights_may_be_a_list():
    assert ObjectiveConfig(class_weights=[1, 2.5]).class_weights == (1, 2.5)


class Mixed(nn.Module):
    """Blocks wherever they stand, beside modules of torch's own."""

    def __init__(self):
        super().__init__()
        layers = [SymmetricLayer(4) for _ in range(3)]
        shared = [SymmetricLayer(4)]
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
        self.parts = nn.ModuleDict({"a": Block(layers, "forward_euler", step_size=0.5)})
        self.last = nn.Sequential(
            Block(shared, "forward_euler", step_size=0.25, num_steps=4), nn.Linear(4, 2)
        )


def test_any_module_that_contains_blocks_has_the_regulariser():
    torch.manual_seed(0)
    module = Mixed().double()
    block, shared = module.parts["a"], module.last[0]
    smoothness, decay = Objective().regularization(module)
    rows = [torch.cat([w.flatten() for w in layer.parameters()]) for layer in block.layers]
    rates = [(new - old) / 0.5 for old, new in pairwise(rows)]
    tau = Objective().config.smoothing
    variation = sum((0.5 * ((rate**2 + tau).sqrt() - tau**0.5)).sum() for rate in rates)
    torch.testing.assert_close(smoothness, 2e-4 * variation)
    outside = [*module.first[0].parameters(), *module.last[1].parameters()]
    squares = sum((weight**2).sum() for weight in outside)
    squares += 0.5 * sum((layer.convolution.stencil**2).sum() for layer in block.layers)
    squares += 4 * 0.25 * (shared.layers[0].convolution.stencil ** 2).sum()
    torch.testing.assert_close(decay, 1e-4 * squares)
    scores = torch.randn(5, 2, dtype=torch.float64)
    value = Objective()(module, scores, torch.tensor([0, 1, 0, 1, 1]))
    torch.testing.assert_close(value.total, value.data_loss + smoothness + decay)


def test_a_module_without_blocks_has_decay_alone():
    smoothness, decay = Objective().regularization(nn.Linear(2, 2))
    assert smoothness == 0
    assert decay > 0
    assert Objective().regularization(nn.BatchNorm1d(3)) == (0, 0)


def test_steps_of_several_kinds_have_no_change_in_time():
    block = Block([SymmetricLayer(4), SymmetricLayer(4, normalization="none")], "forward_euler")
    with pytest.raises(ConfigError, match="give all steps layers of one kind"):
        Objective().regularization(block)
