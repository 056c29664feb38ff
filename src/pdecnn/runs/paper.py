"""Which runs the tables and figures of Section 5 need, and the numbers the paper has for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch

from pdecnn.data.registry import find_dataset
from pdecnn.errors import ConfigError, DataError, unknown_name
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network
from pdecnn.networks.registry import model_config
from pdecnn.runs.config import DataConfig, RunConfig
from pdecnn.runs.recipes import recipe


class Published(NamedTuple):
    """An entry of the paper's Table 1."""

    num_weights: int
    test_accuracy: float
    test_loss: float


PUBLISHED: dict[tuple[str, str], Published] = {
    ("parabolic", "stl10"): Published(618_554, 0.770, 0.711),
    ("hamiltonian", "stl10"): Published(324_794, 0.783, 0.789),
    ("second_order", "stl10"): Published(618_554, 0.743, 0.810),
    ("parabolic", "cifar10"): Published(502_570, 0.885, 0.333),
    ("hamiltonian", "cifar10"): Published(264_106, 0.893, 0.349),
    ("second_order", "cifar10"): Published(502_570, 0.892, 0.333),
    ("parabolic", "cifar100"): Published(652_484, 0.648, 1.234),
    ("hamiltonian", "cifar100"): Published(362_180, 0.649, 1.237),
    ("second_order", "cifar100"): Published(652_484, 0.654, 1.232),
}


Dataset = Literal["stl10", "cifar10", "cifar100"]
TITLES = {"stl10": "STL-10", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
Dynamics = Literal["parabolic", "hamiltonian", "second_order", "resnet", "resnet_narrow"]
PAPER_DYNAMICS = ("parabolic", "hamiltonian", "second_order")
NARROW = "resnet_narrow"
"""The baseline with so few channels that it has as many weights as the parabolic network."""
DYNAMICS: tuple[Dynamics, ...] = get_args(Dynamics)

PERCENTAGES = (10, 20, 30, 40, 50, 60, 70, 80)
"""How much of the training images Figure 2 trains on; 20 % more are for validation."""
CONFUSION_PERCENTAGES = (10, 20, 40, 80)
"""The columns of Figure 3: as many as can be read on a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a table or figure of the paper shows."""

    datasets: tuple[str, ...]
    dynamics: tuple[str, ...] = PAPER_DYNAMICS
    percentages: tuple[int | None, ...] = (None,)
    """Amounts of training images; None: as in Table 1."""
    quick_percentages: tuple[int | None, ...] = (None,)
    most_datasets: int | None = None
    """So many of the data sets at most, the first there are; None: all."""
    all_seeds: bool = True
    """Whether it shows every seed, or the first alone."""


TargetName = Literal["table1", "figure1", "figure2", "figure3", "figure4", "all"]
TARGETS = {
    "table1": Target(datasets=tuple(TITLES), dynamics=DYNAMICS),
    "figure1": Target(datasets=("stl10", "cifar10"), most_datasets=1, all_seeds=False),
    "figure2": Target(
        datasets=("stl10",),
        percentages=(*PERCENTAGES, None),
        quick_percentages=(*CONFUSION_PERCENTAGES, None),
    ),
    "figure3": Target(
        datasets=("stl10",),
        percentages=CONFUSION_PERCENTAGES,
        quick_percentages=CONFUSION_PERCENTAGES,
    ),
    "figure4": Target(datasets=("cifar10", "cifar100")),
}

# Section 5 on the digits, in ten minutes.
QUICK_NETWORK: dict[str, Any] = {"channels": (8, 16, 16), "num_steps": 2}
QUICK_TRAINING: dict[str, Any] = {"epochs": 4, "batch_size": 32, "num_threads": 1}
NUM_SEEDS, QUICK_NUM_SEEDS = 3, 2


class Experiment(NamedTuple):
    """A network on a data set, to be trained once with every seed."""

    dynamics: str
    dataset: str
    percentage: int | None = None
    """Train on so much of the training images, without augmentation; None: as in Table 1."""

    def run_name(self, seed: int, *, quick: bool = False) -> str:
        """The folder of the run with that seed, but where it is that of an equal experiment."""
        data = f"digits-for-{self.dataset}" if quick else self.dataset
        amount = "" if self.percentage is None else f"-{self.percentage}percent"
        return f"{self.dynamics}_{data}{amount}-seed{seed}"

    @property
    def whole(self) -> "Experiment":
        """The network on all the data, as in Table 1."""
        return self._replace(percentage=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is to be rebuilt, and from which runs."""

    experiments: dict[str, tuple[Experiment, ...]]
    """For each target, in the order in which it shows them."""
    trained: dict[Experiment, Experiment]
    """For each, itself or the one of equal config whose runs it shares."""
    runs: dict[str, RunConfig]
    """All of them by the names of their folders, those with the first seed first."""
    num_seeds: int
    quick: bool
    settings: dict[str, Any]
    """What was changed in every run."""
    notes: tuple[str, ...]
    """What was left out, and why."""

    def run_names(self, target: str, one: Experiment) -> list[str]:
        """The runs by which a target shows an experiment, in the order of the seeds."""
        num_seeds = self.num_seeds if TARGETS[target].all_seeds else 1
        return [self.trained[one].run_name(seed, quick=self.quick) for seed in range(num_seeds)]

    def config(self, one: Experiment) -> RunConfig:
        """How the experiment is trained with the first seed."""
        return self.runs[self.trained[one].run_name(0, quick=self.quick)]

    def percentage(self, one: Experiment) -> float:
        """How much of the published training images it is trained on."""
        data = self.config(one).data
        return 100 * data.fraction * (1 - data.validation_fraction)


def make_plan(
    target: str,
    *,
    data: Path | None = None,
    datasets: Sequence[str] = (),
    dynamics: Sequence[str] = (),
    num_seeds: int | None = None,
    quick: bool = False,
    settings: dict[str, Any] | None = None,
) -> Plan:
    """The runs of a target or of 'all'; data that is not there is an error here already."""
    settings = settings or {}
    if num_seeds is None:
        num_seeds = QUICK_NUM_SEEDS if quick else NUM_SEEDS
    if num_seeds < 1:
        raise ConfigError(f"the number of seeds must be at least 1, found {num_seeds}")
    if quick and data is not None:
        raise ConfigError("the quick version is made from the digits; leave out --data or --quick")
    _check_names("data set", datasets, TITLES)
    _check_names("dynamics", dynamics, DYNAMICS)
    experiments, notes = _choose(target, datasets or tuple(TITLES), dynamics or DYNAMICS, quick)
    needed = dict.fromkeys(one for several in experiments.values() for one in several)
    used = {one.dataset for one in needed}
    folders = {} if quick else {name: _find(name, data) for name in TITLES if name in used}
    configs = {
        one: experiment_config(one, settings, quick=quick, folder=folders.get(one.dataset))
        for one in dict.fromkeys(several for one in needed for several in (one, one.whole))
    }
    # Whatever else is planned, so that a folder holds each run under one name.
    trained = {one: one.whole if configs[one] == configs[one.whole] else one for one in needed}
    runs = {}
    for seed in range(num_seeds):
        for name, several in experiments.items():
            for one in several if seed == 0 or TARGETS[name].all_seeds else ():
                name = trained[one].run_name(seed, quick=quick)
                runs[name] = replace(configs[one], seed=seed)
    return Plan(
        experiments=experiments,
        trained=trained,
        runs=runs,
        num_seeds=num_seeds,
        quick=quick,
        settings=settings,
        notes=notes,
    )


def _check_names(kind: str, names: Sequence[str], known: Sequence[str] | dict[str, str]) -> None:
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, known)


def _choose(
    target: str, datasets: Sequence[str], dynamics: Sequence[str], quick: bool
) -> tuple[dict[str, tuple[Experiment, ...]], tuple[str, ...]]:
    """The experiments of each target, and a note for each that nothing is left of."""
    if target != "all" and target not in TARGETS:
        raise unknown_name("target", target, [*TARGETS, "all"])
    experiments, notes = {}, []
    for name in TARGETS if target == "all" else (target,):
        chosen = tuple(_experiments(TARGETS[name], datasets, dynamics, quick))
        if chosen:
            experiments[name] = chosen
            continue
        wanted = " or ".join(TARGETS[name].datasets)
        if target != "all":
            raise ConfigError(
                f"{name} shows the paper's networks on {wanted}; nothing is left of it with "
                f"--datasets {','.join(datasets)} --dynamics {','.join(dynamics)}"
            )
        notes.append(f"{name} is left out: it shows the paper's networks on {wanted}")
    return experiments, tuple(notes)


def _experiments(
    target: Target, datasets: Sequence[str], dynamics: Sequence[str], quick: bool
) -> Iterator[Experiment]:
    names = [name for name in target.datasets if name in datasets]
    for dataset in names[: target.most_datasets]:
        for percentage in target.quick_percentages if quick else target.percentages:
            for one in target.dynamics:
                if one in dynamics:
                    yield Experiment(one, dataset, percentage)


def _find(name: str, data: Path | None) -> str:
    if data is None:
        raise DataError(
            f"{TITLES[name]} is needed; pass --data DIR with its binary version, choose others "
            f"with --datasets, or try the whole on digits with --quick"
        )
    try:
        return str(find_dataset(name, data).absolute())
    except DataError as error:
        raise DataError(f"{error}; or leave {name} out with --datasets") from error


def experiment_config(
    one: Experiment, settings: dict[str, Any], *, quick: bool = False, folder: str | None = None
) -> RunConfig:
    """How an experiment is trained with the first seed, on data in that folder."""
    narrow = one.dynamics == NARROW
    config = _base("resnet" if narrow else one.dynamics, one.dataset, quick)
    for key in ("seed", "data.name", "data.folder"):
        if key in settings:
            raise ConfigError(f"{key} cannot be set here; use --seeds, --datasets and --data")
    config = config.with_settings(settings)
    if not config.data.validation_fraction:
        raise ConfigError("data.validation_fraction=0 leaves none of the accuracies shown here")
    data = replace(config.data, folder=folder)
    if one.percentage is not None:
        # A share of what validation leaves: 80 % of the training images are all of them.
        fraction = data.fraction * one.percentage / PERCENTAGES[-1]
        data = replace(data, fraction=fraction, flip=False, padding=0.0)
    network = config.network
    if narrow:
        like = _base("parabolic", one.dataset, quick).with_settings(settings).network
        network = narrowed(network, count_weights(like))
    return replace(config, data=data, network=network)


def _base(dynamics: str, dataset: str, quick: bool) -> RunConfig:
    config = recipe(f"{dynamics}_{dataset}")
    if not quick:
        return config
    return replace(
        config,
        network=model_config(f"{dynamics}_digits", **QUICK_NETWORK),
        data=DataConfig(name="digits", flip=False, padding=0.0),
        training=replace(config.training, **QUICK_TRAINING),
    )


_FINEST = 1000  # parts of a width, so that each width is rounded on its own


@cache
def count_weights(config: NetworkConfig) -> int:
    """The number of trainable weights, without drawing any."""
    with torch.device("meta"):
        return Network(config).num_weights


def narrowed(config: NetworkConfig, num_weights: int) -> NetworkConfig:
    """The network with fewer channels, in proportion, that comes nearest to a weight count."""
    low, high = 1, _FINEST
    while high - low > 1:
        middle = (low + high) // 2
        if count_weights(_scaled(config, middle)) <= num_weights:
            low = middle
        else:
            high = middle
    candidates = (_scaled(config, low), _scaled(config, high))
    return min(candidates, key=lambda candidate: abs(count_weights(candidate) - num_weights))


def _scaled(config: NetworkConfig, parts: int) -> NetworkConfig:
    widths = tuple(max(1, round(width * parts / _FINEST)) for width in config.channels)
    return replace(config, channels=widths)
