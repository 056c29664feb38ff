"""What the page shows is what the network computes."""

from copy import deepcopy
from itertools import pairwise

import pytest
import torch

from pdecnn.diagnostics import energy_curves
from pdecnn.explorer.frames import (
    Trajectory,
    component_names,
    compute_trajectory,
    distances,
    finite,
    norm_and_energy,
    run_backwards,
)
from tests.dense import dense_convolution
from tests.explorers import make_subject

DYNAMICS = ("hamiltonian", "second_order", "parabolic", "resnet")


def trajectory_of(subject):
    return compute_trajectory(subject.network, subject.pixels(0))


@pytest.mark.parametrize("dynamics", DYNAMICS)
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_a_trajectory_ends_in_the_networks_scores(dynamics, dimension):
    subject = make_subject(dynamics, dimension=dimension)
    network = subject.network
    found = trajectory_of(subject)
    with torch.no_grad():
        scores = network(network.preprocess(subject.pixels(0)[None]))
        after = network.forward_intermediates(network.preprocess(subject.pixels(0)[None]))
    assert found.probabilities == pytest.approx(scores[0].softmax(0).tolist(), abs=1e-6)
    for index, block in enumerate(network.blocks):
        assert len(found.states[index]) == block.num_steps + 1
        assert torch.equal(found.features(block, index)[0], found.inputs[index])
        torch.testing.assert_close(found.features(block, index)[-1], after[index])
        assert len(found.scales[index]) == len(component_names(block, found.states[index][0]))


@pytest.mark.parametrize("dynamics", DYNAMICS)
@pytest.mark.parametrize("normalization", ["tv", "none"])
def test_norm_and_energy_are_those_of_the_diagnostics(dynamics, normalization):
    subject = make_subject(dynamics, normalization=normalization)
    found = trajectory_of(subject)
    block = subject.network.blocks[0]
    shown = norm_and_energy(block, found.inputs[0])
    curves = energy_curves(block, found.inputs[0])
    assert shown["norms"] == curves.norms[:, 0].tolist()
    wanted = {
        ("hamiltonian", "none"): curves.centred,
        ("second_order", "none"): curves.centred,
        ("parabolic", "none"): curves.raw,
        ("second_order", "tv"): curves.printed_centred,
    }.get((dynamics, normalization))
    assert shown["energy"] == (None if wanted is None else wanted[:, 0].tolist())
    kinds = {
        "none": {"resnet": "not symmetric", "parabolic": "heat never raises"},
        "tv": {"second_order": "eq. 12", "resnet": "not symmetric"},
    }
    default = "normalised" if normalization == "tv" else "a wave keeps its energy"
    assert kinds[normalization].get(dynamics, default) in shown["energy_note"]


@pytest.mark.parametrize(("share", "rises"), [(0.9, False), (3.0, True)])
def test_a_caption_of_heat_whose_energy_rises_says_that_its_steps_are_too_long(share, rises):
    subject = make_subject(
        "parabolic", normalization="none", activation="tanh", share_weights=True, num_steps=12
    )
    block = subject.network.blocks[0]
    features = trajectory_of(subject).inputs[0]
    stencils = deepcopy(block.layers[0].convolution).double()
    bound = 2 / float(torch.linalg.matrix_norm(dense_convolution(stencils, (12, 10)), 2)) ** 2
    block.step_size = share * bound
    shown = norm_and_energy(block, features)
    assert any(later > earlier for earlier, later in pairwise(shown["energy"])) == rises
    said = f"Steps of at most {bound:.3g} never raise heat's energy (eq. 8)"
    size = f"{share * bound:.3g}"
    wanted = f"{said}; these are {size}, and may." if rises else f"{said}, and these are {size}."
    assert shown["energy_note"] == wanted


def test_an_energy_below_zero_is_no_share_of_the_start():
    subject = make_subject("parabolic", normalization="bias")
    block = subject.network.blocks[0]
    for layer in block.layers:
        layer.normalization.bias.data.fill_(100.0)
    features = trajectory_of(subject).inputs[0]
    one, other = (norm_and_energy(block, sign * features) for sign in (1, -1))
    below = one if one["energy"] is None else other
    assert below["energy"] is None
    assert "below zero" in below["energy_note"]


def test_the_distance_of_two_trajectories_and_its_growth():
    subject = make_subject()
    one = trajectory_of(subject)
    other = compute_trajectory(subject.network, subject.pixels(1))
    block = subject.network.blocks[1]
    found = distances(block, 1, one, other)
    wanted = [
        float((first.double() - second.double()).norm())
        for first, second in zip(one.features(block, 1), other.features(block, 1), strict=True)
    ]
    assert found["distances"] == pytest.approx(wanted)
    assert found["growth"] == pytest.approx(wanted[-1] / wanted[0])
    last = one.features(block, 1)[-1].double().norm()
    assert found["relative"][-1] == pytest.approx(wanted[-1] / float(last))
    grown = found["relative"][-1] / found["relative"][0]
    assert found["relative_growth"] == pytest.approx(grown)


def test_equal_trajectories_have_no_growth():
    subject = make_subject()
    one = trajectory_of(subject)
    found = distances(subject.network.blocks[0], 0, one, one)
    assert found["distances"] == [0.0] * 4
    assert found["growth"] is found["relative_growth"] is None


@pytest.mark.parametrize("dynamics", ["hamiltonian", "second_order"])
@pytest.mark.parametrize("backprop", ["stored", "exact"])
def test_waves_come_back(dynamics, backprop):
    subject = make_subject(dynamics, backprop=backprop)
    found = trajectory_of(subject)
    for index, block in enumerate(subject.network.blocks):
        back = run_backwards(block, found.states[index])
        assert back.reason is None
        assert max(back.errors) == 0 if backprop == "exact" else max(back.errors) < 1e-5
        assert torch.equal(back.recovered[0], block.reverse(found.states[index][-1]))
        torch.testing.assert_close(back.recovered[0], found.inputs[index], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("dynamics", "why"), [("parabolic", "heat"), ("resnet", "no structure")])
def test_what_cannot_be_undone_says_why_and_how_far_the_attempt_misses(dynamics, why):
    subject = make_subject(dynamics)
    found = trajectory_of(subject)
    back = run_backwards(subject.network.blocks[0], found.states[0])
    assert why in back.reason
    assert "cannot be run backwards" in back.reason
    assert back.errors[0] > 1e-3


def test_what_is_not_finite_is_none():
    assert finite([1.0, float("inf"), float("nan")]) == [1.0, None, None]


def test_a_trajectory_that_overflows_can_be_shown():
    subject = make_subject("resnet", normalization="none", step_size=1e30, num_steps=2)
    found = trajectory_of(subject)
    assert isinstance(found, Trajectory)
    assert not found.states[0][-1][0].isfinite().all()
    assert all(scale > 0 for scales in found.scales for scale in scales)
