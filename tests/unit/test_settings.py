"""Every declared setting, of every group, keeps to its range and type, and says what it means."""

import json
import math
from dataclasses import MISSING, dataclass, fields
from types import NoneType
from typing import get_args, get_origin

import numpy
import pytest

from pdecnn.data import Augmentation
from pdecnn.errors import ConfigError
from pdecnn.learning import TrainingConfig
from pdecnn.networks import NetworkConfig, Preprocessing
from pdecnn.runs.config import DataConfig
from pdecnn.settings import Settings, allowed_values, interval, setting, value_types

NEEDED = {
    NetworkConfig: {"channels": (4, 8)},
    DataConfig: {"name": "digits"},
    TrainingConfig: {},
    Preprocessing: {},
    Augmentation: {},
}
HUGE = 10**400
NO_NUMBERS = ["1", "", b"1", True, False, {}, object(), 1j, math.nan, math.inf, -math.inf, HUGE]
ENTRIES = [
    pytest.param(cls, entry, id=f"{cls.section}.{entry.name}")
    for cls in NEEDED
    for entry in fields(cls)
]


def kinds(entry):
    """The types of a value and of the entries of a list."""
    return {get_args(o)[0] if get_origin(o) is tuple else o for o in value_types(entry.type)} - {
        NoneType
    }


def wrong_values(entry):
    """What the declaration of a setting does not allow."""
    allowed, kind = allowed_values(entry), kinds(entry)
    wrong = [] if NoneType in value_types(entry.type) else [None]
    if kind == {bool}:
        wrong += [0, 1, "true", [], math.nan]
    elif kind <= {int, float}:
        low, high, has_low, has_high = interval(allowed or "(-inf, inf)")
        wrong += NO_NUMBERS
        wrong += [1.5, 2.0] if kind == {int} else []
        wrong += [low - 1] if low > -math.inf else []
        wrong += [2 * high + 1] if high < math.inf else []
        wrong += [] if has_low or low == -math.inf else [low]
        wrong += [] if has_high or high == math.inf else [high]
    elif kind == {str} and allowed is not None:
        wrong += [3, True, 0.5, {}, math.nan, b"tv", "no such name"]
    elif kind == {str}:
        wrong += [3, True, 0.5, {}, math.nan]
    if any(get_origin(option) is tuple for option in value_types(entry.type)):
        wrong += [[1, value] for value in wrong if value is not None] + [[1, None], [[1]], set()]
        wrong += [] if entry.default == () else [[], ()]
    return wrong


@pytest.mark.parametrize(("cls", "entry"), ENTRIES)
def test_what_a_setting_does_not_allow_is_refused_in_one_line_that_names_it(cls, entry):
    called = rf"({cls.section}\.{entry.name}|{entry.metadata['kind']})"
    for value in wrong_values(entry):
        with pytest.raises(ConfigError, match=called) as caught:
            cls(**NEEDED[cls] | {entry.name: value})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("cls", "entry"), ENTRIES)
def test_every_setting_says_its_meaning_range_and_default(cls, entry):
    assert entry.metadata["meaning"].endswith(".")
    assert entry.name in cls.__doc__
    assert entry.metadata["meaning"] in cls.__doc__
    if kinds(entry) <= {int, float} and entry.name != "mean":
        assert entry.metadata["allowed"][0] in "[("
    assert (entry.default is MISSING) == (entry.name in NEEDED[cls])


SEVERAL = ("mean", "std", "channels", "certified_size", "betas")
"""Lists that need more than one number."""


@pytest.mark.parametrize(("cls", "entry"), ENTRIES)
def test_numbers_of_numpy_are_stored_as_pythons(cls, entry):
    if not kinds(entry) <= {int, float} or entry.name in SEVERAL:
        return
    number = numpy.int64(1) if kinds(entry) == {int} else numpy.float32(0.25)
    if number in interval(entry.metadata["allowed"]) and not entry.name.startswith("level_"):
        extra = (
            {"schedule": "linear"} if entry.name in ("warmup", "phases", "learning_rates") else {}
        )
        if entry.name in ("patch", "noise"):
            extra = {"name": "pictures", "patch": 1, "noise": 25.0, "standardize": "none"}
        if entry.name in ("turn", "zoom", "intensity"):
            extra = {"name": "segmented", "patch": 1}
        of_sounds = ("seconds", "rate", "emphasis", "gain", "colour", "hiss")
        if cls is DataConfig and entry.name in of_sounds:
            extra = {"name": "sounds", "seconds": 1.0, "rate": 8000, "flip": False}
        found = getattr(cls(**NEEDED[cls] | extra | {entry.name: number}), entry.name)
        json.dumps(found)
        assert found == number or found == (number,)


@pytest.mark.parametrize("cls", NEEDED)
def test_settings_come_back_from_json(cls):
    settings = cls(**NEEDED[cls])
    assert cls.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    for values in (None, [], "x", 3):
        with pytest.raises(ConfigError, match=f"the {cls.section} settings must be an object"):
            cls.from_dict(values)
    name = fields(cls)[-1].name
    with pytest.raises(ConfigError, match=f"unknown {cls.section} setting .*did you mean '{name}'"):
        cls.from_dict(settings.to_dict() | {name + "x": 1})
    for needed in NEEDED[cls]:
        with pytest.raises(ConfigError, match=f"need '{needed}'"):
            cls.from_dict({})


@dataclass(frozen=True, kw_only=True)
class Example(Settings):
    section = "example"
    count: int = setting(3, "How many.", "[2, 5]")
    share: float = setting(0.5, "What share.", "[0, 1)")
    length: float | None = setting(None, "How long.", "(0, inf)")
    weights: tuple[float, ...] = setting((1.0,), "How heavy.", "[0, inf)")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 6}, r"count must be a whole number in \[2, 5\], found 6"),
        ({"count": 2**31}, "count must be a whole number of at most 2147483647, found 2147483648"),
        ({"share": 1}, r"share must be a number in \[0, 1\), found 1"),
        ({"length": 0}, "length must be a positive number, found 0"),
        ({"weights": (1, -1)}, "weights must be a number of at least 0, found -1"),
        ({"weights": ()}, r"weights must be a list with at least one entry, found \(\)"),
    ],
)
def test_an_error_says_what_is_wanted_and_what_was_found(values, message):
    with pytest.raises(ConfigError, match=message):
        Example(**values)


def test_one_value_is_a_list_of_one():
    assert Example(weights=2).weights == Example(weights=[2]).weights == (2.0,)
