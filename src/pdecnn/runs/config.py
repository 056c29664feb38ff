"""Everything that defines a run: network, data, training and seed."""

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from datetime import date
from math import isqrt
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from pdecnn.data.augmentation import ALTERNATE, Augmentation, PaddingMode
from pdecnn.data.image_file import MAX_PIXELS
from pdecnn.data.patches import LEFT_RIGHT, AbstractPatches, LabelledPatches, NoisyPatches
from pdecnn.data.registry import DATASETS, OWN, needs_folder
from pdecnn.data.sound_file import HIGHEST_RATE
from pdecnn.data.sounds import SoundSettings
from pdecnn.errors import ConfigError, quoted, unknown_name
from pdecnn.learning.tasks import TaskConfig
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.preprocessing import Standardization
from pdecnn.pde.activations import list_activations
from pdecnn.pde.convolution import SUBJECTS
from pdecnn.pde.integrators import INTEGRATORS
from pdecnn.pde.layers import LAYERS
from pdecnn.settings import (
    Settings,
    allowed_values,
    documented,
    is_count,
    is_finite_number,
    same_setting,
    setting,
    setting_text,
    value_types,
)

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
    "evaluation_batch_size",
)
"""Settings of a training that are for classes alone; fields are measured one by one."""
CLASSIFYING = TaskConfig()
VALIDATION_FRACTION = 0.2
_USERS: dict[str, tuple[str, ...]] = {
    "patch": ("pictures", "segmented"),
    "repeats": ("pictures", "segmented"),
    "noise": ("pictures",),
    **dict.fromkeys(("turn", "zoom", "intensity"), ("segmented",)),
    **dict.fromkeys(("test_groups", "validation_groups", "label", "seconds", "rate"), ("sounds",)),
    **dict.fromkeys(("emphasis", "speed", "gain", "colour", "hiss"), ("sounds",)),
}
"""The settings of some data alone, and which these are."""
Part = TypeVar("Part")


@documented
@dataclass(frozen=True, kw_only=True)
class DataConfig(Settings):
    """Which images a run uses and what is done to them."""

    section = "data"
    name: str = setting(meaning="The data set, by name.", allowed=DATASETS, kind="data set")
    folder: str | None = setting(None, "Where it lies; None for data sets that need no files.")
    channels: int | None = setting(
        None,
        "What image files of one's own are read as: 3 for colour, 1 for grey, n for TIFF files of "
        "n bands; None: as they are.",
        "[1, 1000]",
    )
    stream: bool | None = setting(
        None,
        "Whether data of one's own stays on the disk, read as it is needed; None: if it is large.",
    )
    size: int | None = setting(
        None, "The side images or digits are resized to; None: as they come.", "[1, inf)"
    )
    fraction: float = setting(
        1.0, "The share of the training images that is used, class-balanced.", "(0, 1]"
    )
    validation_fraction: float = setting(
        VALIDATION_FRACTION,
        "The share of the published training images that is held out for validation; 0: none, and "
        "no epoch is selected: the last weights, or their average, are the result.",
        "[0, 1)",
    )
    group: str | None = setting(
        None,
        "A regular expression on the path of an image or sound file below the folder: files with "
        "the same first group in it are never split between training, validation and test. Arrays "
        "have an array `group` beside `x` and `y` instead.",
    )
    test_groups: tuple[str, ...] | None = setting(
        None, "The groups of sounds that are the test part; None: a fifth is held out."
    )
    validation_groups: tuple[str, ...] | None = setting(
        None,
        "The groups of sounds that are the validation part; None: as validation_fraction says.",
    )
    label: str | None = setting(
        None,
        "A regular expression on the path of a sound file below the folder, whose first group is "
        "the class; None: the first folder is.",
    )
    seconds: float | None = setting(
        None, "How long sounds are cut or padded to be, alike at both ends.", "(0, 3600]"
    )
    rate: int | None = setting(
        None, "The samples a second that sounds are resampled to.", f"[1, {HIGHEST_RATE}]"
    )
    emphasis: float = setting(
        0.0,
        "This share of the sample before is taken off each sample of a sound, so that high pitches "
        "count as much as low ones; 0.95 is usual for speech.",
        "[0, 1]",
    )
    flip: bool | Literal["alternate", "left_right"] = setting(
        True,
        "Whether images are mirrored at random; 'alternate': every image in every other epoch; "
        "'left_right': along one axis only, the first of volumes and the last of images.",
    )
    padding: float = same_setting(Augmentation, "padding")
    padding_mode: PaddingMode = same_setting(Augmentation, "padding_mode")
    cutout: int = same_setting(Augmentation, "cutout")
    trivial_augment: bool = same_setting(Augmentation, "trivial_augment")
    speed: tuple[float, ...] | None = same_setting(Augmentation, "speed")
    gain: float = same_setting(Augmentation, "gain")
    colour: float = same_setting(Augmentation, "colour")
    hiss: float = same_setting(Augmentation, "hiss")
    standardize: Standardization = setting(
        "image", "'image', 'dataset', 'mean' or 'none'.", kind="standardization"
    )
    patch: int | tuple[int, ...] | None = setting(
        None,
        "The side of the random crops that pictures, and images with a class for each pixel, are "
        "trained on; of the latter it may be one number an axis.",
        "[1, inf)",
    )
    repeats: int = setting(1, "How many crops an epoch takes of each picture.", "[1, inf)")
    turn: float = setting(
        0.0,
        "Images with a class for each pixel are turned at random by up to so many degrees in the "
        "plane of any two axes.",
        "[0, 180]",
    )
    zoom: float = setting(
        0.0, "They are scaled at random by factors of 1 - zoom to 1 + zoom.", "[0, 1)"
    )
    intensity: float = setting(
        0.0,
        "Their standardised pixels are multiplied at random by 1 - intensity to 1 + intensity, and "
        "up to as much is added or taken away.",
        "[0, 1)",
    )
    noise: float | tuple[float, ...] | None = setting(
        None,
        "The standard deviation of the noise on pictures, in units of 255; or a range, of which "
        "each example has another.",
        "[0, inf)",
    )
    pooling: int = setting(
        1, "Standardised images are averaged over cells of this many pixels an axis.", "[1, inf)"
    )

    def check_together(self) -> None:
        """Refuse what the data cannot have, and what would be ignored."""
        sized = self.name in ("images", "digits")
        if sized and self.size is not None and self.size**2 > MAX_PIXELS:
            raise ConfigError(
                f"data.size must be at most {isqrt(MAX_PIXELS):,} for {self.name}, found "
                f"{self.size:,}"
            )
        if self.name == "images" and self.size is None:
            raise ConfigError("data.size must be set for images of one's own, e.g. data.size=64")
        for name in ("group", "label"):
            try:
                re.compile(getattr(self, name) or "")
            except re.error as error:
                raise ConfigError(
                    f"data.{name} must be a regular expression ({error}), found "
                    f"{quoted(getattr(self, name))}"
                ) from None
        if isinstance(self.noise, tuple) and len(self.noise) == 1:
            object.__setattr__(self, "noise", self.noise[0])
        if isinstance(self.noise, tuple) and (
            len(self.noise) != 2 or self.noise[0] > self.noise[1]
        ):
            raise ConfigError(
                f"data.noise must be one number or a range of two, such as [5, 55], found "
                f"{list(self.noise)}"
            )
        self.augmentation()  # which checks its range of speeds
        self._check_use()
        check = {
            "pictures": self._check_pictures,
            "segmented": self._check_segmented,
            "sounds": self._check_sounds,
        }
        if self.name in check:
            check[self.name]()

    def _check_use(self) -> None:
        """Refuse what is read of other data alone, and would be ignored."""
        for entry in fields(self):
            users, value = _USERS.get(entry.name, (self.name,)), getattr(self, entry.name)
            if self.name not in users and value != entry.default:
                raise ConfigError(
                    f"data.{entry.name} is for data.name={' or '.join(users)}; leave it out for "
                    f"{self.name!r}, found {list(value) if isinstance(value, tuple) else value}"
                )
        if self.flip == LEFT_RIGHT and self.name != "segmented":
            raise ConfigError(
                f"data.flip={LEFT_RIGHT} is for data.name=segmented; set data.flip=true or false"
            )
        if self.folder is not None and not needs_folder(self.name):
            raise ConfigError(
                f"data set {self.name!r} is built in and reads no folder; leave out --data or "
                f"data.folder, found {self.folder}"
            )
        if self.padding == 0 and self.padding_mode != "zero":
            raise ConfigError(
                f"data.padding_mode={self.padding_mode} has no use with data.padding=0; set "
                f"data.padding above 0, or leave data.padding_mode out"
            )
        if self.channels is not None and self.name not in ("images", "pictures", "segmented"):
            raise ConfigError(
                f"data.channels is for image files of one's own; leave it out for {self.name!r}, "
                f"found {self.channels}"
            )
        if self.group is not None and self.name not in ("images", "sounds", "segmented"):
            raise ConfigError(
                f"data.group is a pattern on names of image and sound files; leave it out for "
                f"{self.name!r}, found {quoted(self.group)}: arrays have an array group beside x "
                f"and y"
            )
        if self.stream is not None and self.name not in OWN:
            raise ConfigError(
                f"data.stream is for data of one's own ({', '.join(OWN)}), found {self.name!r}"
            )

    def _check_pictures(self) -> None:
        """What pictures need, and what they do not have."""
        if not isinstance(self.patch, int) or self.noise is None:
            raise ConfigError(
                "pictures are cropped and have noise added: set data.patch and data.noise, e.g. "
                "data.patch=64 and data.noise=25"
            )
        if isinstance(self.flip, str) or self._is_padded or self.cutout or self.trivial_augment:
            raise ConfigError(
                "pictures are cropped and flipped at random: leave out data.padding, data.cutout "
                "and data.trivial_augment, and set data.flip=true or false"
            )
        other_size = self.size is not None or self.pooling > 1
        if self.standardize != "none" or other_size or self.stream:
            raise ConfigError(
                "pictures are read as they are, in [0, 1] and in memory: set "
                "data.standardize=none and leave out data.size, data.pooling and data.stream"
            )

    @property
    def _is_padded(self) -> bool:
        """Whether a padding was asked for; what stands in every config goes unused by patches."""
        usual = Augmentation()
        return self.padding not in (0, usual.padding) or self.padding_mode != usual.padding_mode

    def _check_segmented(self) -> None:
        """What images with a class for each pixel need, and what they do not have."""
        if self.patch is None:
            raise ConfigError(
                "images with a class for each pixel are cropped: set data.patch, e.g. data.patch=32"
            )
        if self.flip == ALTERNATE or self._is_padded or self.cutout or self.trivial_augment:
            raise ConfigError(
                "images with a class for each pixel are cropped, flipped, turned and scaled at "
                "random: leave out data.padding, data.cutout and data.trivial_augment, and set "
                f"data.flip to true, false or {LEFT_RIGHT}"
            )
        if self.standardize not in ("image", "none") or self.size or self.stream:
            raise ConfigError(
                "images with a class for each pixel are of any size and in memory: set "
                "data.standardize=image or none, and leave out data.size and data.stream"
            )
        if self.pooling > 1:
            raise ConfigError("data.pooling would leave pixels without a class; leave it out")

    def _check_sounds(self) -> None:
        """What sounds need, and what they do not have."""
        if self.seconds is None or self.rate is None:
            raise ConfigError(
                "sounds have one length and rate: set data.seconds and data.rate, e.g. "
                "data.seconds=1 and data.rate=16000"
            )
        if round(self.seconds * self.rate) < 1:
            raise ConfigError(
                f"data.seconds={self.seconds:g} at data.rate={self.rate} is no sample; raise them"
            )
        if self.size is not None or self.stream or self.pooling > 1 or self.flip:
            raise ConfigError(
                "sounds are in memory, of data.seconds at data.rate, and not played backwards: "
                "leave out data.size, data.stream and data.pooling, and set data.flip=false"
            )

    def sounds(self) -> SoundSettings | None:
        """How sounds are read; None for other data."""
        return self._as(SoundSettings) if self.name == "sounds" else None

    def augmentation(self) -> Augmentation:
        """The random changes of training images; along one axis alone patches are mirrored."""
        return self._as(Augmentation, flip=self.flip == LEFT_RIGHT or self.flip)

    def patches(self, dimension: int) -> AbstractPatches | None:
        """The examples that become of images of so many axes; None for data with classes."""
        size = self.patch_size(dimension)
        if size is None:
            return None
        if self.noise_range is not None:
            noise = self.noise_range
            return self._as(NoisyPatches, size=size, flip=bool(self.flip), noise=noise)
        return self._as(LabelledPatches, size=size)

    def _as(self, cls: Callable[..., Part], **others: Any) -> Part:
        """An object of the settings that have the names of its fields, but for the others given."""
        names = {entry.name for entry in fields(cast("Any", cls))} - others.keys()
        return cls(**{name: getattr(self, name) for name in names}, **others)

    def patch_size(self, dimension: int) -> tuple[int, ...] | None:
        """The crops along each axis; None: whole images."""
        if self.patch is None or isinstance(self.patch, tuple):
            return self.patch
        return (self.patch,) * dimension

    @property
    def noise_range(self) -> tuple[float, float] | None:
        """The least and the most noise; None: there is none."""
        if self.noise is None:
            return None
        low, high = self.noise if isinstance(self.noise, tuple) else (self.noise, self.noise)
        return low, high


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
                self.training.refuse_unused(name, f"with task.name={self.task.name}")

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
            **{group: getattr(self, group).to_dict() for group in GROUPS},
        }

    def with_settings(self, settings: dict[str, Any]) -> "RunConfig":
        """The config with some dotted keys changed, e.g. {'training.epochs': 5}."""
        known = [f"{group}.{entry.name}" for group in GROUPS for entry in fields(_CLASSES[group])]
        known.append("seed")
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
        changed = {name: replace(getattr(self, name), **found) for name, found in groups.items()}
        return replace(self, seed=seed, **changed)


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
    # Runs of before may have what meant nothing to them and is refused today.
    unused = {"ties"} if parts["data"].validation_fraction == 0 else set()
    if parts["task"].name != CLASSIFYING.name:
        unused.add("evaluation_batch_size")
    defaults = {name: getattr(TrainingConfig(), name) for name in unused}
    parts["training"] = replace(parts["training"], **defaults)
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
        meant: dict[str, Any] = {}
        for number in sorted(_BEFORE, reverse=True):  # of several changes the first one counts
            for key, value in _BEFORE[number].items():
                if number > version and key.startswith(f"{group}."):
                    meant[key.removeprefix(f"{group}.")] = value
        settings = meant | kept
        if group == "data" and version < 3 and settings.get("name") != "images":
            settings["channels"] = None  # 3 stood there for all data, and meant nothing
    return cls.from_dict(settings)


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
    return f"{key}={setting_text(value[name] if name else value)}"


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


def _hint(group: str, name: str) -> Any:
    hint = next(field.type for field in fields(_CLASSES[group]) if field.name == name)
    # In a file or on the command line an activation is a name.
    return str if (group, name) == ("network", "activation") else hint


# ------------------------------------------------------------------ settings as text

NONE = ("none", "None", "null")
"""As `--set` says it, as Python and the meanings of settings do, and as config.json does."""


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
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
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
    if NoneType in options and (value is None or value in NONE):
        return None
    # A single number will do as a list of one, and names need no quotes: opening,blocks.
    items = _listed(value) if isinstance(value, str) else [value]
    for candidate in (value, items):
        for option in options:
            converted = _convert_one(candidate, option)
            if converted is not _NO:
                return converted
    wanted = " or ".join(_describe(option) for option in options if option is not NoneType)
    raise ConfigError(f"{key} must be {wanted}, found {quoted(value)}")


def _listed(text: str) -> list[str]:
    """The words of a,b or [a,b]."""
    inner = text[1:-1]
    if text != f"[{inner}]" or "[" in inner or "]" in inner:  # those of names such as [a],[b]
        inner = text
    return [part.strip() for part in inner.split(",")]


_NO = object()


def _convert_one(value: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        if not isinstance(value, list | tuple):
            return _NO
        # Groups may be called by numbers or days, and need no quotes for that.
        named = item is str and all(type(entry) in (int, date, str) for entry in value)
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
