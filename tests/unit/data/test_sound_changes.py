"""Random changes of sounds: speed, colour, noise and loudness, by hashing alone."""

import math

import pytest
import torch

from pdecnn.data.augmentation import Augmentation, change_speed
from pdecnn.errors import ConfigError

ALL = {"speed": (0.8, 1.25), "gain": 6.0, "colour": 0.3, "hiss": 0.2}


def sines(number, length=400, period=20):
    return torch.sin(2 * math.pi * torch.arange(length) / period).expand(number, 1, -1).clone()


def change(waves, indices, *, seed=0, epoch=0, **settings):
    return Augmentation(**settings).change_sounds(waves, indices, seed=seed, epoch=epoch)


def test_nothing_is_changed_unless_it_is_asked_for():
    assert not Augmentation().changes_sounds
    for name, value in ALL.items():
        assert Augmentation(**{name: value}).changes_sounds


def test_a_sound_is_a_function_of_seed_epoch_and_index():
    waves = torch.randn(10, 1, 64)
    whole = change(waves, torch.arange(10), seed=3, epoch=2, **ALL)
    chosen = torch.tensor([7, 4])
    again = change(waves[chosen], chosen, seed=3, epoch=torch.tensor(2), **ALL)
    assert torch.equal(whole[chosen], again)
    for other in ({"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 3}):
        assert not torch.equal(whole, change(waves, torch.arange(10), **other, **ALL))


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.25])
def test_a_faster_sound_has_a_higher_pitch(factor):
    length = 401
    along = torch.arange(length) - 200
    wave = torch.cos(2 * math.pi * along / 40)[None, None]
    found = change_speed(wave, torch.tensor([factor]))
    wanted = torch.cos(2 * math.pi * factor * along / 40)
    inside = (factor * along).abs() < 198
    assert torch.allclose(found[0, 0, inside], wanted[inside], atol=1e-3)
    assert not found[0, 0, (factor * along).abs() > 202].any()


def test_the_speed_1_changes_no_bit():
    wave = torch.randn(2, 1, 100)
    assert torch.equal(change_speed(wave, torch.ones(2)), wave)


def test_speeds_fill_their_range():
    waves = sines(400)
    changed = change(waves, torch.arange(400), speed=(0.8, 1.25))
    crossings = (changed[:, 0, 100:300].diff(dim=1).sign().diff(dim=1) != 0).sum(1) / 20
    assert 0.75 < crossings.min() < 0.85
    assert 1.15 < crossings.max() < 1.3


def test_gains_are_within_their_decibels():
    changed = change(sines(500), torch.arange(500), gain=6.0)
    decibels = 20 * torch.log10(changed.abs().amax((1, 2)))
    assert decibels.min() >= -6.001
    assert decibels.min() < -5.8
    assert 5.8 < decibels.max() <= 6.001
    assert abs(decibels.mean()) < 0.5


def test_noise_is_normal_and_has_another_strength_each_time():
    noise = change(torch.zeros(500, 1, 400), torch.arange(500), hiss=0.3)
    strength = noise.std(2).flatten()
    assert strength.min() < 0.01
    assert 0.27 < strength.max() < 0.34
    flat = (noise / noise.std(2, keepdim=True)).flatten()
    assert abs(flat.mean()) < 0.01
    assert abs(flat.pow(4).mean() - 3) < 0.1


def test_colours_change_high_pitches_against_low_ones():
    low, high = sines(300, period=100), sines(300, period=4)
    indices = torch.arange(300)
    ratio = change(high, indices, colour=0.3).std(2) / change(low, indices, colour=0.3).std(2)
    assert ratio.min() < 0.5
    assert ratio.max() > 2


@pytest.mark.parametrize("speed", [(0.9,), (1.1, 0.9), (0.9, 1.0, 1.1)])
def test_a_speed_is_a_range(speed):
    with pytest.raises(ConfigError, match=r"speed must be a range of two factors"):
        Augmentation(speed=speed)
