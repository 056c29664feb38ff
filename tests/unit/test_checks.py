"""What is a number and what is not, for every setting alike."""

from fractions import Fraction
from math import inf, nan

import numpy
import pytest
import torch

from pdecnn.errors import ConfigError
from pdecnn.settings import (
    LARGEST_COUNT,
    check_count,
    check_number,
    check_positive,
    is_count,
    is_finite_number,
)

HUGE = 10**400
NO_NUMBERS = [
    True, False, numpy.bool_(True), "1", b"1", "", None, [1], (1,), {}, 1j, object(),
    torch.tensor(1), numpy.array([1]), nan, inf, -inf, HUGE, -HUGE, numpy.float32("nan"),
    numpy.float16("inf"),
]  # fmt: skip
WHOLE = [1, 3, numpy.int64(3), numpy.uint8(3), LARGEST_COUNT]
FRACTIONAL = [0.5, 2.0, numpy.float32(0.5), numpy.float64(2.0), Fraction(1, 2), 1e30]


@pytest.mark.parametrize("value", [*WHOLE, *FRACTIONAL], ids=repr)
def test_numbers_become_floats(value):
    assert is_finite_number(value)
    for number in (check_positive("x", value), check_number("x", value)):
        assert type(number) is float
        assert number == value


@pytest.mark.parametrize("value", WHOLE, ids=repr)
def test_counts_become_whole_numbers(value):
    assert is_count(value)
    assert type(check_count("x", value)) is int
    assert check_count("x", value) == value


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: repr(value)[:12])
def test_what_is_no_number_is_refused(value):
    assert not is_finite_number(value)
    assert not is_count(value)
    for check in (check_positive, check_number, check_count):
        with pytest.raises(ConfigError, match=r"^x must be") as caught:
            check("x", value)
        assert str(caught.value).endswith(f"found {value!r}")


@pytest.mark.parametrize("value", FRACTIONAL, ids=repr)
def test_fractions_are_no_counts(value):
    assert not is_count(value)
    with pytest.raises(ConfigError, match="x must be a whole number of at least 1"):
        check_count("x", value)


@pytest.mark.parametrize(
    "value", [0, -1, 0.0, -1e-300, Fraction(1, HUGE)], ids=lambda v: str(v)[:9]
)
def test_what_is_not_positive_is_refused(value):
    with pytest.raises(ConfigError, match="x must be a positive number"):
        check_positive("x", value)


def test_a_count_out_of_range_is_told_which_end():
    with pytest.raises(ConfigError, match="x must be a whole number of at least 0, found -1"):
        check_count("x", -1, smallest=0)
    assert check_count("x", 0, smallest=0) == 0
    with pytest.raises(ConfigError, match="x must be a whole number of at most 2147483647, found"):
        check_count("x", LARGEST_COUNT + 1)


def test_a_number_out_of_range_is_told_the_range():
    with pytest.raises(ConfigError, match=r"x must be a number in \[0, 1\), found 1"):
        check_number("x", 1, smallest=0, below=1)
    with pytest.raises(ConfigError, match=r"x must be a number of at least 0.5, found 0.4"):
        check_number("x", 0.4, smallest=0.5)
    with pytest.raises(ConfigError, match="x must be a finite number, found nan"):
        check_number("x", nan)
    # Below 1, but not as the float that would be stored.
    with pytest.raises(ConfigError):
        check_number("x", Fraction(10**20 - 1, 10**20), below=1)
