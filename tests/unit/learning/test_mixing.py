"""Mixup and cutmix: what is mixed, in which shares, and that nothing else decides it."""

import pytest
import torch

from pdecnn.errors import ConfigError
from pdecnn.learning import TrainingConfig
from pdecnn.learning.distributed import Ranks
from pdecnn.learning.mixing import Mixing, beta_quantiles
from tests.unit.learning.trainings import (
    digits,
    image_set,
    make_network,
    make_trainer,
    run,
)

EPOCH = torch.tensor(3)


def mix(number=8, size=(6, 8), epoch=EPOCH, seed=0, **settings):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(number, 2, *size, generator=generator)
    labels = torch.arange(number)
    indices = torch.randperm(1000, generator=generator)[:number]
    mixing = Mixing(TrainingConfig(**settings), seed=seed, device=torch.device("cpu"))
    mixed, targets = mixing.mix(images, labels, indices, epoch)
    return images, mixed, targets


def neighbours(tensor):
    return tensor.view(-1, 2, *tensor.shape[1:]).flip(1).view_as(tensor)


@pytest.mark.parametrize("size", [(9,), (6, 8), (3, 4, 5)])
def test_mixup_is_a_mean_of_neighbours_in_the_shares_of_their_labels(size):
    images, mixed, targets = mix(size=size, mixup=0.4)
    shares = targets.mixed.shares
    assert torch.equal(targets.mixed.labels, neighbours(targets.labels))
    weights = shares.view(-1, *(1,) * (images.dim() - 1))
    torch.testing.assert_close(mixed, weights * images + (1 - weights) * neighbours(images))
    expected = torch.where(shares >= 0.5, targets.labels, targets.mixed.labels)
    assert torch.equal(targets.mixed.main, expected)


@pytest.mark.parametrize("size", [(9,), (6, 8), (3, 4, 5)])
def test_cutmix_puts_a_box_of_the_neighbour_in_and_counts_its_pixels(size):
    images, mixed, targets = mix(number=40, size=size, cutmix=1.0)
    own = (mixed == images).all(1)
    assert torch.equal(own | (mixed == neighbours(images)).all(1), torch.ones_like(own))
    shares = own.flatten(1).double().mean(1)
    torch.testing.assert_close(targets.mixed.shares.double(), shares, rtol=0, atol=1e-6)
    for image in ~own:  # a box: what its projections span
        spans = torch.ones_like(image)
        for axis in range(image.dim()):
            others = [k for k in range(image.dim()) if k != axis]
            line = image.any(others) if others else image
            spans = spans & line.view([-1 if k == axis else 1 for k in range(image.dim())])
        assert torch.equal(spans, image)


def test_with_both_each_image_has_one_of_them():
    arguments = {"number": 400, "mixup": 0.4, "cutmix": 1.0}
    _, both, targets = mix(**arguments)
    _, up, up_targets = mix(number=400, mixup=0.4)
    _, cut, cut_targets = mix(number=400, cutmix=1.0)
    is_up = (both == up).flatten(1).all(1)
    is_cut = (both == cut).flatten(1).all(1)
    assert bool((is_up | is_cut).all())
    assert 120 < int(is_up.sum()) < 280
    shares = torch.where(is_up, up_targets.mixed.shares, cut_targets.mixed.shares)
    assert torch.equal(targets.mixed.shares[is_up != is_cut], shares[is_up != is_cut])


def test_seed_and_epoch_matter():
    _, first, _ = mix(mixup=0.4)
    for other in (mix(mixup=0.4, seed=1), mix(mixup=0.4, epoch=torch.tensor(4))):
        assert not torch.equal(first, other[1])


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, 2.0, 10.0])
def test_shares_have_the_beta_distribution(alpha):
    quantiles = beta_quantiles(alpha).double()
    assert quantiles[0] == 0
    assert quantiles[512] == 0.5
    assert quantiles[-1] == 1
    assert bool((quantiles[1:] >= quantiles[:-1]).all())
    # The moments of Beta(a, a): 1/2 and, of squares, (a + 1)/(4 a + 2), by the trapezoidal rule.
    mean = torch.trapezoid(quantiles) / 1024
    square = torch.trapezoid(quantiles.square()) / 1024
    assert float(mean) == pytest.approx(0.5, abs=1e-6)
    assert float(square) == pytest.approx((alpha + 1) / (4 * alpha + 2), rel=2e-3)


def test_ones_own_share_is_uniform_for_alpha_1():
    torch.testing.assert_close(beta_quantiles(1.0), torch.linspace(0, 1, 1025), rtol=0, atol=1e-6)


def test_the_loss_is_mixed_as_the_labels_are():
    """Of least squares the gradient is that of the mixed label itself."""
    trainer = make_trainer(mixup=0.4, loss="least_squares")
    step = trainer._step
    trainer.begin_epoch()
    ((_, targets),) = step.parts(torch.tensor([0]))
    scores = torch.randn(20, 10, requires_grad=True)
    (found,) = torch.autograd.grad(step._measure(scores, targets)[0], scores)
    one, two = (torch.eye(10)[k] for k in (targets.labels, targets.mixed.labels))
    shares = targets.mixed.shares[:, None]
    torch.testing.assert_close(found, (scores - shares * one - (1 - shares) * two).detach() / 20)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_of_a_batch_mix_the_pairs_of_the_whole(parts):
    whole = make_trainer(mixup=0.4, cutmix=1.0)
    divided = make_trainer(mixup=0.4, cutmix=1.0, accumulation=parts)
    found = []
    for trainer in (whole, divided):
        trainer.begin_epoch()
        found.append(torch.cat([one for one, _ in trainer._step.parts(torch.tensor([1]))]))
    assert torch.equal(*found)


def test_ranks_mix_the_pairs_of_one():
    whole = make_trainer(mixup=0.4)
    shares = [make_trainer(mixup=0.4, ranks=Ranks(rank, 2)) for rank in range(2)]
    for trainer in (whole, *shares):
        trainer.begin_epoch()
    expected = whole._step.parts(torch.tensor([1]))[0][0]
    found = [trainer._step.parts(torch.tensor([1]))[0][0] for trainer in shares]
    assert torch.equal(torch.cat(found), expected)


def test_a_mixed_training_learns():
    """Far above chance, 10 %, and above what rounding decides."""
    settings = {"learning_rates": (0.1,), "phases": (1,), "batch_norm_statistics": "reestimated"}
    network = make_network("parabolic", channels=(8, 16), num_steps=1)
    sets = digits(600, 100)
    *_, report = run(make_trainer(network, mixup=0.2, cutmix=1.0, sets=sets, epochs=12, **settings))
    assert report.validation_accuracy > 0.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixup": 0.2, "batch_size": 15}, "batch_size=15 gives .* odd .* multiple of 2"),
        ({"cutmix": 1.0, "accumulation": 4}, "in 4 parts gives .* odd .* multiple of 8"),
    ],
)
def test_an_image_that_would_be_alone_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_trainer(**settings)


def test_a_single_class_has_nothing_to_mix():
    train = digits()[0]
    one = image_set(train.images, torch.zeros_like(train.labels), ("digit",))
    network = make_network(num_classes=1)
    make_trainer(network, sets=(one, one))
    with pytest.raises(ConfigError, match="two classes, found 1"):
        make_trainer(network, sets=(one, one), mixup=0.2)
