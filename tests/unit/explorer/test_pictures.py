"""Bytes stand for values: zero is zero, the scale is kept, nothing is lost but rounding."""

import pytest
import torch

from pdecnn.explorer.frames import MOST_PIXELS, MOST_POINTS, picture, symmetric_scale
from tests.explorers import decoded, step_between_levels


@pytest.mark.parametrize("shape", [(2, 9), (3, 5, 4)])
def test_values_come_back_up_to_rounding(shape):
    values = torch.rand(shape) * 4 - 2
    made = picture(values, -2.0, 2.0)
    assert made["shape"] == list(shape)
    assert abs(decoded(made) - values.numpy()).max() <= step_between_levels(made)


def test_zero_is_the_middle_and_what_lies_beyond_is_at_the_ends():
    values = torch.tensor([[0.0, -9.0, 9.0, torch.inf, -torch.inf, torch.nan]])
    assert decoded(picture(values, -3.0, 3.0)).tolist() == [[0, -3, 3, 3, -3, 0]]


def test_what_lies_beyond_the_scale_is_counted():
    values = torch.tensor([[[0.0, -3.0], [3.0, 9.0]], [[-9.0, torch.inf], [torch.nan, 1.0]]])
    assert picture(values, -3.0, 3.0)["clipped"] == pytest.approx(3 / 8)
    assert picture(values[:1], -3.0, 9.0)["clipped"] == 0


def test_a_volume_is_its_middle_slice():
    values = torch.rand(2, 5, 3, 4)
    made = picture(values, 0.0, 1.0)
    assert made["shape"] == [2, 3, 4]
    assert abs(decoded(made) - values[:, 2].numpy()).max() <= step_between_levels(made)


def test_large_features_are_averaged():
    values = torch.rand(1, 2 * MOST_PIXELS, 2 * MOST_PIXELS)
    made = picture(values, 0.0, 1.0)
    assert made["shape"] == [1, MOST_PIXELS, MOST_PIXELS]
    corner = values[0, :2, :2].mean()
    assert abs(decoded(made)[0, 0, 0] - corner) <= step_between_levels(made)
    assert picture(torch.rand(1, MOST_PIXELS + 1, 3), 0, 1)["shape"] == [1, MOST_PIXELS // 2 + 1, 2]
    assert picture(torch.rand(3, 2 * MOST_POINTS), 0, 1)["shape"] == [3, MOST_POINTS]


def test_a_constant_has_a_picture():
    assert decoded(picture(torch.full((1, 2, 2), 7.0), 7.0, 7.0)).tolist() == [[[7, 7], [7, 7]]]


def test_the_scale_is_that_of_the_frame_with_the_largest_values_but_for_a_few():
    small, large = torch.full((1000,), 0.5), torch.full((1000,), -2.0)
    large[0] = 100.0
    assert symmetric_scale([small, large]) == 2.0


def test_sparse_and_empty_features_have_a_scale():
    sparse = torch.zeros(1000)
    sparse[3] = -4.0
    assert symmetric_scale([sparse]) == 4.0
    assert symmetric_scale([torch.zeros(5)]) == 1.0
    assert symmetric_scale([torch.tensor([torch.nan, torch.inf])]) == 1.0
