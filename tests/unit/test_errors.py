"""Users meet four error classes, and a misspelt name gets the nearest one."""

import pytest

from pdecnn.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    bad_file_refused,
    unknown_name,
)


@pytest.mark.parametrize("error", [ConfigError, DataError, CheckpointError])
def test_errors_of_input_are_value_errors(error):
    assert issubclass(error, ValueError)


def test_divergence_is_a_runtime_error():
    assert issubclass(DivergedError, RuntimeError)
    assert not issubclass(DivergedError, ValueError)


def test_an_unknown_name_gets_the_nearest():
    error = unknown_name("colour", "gren", ["red", "green", "blue"])
    assert isinstance(error, ConfigError)
    assert str(error) == "unknown colour 'gren'; did you mean 'green'?"


@pytest.mark.parametrize("name", ["zzzzzz", None, 3, "", ("green",)])
def test_all_names_are_listed_where_none_is_near(name):
    error = unknown_name("colour", name, ["red", "blue"])
    assert str(error) == f"unknown colour {name!r}; known are blue, red"


def test_of_many_names_that_are_not_near_some_are_listed():
    error = unknown_name("number", "zzzzzz", map(str, range(100, 200)))
    some = "100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111"
    assert str(error) == f"unknown number 'zzzzzz'; known are 100 others, such as {some}"


def test_what_is_wrong_with_a_file_is_one_short_line():
    with pytest.raises(DataError) as caught, bad_file_refused("a.png", "is no image", "mend it"):
        raise KeyError("x\n" * 1000)
    assert str(caught.value).startswith("a.png: is no image ('x")
    assert str(caught.value).endswith("; mend it")
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)
