"""Settings as text become values of the right type, or one error that names the key."""

import pytest

from pdecnn.errors import ConfigError
from pdecnn.runs.config import convert, parse_assignment, read_settings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k=5", 5),
        ("k=-3", -3),
        ("k=0.1", 0.1),
        ("k=-1e-3", -1e-3),
        ("k=1e30", 1e30),
        ("k=[1, 2]", [1, 2]),
        ("k=[1,2]", [1, 2]),
        ("k=1,2", [1, 2]),
        ("k=0.1,0.02,0.004", [0.1, 0.02, 0.004]),
        ("k=true", True),
        ("k=false", False),
        ("k=none", "none"),
        ("k=bfloat16", "bfloat16"),
        ("k='5'", "5"),
        ('k="a b"', "a b"),
        ("k = 5 ", 5),
        ("k=a=b", "a=b"),
        ("k=/some/folder", "/some/folder"),
        ("k=a,b", "a,b"),
        ("k=", ""),
        ("k=[1", "[1"),
    ],
)
def test_text_becomes_the_value_it_looks_like(text, value):
    key, found = parse_assignment(text)
    assert key == "k"
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["", "training.epochs", "=5", " = 5"])
def test_what_is_no_assignment_is_refused(text):
    with pytest.raises(ConfigError, match="key=value"):
        parse_assignment(text)


@pytest.mark.parametrize(
    ("value", "hint", "converted"),
    [
        (5, int, 5),
        (5, float, 5.0),
        (0.5, float, 0.5),
        (True, bool, True),
        ("x", str, "x"),
        (None, int | None, None),
        ("none", int | None, None),
        ("none", str | None, None),
        ("none", str, "none"),
        ([1, 2], tuple[float, ...], (1.0, 2.0)),
        ((1, 2), tuple[int, ...], (1, 2)),
        (0.1, tuple[float, ...], (0.1,)),
        (3, int | tuple[int, ...], 3),
        ([3, 4], int | tuple[int, ...], (3, 4)),
        (3, tuple[int, ...] | None, (3,)),
        ([], tuple[float, ...], ()),
        ("opening, blocks", tuple[str, ...], ("opening", "blocks")),
        ("opening", tuple[str, ...], ("opening",)),
    ],
)
def test_a_value_becomes_the_type_of_its_field(value, hint, converted):
    found = convert(value, hint, "key")
    assert found == converted
    assert type(found) is type(converted)


@pytest.mark.parametrize(
    ("value", "hint", "wanted"),
    [
        (0.5, int, "a whole number"),
        ("5", int, "a whole number"),
        (True, int, "a whole number"),
        (True, float, "a number"),
        ("much", float, "a number"),
        (None, int, "a whole number"),
        (1, bool, "true or false"),
        (5, str, "text"),
        ("a,b", tuple[int, ...], "a list of whole numbers"),
        ([1, "a"], tuple[int, ...], "a list of whole numbers"),
        ([1, 0.5], int | tuple[int, ...], "a whole number or a list of whole numbers"),
        ({}, float | None, "a number"),
        ([[1]], tuple[int, ...], "a list of whole numbers"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(value, hint, wanted):
    with pytest.raises(ConfigError, match=r"group\.key must be") as error:
        convert(value, hint, "group.key")
    assert str(error.value) == f"group.key must be {wanted}, found {value!r}"


def test_a_toml_file_gives_dotted_keys(tmp_path):
    path = tmp_path / "variant.toml"
    path.write_text(
        'recipe = "parabolic_digits"\nseed = 3\ntraining.epochs = 5\n'
        "[network]\nnum_steps = 2\n[data]\nfraction = 0.5\n"
    )
    assert read_settings(path) == {
        "recipe": "parabolic_digits",
        "seed": 3,
        "training.epochs": 5,
        "network.num_steps": 2,
        "data.fraction": 0.5,
    }


def test_a_toml_file_may_begin_with_a_byte_order_mark(tmp_path):
    """Editors of Windows write one."""
    path = tmp_path / "variant.toml"
    path.write_text("seed = 3\n", encoding="utf-8-sig")
    assert read_settings(path) == {"seed": 3}


@pytest.mark.parametrize("content", [b"a = = 1", b"a = 1\na = 2", b"\xff\xfe", b"\0"])
def test_a_file_that_is_no_toml_is_refused_by_name(tmp_path, content):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        read_settings(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path)
