"""What a run needs before it trains: device, threads and signals; images, network and weights."""

import hashlib
import json
import logging
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, NamedTuple

import torch

from pdecnn.data.augmentation import stable_seed
from pdecnn.data.image_set import (
    ImageSet,
    StoredImages,
    balanced_fraction,
    balanced_split,
    channel_statistics,
)
from pdecnn.data.registry import OWN, read_dataset
from pdecnn.errors import CheckpointError, ConfigError, DataError, RankError
from pdecnn.learning.distributed import local_rank, num_ranks
from pdecnn.learning.tasks import AbstractTask, make_task
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.foreign import take_foreign_weights
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Pixels, Preprocessing
from pdecnn.networks.pretrained import CONFIG, refuse_nonfinite
from pdecnn.networks.pretrained import WEIGHTS as MODEL
from pdecnn.networks.registry import (
    PUBLISHED_WEIGHTS,
    list_models,
    model_config,
    published_name,
    take_weights,
)
from pdecnn.pde.convolution import SUBJECTS
from pdecnn.runs.config import VALIDATION_FRACTION, DataConfig, RunConfig
from pdecnn.runs.recipes import recipe
from pdecnn.runs.runs import Run, Weights, is_run

log = logging.getLogger(__name__)
SHOWN_IMAGES = "shown images"
"""What draws the test images that people see: the same ones for every run on a data set."""
_NUM_SAMPLED = 64
"""Images of a set on the disk that its fingerprint looks at."""
Device = Literal["auto", "cpu", "cuda", "mps"] | str
"""Also one of several, such as cuda:1."""
QUEUED = "PDECNN_QUEUED"
"""In the environment of a run of a queue: it speaks in notes alone, and ends with its input."""
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_NOT_DETERMINISTIC = "does not have a deterministic implementation"


# ------------------------------------------------------------------ the process


def resolve_device(name: str) -> torch.device:
    """The device of that name; 'auto' takes cuda, then mps, then cpu.

    With several ranks each has a GPU of its own, or all compute on the CPU.
    """
    device = _named_device(name)
    if num_ranks() == 1 or device.type == "cpu":
        return device
    if device.type == "mps" or device.index is not None:
        raise ConfigError(f"several ranks cannot share {device}; use --device cuda or cpu")
    if local_rank() >= torch.cuda.device_count():
        raise ConfigError(
            f"this machine has {torch.cuda.device_count()} GPUs for more ranks; start fewer with "
            f"--nproc-per-node, or use --device cpu"
        )
    device = torch.device("cuda", local_rank())
    torch.cuda.set_device(device)
    return device


def _named_device(name: str) -> torch.device:
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    kind = name.partition(":")[0]
    if kind not in available:
        raise ConfigError(f"unknown device {name!r} (known: auto, {', '.join(sorted(available))})")
    if not available[kind]:
        raise ConfigError(f"device {name!r} is not available here; use --device auto or cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{name!r} is no device; use e.g. cpu, cuda or cuda:1") from error


@contextmanager
def cpu_threads(number: int | None) -> Iterator[None]:
    """Let torch use so many CPU threads for a while; None leaves it as it is."""
    before = torch.get_num_threads()
    try:
        if number is not None:
            torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic_algorithms(wanted: bool, device: torch.device) -> Iterator[None]:
    """Let torch refuse what it cannot compute alike each time, if wanted; else leave it alone.

    An operation that it refuses is a ConfigError.
    """
    if not wanted:
        yield
        return
    switches = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    cudnn, workspace = torch.backends.cudnn, os.environ.get(_WORKSPACE)
    chosen = (cudnn.deterministic, cudnn.benchmark)
    try:
        torch.use_deterministic_algorithms(True)
        cudnn.deterministic, cudnn.benchmark = True, False
        if device.type == "cuda":  # cuBLAS asks for it, before it is first used
            os.environ.setdefault(_WORKSPACE, ":4096:8")
        yield
    except RuntimeError as error:
        text = str(error)
        if not any(words in text for words in (_NOT_DETERMINISTIC, _WORKSPACE)):
            raise
        reason = text.partition(", but you set")[0].partition("\n")[0]
        raise ConfigError(f"{reason}; set training.deterministic=false") from error
    finally:
        torch.use_deterministic_algorithms(switches[0], warn_only=switches[1])
        cudnn.deterministic, cudnn.benchmark = chosen
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)


def describe_environment(device: torch.device, seed: int) -> dict[str, Any]:
    """What a published figure must carry."""
    from pdecnn.version import __version__

    packages = ("torch", "numpy", "safetensors", "scikit-learn")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "pdecnn": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "hardware": {
            "system": platform.platform(),
            "processor": _processor(),
            "cpu_cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "ranks": num_ranks(),
            "device": str(device),
            "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        },
        "commit": _commit(),
        "seed": seed,
        "command": [*(Path(word).name for word in sys.argv[:1]), *sys.argv[1:]],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the repository of the package's source, with '+' where it has changes.

    An installed package has none, whatever repository its environment lies in.
    """
    top = package.parents[1]
    try:
        project = tomllib.loads((top / "pyproject.toml").read_text(encoding="utf-8"))
        if package != top / "src" / "pdecnn" or project["project"]["name"] != "pdecnn":
            return None
        # Not `git describe`, which rewrites the index of the repository.
        status = subprocess.run(
            ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "-uno"],
            cwd=top,
            env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
            | {"GIT_CEILING_DIRECTORIES": str(top.parent)},
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError):
        return None
    commit = re.search(r"^# branch\.oid ([0-9a-f]+)$", status.stdout, re.MULTILINE)
    is_changed = any(not line.startswith("#") for line in status.stdout.splitlines())
    return f"{commit[1]}{'+' * is_changed}" if commit else None


# ------------------------------------------------------------------ signals


class Interrupted(Exception):
    """A signal asked the run to stop; `exit_code` is 128 plus its number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number


class StopSignals:
    """While active, the first signal raises Interrupted: at once, or, when deferred, at `poll`.

    A second signal ends the process at once. One that comes while the loss of another rank is
    being told raises nothing.
    """

    def __init__(self) -> None:
        self.deferred = False
        self._received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        # Only the main thread may set handlers; elsewhere the caller keeps its own.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def poll(self, agree: Callable[[int], int] = int) -> None:
        """Raise Interrupted if a signal has come, or `agree` says that another rank got one."""
        number = agree(self._received or 0)
        if number:
            raise Interrupted(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._received is not None:
            os._exit(128 + number)
        self._received = number
        if not (self.deferred or is_losing_rank()):
            raise Interrupted(number)


def is_losing_rank() -> bool:
    """Whether this process is about to end, and to tell that another rank has.

    torchrun stops the ranks that are left, which must not silence the one that knows why.
    """
    error = sys.exception()
    while error is not None and not isinstance(error, RankError):
        error = error.__context__
    return error is not None


def end_with_input() -> None:
    """Ask this process to stop when its input ends: its queue stops it, or was killed."""

    def wait() -> None:
        # Not through sys.stdin, whose lock would be missed when the interpreter ends.
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


# ------------------------------------------------------------------ images and network


class Splits(NamedTuple):
    """The images of a run."""

    train: ImageSet
    validation: ImageSet | None
    """None: all training images are trained on."""
    test: ImageSet

    def fingerprint(self) -> str:
        """The SHA-256 of classes, labels and images; of images on the disk, of some of them."""
        digest = hashlib.sha256()
        for part in (part for part in self if part is not None):
            digest.update(repr((tuple(part.images.shape), part.class_names)).encode())
            if part.sizes is not None:
                digest.update(repr(part.sizes.tolist()).encode())
            images = part.images
            if isinstance(images, StoredImages):
                images = images[_sampled(len(images))]
            masks = () if part.masks is None else (part.masks,)
            for tensor in (part.labels, images, *masks):
                digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def check_same(self, fingerprint: str) -> None:
        """Refuse other data than that of rank 0."""
        if self.fingerprint() != fingerprint:
            raise DataError(
                "this rank reads other data than rank 0; give every machine the same --data"
            )


def _sampled(number: int) -> torch.Tensor:
    """Places spread over so many."""
    return torch.linspace(0, number - 1, _NUM_SAMPLED, dtype=torch.float64).long()


def read_splits(config: DataConfig, seed: int, arrays: Mapping[str, Any] | None = None) -> Splits:
    """Read the data and split it, class-balanced, as the seed says.

    `arrays` are the data itself, by name, where it is in memory.
    """
    data = read_dataset(
        config.name,
        config.folder if arrays is None else arrays,
        channels=config.channels,
        size=config.size,
        stream=config.stream,
        group=config.group,
        sounds=config.sounds(),
    )
    train, validation = data.train, data.validation
    if validation is None and config.validation_fraction > 0:
        kept, held_out = balanced_split(
            train.labels, config.validation_fraction, seed=seed, groups=train.groups
        )
        train, validation = train.subset(kept), train.subset(held_out)
    elif validation is not None and config.validation_fraction != VALIDATION_FRACTION:
        raise ConfigError(
            f"the data has validation samples of its own; leave out data.validation_fraction, "
            f"found {config.validation_fraction}"
        )
    if config.fraction < 1:
        train = train.subset(balanced_fraction(train.labels, config.fraction, seed=seed))
    return Splits(train, validation, data.test)


_WIDTHS = ("channels", "num_steps", "step_size")


def read_own(
    config: RunConfig, arrays: Mapping[str, Any] | None = None
) -> tuple[RunConfig, Splits | None]:
    """The config with what weights and data say of its network, and data of one's own.

    Other data is as the recipe expects it, and not read for that: None.
    """
    if config.data.name not in OWN:
        return fit_network(config), None
    splits = read_splits(config.data, config.seed, arrays)
    if config.data.name in ("images", "pictures", "segmented") and config.data.channels is None:
        taken, found = _channels_of(config.initial), splits.train.channels
        channels = taken if {taken, found} == {1, 3} else found
        config = replace(config, data=replace(config.data, channels=channels))
        if channels != found:  # grey images for weights that take colours, or the other way round
            how = "grey" if taken == 1 else "in colour"
            log.info("images are read %s, as the weights of %s take them", how, config.initial)
            splits = read_splits(config.data, config.seed)
    return fit_network(config, splits.train), splits


def fit_network(config: RunConfig, train: ImageSet | None = None) -> RunConfig:
    """The config with the widths and steps of published weights, and with the channels, classes and
    size of the images, in its network.

    What was set to something else than in the recipe stays; `make_network` and `take_weights`
    compare it.
    """
    usual, network = recipe(config.recipe).network, config.network
    taken: dict[str, Any] = {}
    if config.initial in list_models(pretrained=True):
        published = model_config(config.initial)
        taken = {name: getattr(published, name) for name in _WIDTHS}
    if train is not None:
        taken["in_channels"] = train.channels
        taken["num_classes"] = make_run_task(config).num_outputs(train)
        if network.certified_size is not None and train.sizes is None:
            side, pooling = config.data.size, config.data.pooling
            size = train.size if side is None else (side,) * train.dimension
            taken["certified_size"] = tuple(n // pooling for n in size)
    taken = {k: value for k, value in taken.items() if getattr(network, k) == getattr(usual, k)}
    return replace(config, network=replace(network, **taken)) if taken else config


def _channels_of(initial: str | None) -> int | None:
    """How many channels the weights take that a run begins with, where that can be told."""
    if initial is None:
        return None
    if initial in list_models(pretrained=True):
        return model_config(initial).in_channels
    try:  # of a run as of a save_pretrained folder; what is wrong with it is said when it is read
        values = json.loads((Path(initial) / CONFIG).read_bytes())
        return int(values["network"]["in_channels"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def make_run_task(config: RunConfig, *, noise: float | None = None) -> AbstractTask:
    """What a run is trained for; measured with another `noise` than it was trained with if said."""
    levels = config.data.noise_range if noise is None else (noise, noise)
    return make_task(config.task, noise=levels)


def refuse_without_classes(run: object, config: RunConfig) -> None:
    """Refuse a run whose samples have no classes where those are needed."""
    if not make_run_task(config).has_classes:
        raise ConfigError(
            f"{run} has an answer for each pixel, and this needs a class for each image; use "
            f"`pdecnn evaluate {run}`, or `pdecnn predict {run} FILE --output DIR`"
        )


def make_network(config: RunConfig, train: ImageSet) -> Network:
    """A fresh network for the first level, its weights drawn from the seed alone."""
    network = config.network
    num_outputs = make_run_task(config).num_outputs(train)
    if train.channels != network.in_channels or num_outputs != network.num_classes:
        raise ConfigError(
            f"the data has {train.channels} channels and {num_outputs} classes, the network "
            f"{network.in_channels} and {network.num_classes}; set network.in_channels and "
            f"network.num_classes"
        )
    if len(train.size) != network.dimension:
        remedy = (
            "set network.dimension, or give arrays without channels an axis of 1 after the first"
        )
        if train.masks is not None:
            remedy = "take a recipe *_segmentation for images, *_segmentation_volumes for volumes"
        raise ConfigError(
            f"the data has {len(train.size)} dimensions after samples and channels, the network "
            f"{network.dimension}; {remedy}"
        )
    preprocessing = make_preprocessing(config.data, train)
    own_size = config.data.patch_size(len(train.size)) or train.size
    last_size = tuple(n // preprocessing.pooling for n in preprocessing.size or own_size)
    network, preprocessing = config.training.first_level(network, preprocessing, last_size)
    size = tuple(n // preprocessing.pooling for n in preprocessing.size or own_size)
    if min(size) < network.smallest_size:
        kinds = {"sounds": "data.seconds", "pictures": "data.patch", "segmented": "data.patch"}
        larger = kinds.get(config.data.name, "data.size")
        raise ConfigError(
            f"{config.subject}s of size {size} are too small for {network.num_blocks} blocks, "
            f"which need {network.smallest_size}; raise {larger} or training.level_sizes, or "
            f"shorten network.channels"
        )
    _check_certified_size(network, size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stable_seed(config.seed, "weights"))
        return Network(network, preprocessing)


def _check_certified_size(network: NetworkConfig, size: tuple[int, ...]) -> None:
    """Refuse images for which the steps would not be stable, or the classifier has no weights."""
    certified = network.certified_size
    if certified is None:
        return
    larger = any(n > most for n, most in zip(size, certified, strict=True))
    ends = replace(network, certified_size=size).block_sizes[-1], network.block_sizes[-1]
    if larger or (network.classifier == "flat_unit_rows" and ends[0] != ends[1]):
        raise ConfigError(
            f"{SUBJECTS[len(size)]}s of size {size} do not fit network.certified_size={certified}; "
            f"set network.certified_size={list(size)}, or data.size"
        )


def make_preprocessing(config: DataConfig, train: ImageSet) -> Preprocessing:
    """What stands in the network's config.json; mean and std are those of the training images."""
    mean = std = None
    if config.standardize in ("dataset", "mean"):
        mean, std = channel_statistics(train)
    if config.standardize == "mean":
        std = None
    pixels: Pixels = "uint8" if train.dtype == torch.uint8 else "float32"
    if train.sizes is not None:  # pictures, which stay as large as they are
        return Preprocessing(
            standardize=config.standardize,
            pooling=config.pooling,
            class_names=None if train.masks is None else train.class_names,
            pixels=pixels,
        )
    dimensions = len(train.size)
    return Preprocessing(
        standardize=config.standardize,
        mean=mean,
        std=std,
        size=train.size if config.size is None else (config.size,) * dimensions,
        pooling=config.pooling,
        emphasis=config.emphasis,
        rate=config.rate,
        class_names=train.class_names,
        pixels=pixels,
    )


# ------------------------------------------------------------------ weights


def load(path: str | Path | Run, weights: Weights = "best") -> Network:
    """The trained network of a run directory or `save_pretrained` folder, in evaluation mode.

    The name of a model with published weights will do where no path is called so.
    """
    path = os.fspath(path)
    if published_name(path) is None and os.path.isfile(Path(path) / MODEL):
        return Network.from_pretrained(path).eval()
    return read_weights(open_run(path), weights).eval()


class PublishedRun(Run):
    """The published weights of a model in the place of a run; its config is the recipe's."""

    def __init__(self, name: str) -> None:
        super().__init__(name, elsewhere=True)

    @cached_property
    def config(self) -> RunConfig:
        """That of the recipe of the same name."""
        return recipe(str(self.folder))

    def weights(self, which: Weights = "best") -> Path:
        """Where they are."""
        if which != "best":
            raise ConfigError(f"{self.folder} has its published weights only; leave out --weights")
        return PUBLISHED_WEIGHTS / self.folder


def open_run(run: str | Path | Run) -> Run:
    """The run itself, that of a folder, or the published weights of a name."""
    if isinstance(run, Run):
        return run
    name = published_name(run)
    if name is not None:
        return PublishedRun(name)
    if not is_run(Path(run)):
        raise CheckpointError(
            f"{run}: not a run directory (no {CONFIG}), nor a model with published weights; pass "
            f"what `pdecnn train` made, or a model that `pdecnn models` marks as pretrained"
        )
    return Run(run)


def read_weights(run: Run, which: Weights = "best") -> Network:
    """The network of a run with its best or last weights, which it may be training meanwhile."""
    while True:
        folder = run.weights(which)
        try:
            network = Network.from_pretrained(folder)
        except CheckpointError:
            if run.weights(which) == folder:
                raise
            continue  # the run has gone on, and dropped what was being read
        for name, weight in network.named_parameters():
            if weight.dtype != torch.float32:
                raise CheckpointError(
                    f"{folder}: {name} is {weight.dtype}, and a run has float32; restore it from a "
                    f"copy"
                )
        return network


def take_initial(network: Network, initial: str | None, *, foreign: bool) -> None:
    """Take the weights a run begins with, unless they are drawn at random."""
    if initial is None:
        return
    if os.path.isfile(initial):
        if not foreign:
            raise CheckpointError(
                f"{initial}: is a file; pass a run, a save_pretrained folder, or --foreign to take "
                f"the tensors, and nothing else, of a file of torch.save"
            )
        take_foreign_weights(network, Path(initial))
        refuse_nonfinite(network, Path(initial))
        return
    fresh = [weight.detach().clone() for weight in network.classifier.parameters()]
    source = load(initial)
    take_weights(network, source, Path(initial))
    refuse_nonfinite(network, Path(initial))
    if network.config.in_channels != source.config.in_channels:
        log.info(
            "%s takes %d channel(s), the data has %d: the opening's stencils are %s",
            initial,
            source.config.in_channels,
            network.config.in_channels,
            "repeated" if network.config.in_channels > source.config.in_channels else "averaged",
        )
    if fresh and all(map(torch.equal, network.classifier.parameters(), fresh)):
        log.info("other classes than in %s: the classifier starts anew", initial)
