"""Certificates: nothing found by searching exceeds what they claim, and nothing unknown has one."""

from copy import copy
from dataclasses import replace
from fractions import Fraction
from math import prod, sqrt

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrizations import weight_norm

import pdecnn
from pdecnn.diagnostics import certificate as certificates
from pdecnn.diagnostics import guaranteed_bound, lipschitz
from pdecnn.errors import ConfigError, DataError, DivergedError
from pdecnn.networks import Network, Preprocessing
from pdecnn.networks.stages import Carrier, Opening
from pdecnn.pde import Activation, Convolution
from pdecnn.pde.backprop import Propagator
from pdecnn.pde.integrators import ForwardEuler
from pdecnn.pde.stable import StableLayer, follow_weights_
from tests.dense import dense_convolution
from tests.lipschitz import (
    SIZES,
    STABLE,
    features_of,
    jacobian_norm,
    largest_ratio,
    make_network,
    num_flipped,
    plain,
)


def make_images(dimension=2, number=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = (number, 2, *SIZES[dimension])
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def certify(network, images):
    labels = torch.zeros(len(images), dtype=torch.long)
    return pdecnn.certify(network, images, labels)


def chain(network, images):
    return certificates._Chain(certificates.float64_copy(network), images[:1])


NETWORKS = {
    "stable": STABLE,
    "bounded opening, haar": STABLE | {"opening": "bounded", "pooling": "haar"},
    "average, mean": STABLE | {"pooling": "average", "classifier": "unit_rows"},
    "tanh, no bias": STABLE | {"activation": "tanh", "normalization": "none"},
    "parabolic, TV": {"step_size": 0.1},
    "parabolic, batch norm": {"normalization": "batch", "step_size": 0.2},
    "Euler, a step too long": {"normalization": "none", "step_size": 0.3},
    "residual": {"layer": "residual", "normalization": "none", "step_size": 0.1},
    "Runge-Kutta": {"integrator": "runge_kutta_4", "normalization": "none", "step_size": 0.05},
    "Verlet": {"integrator": "verlet", "normalization": "none", "step_size": 0.1},
    "leapfrog": {"integrator": "leapfrog", "step_size": 0.1, "activation": "tanh"},
    "leapfrog, second order": {"integrator": "leapfrog_second_order", "step_size": 0.1},
}


# ------------------------------------------------------------------ soundness


@pytest.mark.parametrize("dimension", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS)
def test_no_search_exceeds_the_constant(dimension, settings):
    network, images = make_network(dimension, **settings), make_images(dimension, 3)
    found = certify(network, images)
    features = features_of(network)
    assert largest_ratio(features, images, num_steps=15) <= found.lipschitz * (1 + 1e-9)
    assert jacobian_norm(features, images) <= found.lipschitz * (1 + 1e-9)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_a_stable_network_has_the_constant_1(dimension):
    found = certify(make_network(dimension, **STABLE), make_images(dimension))
    assert 1 - 1e-5 < found.lipschitz <= 1
    assert {factor.name for factor in found.factors} >= {"opening", "block 0", "connector 1"}
    product = prod(Fraction(value) for _, value in found.factors)
    assert Fraction(found.lipschitz) >= product > Fraction(found.lipschitz) * (1 - Fraction(1e-15))


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("standardize", ["none", "mean", "dataset", "image"])
def test_no_attack_within_the_radius_changes_the_class(dimension, standardize):
    statistics = {
        "mean": (0.4, 0.6) if standardize in ("mean", "dataset") else None,
        "std": (0.3, 0.5) if standardize == "dataset" else None,
    }
    preprocessing = Preprocessing(standardize=standardize, **statistics)
    network = make_network(dimension, preprocessing, **STABLE)
    images = make_images(dimension, 8)
    found = certify(network, images)
    assert (found.radii > 0).all()
    assert not num_flipped(network, images, found.predictions, found.radii)
    # The search is one that finds something where there is something to be found.
    assert num_flipped(network, images, found.predictions, found.radii, share=30.0) > 3


def test_a_linear_network_is_certified_up_to_the_nearest_other_class():
    network = make_network(**STABLE | {"num_steps": 1}, spread=0.0)
    with torch.no_grad():
        for block in network.blocks:  # sigma takes nothing away
            for layer in block.layers:
                layer.normalization.bias.fill_(-100.0)
    images = make_images(number=10)
    found = certify(network, images)
    rows = features_of(network)(torch.eye(images[0].numel()).double().view(-1, 2, 8, 6))
    rows = rows - features_of(network)(torch.zeros_like(images[:1]))
    classifier = network.classifier.requires_grad_(False).double()
    weights = classifier.rows @ rows.T
    scores = weights @ images.flatten(1).T + classifier.bias[:, None]
    for k, y in enumerate(found.predictions.tolist()):
        exact = min(
            float((scores[y, k] - scores[j, k]) / (weights[y] - weights[j]).norm())
            for j in range(4)
            if j != y
        )
        assert 0.3 * exact < float(found.radii[k]) <= exact


def test_training_a_little_keeps_what_is_claimed():
    network = pdecnn.create_model("parabolic_stable_digits").train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    for _ in range(20):  # the estimates of |K| begin at random vectors
        follow_weights_(network)
    images, labels = torch.rand(16, 1, 8, 8), torch.arange(16) % 10
    for _ in range(5):
        loss = nn.functional.cross_entropy(4 * network(network.preprocess(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow_weights_(network)
    found = pdecnn.certify(network, images, labels)
    assert network.training
    assert found.lipschitz <= 1
    pixels = images.double()
    assert not num_flipped(network, pixels, found.predictions, found.radii)


# ------------------------------------------------------------------ what is wrong is caught


def test_weights_changed_without_a_trace_are_those_that_count():
    network, images = make_network(**STABLE), make_images(number=3)
    before = certify(network, images)
    network.blocks[0].layers[0].convolution.stencil.data.mul_(3).add_(0.1)
    found = certify(network, images)
    assert found.lipschitz <= 1
    assert not torch.equal(found.radii, before.radii)
    assert largest_ratio(features_of(network), images) <= found.lipschitz


@pytest.mark.parametrize("excess", [0.01, 0.5])
def test_a_step_that_is_too_long_is_no_1(excess):
    config = {"activation": "identity", "num_steps": 1, "channels": (2, 2)}
    network, images = make_network(1, **STABLE | config), make_images(1, 1)
    with torch.no_grad():  # a matrix at each pixel, of which |K| is no more than its bound
        network.blocks[0].layers[0].convolution.stencil[..., [0, 2]] = 0
    network.blocks[0].step_size = 1 + excess
    found = certify(network, images)
    assert found.lipschitz == pytest.approx(1 + 2 * excess, rel=1e-5)
    # The searches see it too: a claim of 1 would not have passed.
    assert 1 + excess < jacobian_norm(features_of(network), images) <= found.lipschitz
    assert 1 + excess < largest_ratio(features_of(network), images, num_steps=100)


def test_a_bound_changed_by_hand_is_refused():
    network, images = make_network(**STABLE), make_images()
    network(images.float())
    network.blocks[1].layers[0].norm.bound.mul_(0.99)
    with pytest.raises(ConfigError, match=r"blocks\.1\.layers\.0\.norm"):
        certify(network, images)


def test_a_copy_in_float64_has_the_same_steps():
    network = make_network(**STABLE)
    exact = certificates.float64_copy(network)
    for block, twin in zip(network.blocks, exact.blocks, strict=True):
        for layer, other in zip(block.layers, twin.layers, strict=True):
            assert float(layer.norm(layer.convolution)) == float(other.norm(other.convolution))
            assert other.norm.bound.dtype == torch.float64


def test_a_step_that_theorem_1_guarantees_has_the_constant_1():
    for step_size in (0.01, 0.1, 1.0):
        network = make_network(normalization="none", step_size=step_size)
        images = make_images()
        factors = dict(certify(network, images).factors)
        (layer, *_) = network.blocks[0].layers
        bound = guaranteed_bound(ForwardEuler(), (layer,), SIZES[2], dense_size=0)
        assert (factors["block 0"] == 1) == (step_size <= bound)


class Doubled(StableLayer):
    """Twice the step."""

    deterministic = True
    symmetric = True

    def forward(self, features):
        return 2 * super().forward(features)


class DoubledOpening(Opening):
    """Twice the opening."""


class Tripling(Propagator):
    """Three times what the steps lead to."""

    def propagate(self, stepping, features):
        return tuple(3 * part for part in super().propagate(stepping, features))


class TriplingCarrier(Carrier):
    """Three times what a stage makes."""

    def carry(self, stage, features):
        return 3 * stage.compute(features)


class OwnEuler(ForwardEuler):
    """Says nothing of its steps."""


def _layer(network):
    return network.blocks[0].layers[0]


CHANGES = {
    "a hook": lambda n: n.connectors[0].register_forward_hook(lambda *a: None),
    "a hook before": lambda n: _layer(n).convolution.register_forward_pre_hook(lambda *a: None),
    "a hook on the network": lambda n: n.register_forward_hook(lambda *a: None),
    "a replaced method": lambda n: setattr(_layer(n), "forward", lambda y: 2 * y),
    "a subclass": lambda n: n.blocks[0].layers.__setitem__(0, _as(Doubled, _layer(n))),
    "a foreign layer": lambda n: n.blocks[0].layers.__setitem__(0, nn.Conv2d(6, 6, 3, padding=1)),
    "a foreign connector": lambda n: n.connectors.__setitem__(0, nn.AvgPool2d(2)),
    "an opening for a connector": lambda n: n.connectors.__setitem__(0, Opening(6, 8)),
    "another opening": lambda n: setattr(n, "opening", DoubledOpening(2, 6)),
    "declared slopes": lambda n: setattr(
        _layer(n),
        "activation",
        Activation(name="steep", function=lambda y: 3 * y.relu(), slope_range=(0.0, 1.0)),
    ),
    "an integrator": lambda n: setattr(n.blocks[0], "integrator", OwnEuler()),
    "a propagator": lambda n: setattr(n.blocks[0], "propagator", Tripling()),
    "a carrier": lambda n: setattr(n.opening, "carrier", TriplingCarrier()),
    "an integrator's method": lambda n: setattr(
        n.blocks[0], "integrator", _with_step(n.blocks[0].integrator)
    ),
    "a parametrization": lambda n: weight_norm(_layer(n).convolution, "stencil"),
    "a stencil of 5": lambda n: setattr(
        _layer(n).convolution, "stencil", nn.Parameter(torch.ones(6, 6, 5, 5))
    ),
}


def _with_step(integrator):
    changed = copy(integrator)
    step = lambda layers, state, step_size: tuple(100 * part for part in state)  # noqa: E731
    object.__setattr__(changed, "step", step)
    return changed


def _as(kind, layer):
    layer.__class__ = kind
    return layer


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_not_known_is_named_and_never_certified(change):
    network = make_network(**STABLE)
    change(network)
    names = r"the network|opening|blocks\.0|connectors\.0"
    with pytest.raises(ConfigError, match=rf"^({names}).* nothing can be certified"):
        certify(network, make_images())


def test_an_accelerated_network_has_its_certificate():
    network, images = make_network(**STABLE), make_images()
    expected = certify(network, images).radii
    found = certify(pdecnn.accelerate(network), images).radii
    assert torch.equal(found, expected)
    assert network.acceleration[0].reason == "no GPU"  # it is still accelerated


def test_a_hook_for_all_modules_and_a_class_below_network_are_refused():
    network, images = make_network(**STABLE), make_images()
    handle = register_module_forward_hook(lambda *a: None)
    try:
        with pytest.raises(ConfigError, match="a hook is registered for all modules"):
            certify(network, images)
    finally:
        handle.remove()
    network.__class__ = type("Other", (Network,), {})
    with pytest.raises(ConfigError, match="found Other"):
        certify(network, images)


def test_larger_images_are_refused():
    network = make_network(**STABLE | {"classifier": "unit_rows"})
    for shape in ((1, 2, 10, 6), (1, 2, 8, 8)):
        with pytest.raises(ConfigError, match=r"certified_size=\(8, 6\)"):
            certify(network, torch.rand(shape))
    assert certify(network, torch.rand(1, 2, 4, 4)).lipschitz <= 1
    resized = Network(network.config, replace(plain(), size=(8, 6)))
    assert certify(resized, torch.rand(1, 2, 20, 20)).lipschitz <= 1


def test_arrays_are_certified_as_tensors_are():
    network, images = make_network(**STABLE), make_images()
    labels = torch.zeros(len(images), dtype=torch.long)
    found = pdecnn.certify(network, images.numpy(), labels.numpy())
    assert torch.equal(found.radii, pdecnn.certify(network, images, labels).radii)


def test_bad_labels_and_weights_are_refused():
    network, images = make_network(**STABLE), make_images()
    for labels in (torch.zeros(5).long(), torch.full((6,), 4), torch.zeros(6)):
        with pytest.raises(DataError, match="label"):
            pdecnn.certify(network, images, labels)
    with pytest.raises(DataError, match="at least one image"):
        certify(network, images[:0])
    network.classifier.weight.data[0, 0] = torch.nan
    with pytest.raises(DivergedError, match="classifier"):
        certify(network, images)


# ------------------------------------------------------------------ radii


def test_images_of_which_predict_says_otherwise_are_certified_none():
    network, images = make_network(**STABLE), make_images()
    found = certify(network, images)
    predicted = found.predictions.clone()
    predicted[2] = (predicted[2] + 1) % 4
    other = pdecnn.certify(network, images, found.predictions, predicted=predicted)
    assert other.disagreeing.tolist() == [2]
    assert other.radii[2] == 0
    assert (other.radii[[0, 1, 3]] == found.radii[[0, 1, 3]]).all()
    assert other.clean_accuracy == 1
    assert other.certified_accuracy(0.0) == 5 / 6


def test_the_certified_accuracy_counts_right_images_with_that_radius():
    network, images = make_network(**STABLE), make_images()
    first = certify(network, images)
    labels = first.predictions.clone()
    labels[0] = (labels[0] + 1) % 4
    found = pdecnn.certify(network, images, labels, batch_size=4)
    assert torch.equal(found.radii, first.radii)
    assert found.radii.dtype == torch.float64
    assert found.clean_accuracy == 5 / 6
    radii = sorted(found.radii[1:].tolist())
    assert found.certified_accuracy(radii[2]) == 3 / 6
    assert found.certified_accuracy(2 * radii[-1]) == 0
    with pytest.raises(ConfigError, match="radius"):
        found.certified_accuracy(-1.0)


def test_radii_are_in_pixels_of_0_to_1_after_resizing():
    network = make_network(**STABLE)
    bytes_ = (255 * make_images()).round().to(torch.uint8)
    assert torch.equal(
        certify(network, bytes_).radii, certify(network, bytes_.double() / 255).radii
    )
    pooled = Network(network.config, replace(plain(), pooling=2))
    pooled.load_state_dict(network.state_dict())
    fine = make_images().repeat_interleave(2, 2).repeat_interleave(2, 3)
    found = certify(pooled, fine)
    assert dict(found.factors)["averaging of the images"] == pytest.approx(0.5, rel=1e-12)
    assert torch.allclose(found.radii, 2 * certify(network, make_images()).radii, rtol=1e-9)


def test_two_classes_with_one_row_and_no_bias_are_told_apart_nowhere():
    network = make_network(**STABLE, spread=0.0)
    with torch.no_grad():
        network.classifier.weight.copy_(network.classifier.weight[:1].repeat(4, 1))
        network.classifier.bias.copy_(torch.tensor([0.0, 0.0, 1.0, 1.0]))
    assert (certify(network, make_images()).radii == 0).all()
    with torch.no_grad():
        network.classifier.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0]))
    assert (certify(network, make_images()).radii > 1).all()  # no image changes the class


def test_the_formula_of_standardised_images_holds_and_is_nearly_reached():
    generator = torch.Generator().manual_seed(0)
    pixels = 0.2 * torch.randn(200, 2, 5, generator=generator, dtype=torch.float64)
    pixels[100:] *= torch.logspace(-3, 1, 100, dtype=torch.float64)[:, None, None]
    preprocessing = Preprocessing()
    wanted = 0.3  # R
    deviation = pixels.flatten(1).std(1, correction=0).clamp(min=1 / sqrt(10))
    radii = deviation * wanted / (1 + wanted / sqrt(10))
    standardised = preprocessing.apply(pixels, torch.float64)
    largest = torch.zeros(200, dtype=torch.float64)
    for _ in range(50):
        step = torch.randn(pixels.shape, generator=generator, dtype=torch.float64)
        step = step - step.mean((1, 2), keepdim=True)
        step = step / step.flatten(1).norm(dim=1)[:, None, None] * radii[:, None, None]
        moved = preprocessing.apply(pixels + step, torch.float64) - standardised
        largest = torch.maximum(largest, moved.flatten(1).norm(dim=1))
    assert largest.max() <= wanted
    assert largest.min() > 0.6 * wanted


# ------------------------------------------------------------------ rounding


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS)
def test_rounding_stays_below_its_bound(monkeypatch, dimension, settings):
    """float32 for float64 and float64 for exact numbers, with the unit roundoff of float32."""
    preprocessing = Preprocessing(standardize="mean", mean=(0.3, 0.7))
    network = make_network(dimension, preprocessing, **settings)
    images = make_images(dimension, 8).float()
    monkeypatch.setattr(lipschitz, "UNIT", 2.0**-24)
    proved = chain(network, images)
    bounds = proved.score_error(images.double().flatten(1).norm(dim=1))
    with torch.no_grad():
        exact = proved.network(proved.network.preprocess(images.double()))
        error = (network(network.preprocess(images)).double() - exact).abs().amax(1)
    assert (2 * error < bounds).all()
    assert error.max() > 0


def test_the_bound_on_rounding_is_small_for_stable_networks():
    network = pdecnn.create_model("parabolic_stable_digits").eval()
    images = torch.rand(2, 1, 8, 8)
    assert float(chain(network, images).score_error(torch.tensor(8.0))) < 1e-9


def test_products_and_sums_are_rounded_up():
    assert lipschitz.rounded_up_product([]) == 1.0
    assert lipschitz.rounded_up_product([0.1, 3.0]) >= Fraction(0.1) * 3
    assert lipschitz.rounded_up_product([1e308, 10.0]) == torch.inf
    assert lipschitz.rounded_up_product([torch.inf, 0.0]) == torch.inf


@pytest.mark.parametrize("boundary", ["zero", "reflect", "periodic"])
def test_the_bound_on_rounding_holds_where_pixels_are_copied(boundary):
    """|abs(K)| is what it is made of; mirrored, a pixel at the edge is met twice."""
    convolution = Convolution(1, 1, boundary=boundary, dtype=torch.float64)
    with torch.no_grad():
        convolution.stencil.zero_()[..., 2, 2] = -1.0
    found = lipschitz._convolution(convolution, (4, 4)).relative
    convolution.stencil.data.abs_()
    norm = torch.linalg.matrix_norm(dense_convolution(convolution, (4, 4)).detach(), ord=2)
    assert found >= lipschitz.gamma(9) * float(norm)
