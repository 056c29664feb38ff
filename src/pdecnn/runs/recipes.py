"""The paper's runs, and those on digits and data of one's own, as complete configs (Sec. 5)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
_PAPER_DYNAMICS = tuple(TUNED_NETWORKS)


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What the runs of one kind share, whatever the dynamics of their network."""

    data: DataConfig
    training: TrainingConfig
    task: str = "classification"
    dynamics: tuple[str, ...] = tuple(DYNAMICS)
    model: str | None = None
    """What follows the dynamics in the name of the model; None: as in that of the recipe."""
    network: dict[str, Any] = field(default_factory=dict)
    """What differs from that model."""


def _muon_alone(epochs: int, batch_size: int, rate: float, **others: Any) -> TrainingConfig:
    """Muon with shortened gradients, without the paper's regulariser and box."""
    return TrainingConfig(
        epochs=epochs,
        batch_size=batch_size,
        learning_rates=(rate,),
        **{"warmup": 0.02, **others},
        optimizer="muon",
        schedule="cosine",
        clip_norm=1.0,
        smoothness_weight=0.0,
        decay_weight=0.0,
        box="none",
    )


def _margins(
    epochs: int,
    batch_size: int,
    rate: float = 4e-3,
    *,
    offset: float = 0.4,
    temperature: float = 0.25,
) -> TrainingConfig:
    """Training for margins: scores of the label ahead of the others by `offset`.

    Without smoothness or decay in the objective: stable steps are the same for any multiple of
    their weights, so that neither would bound anything.
    """
    return TrainingConfig(
        epochs=epochs,
        batch_size=batch_size,
        learning_rates=(rate,),
        margin_offset=offset,
        temperature=temperature,
        optimizer="adamw",
        betas=(0.9, 0.99),
        schedule="linear",
        warmup=0.05,
        smoothness_weight=0.0,
        decay_weight=0.0,
        box="none",
    )


def _muon(epochs: int, batch_size: int, rate: float) -> TrainingConfig:
    """As people train today."""
    return TrainingConfig(
        epochs=epochs,
        batch_size=batch_size,
        learning_rates=(rate,),
        optimizer="muon",
        weight_decay=0.11,
        decay_weight=0.0,
        smoothness_weight=0.0,
        schedule="linear",
        warmup=0.1,
        label_smoothing=0.1,
        batch_norm_statistics="reestimated",
    )


_ALL: dict[str, Any] = {"validation_fraction": 0.0}
_TODAY: dict[str, Any] = {"flip": ALTERNATE, "padding": 1 / 8, "padding_mode": "reflect"}
_DIGITS = DataConfig(name="digits", flip=False, padding=0.0)
_ALL_OF_CIFAR10 = DataConfig(name="cifar10", padding=1 / 32, standardize="mean", **_ALL)
_ARRAYS = DataConfig(name="arrays", flip=False, standardize="dataset")
_BOUNDED_ARRAYS = replace(_ARRAYS, standardize="mean")
# Any names and sizes: noise is added and taken away again. Some 18,000 updates from 400 images, by
# Muon: after 2,450 it was 0.8 dB ahead of AdamW.
_DENOISING = _Recipe(
    DataConfig(
        name="pictures",
        channels=1,
        patch=48,
        repeats=128,
        noise=25.0,
        standardize="none",
        validation_fraction=0.1,
    ),
    _muon_alone(25, 64, 2e-3),
    task="regression",
    dynamics=_PAPER_DYNAMICS,
)
# A class for each pixel: mirrored left to right, as photographs may be. A body is nearly its own
# mirror image from left to right too, and along no other axis.
_SEGMENTATION = _Recipe(
    DataConfig(
        name="segmented",
        patch=128,
        repeats=8,
        flip="left_right",
        turn=10.0,
        zoom=0.2,
        intensity=0.2,
        validation_fraction=0.1,
    ),
    _muon_alone(20, 8, 2e-3),
    task="segmentation",
    dynamics=_PAPER_DYNAMICS,
)
_KINDS = {
    # Two minutes on a laptop: 8 x 8 pixels are too few to flip or crop.
    "digits": _Recipe(_DIGITS, TrainingConfig(epochs=20, batch_size=32, num_threads=1)),
    # Smoothness and decay as in the authors' code. The paper prints the two weights exchanged: set
    # training.smoothness_weight=4e-4 and training.decay_weight=1e-4 for those.
    "stl10": _Recipe(
        DataConfig(name="stl10"), TrainingConfig(smoothness_weight=1e-4, decay_weight=4e-4)
    ),
    "cifar10": _Recipe(DataConfig(name="cifar10"), TrainingConfig()),
    # Longer, with two more rates.
    "cifar100": _Recipe(
        DataConfig(name="cifar100"),
        TrainingConfig(
            epochs=200,
            learning_rates=(0.1, 0.02, 0.004, 0.0008, 0.00016),
            phases=(60, 40, 40, 40, 20),
        ),
    ),
    "images": _Recipe(DataConfig(name="images", size=64), TrainingConfig(epochs=30, batch_size=32)),
    # Shifted along each axis at random, not mirrored: a signal reversed may be of another class.
    "signals": _Recipe(_ARRAYS, TrainingConfig(epochs=15, batch_size=16)),
    "volumes": _Recipe(_ARRAYS, TrainingConfig(epochs=15, batch_size=16)),
    # CIFAR-10 as people train today, the others by analogy: in small batches where there are few
    # images, by validation where there may be validation images of one's own.
    "cifar10_tuned": _Recipe(
        DataConfig(name="cifar10", **_ALL, **_TODAY),
        _muon(100, 250, 9.3e-3),
        dynamics=_PAPER_DYNAMICS,
    ),
    "cifar100_tuned": _Recipe(
        DataConfig(name="cifar100", **_ALL, **_TODAY),
        _muon(200, 250, 9.3e-3),
        dynamics=_PAPER_DYNAMICS,
    ),
    "stl10_tuned": _Recipe(
        DataConfig(name="stl10", **_ALL, **_TODAY), _muon(200, 100, 5e-3), dynamics=_PAPER_DYNAMICS
    ),
    "images_tuned": _Recipe(
        DataConfig(name="images", size=64, **_TODAY), _muon(30, 32, 3e-3), dynamics=_PAPER_DYNAMICS
    ),
    # Certified networks, on all images there are; radii of data of one's own are in its units.
    "stable_digits": _Recipe(
        replace(_DIGITS, standardize="mean", **_ALL),
        replace(_margins(80, 32, 4e-2, offset=0.3, temperature=0.15), num_threads=1),
        dynamics=("parabolic",),
    ),
    "stable_cifar10": _Recipe(_ALL_OF_CIFAR10, _margins(250, 512), dynamics=("parabolic",)),
    "stable_large_cifar10": _Recipe(_ALL_OF_CIFAR10, _margins(250, 512), dynamics=("parabolic",)),
    "stable_images": _Recipe(
        DataConfig(name="images", size=64, padding=1 / 64, standardize="mean"),
        _margins(30, 32),
        dynamics=("parabolic",),
    ),
    "stable_signals": _Recipe(_BOUNDED_ARRAYS, _margins(15, 16), dynamics=("parabolic",)),
    "stable_volumes": _Recipe(_BOUNDED_ARRAYS, _margins(15, 16), dynamics=("parabolic",)),
    "denoising": _DENOISING,
    # Without skip: no distance between two images grows on the way through it.
    "stable_denoising": replace(_DENOISING, dynamics=("parabolic",)),
    # From the raw wave: at other speeds and times, with noise.
    "sounds": _Recipe(
        DataConfig(
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
        _muon_alone(50, 64, 4e-3, warmup=0.05, weight_decay=0.05, label_smoothing=0.1),
        dynamics=_PAPER_DYNAMICS,
    ),
    "segmentation": _SEGMENTATION,
    # In units of their own: each is standardised.
    "segmentation_volumes": replace(
        _SEGMENTATION, data=replace(_SEGMENTATION.data, patch=40, zoom=0.1, intensity=0.1)
    ),
    # To watch in the explorer: many small steps with constant weights. As the equations have it,
    # without normalisation and with an odd activation, so that heat is seen to spread and waves to
    # travel and return.
    "large_digits": _Recipe(
        replace(_DIGITS, size=32),
        _muon_alone(6, 32, 1e-2, warmup=0.05, num_threads=1),
        dynamics=_PAPER_DYNAMICS,
        model="digits",
        network={
            "channels": (8, 16, 32),
            "num_steps": (12, 6),
            "step_size": 0.25,
            "activation": "tanh",
            "normalization": "none",
            "share_weights": True,
        },
    ),
}
# The same epochs and rates, these shares of them on each level. The digits have more steps on each:
# at 4 x 4 pixels there is little left to learn from. CIFAR goes on for a while at the first rate.
_LEVELS: dict[str, dict[str, Any]] = {
    "digits": {"level_epochs": (40, 40, 20), "level_steps": (2, 4, 8)},
    "stl10": {"level_epochs": (30, 30, 40), "level_sizes": (24, 48, 96)},
    "cifar10": {"level_epochs": (50, 50), "level_sizes": (16, 32)},
    "cifar100": {"level_epochs": (50, 50), "level_sizes": (16, 32)},
}
for _name, _levels in _LEVELS.items():
    _plain = _KINDS[_name]
    _KINDS[f"{_name}_multilevel"] = replace(
        _plain,
        training=replace(_plain.training, **_levels),
        model=_name,
        network={"num_steps": 8, "step_size": 0.125} if "level_steps" in _levels else {},
    )

RECIPES = {
    f"{dynamics}_{kind}": (dynamics, kind) for kind in _KINDS for dynamics in _KINDS[kind].dynamics
}


def list_recipes(pattern: str = "*") -> list[str]:
    """The names of recipes that match a shell pattern."""
    return sorted(name for name in RECIPES if fnmatch(name, pattern))


def recipe(name: str) -> RunConfig:
    """The config of a recipe."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    dynamics, kind = RECIPES[name]
    found = _KINDS[kind]
    network = model_config(f"{dynamics}_{found.model or kind}")
    return RunConfig(
        recipe=name,
        task=TaskConfig(name=found.task),
        network=replace(network, **found.network),
        data=found.data,
        training=found.training,
    )


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
            f"{said}; no recipe reads what lies there: it is neither a folder of images nor one of "
            f"sounds, nor arrays x and y ({KINDS}), nor a data set of the paper as published"
        )
    return f"{said}; name one that does: {', '.join(fitting)}{remark}"


def _reads(config: RunConfig, found: dict[str, int]) -> bool:
    is_single = config.training.num_levels == 1
    return is_single and found.get(config.data.name) == config.network.dimension


def _base(name: str | None) -> tuple[RunConfig, dict[str, Any]]:
    if name is not None and name not in list_recipes() and is_run(Path(name)):
        raise ConfigError(
            f"{name} is a run, not a recipe; go on with it by `pdecnn train --output {name} "
            f"--resume`, or start from its weights with `pdecnn train RECIPE --from {name}`"
        )
    if name is None or not name.endswith(".toml"):
        return recipe(name or DEFAULT_RECIPE), {}
    settings = read_settings(Path(name))
    return recipe(str(settings.pop("recipe", DEFAULT_RECIPE))), settings
