"""A certificate is one: no drawn network takes drawn images further apart than it says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pdecnn
from pdecnn.networks import Preprocessing
from tests.lipschitz import SIZES, STABLE, features_of, largest_ratio, make_network, num_flipped

ROUNDING = 1 + 1e-9


@st.composite
def networks(draw):
    """Stable and other networks, of weights from small to large."""
    dimension = draw(st.integers(1, 3))
    chosen = {
        "activation": draw(st.sampled_from(("relu", "tanh", "identity"))),
        "num_steps": draw(st.integers(1, 3)),
        "opening": draw(st.sampled_from(("pad", "bounded"))),
        "pooling": draw(st.sampled_from(("average", "space_to_depth", "haar"))),
        "classifier": draw(st.sampled_from(("unit_rows", "flat_unit_rows"))),
        "share_weights": draw(st.booleans()),
    }
    if draw(st.booleans()):
        chosen |= {"step_size": draw(st.sampled_from((0.01, 0.1, 1.0))), "normalization": "none"}
        layers = ("symmetric", "residual")
        chosen["layer"] = draw(st.sampled_from(layers))
        integrators = ("forward_euler", "runge_kutta_4", "verlet", "leapfrog")
        chosen["integrator"] = draw(st.sampled_from(integrators))
    spread = draw(st.sampled_from((0.01, 0.3, 3.0)))
    preprocessing = Preprocessing(
        standardize="dataset", mean=(0.2, 0.4), std=(draw(st.sampled_from((0.25, 2.0))), 1.0)
    )
    seed = draw(st.integers(0, 2**31))
    return make_network(dimension, preprocessing, seed=seed, spread=spread, **STABLE | chosen)


def draw_images(network, seed, number):
    generator = torch.Generator().manual_seed(seed)
    shape = (number, 2, *SIZES[network.config.dimension])
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def certify(network, images):
    return pdecnn.certify(network, images, torch.zeros(len(images), dtype=torch.long))


@settings(max_examples=15)
@given(
    network=networks(),
    seed=st.integers(0, 2**31),
    distance=st.sampled_from((1e-6, 1e-2, 1.0, 100.0)),
)
def test_no_network_expands_a_distance_by_more_than_its_constant(network, seed, distance):
    first, second = draw_images(network, seed, 6).chunk(2)
    found, features = certify(network, first), features_of(network)
    second = first + distance * (second - 0.5)
    with torch.no_grad():
        apart = (features(first) - features(second)).flatten(1).norm(dim=1)
    assert bool(
        (apart <= found.lipschitz * (first - second).flatten(1).norm(dim=1) * ROUNDING).all()
    )


@pytest.mark.slow
@settings(max_examples=40)
@given(network=networks(), seed=st.integers(0, 2**31))
def test_neither_ascent_nor_attack_exceeds_a_certificate(network, seed):
    images = draw_images(network, seed, 4)
    found = certify(network, images)
    assert largest_ratio(features_of(network), images, num_steps=25) <= found.lipschitz * ROUNDING
    assert not num_flipped(network, images, found.predictions, found.radii)
