"""The grid of exact reversal: rounding, its range, and what is not on it."""

import numpy
import pytest
import torch

import pdecnn
from pdecnn.errors import ConfigError, DivergedError
from pdecnn.pde import Grid, grid
from pdecnn.pde.grid import choose_bits, deferred_checks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", [1, 12, 22])
def test_rounding_gives_the_nearest_multiple_and_is_idempotent(bits, dtype):
    grid = Grid(bits)
    values = torch.linspace(-1.9, 1.9, 997, dtype=dtype)
    rounded = grid.round(values)
    assert (rounded - values).abs().max() <= 2.0 ** -(bits + 1)
    assert torch.equal(rounded * 2**bits, (rounded * 2**bits).round())
    assert torch.equal(grid.round(rounded), rounded)
    assert torch.equal(grid.round(-values), -rounded)


def test_the_gradient_goes_straight_through():
    values = torch.linspace(-1, 1, 11, requires_grad=True)
    weights = torch.linspace(1, 2, 11)
    (gradient,) = torch.autograd.grad(Grid(3).round(values), values, weights)
    assert torch.equal(gradient, weights)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2.0**12), (torch.float64, 2.0**41)])
def test_below_the_limit_sums_are_exact_and_at_it_they_are_not(dtype, limit):
    grid = Grid(12)
    assert grid.limit(dtype) == limit
    point = 2.0**-12
    largest = torch.tensor(limit - point, dtype=dtype)
    assert float((largest - point) + point) == float(largest)
    grid.check_extent(largest, dtype)
    at_the_limit = torch.tensor(limit, dtype=dtype)
    assert float((at_the_limit + point) - point) != limit
    with pytest.raises(DivergedError, match="left the range of exact reversal"):
        grid.check_extent(at_the_limit, dtype)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 4096.0, -1e30])
def test_a_state_out_of_range_is_refused(value):
    component = torch.zeros(2, 3)
    component[1, 1] = value
    with pytest.raises(DivergedError, match="limit 4096 with grid_bits=12"):
        Grid().check_state((torch.zeros(2, 3), component))


def test_what_is_recorded_for_a_graph_shows_by_nan_that_a_state_left_the_range(monkeypatch):
    """A graph can raise nothing; within deferred checks the flag says it."""
    block = pdecnn.Block([pdecnn.SymmetricLayer(4)], "leapfrog", backprop="exact")
    features = torch.ones(1, 4, 2, 2)
    with pytest.raises(DivergedError):
        block(1e4 * features)
    expected = block(features)
    monkeypatch.setattr(grid, "_is_recorded", lambda extent: True)
    assert torch.equal(block(features), expected)
    assert block(1e4 * features).isnan().all()
    with deferred_checks() as flags:
        assert block(1e4 * features).isfinite().all()
    assert [bool(flag) for flag in flags] == [True]


def test_a_state_out_of_range_is_refused_after_an_error_where_checks_were_deferred():
    with pytest.raises(KeyError), deferred_checks():
        raise KeyError
    with pytest.raises(DivergedError):
        Grid().check_state((torch.tensor([5000.0]),))


def test_a_state_off_the_grid_is_refused():
    with pytest.raises(ValueError, match=r"needs a state on the grid 2\^-12"):
        Grid().check_state((torch.zeros(2), torch.tensor([0.0, 0.1])))
    Grid().check_state((torch.zeros(2), Grid().round(torch.tensor([0.0, 0.1]))))


def test_the_remedy_in_the_message_can_be_executed():
    state = (torch.zeros(2), torch.tensor([0.0, 0.1]))
    with pytest.raises(ValueError, match="round it first: ") as caught:
        Grid(5).check_state(state)
    remedy = str(caught.value).split("round it first: ")[1]
    Grid(5).check_state(eval(remedy, {"pdecnn": pdecnn, "state": state}))


def test_a_state_in_half_precision_is_refused():
    with pytest.raises(ValueError, match=r"float32 or float64 state, found torch.bfloat16"):
        Grid().check_state((torch.zeros(2, dtype=torch.bfloat16),))


@pytest.mark.parametrize("bits", [0, 23, -1, 1.5, "12", True])
def test_other_numbers_of_bits_are_refused(bits):
    with pytest.raises(ConfigError, match=f"from 1 to 22, found {bits!r}"):
        Grid(bits)


def test_a_number_of_numpy_is_taken():
    assert repr(Grid(numpy.int64(8))) == "Grid(bits=8)"


@pytest.mark.parametrize(
    ("step_size", "bits"),
    [(1e6, 12), (1, 12), (1 / 64, 12), (0.0156, 13), (1e-2, 13), (1e-3, 16), (1e-4, 20)],
)
def test_the_chosen_grid_has_64_points_a_step_and_12_bits_at_least(step_size, bits):
    assert choose_bits(step_size) == bits
    assert 64 * 2.0**-bits <= step_size
    assert bits == 12 or 64 * 2.0 ** -(bits - 1) > step_size


@pytest.mark.parametrize("step_size", [6.1e-5, 1e-6, 5e-324])
def test_no_grid_is_chosen_for_steps_that_leave_no_range(step_size):
    with pytest.raises(ConfigError, match="or set grid_bits, at most 22") as caught:
        choose_bits(step_size)
    assert f"step_size={step_size:g}" in str(caught.value)
    assert "\n" not in str(caught.value)
