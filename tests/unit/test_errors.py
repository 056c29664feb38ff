"""Users meet four error classes, and a misspelt name gets the nearest one."""

import pytest

from pdecnn.errors import CheckpointError, ConfigError, DataError, DivergedError, unknown_name


@pytest.mark.parametrize("error", [ConfigError, DataError, CheckpointError])
def test_errors_of_input_are_value_errors(error):
    assert issubclass(error, ValueError)


def test_divergence_is_a_runtime_error():
    assert issubclass(DivergedError, RuntimeError)
    assert not issubclass(DivergedError, ValueError)


def test_an_unknown_name_gets_the_nearest_suggestion_and_the_full_list():
    error = unknown_name("colour", "gren", ["red", "green", "blue"])
    assert isinstance(error, ConfigError)
    assert str(error) == "unknown colour 'gren'; did you mean 'green'? (known: blue, green, red)"


@pytest.mark.parametrize("name", ["zzzzzz", None, 3, "", ("green",)])
def test_nothing_is_suggested_where_nothing_is_near(name):
    error = unknown_name("colour", name, ["red", "blue"])
    assert "did you mean" not in str(error)
    assert repr(name) in str(error)
