"""The paper's runs, and those on digits and data of one's own, as complete configs (Sec. 5)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pdecnn.data.arrays import KINDS
from pdecnn.data.augmentation import ALTERNATE
from pdecnn.data.registry import needs_folder, recognize
from pdecnn.errors import ConfigError, unknown_name
from pdecnn.learning.tasks import TaskConfig
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.registry import DYNAMICS, TUNED_NETWORKS, model_config
from pdecnn.runs.config import DataConfig, RunConfig, parse_assignment, read_settings
from pdecnn.runs.runs import Run, is_run, newest_folder

DEFAULT_RECIPE = "hamiltonian_digits"


def digits(dynamics: str) -> RunConfig:
    """Two minutes on a laptop: the 8x8 digits, too small to flip or crop."""
    name = f"{dynamics}_digits"
    return RunConfig(
        recipe=name,
        network=model_config(name),
        data=DataConfig(name="digits", flip=False, padding=0.0),
        training=TrainingConfig(epochs=20, batch_size=32, num_threads=1),
    )


def large_digits(dynamics: str) -> RunConfig:
    """To watch in the explorer: digits of 32 x 32 pixels, many small steps, constant weights.

    As the equations have it, without normalisation and with an odd activation, so that heat is
    seen to spread and waves to travel and return.
    """
    small = digits(dynamics)
    network = replace(
        small.network,
        channels=(8, 16, 32),
        num_steps=(12, 6),
        step_size=0.25,
        activation="tanh",
        normalization="none",
        share_weights=True,
    )
    training = _muon_alone(6, batch_size=32, rate=1e-2, warmup=0.05)
    return RunConfig(
        recipe=f"{dynamics}_large_digits",
        network=network,
        data=replace(small.data, size=32),
        training=replace(training, num_threads=1),
    )


def stl10(dynamics: str) -> RunConfig:
    """The STL-10 column of Table 1; smoothness and decay as in the authors' code.

    The paper prints the two weights exchanged: set training.smoothness_weight=4e-4 and
    training.decay_weight=1e-4 for those.
    """
    name = f"{dynamics}_stl10"
    return RunConfig(
        recipe=name,
        network=model_config(name),
        data=DataConfig(name="stl10"),
        training=TrainingConfig(smoothness_weight=1e-4, decay_weight=4e-4),
    )


def cifar10(dynamics: str) -> RunConfig:
    """The CIFAR-10 column of Table 1."""
    name = f"{dynamics}_cifar10"
    return RunConfig(
        recipe=name,
        network=model_config(name),
        data=DataConfig(name="cifar10"),
        training=TrainingConfig(),
    )


def cifar100(dynamics: str) -> RunConfig:
    """The CIFAR-100 column of Table 1: longer, with two more rates."""
    name = f"{dynamics}_cifar100"
    return RunConfig(
        recipe=name,
        network=model_config(name),
        data=DataConfig(name="cifar100"),
        training=TrainingConfig(
            epochs=200,
            learning_rates=(0.1, 0.02, 0.004, 0.0008, 0.00016),
            phases=(60, 40, 40, 40, 20),
        ),
    )


def images(dynamics: str) -> RunConfig:
    """A folder of images of one's own, one subfolder a class."""
    name = f"{dynamics}_images"
    return RunConfig(
        recipe=name,
        network=model_config(name),
        data=DataConfig(name="images", size=64),
        training=TrainingConfig(epochs=30, batch_size=32),
    )


def signals(dynamics: str) -> RunConfig:
    """Signals of one's own: shifted in time at random, not reversed, which may change a class."""
    return _arrays(f"{dynamics}_signals")


def volumes(dynamics: str) -> RunConfig:
    """Volumes or videos of one's own: shifted along each axis at random, not mirrored."""
    return _arrays(f"{dynamics}_volumes")


def _arrays(name: str) -> RunConfig:
    return RunConfig(
        recipe=name,
        network=model_config(name),
        data=DataConfig(name="arrays", flip=False, standardize="dataset"),
        training=TrainingConfig(epochs=15, batch_size=16),
    )


def stable_digits(dynamics: str) -> RunConfig:
    """A certified network for the digits in the demo's two minutes."""
    return _stable(
        f"{dynamics}_stable_digits",
        DataConfig(
            name="digits", validation_fraction=0, flip=False, padding=0.0, standardize="mean"
        ),
        _margins(80, batch_size=32, rate=4e-2, offset=0.3, temperature=0.15, num_threads=1),
    )


def stable_cifar10(dynamics: str) -> RunConfig:
    """A certified network of at most 503,000 weights, on all 50,000 images."""
    return _stable(f"{dynamics}_stable_cifar10", _ALL_OF_CIFAR10, _margins(250, batch_size=512))


def stable_large_cifar10(dynamics: str) -> RunConfig:
    """A certified network of at most 1,600,000 weights, on all 50,000 images."""
    name = f"{dynamics}_stable_large_cifar10"
    return _stable(name, _ALL_OF_CIFAR10, _margins(250, batch_size=512))


def stable_images(dynamics: str) -> RunConfig:
    """A certified network for a folder of images of one's own."""
    data = DataConfig(name="images", size=64, padding=1 / 64, standardize="mean")
    return _stable(f"{dynamics}_stable_images", data, _margins(30, batch_size=32))


def stable_signals(dynamics: str) -> RunConfig:
    """A certified network for signals of one's own; radii are in the data's units."""
    return _stable(f"{dynamics}_stable_signals", _ARRAYS, _margins(15, batch_size=16))


def stable_volumes(dynamics: str) -> RunConfig:
    """A certified network for volumes or videos of one's own; radii are in the data's units."""
    return _stable(f"{dynamics}_stable_volumes", _ARRAYS, _margins(15, batch_size=16))


def denoising(dynamics: str) -> RunConfig:
    """A folder of images of one's own, any names and sizes: noise is added and taken away again.

    Some 9,000 updates from 400 images, by Muon: after 2,450 it was 0.8 dB ahead of AdamW.
    """
    name = f"{dynamics}_denoising"
    return RunConfig(
        recipe=name,
        task=TaskConfig(name="regression"),
        network=model_config(name),
        data=DataConfig(
            name="pictures",
            channels=1,
            patch=48,
            repeats=128,
            noise=25.0,
            standardize="none",
            validation_fraction=0.1,
        ),
        training=_muon_alone(25, batch_size=128, rate=2e-3),
    )


def stable_denoising(dynamics: str) -> RunConfig:
    """The same without skip: no distance between two images grows on the way through it."""
    return denoising(f"{dynamics}_stable")


def sounds(dynamics: str) -> RunConfig:
    """Sound files of one's own, from the raw wave: at other speeds and times, with noise."""
    name = f"{dynamics}_sounds"
    return RunConfig(
        recipe=name,
        network=model_config(name),
        data=DataConfig(
            name="sounds",
            seconds=1.0,
            rate=8000,
            emphasis=0.95,
            flip=False,
            speed=(0.75, 1.35),
            gain=6.0,
            colour=0.3,
            hiss=0.3,
        ),
        training=_muon_alone(
            50, batch_size=64, rate=4e-3, warmup=0.05, weight_decay=0.05, label_smoothing=0.1
        ),
    )


def segmentation(dynamics: str) -> RunConfig:
    """Images with a class for each pixel: mirrored left to right, as photographs may be."""
    data = DataConfig(
        name="segmented",
        patch=128,
        repeats=8,
        flip="left_right",
        turn=10.0,
        zoom=0.2,
        intensity=0.2,
        validation_fraction=0.1,
    )
    return _segmenter(f"{dynamics}_segmentation", data)


def segmentation_volumes(dynamics: str) -> RunConfig:
    """Volumes with a class for each voxel, in units of their own: each is standardised.

    A body is nearly its own mirror image from left to right, and along no other axis.
    """
    data = DataConfig(
        name="segmented",
        patch=40,
        repeats=8,
        flip="left_right",
        turn=10.0,
        zoom=0.1,
        intensity=0.1,
        validation_fraction=0.1,
    )
    return _segmenter(f"{dynamics}_segmentation_volumes", data)


def _segmenter(name: str, data: DataConfig) -> RunConfig:
    return RunConfig(
        recipe=name,
        task=TaskConfig(name="segmentation"),
        network=model_config(name),
        data=data,
        training=_muon_alone(20, batch_size=8, rate=2e-3),
    )


def _muon_alone(
    epochs: int,
    *,
    batch_size: int,
    rate: float,
    warmup: float = 0.02,
    weight_decay: float = 0.0,
    label_smoothing: float = 0.0,
) -> TrainingConfig:
    """Muon with shortened gradients, without the paper's regulariser and box."""
    return TrainingConfig(
        epochs=epochs,
        batch_size=batch_size,
        optimizer="muon",
        learning_rates=(rate,),
        schedule="cosine",
        warmup=warmup,
        clip_norm=1.0,
        smoothness_weight=0.0,
        decay_weight=0.0,
        box="none",
        weight_decay=weight_decay,
        label_smoothing=label_smoothing,
    )


_ALL_OF_CIFAR10 = DataConfig(
    name="cifar10", padding=1 / 32, standardize="mean", validation_fraction=0.0
)
_ARRAYS = DataConfig(name="arrays", flip=False, standardize="mean")


def _stable(name: str, data: DataConfig, training: TrainingConfig) -> RunConfig:
    return RunConfig(recipe=name, network=model_config(name), data=data, training=training)


def _margins(
    epochs: int,
    *,
    batch_size: int,
    rate: float = 4e-3,
    offset: float = 0.4,
    temperature: float = 0.25,
    num_threads: int | None = None,
) -> TrainingConfig:
    """Training for margins: scores of the label ahead of the others by `offset`.

    Without smoothness or decay in the objective: stable steps are the same for any multiple of
    their weights, so that neither would bound anything.
    """
    return TrainingConfig(
        epochs=epochs,
        batch_size=batch_size,
        num_threads=num_threads,
        optimizer="adamw",
        betas=(0.9, 0.99),
        learning_rates=(rate,),
        schedule="linear",
        warmup=0.05,
        margin_offset=offset,
        temperature=temperature,
        smoothness_weight=0.0,
        decay_weight=0.0,
        box="none",
    )


def cifar10_tuned(dynamics: str) -> RunConfig:
    """CIFAR-10 as people train today, on all 50,000 images."""
    return _tuned(dynamics, _on_all_images("cifar10"), _muon(100, batch_size=250, rate=9.3e-3))


def cifar100_tuned(dynamics: str) -> RunConfig:
    """CIFAR-100 by analogy with CIFAR-10, for twice as long."""
    return _tuned(dynamics, _on_all_images("cifar100"), _muon(200, batch_size=250, rate=9.3e-3))


def stl10_tuned(dynamics: str) -> RunConfig:
    """STL-10 by analogy with CIFAR-10, in small batches: it has 5,000 training images."""
    data = _on_all_images("stl10")
    return _tuned(dynamics, data, _muon(200, batch_size=100, rate=5e-3))


def images_tuned(dynamics: str) -> RunConfig:
    """A folder of images of one's own by analogy with CIFAR-10, the best epoch by validation."""
    data = DataConfig(name="images", size=64, **_TODAY)
    return _tuned(dynamics, data, _muon(30, batch_size=32, rate=3e-3))


def _tuned(dynamics: str, data: DataConfig, training: TrainingConfig) -> RunConfig:
    name = f"{dynamics}_{data.name}_tuned"
    return RunConfig(recipe=name, network=model_config(name), data=data, training=training)


_TODAY: dict[str, Any] = {"flip": ALTERNATE, "padding": 1 / 8, "padding_mode": "reflect"}


def _on_all_images(name: str) -> DataConfig:
    return DataConfig(name=name, validation_fraction=0.0, **_TODAY)


def _muon(epochs: int, *, batch_size: int, rate: float) -> TrainingConfig:
    return TrainingConfig(
        epochs=epochs,
        batch_size=batch_size,
        optimizer="muon",
        learning_rates=(rate,),
        weight_decay=0.11,
        decay_weight=0.0,
        smoothness_weight=0.0,
        schedule="linear",
        warmup=0.1,
        label_smoothing=0.1,
        batch_norm_statistics="reestimated",
    )


def digits_multilevel(dynamics: str) -> RunConfig:
    """The digits with 2, then 4, then 8 steps: at 4x4 pixels there is little left to learn from."""
    config = digits(dynamics)
    network = replace(config.network, num_steps=8, step_size=0.125)
    return _in_levels(replace(config, network=network), (40, 40, 20), steps=(2, 4, 8))


def stl10_multilevel(dynamics: str) -> RunConfig:
    """STL-10 from 24x24 to 48x48 to 96x96 pixels."""
    return _in_levels(stl10(dynamics), (30, 30, 40), sizes=(24, 48, 96))


def cifar10_multilevel(dynamics: str) -> RunConfig:
    """CIFAR-10 from 16x16 to 32x32 pixels, where it goes on for a while at the first rate."""
    return _in_levels(cifar10(dynamics), (50, 50), sizes=(16, 32))


def cifar100_multilevel(dynamics: str) -> RunConfig:
    """CIFAR-100 from 16x16 to 32x32 pixels."""
    return _in_levels(cifar100(dynamics), (50, 50), sizes=(16, 32))


def _in_levels(
    config: RunConfig,
    epochs: tuple[float, ...],
    *,
    sizes: tuple[int, ...] | None = None,
    steps: tuple[int, ...] | None = None,
) -> RunConfig:
    """The recipe with the same epochs and rates, these shares of them on each level."""
    training = replace(config.training, level_epochs=epochs, level_sizes=sizes, level_steps=steps)
    return replace(config, recipe=f"{config.recipe}_multilevel", training=training)


RECIPES: dict[str, tuple[Callable[[str], RunConfig], str]] = {
    f"{dynamics}_{function.__name__}": (function, dynamics)
    for function in (
        digits,
        stl10,
        cifar10,
        cifar100,
        images,
        signals,
        volumes,
        digits_multilevel,
        stl10_multilevel,
        cifar10_multilevel,
        cifar100_multilevel,
    )
    for dynamics in DYNAMICS
}
RECIPES |= {
    f"{dynamics}_{function.__name__}": (function, dynamics)
    for function in (cifar10_tuned, cifar100_tuned, stl10_tuned, images_tuned)
    for dynamics in TUNED_NETWORKS
}
RECIPES |= {
    f"parabolic_{function.__name__}": (function, "parabolic")
    for function in (
        stable_digits,
        stable_cifar10,
        stable_large_cifar10,
        stable_images,
        stable_signals,
        stable_volumes,
        stable_denoising,
    )
}
RECIPES |= {
    f"{dynamics}_{function.__name__}": (function, dynamics)
    for function in (denoising, sounds, segmentation, segmentation_volumes, large_digits)
    for dynamics in ("parabolic", "hamiltonian", "second_order")
}


def list_recipes(pattern: str = "*") -> list[str]:
    """The names of recipes that match a shell pattern."""
    return sorted(name for name in RECIPES if fnmatch(name, pattern))


def recipe(name: str) -> RunConfig:
    """The config of a recipe."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    function, dynamics = RECIPES[name]
    return function(dynamics)


# ------------------------------------------------------------------ which run is meant


def resolve_run(
    name: str | None,
    *,
    output: Path | None = None,
    data: Path | None = None,
    seed: int | None = None,
    freeze: Sequence[str] = (),
    deterministic: bool = False,
    assignments: list[str],
    resume: bool = False,
) -> tuple[RunConfig, Path | None]:
    """The config and the folder of a run from what was said on the command line.

    When a run is resumed what was not said again is taken from the run itself.
    """
    base, settings = _base(name)
    if resume and output is None:
        output = newest_folder(base.recipe)
    if resume and output is not None and is_run(output):
        stored = Run(output).config
        if name is not None and stored.recipe != base.recipe:
            raise ConfigError(
                f"{output} is a run of {stored.recipe}, not of {base.recipe}; leave the recipe "
                f"out to resume it"
            )
        base = stored
    settings |= dict(parse_assignment(text) for text in assignments)
    if seed is not None:
        settings["seed"] = seed
    if data is not None:
        settings["data.folder"] = str(data)
    if deterministic:
        settings["training.deterministic"] = True
    if freeze:
        settings["training.freeze"] = list(freeze)
    folder = settings.get("data.folder")
    if isinstance(folder, str) and folder != "none":  # found from any working directory later
        settings["data.folder"] = str(Path(folder).absolute())
        if "data.name" not in settings and not needs_folder(base.data.name):
            raise ConfigError(_unread(base.recipe, Path(folder)))
    return base.with_settings(settings), output


def read_recipe(name: str) -> RunConfig:
    """A recipe by name, or that of a TOML file."""
    base, settings = _base(name)
    return base.with_settings(settings)


def _unread(name: str, place: Path) -> str:
    """What to say of data for a recipe that reads none: which ones read what lies there."""
    said = ", the recipe if none is named," if name == DEFAULT_RECIPE else ""
    said = f"{name}{said} trains on digits that are built in and does not read {place}"
    found, remark = recognize(place), ""
    fitting = [one for one in list_recipes() if _reads(recipe(one), found)]
    if found == {"arrays": 2}:  # which have no recipe of their own
        fitting, remark = list_recipes("*_images*"), " with --set data.name=arrays"
    if not fitting:
        return (
            f"{said}; no recipe reads what lies there: it is neither a folder with one of images "
            f"for each class, nor sound files, nor arrays x and y ({KINDS}), nor a data set of the "
            f"paper as published"
        )
    return f"{said}; name one that does: {', '.join(fitting)}{remark}"


def _reads(config: RunConfig, found: dict[str, int]) -> bool:
    is_single = config.training.num_levels == 1
    return is_single and found.get(config.data.name) == config.network.dimension


def _base(name: str | None) -> tuple[RunConfig, dict[str, Any]]:
    if name is None or not name.endswith(".toml"):
        return recipe(name or DEFAULT_RECIPE), {}
    settings = read_settings(Path(name))
    return recipe(str(settings.pop("recipe", DEFAULT_RECIPE))), settings
