"""Which data a run uses and what is done to them."""

import re
from dataclasses import dataclass, fields
from math import isqrt

from pdecnn.data.augmentation import ALTERNATE, Augmentation
from pdecnn.data.image_file import MAX_PIXELS
from pdecnn.data.patches import LEFT_RIGHT, AbstractPatches, LabelledPatches, NoisyPatches
from pdecnn.data.registry import DATASETS, OWN, needs_folder
from pdecnn.data.sound_file import HIGHEST_RATE
from pdecnn.data.sounds import SoundSettings
from pdecnn.errors import ConfigError, quoted
from pdecnn.networks.preprocessing import STANDARDIZATIONS
from pdecnn.settings import Settings, documented, same_setting, setting

_OF_SOUNDS = (
    "test_groups",
    "validation_groups",
    "label",
    "seconds",
    "rate",
    "emphasis",
    "speed",
    "gain",
    "colour",
    "hiss",
)
VALIDATION_FRACTION = 0.2


@documented
@dataclass(frozen=True, kw_only=True)
class DataConfig(Settings):
    """Which images a run uses and what is done to them."""

    section, prefix = "data", "data."
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
    flip: bool | str = setting(
        True,
        "Whether images are mirrored at random; 'alternate': every image in every other epoch; "
        "'left_right': along one axis only, the first of volumes and the last of images.",
        (ALTERNATE, LEFT_RIGHT),
    )
    padding: float = same_setting(Augmentation, "padding")
    padding_mode: str = same_setting(Augmentation, "padding_mode")
    cutout: int = same_setting(Augmentation, "cutout")
    trivial_augment: bool = same_setting(Augmentation, "trivial_augment")
    speed: tuple[float, ...] | None = same_setting(Augmentation, "speed")
    gain: float = same_setting(Augmentation, "gain")
    colour: float = same_setting(Augmentation, "colour")
    hiss: float = same_setting(Augmentation, "hiss")
    standardize: str = setting(
        "image", "'image', 'dataset', 'mean' or 'none'.", STANDARDIZATIONS, kind="standardization"
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
        """Refuse a size that images cannot have, and what would be ignored."""
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
        self._check_pictures()
        self._check_sounds()
        self._check_use()

    def _check_pictures(self) -> None:
        """What pictures need, and nothing else has."""
        if isinstance(self.noise, tuple) and len(self.noise) == 1:
            object.__setattr__(self, "noise", self.noise[0])
        if isinstance(self.noise, tuple) and (
            len(self.noise) != 2 or self.noise[0] > self.noise[1]
        ):
            raise ConfigError(
                f"data.noise must be one number or a range of two, such as [5, 55], found "
                f"{list(self.noise)}"
            )
        self._refuse_others_settings()
        if self.name == "segmented":
            self._check_segmented()
        if self.name != "pictures":
            return
        if not isinstance(self.patch, int) or self.noise is None:
            raise ConfigError(
                "pictures are cropped and have noise added: set data.patch and data.noise, e.g. "
                "data.patch=64 and data.noise=25"
            )
        if (
            isinstance(self.flip, str)
            or self._is_padded
            or self.cutout
            or self.trivial_augment
            or self.group is not None
        ):
            raise ConfigError(
                "pictures are cropped and flipped at random: leave out data.padding, data.cutout, "
                "data.trivial_augment and data.group, and set data.flip=true or false"
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

    def _check_sounds(self) -> None:
        """What sounds need, and nothing else has."""
        self.augmentation()  # which checks its range of speeds
        if self.name != "sounds":
            for name in _OF_SOUNDS:
                value = getattr(self, name)
                if value:
                    raise ConfigError(
                        f"data.{name} is for data.name=sounds; leave it out for {self.name!r}, "
                        f"found {list(value) if isinstance(value, tuple) else value}"
                    )
        elif self.seconds is None or self.rate is None:
            raise ConfigError(
                "sounds have one length and rate: set data.seconds and data.rate, e.g. "
                "data.seconds=1 and data.rate=16000"
            )
        elif round(self.seconds * self.rate) < 1:
            raise ConfigError(
                f"data.seconds={self.seconds:g} at data.rate={self.rate} is no sample; raise them"
            )
        elif self.size is not None or self.stream or self.pooling > 1 or self.flip:
            raise ConfigError(
                "sounds are in memory, of data.seconds at data.rate, and not played backwards: "
                "leave out data.size, data.stream and data.pooling, and set data.flip=false"
            )

    def sounds(self) -> SoundSettings | None:
        """How sounds are read; None for other data."""
        if self.name != "sounds":
            return None
        return SoundSettings(
            **{entry.name: getattr(self, entry.name) for entry in fields(SoundSettings)}
        )

    def _refuse_others_settings(self) -> None:
        """Refuse what is read of other data alone."""
        both = ("pictures", "segmented")
        for name, unused, users in (
            ("patch", None, both),
            ("noise", None, both[:1]),
            ("repeats", 1, both),
            ("turn", 0, both[1:]),
            ("zoom", 0, both[1:]),
            ("intensity", 0, both[1:]),
        ):
            if self.name not in users and getattr(self, name) != unused:
                raise ConfigError(
                    f"data.{name} is for data.name={' or '.join(users)}; leave it out for "
                    f"{self.name!r}, found {getattr(self, name)}"
                )
        if self.flip == LEFT_RIGHT and self.name != "segmented":
            raise ConfigError(
                f"data.flip={LEFT_RIGHT} is for data.name=segmented; set data.flip=true or false"
            )

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

    def patches(self, dimension: int) -> AbstractPatches | None:
        """The examples that become of images of so many axes; None for data with classes."""
        size = self.patch_size(dimension)
        if size is None:
            return None
        if self.noise_range is not None:
            return NoisyPatches(
                size=size, repeats=self.repeats, flip=bool(self.flip), noise=self.noise_range
            )
        return LabelledPatches(
            size=size,
            repeats=self.repeats,
            flip=self.flip,
            turn=self.turn,
            zoom=self.zoom,
            intensity=self.intensity,
        )

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

    def _check_use(self) -> None:
        """Refuse what would be ignored."""
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

    def augmentation(self) -> Augmentation:
        """The random changes of training images."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(Augmentation)}
        if self.flip == LEFT_RIGHT:  # which patches are, not whole images
            own["flip"] = True
        return Augmentation(**own)
