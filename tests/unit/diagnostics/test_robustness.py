"""Attacks in pixel units, and images made worse without malice."""

from copy import deepcopy
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional

from pdecnn.data.registry import read_digits
from pdecnn.diagnostics import (
    PGDConfig,
    accuracy_under,
    apgd,
    fgsm,
    gaussian_blur,
    gaussian_noise,
    measure_robustness,
    pgd,
    reduce_contrast,
    scores_of_pixels,
)
from pdecnn.diagnostics.attacks import is_right, pgd_iterates
from pdecnn.diagnostics.robustness import batches_for, run_attack
from pdecnn.errors import ConfigError, DataError, DivergedError
from tests.unit.learning.trainings import make_network

EPSILONS = (0.05, 0.15)
BOTH = ("ce", "dlr")
both_losses = pytest.mark.parametrize("loss", BOTH)
both_norms = pytest.mark.parametrize("norm", ["linf", "l2"])


@cache
def trained_network(dynamics="parabolic", *, channels=(8, 12, 12), num_steps=2, num_epochs=4):
    """A small digits net, good enough that attacks have something to break."""
    network = make_network(dynamics, channels=channels, num_steps=num_steps)
    train = read_digits().train
    features = network.preprocess(train.images)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(num_epochs):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - epoch / num_epochs) ** 2
        for batch in torch.randperm(len(train), generator=generator).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(network(features[batch]), train.labels[batch]).backward()
            optimizer.step()
    return network.requires_grad_(False)


def test_images(num_images):
    test = read_digits().test
    return test.images[:num_images], test.labels[:num_images]


test_images.__test__ = False


class Linear(nn.Module):
    """A classifier of which the worst perturbation is known."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[2.0, -1.0], [0.0, 0.0]]))

    def forward(self, images):
        return images.flatten(1) @ self.weight.T - torch.tensor([0.5, 0.0])


def linear_images():
    """Class 0 where 2 x - y > 0.5: margins 0.5, 0.2, -0.1."""
    values = torch.tensor([[0.6, 0.2], [0.5, 0.3], [0.4, 0.4]])
    return values.view(-1, 1, 1, 2), torch.zeros(3, dtype=torch.long)


@pytest.mark.parametrize(("dynamics", "norm"), [("parabolic", "linf"), ("hamiltonian", "l2")])
def test_pgd_is_at_least_as_strong_as_fgsm_and_both_as_nothing(dynamics, norm):
    """On the same images: accuracies, and image by image."""
    scale = 1 if norm == "linf" else 8
    images, labels = test_images(40)
    network = trained_network(dynamics)
    found = measure_robustness(
        network,
        images,
        labels,
        epsilons=[0.0, *(scale * epsilon for epsilon in EPSILONS)],
        norms=[norm],
        num_steps=6,
        restarts=1,
    )
    assert found.clean_accuracy > 0.5
    assert found.notice is None
    by_attack = {name: [] for name in ("fgsm", "pgd", "apgd_ce", "apgd_dlr", "worst")}
    for result in found.results:
        by_attack[result.attack].append(result.accuracy)
    for fast, projected, *adaptive, worst in zip(*by_attack.values(), strict=True):
        assert projected <= fast <= found.clean_accuracy
        assert worst <= min(projected, *adaptive)
    assert by_attack["pgd"][0] == found.clean_accuracy
    assert by_attack["pgd"][-1] < found.clean_accuracy / 2
    with scores_of_pixels(network) as scores:
        pixels = images.float() / 255
        options = {"epsilon": scale * EPSILONS[0], "norm": norm, "num_steps": 6}
        clean = is_right(scores, pixels, labels)
        fast = run_attack(scores, pixels, labels, "fgsm", **options).resists
        projected = run_attack(scores, pixels, labels, "pgd", **options).resists
    assert not bool((projected & ~fast).any())
    assert not bool((fast & ~clean).any())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("dynamics", "epsilon"), [("parabolic", 0.1), ("hamiltonian", 0.05)])
def test_linf_pgd_agrees_with_foolbox(dynamics, epsilon):
    """From the same starts, with the same number and length of steps.

    Foolbox judges by the last iterate: so judged, both agree to one point. Here every iterate
    counts: so judged, no more images resist, and none that foolbox fools.
    """
    import foolbox

    network = trained_network(dynamics)
    images, labels = test_images(360)
    pixels = images.float() / 255
    config = PGDConfig(num_steps=40)
    with scores_of_pixels(network) as scores:
        clean = is_right(scores, pixels, labels)
        iterates = list(pgd_iterates(scores, pixels, labels, epsilon=epsilon, config=config))
        right = torch.stack([is_right(scores, iterate, labels) for iterate in iterates])
        by_last, by_every = clean & right[-1], clean & right.all(0)
        by_fast = is_right(scores, fgsm(scores, pixels, labels, epsilon=epsilon), labels)
        options = {"epsilon": epsilon, "num_steps": 40}
        reported = run_attack(scores, pixels, labels, "pgd", **options).resists
    attacked = foolbox.PyTorchModel(_WithPreprocessing(network).eval(), bounds=(0, 1), device="cpu")
    torch.manual_seed(config.seed)  # the same draws as those of our own generator
    _, last, fooled = foolbox.attacks.LinfPGD(rel_stepsize=0.1)(
        attacked, pixels, labels, epsilons=epsilon
    )
    distances = (last - iterates[-1]).flatten(1).abs().amax(1)
    assert share(distances <= 1e-5) >= 0.99, "both attacks end at the same images"
    theirs, ours = 1 - share(fooled), share(by_last)
    assert 0 < theirs < share(clean), "neither hopeless nor untouched"
    assert abs(ours - theirs) <= 0.01
    assert share(by_every) <= ours
    assert share(reported & fooled) <= 0.01
    # What `pdecnn attack` reports tries the fast gradient's image besides.
    assert torch.equal(reported, by_every & by_fast)


def share(mask):
    return float(mask.double().mean())


class _WithPreprocessing(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, pixels):
        return self.network(self.network.preprocess(pixels))


@both_norms
def test_attacks_on_a_linear_classifier_in_closed_form(norm):
    """The margin 2 x - y - 0.5 falls by 3 epsilon in linf, by sqrt(5) epsilon in l2."""
    images, labels = linear_images()
    slope = 3 if norm == "linf" else 5**0.5
    for epsilon, expected in ((0.19 / slope, 2), (0.21 / slope, 1), (0.51 / slope, 0)):
        for attack in ("fgsm", "pgd", "apgd_ce"):
            found = run_attack(Linear(), images, labels, attack, epsilon=epsilon, norm=norm)
            assert int(found.resists.sum()) == expected, (epsilon, attack)
            assert torch.equal(is_right(Linear(), found.pixels, labels), found.resists)


def plane(num_images):
    """A slope, and images on the side of the plane through 0.5 where the slope is positive."""
    generator = torch.Generator().manual_seed(3)
    slope = torch.randn(12, generator=generator, dtype=torch.float64)
    images = torch.rand(num_images, 1, 3, 4, generator=generator, dtype=torch.float64)
    side = ((images - 0.5).flatten(1) @ slope).sign().view(-1, 1, 1, 1)
    return slope, 0.5 + side * (images - 0.5)


@both_norms
@both_losses
def test_apgd_finds_the_plane_of_a_linear_classifier_to_a_thousandth(loss, norm):
    """Its distance is margin / |w| in the dual norm: the sum for linf, the length for l2.

    Without bounds: the ball of 1.001 times that radius has a wrong image, that of 0.999 has none.
    """
    slope, images = plane(3)

    def scores(pixels):
        margin = (pixels - 0.5).flatten(1) @ slope
        return torch.stack([margin, 0 * margin, 0 * margin - 1e3], dim=1)

    label, length = torch.zeros(1, dtype=torch.long), slope.norm(p=1 if norm == "linf" else 2)
    for image in images.split(1):
        distance = float(scores(image)[0, 0] / length)
        inside, outside = (
            apgd(scores, image, label, epsilon=share * distance, norm=norm, loss=loss, bounds=None)
            for share in (0.999, 1.001)
        )
        assert bool(inside.resists)
        assert not bool(outside.resists)
        assert not bool(is_right(scores, outside.pixels, label))


@both_norms
def test_apgd_reaches_the_least_margin_in_the_ball_and_in_the_box(norm):
    """Of w x in [0, 1] within epsilon of x: at x - epsilon sign(w) clipped, or for l2 at
    clip(x - s w), s found by bisection."""
    slope, images = plane(40)
    epsilon = 0.6
    pixels = images.flatten(1)
    if norm == "linf":
        best = (pixels - epsilon * slope.sign()).clamp(0, 1)
    else:
        low = torch.zeros(len(pixels), 1, dtype=torch.float64)
        high = torch.full_like(low, 1e3)
        for _ in range(60):
            middle = (low + high) / 2
            within = ((pixels - middle * slope).clamp(0, 1) - pixels).norm(dim=1) <= epsilon
            low = torch.where(within[:, None], middle, low)
            high = torch.where(within[:, None], high, middle)
        best = (pixels - low * slope).clamp(0, 1)

    def scores(found):
        value = found.flatten(1) @ slope + 1e3
        return torch.stack([value, torch.zeros_like(value)], dim=1)

    labels = torch.zeros(len(pixels), dtype=torch.long)
    found = apgd(scores, images, labels, epsilon=epsilon, norm=norm)
    assert bool(found.resists.all())
    reached = found.pixels.flatten(1) @ slope - best @ slope
    falls = (pixels - best) @ slope
    assert bool((reached <= 1e-3 * falls).all()), float((reached / falls).max())
    assert bool((reached >= -1e-9).all())


def test_restarts_and_steps_never_make_an_attack_weaker():
    images, labels = test_images(30)
    pixels = images.float() / 255
    with scores_of_pixels(trained_network()) as scores:
        for attack in ("pgd", "apgd_ce", "apgd_dlr"):
            one, three = (
                run_attack(
                    scores, pixels, labels, attack, epsilon=0.08, num_steps=8, restarts=restarts
                )
                for restarts in (1, 3)
            )
            assert not bool((three.resists & ~one.resists).any())
            assert torch.equal(is_right(scores, three.pixels, labels), three.resists)


def test_the_start_of_an_image_does_not_depend_on_how_others_fare():
    """The last is attacked alike where the others are wrong from the start."""
    seen = []

    def scores(pixels):
        seen.append(pixels.detach()[-1])
        value = pixels.flatten(1).sum(1)
        return torch.stack([torch.ones_like(value), 0 * value], dim=1)

    images = torch.full((3, 1, 2, 2), 0.5)
    for labels in ([0, 0, 0], [1, 1, 0]):
        apgd(scores, images, torch.tensor(labels), epsilon=0.1, num_steps=1, restarts=2)
    half = len(seen) // 2
    assert len(seen) == 10
    assert all(torch.equal(*pair) for pair in zip(seen[:half], seen[half:], strict=True))


def test_nothing_is_computed_once_no_image_is_left():
    calls = []

    def scores(pixels):
        calls.append(len(pixels))
        return Linear()(pixels)

    images, labels = linear_images()
    found = apgd(scores, images, labels, epsilon=0.9, restarts=5)
    assert not bool(found.resists.any())
    assert len(calls) <= 4
    assert calls[0] == 3
    assert calls[1] <= 2, "the image that is wrong from the start is not attacked"


def test_fewer_than_three_classes_are_attacked_with_the_cross_entropy_alone():
    images, labels = linear_images()
    found = measure_robustness(Linear(), images, labels, epsilons=[0.01], methods=["apgd"])
    assert [result.attack for result in found.results] == ["apgd_ce", "worst"]
    assert "needs 3 classes, and there are 2" in found.notice


def test_no_gradient_of_a_weight_is_computed():
    network = make_network("hamiltonian", backprop="reversible")
    images, labels = test_images(4)
    with scores_of_pixels(network) as scores:
        assert not any(weight.requires_grad for weight in network.parameters())
        found = apgd(scores, images.float() / 255, labels, epsilon=1.0, norm="l2", num_steps=2)
    assert not found.pixels.requires_grad
    assert all(weight.requires_grad for weight in network.parameters())


def test_a_gradient_that_is_no_number_makes_no_image_of_none():
    def scores(pixels):
        value = (pixels.flatten(1).sum(1) * 0).sqrt() + 1
        return torch.stack([value, 0 * value, 0 * value], dim=1)

    images, labels = linear_images()
    for loss in BOTH:
        found = apgd(scores, images, labels, epsilon=0.1, loss=loss, num_steps=3)
        assert bool(found.resists.all())
        assert bool(found.pixels.isfinite().all())


def test_a_sure_classifier_is_fooled_although_its_cross_entropy_rounds_to_nothing():
    """Margins of 400: exp(-400) is no number of float32, and the plane is a pixel away."""
    images, labels = linear_images()

    def scores(pixels):
        return 1000 * Linear()(pixels)

    assert float(functional.cross_entropy(scores(images[:1]).detach(), labels[:1])) == 0
    for attack in ("pgd", "apgd_ce"):
        assert not bool(run_attack(scores, images, labels, attack, epsilon=0.25).resists.any())


def test_examples_show_right_images_and_what_became_of_them():
    images, labels = test_images(30)
    found = measure_robustness(
        trained_network(),
        images,
        labels,
        epsilons=[0.05, 0.4],
        num_steps=5,
        restarts=1,
        batch_size=15,
    )
    with scores_of_pixels(trained_network()) as scores:
        for pair in found.examples:
            assert len(pair.labels) == 8
            assert bool(is_right(scores, pair.clean, pair.labels).all())
            assert float((pair.attacked - pair.clean).abs().max()) <= pair.epsilon + 1e-6
            assert torch.equal(scores(pair.attacked).argmax(1), pair.predicted)
    weak, strong = (int((pair.predicted != pair.labels).sum()) for pair in found.examples)
    assert weak < strong == 8


@both_norms
def test_attacks_stay_in_the_ball_and_in_the_box(norm):
    images, labels = test_images(20)
    pixels = images.double() / 255
    epsilon = 0.2
    with scores_of_pixels(trained_network()) as scores:
        found = [fgsm(scores, pixels, labels, epsilon=epsilon, norm=norm)]
        found += pgd_iterates(
            scores, pixels, labels, epsilon=epsilon, norm=norm, config=PGDConfig(num_steps=3)
        )
        options = {"epsilon": epsilon, "norm": norm, "num_steps": 12}
        found += [apgd(scores, pixels, labels, loss=loss, **options).pixels for loss in BOTH]
    assert len(found) == 7
    order = float("inf") if norm == "linf" else 2
    for attacked in found:
        distances = torch.linalg.vector_norm((attacked - pixels).flatten(1), ord=order, dim=1)
        assert float(distances.max()) <= epsilon * (1 + 1e-9)
        assert float(attacked.min()) >= 0
        assert float(attacked.max()) <= 1


@pytest.mark.parametrize("slope", [1e-22, 1e-24, 1e-30])
def test_l2_steps_have_their_length_where_squares_of_gradients_underflow(slope):
    """A sure classifier: in float32 the norm of its gradient is not to be had by squares."""
    pixels, labels = torch.full((2, 1, 4, 4), 0.5), torch.zeros(2, dtype=torch.long)

    def scores(images):
        value = slope * images.flatten(1).sum(1, keepdim=True)
        return torch.cat([-value, value], dim=1)

    attacked = fgsm(scores, pixels, labels, epsilon=0.2, norm="l2")
    lengths = (attacked - pixels).flatten(1).norm(dim=1)
    assert lengths.tolist() == pytest.approx([0.2, 0.2], rel=1e-5)


def test_an_image_counts_only_if_every_iterate_is_right():
    """A classifier that is wrong only in between: the last iterate alone would look robust."""
    images = torch.full((1, 1, 1, 1), 0.2, dtype=torch.float64)
    labels = torch.zeros(1, dtype=torch.long)

    def scores(pixels):
        # Falls everywhere, but right again beyond 0.45.
        value = pixels.flatten(1)
        margin = torch.where((value > 0.3) & (value < 0.45), -value, 1 - value)
        return torch.cat([margin, torch.zeros_like(margin)], dim=1)

    config = PGDConfig(num_steps=40, seed=1)
    last = pgd(scores, images, labels, epsilon=0.3, config=config)
    assert bool(is_right(scores, last, labels))
    fast = fgsm(scores, images, labels, epsilon=0.3)
    assert bool(is_right(scores, fast, labels))
    found = run_attack(scores, images, labels, "pgd", epsilon=0.3, num_steps=40, seed=1)
    assert not bool(found.resists)
    assert not bool(is_right(scores, found.pixels, labels))


def test_an_image_that_is_wrong_from_the_start_never_counts():
    images, labels = linear_images()
    for attack in ("pgd", "apgd_ce"):
        found = run_attack(Linear(), images, labels, attack, epsilon=0.0)
        assert found.resists.tolist() == [True, True, False]
        assert torch.equal(found.pixels, images)


def test_scores_that_are_not_numbers_are_wrong():
    def scores(pixels):
        return torch.full((len(pixels), 2), float("nan"))

    images, labels = linear_images()
    assert not bool(is_right(scores, images, labels).any())


def test_a_network_that_overflows_on_every_image_is_not_called_weak():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        network[1].weight.fill_(3e38)
    with pytest.raises(DivergedError, match="of no image are the class scores finite"):
        measure_robustness(
            network, torch.ones(3, 1, 2, 2), torch.zeros(3, dtype=torch.long), epsilons=[0.1]
        )


def test_gradients_go_through_the_preprocessing():
    """Without it, constant shifts would be thought to matter: standardised images have none."""
    images, labels = test_images(5)
    pixels = (images.double() / 255).requires_grad_()
    with scores_of_pixels(deepcopy(trained_network()).double()) as scores:
        loss = functional.cross_entropy(scores(pixels), labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, pixels)
    sizes = gradient.flatten(1).abs().sum(1)
    assert bool((gradient.flatten(1).sum(1).abs() <= 1e-9 * sizes).all())


@pytest.mark.parametrize("backprop", ["reversible", "exact", "stored"])
def test_the_classifier_comes_back_as_it_was(backprop):
    network = make_network("hamiltonian", backprop=backprop)
    network.opening.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    images, labels = test_images(4)
    found = measure_robustness(network, images, labels, epsilons=[0.1], num_steps=2)
    assert len(found.results) == 5
    assert [block.backprop for block in network.blocks] == [backprop] * 2
    assert network.blocks.training
    assert not network.opening.training
    assert all(weight.grad is None and weight.requires_grad for weight in network.parameters())
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_attacks_do_not_depend_on_the_way_back():
    images, labels = test_images(10)
    found = [
        measure_robustness(
            make_network("hamiltonian", backprop=backprop),
            images,
            labels,
            epsilons=[0.1],
            num_steps=3,
        )
        for backprop in ("stored", "reversible")
    ]
    assert found[0] == found[1]


def test_any_classifier_with_any_preprocessing():
    images, labels = linear_images()
    found = measure_robustness(
        Linear(), 1 - images, labels, epsilons=[0.05], preprocess=lambda pixels: 1 - pixels
    )
    assert found.clean_accuracy == pytest.approx(2 / 3)
    assert [result.accuracy for result in found.results] == pytest.approx([2 / 3] * 4)


def test_results_as_json_values():
    images, labels = linear_images()
    found = measure_robustness(
        Linear(), images, labels, epsilons=[0.1], norms=["l2"], methods=["fgsm"]
    )
    assert found.to_dict() == {
        "clean_accuracy": pytest.approx(2 / 3),
        "results": [
            {"epsilon": 0.1, "norm": "l2", "attack": name, "accuracy": pytest.approx(1 / 3)}
            for name in ("fgsm", "worst")
        ],
        "notice": None,
    }


def test_batches_do_not_change_fast_gradients():
    images, labels = test_images(7)
    options = {"epsilons": [0.1], "methods": ["fgsm"]}
    whole = measure_robustness(trained_network(), images, labels, **options)
    assert measure_robustness(trained_network(), images, labels, batch_size=2, **options) == whole


def test_images_go_to_where_the_classifier_is():
    classifier = Linear().to("meta")
    for batch in batches_for(classifier, *linear_images(), 2):
        assert all(part.is_meta for part in batch)
    for batch in batches_for(nn.Identity(), *linear_images(), 2):
        assert not any(part.is_meta for part in batch)


@pytest.mark.gpu
@both_norms
def test_a_network_on_a_gpu_is_attacked_with_images_of_the_cpu(norm):
    images, labels = test_images(50)
    reports = [
        measure_robustness(
            deepcopy(trained_network()).to(device), images, labels, epsilons=[0.1], norms=[norm]
        )
        for device in ("cpu", "cuda")
    ]
    assert reports[0].clean_accuracy == pytest.approx(reports[1].clean_accuracy, abs=0.05)
    for one, other in zip(reports[0].results, reports[1].results, strict=True):
        assert one.accuracy == pytest.approx(other.accuracy, abs=0.1)
    worse = accuracy_under(
        lambda pixels: pixels, deepcopy(trained_network()).cuda(), images, labels
    )
    assert worse == reports[1].clean_accuracy


def test_wrong_images_and_settings_are_refused():
    images, labels = linear_images()
    with pytest.raises(DataError, match=r"pixels must be in \[0, 1\]"):
        measure_robustness(Linear(), images - 1, labels, epsilons=[0.1])
    with pytest.raises(DataError, match=r"uint8 or floating in \[0, 1\], found torch\.int64"):
        measure_robustness(Linear(), images.long(), labels, epsilons=[0.1])
    with pytest.raises(DataError, match="one label for each image"):
        measure_robustness(Linear(), images, labels[:2], epsilons=[0.1])
    with pytest.raises(ConfigError, match="epsilon must be a number of at least 0, found -1"):
        measure_robustness(Linear(), images, labels, epsilons=[-1])
    with pytest.raises(ConfigError, match="unknown norm 'l1'"):
        measure_robustness(Linear(), images, labels, epsilons=[0.1], norms=["l1"])
    with pytest.raises(ConfigError, match="unknown attack 'pdg'; did you mean 'pgd'"):
        measure_robustness(Linear(), images, labels, epsilons=[0.1], methods=["pdg"])
    with pytest.raises(ConfigError, match="at least one method of fgsm, pgd, apgd"):
        measure_robustness(Linear(), images, labels, epsilons=[0.1], methods=[])
    for option in ("restarts", "num_steps"):
        with pytest.raises(ConfigError, match=f"{option} must be a whole number of at least 1"):
            measure_robustness(Linear(), images, labels, epsilons=[0.1], **{option: 0})
    with pytest.raises(ConfigError, match="unknown loss 'dlrr'; did you mean 'dlr'"):
        apgd(Linear(), images, labels, epsilon=0.1, loss="dlrr")
    with pytest.raises(ConfigError, match="needs at least 3 classes, found 2; take loss='ce'"):
        apgd(Linear(), images, labels, epsilon=0.1, loss="dlr")
    with pytest.raises(ConfigError, match="num_steps must be"):
        PGDConfig(num_steps=0)


def test_noise_is_repeatable_and_of_the_size_asked():
    pixels = torch.full((50, 1, 8, 8), 0.5)
    noisy = gaussian_noise(pixels, 0.05)
    assert torch.equal(noisy, gaussian_noise(pixels, 0.05))
    assert not torch.equal(noisy, gaussian_noise(pixels, 0.05, seed=1))
    assert float((noisy - pixels).std()) == pytest.approx(0.05, rel=0.05)
    assert torch.equal(gaussian_noise(pixels, 0.0), pixels)
    assert float(gaussian_noise(pixels, 9.0).max()) == 1


@pytest.mark.parametrize("size", [(20,), (20, 16), (12, 10, 12)])
def test_blur_is_a_gaussian_along_each_axis(size):
    pixels = torch.zeros(1, 2, *size, dtype=torch.float64)
    centre = tuple(n // 2 for n in size)
    pixels[(0, 0, *centre)] = 1
    blurred = gaussian_blur(pixels, 1.0)
    assert blurred.shape == pixels.shape
    assert float(blurred[0, 0].sum()) == pytest.approx(1, abs=1e-3)
    assert float(blurred[0, 1].abs().max()) == 0
    neighbour = (centre[0] + 1, *centre[1:])
    ratio = blurred[(0, 0, *neighbour)] / blurred[(0, 0, *centre)]
    assert float(ratio) == pytest.approx(0.6065, abs=1e-3)
    flat = torch.full_like(pixels, 0.3)
    torch.testing.assert_close(gaussian_blur(flat, 3.0), flat)
    assert torch.equal(gaussian_blur(pixels, 0.0), pixels)


def test_contrast_shrinks_towards_the_mean_of_each_image():
    pixels = torch.tensor([[0.0, 1.0], [0.2, 0.4]]).view(2, 1, 1, 2)
    halved = reduce_contrast(pixels, 0.5)
    torch.testing.assert_close(halved.flatten(), torch.tensor([0.25, 0.75, 0.25, 0.35]))
    torch.testing.assert_close(reduce_contrast(pixels, 1.0), pixels)
    assert float(reduce_contrast(pixels, 0.0)[0].std()) == 0


def test_accuracy_under_corruptions():
    images, labels = test_images(60)
    network = trained_network()
    clean = accuracy_under(lambda pixels: pixels, network, images, labels)
    found = measure_robustness(network, images, labels, epsilons=[])
    assert clean == found.clean_accuracy
    noisy = accuracy_under(lambda pixels: gaussian_noise(pixels, 1.0), network, images, labels)
    assert noisy < clean
    assert noisy == accuracy_under(
        lambda pixels: gaussian_noise(pixels, 1.0), network, images, labels, batch_size=7
    )
    # Standardised images do not know their contrast, as long as nothing is clipped.
    low = accuracy_under(lambda pixels: reduce_contrast(pixels, 0.9), network, images, labels)
    assert low == pytest.approx(clean, abs=0.05)


@pytest.mark.parametrize("corruption", [gaussian_noise, gaussian_blur, reduce_contrast])
def test_negative_amounts_are_refused(corruption):
    with pytest.raises(ConfigError, match=r"at least 0, found -0\.5"):
        corruption(torch.zeros(1, 1, 2, 2), -0.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_classifier_in_any_precision_is_attacked(dtype):
    torch.manual_seed(0)
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).to(dtype)
    images, labels = torch.randint(0, 256, (9, 1, 3, 4), dtype=torch.uint8), torch.arange(9) % 3
    found = measure_robustness(classifier, images, labels, epsilons=[0.0, 1.0])
    assert found.results[0].accuracy == found.clean_accuracy
    assert found.results[-1].accuracy < found.clean_accuracy


@pytest.mark.parametrize(
    "labels", [torch.tensor([0.0, 1.0]), torch.tensor([0, -1]), torch.tensor([0, 3])]
)
def test_labels_that_no_score_stands_for_are_refused(labels):
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    with pytest.raises(DataError, match="label"):
        measure_robustness(classifier, torch.rand(2, 1, 2, 2), labels, epsilons=[0.1])


def test_a_classifier_without_a_gradient_is_refused():
    class Constant(nn.Module):
        def forward(self, pixels):
            return torch.zeros(len(pixels), 3)

    with pytest.raises(ConfigError, match="no gradient with respect to the pixels"):
        measure_robustness(Constant(), torch.rand(2, 1, 2, 2), torch.tensor([0, 1]), epsilons=[1])
