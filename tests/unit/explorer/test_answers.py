"""Every answer is JSON and agrees with a direct computation."""

import json
from itertools import pairwise

import pytest
import torch

from pdecnn.errors import ConfigError, DataError
from pdecnn.explorer.answers import MOST_NOISE, Explorer, describe, explore_together
from pdecnn.explorer.frames import compute_trajectory
from tests.explorers import CLASS_NAMES, decoded, make_subject, png, step_between_levels


@pytest.fixture
def explorer():
    return Explorer(make_subject())


def close(picture, values):
    return abs(decoded(picture) - values.numpy()).max() <= step_between_levels(picture)


@pytest.mark.parametrize("dynamics", ["hamiltonian", "second_order", "parabolic", "resnet"])
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_every_kind_of_network_has_all_answers(dynamics, dimension):
    dtype = torch.uint8 if dimension == 2 else torch.float32
    explorer = Explorer(make_subject(dynamics, dimension=dimension, dtype=dtype))
    answers = [
        describe([explorer]),
        explorer.sample("1"),
        explorer.noise("1", 0.5),
        explorer.frame("1", 1, 3),
        explorer.frame("1", 1, 3, view="noisy", amount=0.5),
        explorer.frame("1", 1, 3, view="difference", amount=0.5),
        explorer.reverse("1", 0),
    ]
    json.dumps(answers, allow_nan=False)
    assert answers[6]["reversible"] == (dynamics in ("hamiltonian", "second_order"))
    assert len(answers[3]["components"]) == (2 if answers[6]["reversible"] else 1)


def test_reversible_steps_of_residual_layers_are_not_called_a_wave():
    explorer = Explorer(make_subject("resnet", integrator="leapfrog"))
    found = explorer.describe()
    assert found["blocks"][0]["reversible"]
    assert "A wave equation" not in found["equation"]
    assert "Every step can be undone" in found["equation"]


@pytest.mark.parametrize(
    ("dynamics", "symbol"), [("hamiltonian", "(Y, Z)"), ("second_order", "Y"), ("parabolic", "Y")]
)
def test_the_norm_is_named_by_what_it_is_of(dynamics, symbol):
    assert Explorer(make_subject(dynamics)).describe()["symbol"] == symbol


def test_heat_is_not_said_to_smooth():
    """It damps what its stencils respond to: only those of a gradient make it smooth."""
    equation = Explorer(make_subject("parabolic")).describe()["equation"]
    assert equation.startswith("A heat equation: what its stencils respond to is damped")


def test_the_description(explorer):
    found = explorer.describe()
    assert found["name"] == "hamiltonian"
    assert "wave equation" in found["equation"]
    assert found["class_names"] == CLASS_NAMES
    assert found["num_weights"] == explorer.subject.network.num_weights > 0
    assert not found["never_expands"]
    block = {"integrator": "verlet", "title": "Verlet", "num_steps": 3, "reversible": True}
    assert found["blocks"] == [block | {"times": [0.0, 0.5, 1.0, 1.5]}] * len(explorer.blocks)
    force = "F(Y) = −Kᵀσ(N(KY)), σ = relu"  # noqa: RUF001
    assert found["formula"] == f"∂ₜY = F(Z), ∂ₜZ = −F(Y), with {force}"  # noqa: RUF001
    second_order = Explorer(make_subject("second_order")).describe()["formula"]
    assert second_order == f"∂ₜ²Y = F(Y), with {force}"
    residual = Explorer(make_subject("resnet")).describe()["formula"]
    assert "F(Y) = K₂σ(N(K₁Y))" in residual  # noqa: RUF001
    for normalization, inside in [("none", "KY"), ("bias", "KY + b")]:
        plain = Explorer(make_subject(normalization=normalization)).describe()["formula"]
        assert f"F(Y) = −Kᵀσ({inside}), σ" in plain  # noqa: RUF001
    whole = describe([explorer])
    assert whole["networks"] == [found]
    # One of each class, then the others.
    assert [entry["sample"] for entry in whole["examples"]] == ["2", "3", "0", "4", "1", "5"]
    first = whole["examples"][0]
    assert first["label"] == "circle"
    assert close(first["picture"], explorer.subject.pixels(2) / 255)


def test_a_sample(explorer):
    found = explorer.sample("3")
    wanted = compute_trajectory(explorer.subject.network, explorer.subject.pixels(3))
    assert found["label"] == "square"
    assert found["probabilities"] == pytest.approx(wanted.probabilities)
    assert [block["size"] for block in found["blocks"]] == [[12, 10], [6, 5]]


@pytest.mark.parametrize("step", [0, 2, 3])
def test_a_frame_is_the_state_on_the_scale_of_its_block(explorer, step):
    wanted = compute_trajectory(explorer.subject.network, explorer.subject.pixels(0))
    found = explorer.frame("0", 1, step)
    for part, state, scale in zip(
        found["components"], wanted.states[1][step], wanted.scales[1], strict=True
    ):
        assert (part["low"], part["high"]) == (-scale, scale)
        assert close(part, state[0].clamp(-scale, scale))


def test_noise_is_a_share_of_the_samples_deviation_and_always_the_same(explorer):
    clean = explorer.subject.pixels(0) / 255
    noise = explorer.inputs.pixels("0", 0.5) - clean
    assert float(noise.std() / clean.std()) == pytest.approx(0.5, rel=0.15)
    torch.testing.assert_close(explorer.inputs.pixels("0", 1.0) - clean, 2 * noise)
    assert not torch.equal(
        explorer.inputs.pixels("1", 0.5) - explorer.subject.pixels(1) / 255, noise
    )


def test_a_noisy_trajectory_and_its_difference(explorer):
    network = explorer.subject.network
    clean = compute_trajectory(network, explorer.subject.pixels(0))
    noisy = compute_trajectory(network, explorer.inputs.pixels("0", 0.3))
    found = explorer.noise("0", 0.3)
    assert found["probabilities"] == pytest.approx(noisy.probabilities)
    apart = noisy.features(explorer.blocks[0], 0)[2] - clean.features(explorer.blocks[0], 0)[2]
    assert found["blocks"][0]["distances"][2] == pytest.approx(float(apart.norm()), rel=1e-5)
    shown = explorer.frame("0", 0, 2, view="difference", amount=0.3)["components"]
    for part, one, other in zip(shown, clean.states[0][2], noisy.states[0][2], strict=True):
        assert close(part, (other - one)[0].clamp(part["low"], part["high"]))
    same = explorer.frame("0", 0, 2, view="noisy", amount=0.3)["components"]
    assert [part["high"] for part in same] == clean.scales[0]


def test_no_noise_is_no_difference(explorer):
    found = explorer.noise("0", 0.0)
    assert found["blocks"][0]["distances"] == [0.0] * 4
    assert found["probabilities"] == explorer.sample("0")["probabilities"]


@pytest.mark.parametrize("step", [0, 2])
def test_reversal_shows_the_way_out_the_way_back_and_their_difference(explorer, step):
    found = explorer.reverse("0", 1, step)
    wanted = compute_trajectory(explorer.subject.network, explorer.subject.pixels(0))
    features = wanted.features(explorer.blocks[1], 1)[step][0]
    scale = found["expected"]["high"]
    assert close(found["expected"], features.clamp(-scale, scale))
    assert close(found["recovered"], features.clamp(-scale, scale))
    assert len(found["errors"]) == 4
    assert found["errors"][-1] == 0  # where the way back begins
    assert 0 <= max(found["errors"]) < 1e-5
    assert found["difference"]["high"] < 1e-4


def test_heat_misses_more_the_longer_it_goes_back():
    errors = Explorer(make_subject("parabolic")).reverse("0", 0)["errors"]
    assert errors[-1] == 0
    assert all(later < earlier for earlier, later in pairwise(errors))


def test_roughness_is_the_share_of_differences(explorer):
    found = explorer.sample("0")["blocks"][1]["roughness"]
    wanted = compute_trajectory(explorer.subject.network, explorer.subject.pixels(0))
    features = wanted.features(explorer.blocks[1], 1)[2].double()
    steep = features.diff(dim=2).square().sum() + features.diff(dim=3).square().sum()
    assert found[2] == pytest.approx(float(steep.sqrt() / features.norm()))


def test_two_networks_see_the_same_pictures():
    waves, heat = explore_together([make_subject(), make_subject("parabolic")])
    sample = heat.inputs.upload(png())["sample"]
    for name in ("0", sample):
        assert waves.sample(name)["picture"] == heat.sample(name)["picture"]
        one, other = (entry.noise(name, 0.3)["picture"] for entry in (waves, heat))
        assert one == other
        assert waves.sample(name)["probabilities"] != heat.sample(name)["probabilities"]


def test_networks_of_other_inputs_are_not_put_beside_each_other():
    with pytest.raises(ConfigError, match=r"3 channel\(s\) and parabolic images .* 1 channel"):
        explore_together([make_subject(), make_subject("parabolic", in_channels=1)])


def test_a_trajectory_is_computed_once(explorer, monkeypatch):
    explorer.sample("0")
    monkeypatch.setattr(explorer.subject.network, "opening", None)
    for step in range(4):
        explorer.frame("0", 0, step)
    explorer.reverse("0", 1)


def test_an_uploaded_image(explorer):
    sample = explorer.inputs.upload(png())["sample"]
    found = explorer.sample(sample)
    assert found["label"] is None
    red = decoded(found["picture"])
    assert red.shape == (3, 12, 10)
    assert red[0].min() == 1
    assert red[1:].max() == 0


def test_only_the_last_uploads_are_kept(explorer):
    samples = [explorer.inputs.upload(png())["sample"] for _ in range(6)]
    assert len(set(samples)) == 6
    explorer.sample(samples[-1])
    with pytest.raises(ConfigError, match="no sample 'upload-1'"):
        explorer.sample(samples[0])


def test_what_is_no_image_is_refused(explorer):
    with pytest.raises(DataError, match="the file: not an image of format PNG"):
        explorer.inputs.upload(b"no image")
    with pytest.raises(DataError, match="takes samples in 1D, and image files have 2"):
        Explorer(make_subject(dimension=1)).inputs.upload(png())


def test_numbers_of_ones_own_are_shown_on_their_range():
    explorer = Explorer(make_subject(dimension=2, dtype=torch.float32))
    made = explorer.sample("0")["picture"]
    values = explorer.subject.pixels(0)
    assert (made["low"], made["high"]) == (float(values.min()), float(values.max()))
    assert close(made, values)


@pytest.mark.parametrize("sample", ["6", "-1", "", "x", "9" * 5000, "upload-1", "²"])
def test_unknown_samples_are_refused(explorer, sample):
    for ask in (explorer.sample, lambda name: explorer.frame(name, 0, 0)):
        with pytest.raises(ConfigError, match="there is no sample"):
            ask(sample)


@pytest.mark.parametrize("amount", [-0.1, MOST_NOISE + 0.1, float("nan"), float("inf")])
def test_impossible_noise_is_refused(explorer, amount):
    with pytest.raises(ConfigError, match="noise must be in 0 to 2"):
        explorer.noise("0", amount)


def test_unknown_places_are_refused(explorer):
    with pytest.raises(ConfigError, match="blocks 0 to 1, found 2"):
        explorer.frame("0", 2, 0)
    with pytest.raises(ConfigError, match="steps 0 to 3, found 4"):
        explorer.frame("0", 0, 4)
    with pytest.raises(ConfigError, match="view must be one of"):
        explorer.frame("0", 0, 0, view="inside")
    with pytest.raises(ConfigError, match="blocks 0 to 1, found 7"):
        explorer.reverse("0", 7)


@pytest.mark.parametrize("amount", [0.05, 0.5, 2.0])
def test_with_stable_steps_no_distance_of_two_trajectories_grows(amount):
    subject = make_subject(
        "parabolic",
        in_channels=1,
        step_size="stable",
        normalization="bias",
        opening="pad",
        connector="bounded",
        certified_size=(12, 10),
    )
    explorer = Explorer(subject)
    assert explorer.describe()["never_expands"]
    for found in explorer.noise("3", amount)["blocks"]:
        lengths = found["distances"]
        assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(lengths))
    times = [block["times"] for block in explorer.describe()["blocks"]]
    assert [len(set(diff(block))) for block in times] == [3, 3]  # each step has its own dt


def diff(values):
    return [later - earlier for earlier, later in pairwise(values)]
