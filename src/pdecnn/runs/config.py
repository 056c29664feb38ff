"""Everything that defines a run: network, data, training and seed."""

import json
import re
import tomllib
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from pdecnn.checks import is_count, is_finite_number
from pdecnn.errors import ConfigError, quoted, unknown_name
from pdecnn.learning.tasks import TaskConfig
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.config import NetworkConfig
from pdecnn.pde.activations import list_activations
from pdecnn.pde.convolution import SUBJECTS
from pdecnn.pde.integrators import INTEGRATORS
from pdecnn.pde.layers import LAYERS
from pdecnn.runs.data_config import DataConfig as DataConfig
from pdecnn.settings import allowed_values, value_types

FORMAT_VERSION = 3
"""Of config.json. Raised with each change of a default or a meaning, which `_BEFORE` then names;
files of before it had one have none, which counts as 0."""
GROUPS = ("task", "network", "data", "training")
_OF_CLASSES = (
    "loss",
    "class_weights",
    "label_smoothing",
    "margin_offset",
    "temperature",
    "mixup",
    "cutmix",
)
CLASSIFYING = TaskConfig()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A run, fully resolved: equal configs give equal runs on one machine."""

    recipe: str
    """The recipe it started from; also the stem of the run's folder."""
    network: NetworkConfig
    data: DataConfig
    training: TrainingConfig
    task: TaskConfig = CLASSIFYING
    seed: int = 0
    """Drives the split, the initial weights, the order and the augmentation."""
    initial: str | None = None
    """The run, `save_pretrained` folder or published model the weights are from; None: random."""

    def __post_init__(self) -> None:
        if not _RECIPE_NAME.fullmatch(self.recipe):
            # It is the stem of folders: a path would lead out of where runs lie.
            raise ConfigError(f"recipe must be a plain name, found {quoted(self.recipe, 60)}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ConfigError(f"seed must be a whole number of at least 0, found {self.seed!r}")
        self.task.check_network(self.network)
        self.task.check_data(self.data.name)
        if self.data.name == "segmented" and self.training.level_sizes is not None:
            raise ConfigError(
                "coarser images have pixels of several classes; leave out training.level_sizes"
            )
        if self.task.name != "classification":
            for name in _OF_CLASSES:
                if getattr(self.training, name) != getattr(TrainingConfig(), name):
                    raise ConfigError(
                        f"training.{name} is for classes; leave it out for task.name="
                        f"{self.task.name}"
                    )

    @property
    def subject(self) -> str:
        """What its samples are: 'signal', 'sound', 'image' or 'volume'."""
        return "sound" if self.data.name == "sounds" else SUBJECTS[self.network.dimension]

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON values."""
        return {
            "format_version": FORMAT_VERSION,
            "recipe": self.recipe,
            "seed": self.seed,
            "initial": self.initial,
            "task": self.task.to_dict(),
            "network": self.network.to_dict(),
            "data": self.data.to_dict(),
            "training": self.training.to_dict(),
        }

    def with_settings(self, settings: dict[str, Any]) -> "RunConfig":
        """The config with some dotted keys changed, e.g. {'training.epochs': 5}."""
        known = [*_keys(), "seed"]
        groups: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
        seed = self.seed
        for key, value in settings.items():
            if key not in known:
                if _is_ignored(key, value):
                    continue
                raise unknown_name("setting", key, known)
            if key == "seed":
                seed = convert(value, int, key)
                continue
            group, name = key.split(".")
            groups[group][name] = convert(value, _hint(group, name), key)
        return replace(
            self,
            seed=seed,
            task=replace(self.task, **groups["task"]),
            network=replace(self.network, **groups["network"]),
            data=replace(self.data, **groups["data"]),
            training=replace(self.training, **groups["training"]),
        )


# For files of an earlier version than the number: what it meant that a setting is not there.
# A setting whose default is changed, or that is new, gets an entry with the next version.
_BEFORE: dict[int, dict[str, Any]] = {
    1: {"training.ties": "first"},
    2: {
        "network.hidden_channels": None,
        "network.opening": "convolution",
        "network.patch_size": 1,
        "network.connector": "batch_norm",
        "network.pooling": "average",
        "network.classifier": "linear",
        "network.certified_size": None,
        "training.optimizer": "sgd",
        "training.betas": (0.9, 0.999),
        "training.weight_decay": 0.0,
        "training.margin_offset": 0.0,
        "training.temperature": 1.0,
    },
    3: {
        "data.channels": 3,
        "data.group": None,
        "data.padding_mode": "zero",
        "data.cutout": 0,
        "data.trivial_augment": False,
        "training.mixup": None,
        "training.cutmix": None,
        "training.batch_norm_statistics": "running",
        "task.name": "classification",
        "task.loss": None,
        "network.boundary": "zero",
        "data.patch": None,
        "data.repeats": 1,
        "data.turn": 0.0,
        "data.zoom": 0.0,
        "data.intensity": 0.0,
        "data.noise": None,
        "data.test_groups": None,
        "data.validation_groups": None,
        "data.label": None,
        "data.seconds": None,
        "data.rate": None,
        "data.speed": None,
        "data.gain": 0.0,
        "data.colour": 0.0,
        "data.emphasis": 0.0,
        "data.hiss": 0.0,
    },
}
# Settings that are gone: the value at which they are ignored, and what to do about another one.
REMOVED: dict[str, tuple[Any, str]] = {
    "training.divide_to_fit": (True, "divide batches yourself with training.accumulation"),
    "training.max_rollbacks": (0, "lower training.learning_rates or set training.clip_norm"),
}
_RECIPE_NAME = re.compile(r"\w[\w .+-]{0,99}")
_CLASSES: dict[str, Any] = {
    "task": TaskConfig,
    "network": NetworkConfig,
    "data": DataConfig,
    "training": TrainingConfig,
}


def run_config_from_dict(values: object) -> RunConfig:
    """The config of JSON values; unknown keys are errors, and so are missing ones but settings.

    A setting that is not there means what it meant in the version that wrote the file.
    """
    expected = {"recipe", "seed", "initial", *GROUPS}
    if isinstance(values, dict):
        values = {"task": {}} | values
    if not isinstance(values, dict) or values.keys() - {"format_version"} != expected:
        raise ConfigError(f"a run config must have exactly the keys {sorted(expected)}")
    version = values.get("format_version", 0)
    if not is_count(version, 0, FORMAT_VERSION):
        raise ConfigError(
            f"format version {quoted(version, 40)}, but this pdecnn reads up to {FORMAT_VERSION}; "
            f"use the version of pdecnn that wrote it"
        )
    parts = {group: _part(group, cls, values[group], version) for group, cls in _CLASSES.items()}
    return RunConfig(
        recipe=convert(values["recipe"], str, "recipe"),
        seed=convert(values["seed"], int, "seed"),
        initial=convert(values["initial"], str | None, "initial"),
        **parts,
    )


def _part(group: str, cls: Any, settings: object, version: int) -> Any:
    """The settings of a group as a file of that version has them."""
    if isinstance(settings, dict):
        kept = {k: v for k, v in settings.items() if not _is_ignored(f"{group}.{k}", v)}
        settings = _meant_before(group, version) | kept
        if group == "data" and version < 3 and settings.get("name") != "images":
            settings["channels"] = None  # 3 stood there for all data, and meant nothing
    return cls.from_dict(settings)


def _meant_before(group: str, version: int) -> dict[str, Any]:
    """What settings of the group mean that a file of that version does not have."""
    meant: dict[str, Any] = {}
    for number in sorted(_BEFORE, reverse=True):  # of several changes the first one counts
        for key, value in _BEFORE[number].items():
            if number > version and key.startswith(f"{group}."):
                meant[key.removeprefix(f"{group}.")] = value
    return meant


def _is_ignored(key: str, value: object) -> bool:
    """Whether the setting is gone and at its old default; at another value it is refused."""
    if key not in REMOVED:
        return False
    default, advice = REMOVED[key]
    if type(value) is not type(default) or value != default:
        raise ConfigError(
            f"{key} was removed: it is ignored at its old default {json.dumps(default)}, found "
            f"{quoted(value, 40)}; {advice}"
        )
    return True


def differing_keys(first: RunConfig, second: RunConfig) -> list[str]:
    """The dotted keys in which two configs differ; a grid that neither uses is no difference."""
    one, two = first.to_dict(), second.to_dict()
    if "exact" not in (first.network.backprop, second.network.backprop):
        del one["network"]["grid_bits"]
    keys = [key for key in ("recipe", "seed", "initial") if one[key] != two[key]]
    for group in GROUPS:
        keys += [f"{group}.{name}" for name in one[group] if one[group][name] != two[group][name]]
    return keys


def assignment(config: RunConfig, key: str) -> str:
    """A setting of the config as `--set` takes it, e.g. 'training.epochs=5'."""
    group, _, name = key.partition(".")
    value = config.to_dict()[group]
    return f"{key}={_text(value[name] if name else value)}"


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def describe_settings(config: RunConfig | None = None) -> dict[str, dict[str, Any]]:
    """By dotted key: type, default, range and meaning of every setting, as JSON values.

    With a config its value too. `required` says that there is no default, `range` has the names
    there are or an interval of numbers; null: anything of the type.
    """
    names = {
        "layer": [layer.name for layer in LAYERS],
        "integrator": [integrator.name for integrator in INTEGRATORS],
        "activation": list_activations(),
    }
    found: dict[str, dict[str, Any]] = {}
    for group, cls in _CLASSES.items():
        for entry in fields(cls):
            required, allowed = entry.default is MISSING, allowed_values(entry)
            if group == "network":
                allowed = names.get(entry.name, allowed)
            elif value_types(entry.type) == (bool, str):
                allowed = ("true", "false", *(allowed or ()))
            found[f"{group}.{entry.name}"] = {
                "type": _type_words(_hint(group, entry.name)),
                "default": None if required else _json_value(entry.default),
                "required": required,
                "range": allowed if allowed is None or isinstance(allowed, str) else list(allowed),
                "meaning": entry.metadata["meaning"],
            }
    found["seed"] = {
        "type": _type_words(int),
        "default": 0,
        "required": False,
        "range": "[0, inf)",
        "meaning": "Drives the split, the initial weights, the order and the augmentation.",
    }
    if config is not None:
        values = config.to_dict()
        for key, row in found.items():
            group, _, name = key.rpartition(".")
            row["value"] = values[group][name] if group else values[name]
    return found


def _type_words(hint: Any) -> str:
    options = value_types(hint)
    words = ["none" if option is NoneType else _describe(option) for option in options]
    return " or ".join(word.removeprefix("a ") for word in words)


def _json_value(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _keys() -> list[str]:
    return [f"{group}.{field.name}" for group in GROUPS for field in fields(_CLASSES[group])]


def _hint(group: str, name: str) -> Any:
    hint = next(field.type for field in fields(_CLASSES[group]) if field.name == name)
    # In a file or on the command line an activation is a name.
    return str if (group, name) == ("network", "activation") else hint


# ------------------------------------------------------------------ settings as text


def parse_assignment(text: str) -> tuple[str, Any]:
    """'training.epochs=5' -> ('training.epochs', 5); lists as [1,2] or 1,2; other text as it is."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(
            f"a setting reads key=value, e.g. training.epochs=5; found {quoted(text)}"
        )
    value = value.strip()
    for candidate in (value, f"[{value}]" if "," in value else value):
        try:
            return key.strip(), tomllib.loads(f"value = {candidate}")["value"]
        except ValueError:  # not TOML, or a whole number of thousands of digits
            continue
        except RecursionError as error:
            raise ConfigError(
                f"{quoted(key.strip())} has lists within lists without end"
            ) from error
    return key.strip(), value


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a TOML file as dotted keys; 'recipe' names what it is a variant of."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML ({error})") from error
    settings: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            settings |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            settings[key] = value
    return settings


def convert(value: Any, hint: Any, key: str) -> Any:
    """The value as the type of its field; a ConfigError names the key where it is not one."""
    options = value_types(hint)
    if NoneType in options and (value is None or value == "none"):
        return None
    # A single number will do as a list of one, and names need no quotes: opening,blocks.
    items = [part.strip() for part in value.split(",")] if isinstance(value, str) else [value]
    for candidate in (value, items):
        for option in options:
            converted = _convert_one(candidate, option)
            if converted is not _NO:
                return converted
    wanted = " or ".join(_describe(option) for option in options if option is not NoneType)
    raise ConfigError(f"{key} must be {wanted}, found {quoted(value)}")


_NO = object()


def _convert_one(value: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        if not isinstance(value, list | tuple):
            return _NO
        # Groups may be called by numbers, and need no quotes for that.
        named = item is str and all(type(entry) in (int, str) for entry in value)
        items = [_convert_one(str(entry) if named else entry, item) for entry in value]
        return _NO if any(entry is _NO for entry in items) else tuple(items)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if is_finite_number(value) else _NO
    if hint is int and isinstance(value, bool):
        return _NO
    return value if isinstance(hint, type) and isinstance(value, hint) else _NO


def _describe(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"a list of {_describe(get_args(hint)[0]).removeprefix('a ')}s"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(hint, str(hint))
