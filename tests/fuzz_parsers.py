"""Every reader of files: valid ones for it, the errors it may raise, the memory it may take."""

import hashlib
import io
import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import save

import pdecnn
from pdecnn.data.arrays import array_dimension, read_arrays
from pdecnn.data.images import read_image_folder
from pdecnn.data.published import (
    CIFAR10,
    CIFAR10_PYTHON,
    CIFAR100,
    CIFAR100_PYTHON,
    STL10,
    read_cifar10,
    read_cifar100,
    read_stl10,
)
from pdecnn.errors import CheckpointError, ConfigError, DataError
from pdecnn.files import MANIFEST
from pdecnn.learning.checkpoint import FILES, load_checkpoint, save_checkpoint
from pdecnn.networks.foreign import take_foreign_weights
from pdecnn.reports.bench import check_output
from pdecnn.reports.paper_results import read_result
from pdecnn.runs import Run
from pdecnn.runs.config import parse_assignment
from pdecnn.runs.queue import CONDITIONS, TRAINING_EVALUATION
from pdecnn.runs.recipes import resolve_run
from pdecnn.runs.runs import DATA, TIMING
from tests import published_data
from tests.bench_results import make_own_result
from tests.image_folders import ORIENTATION_TAG
from tests.runs import complete_run, small_config
from tests.unit.learning.trainings import make_network, make_trainer

MEBIBYTE = 2**20
ORDINARY_BOUND = 64 * MEBIBYTE
IMAGE_BOUND = 1024 * MEBIBYTE
"""An image of few bytes may have 50 million pixels, of 4 bytes each in several stages."""
TINY = {
    "network__channels": [2, 2],
    "network__num_steps": 1,
    "data__fraction": 0.05,
    "training__epochs": 2,
}


@dataclass(frozen=True, kw_only=True)
class Parser:
    """A reader of a folder."""

    name: str
    files: dict[str, bytes]
    """Valid files by their path in the folder."""
    read: Callable[[Path], object]
    errors: tuple[type[Exception], ...]
    """What it may raise."""
    mend: Callable[[Path], None] = field(default=lambda folder: None)
    """Makes what other files say of a changed one right."""
    rewritten: tuple[str, ...] = ()
    """Files that reading or mending may change."""
    bound: int = ORDINARY_BOUND
    """The memory that one reading may take, in bytes."""


def all_parsers():
    """Those with the lowest bound first: a process tells the most memory it ever took."""
    parsers = [
        *(_published(version, read) for version, read in _PUBLISHED),
        *_archives(),
        *_arrays(),
        _checkpoint(),
        _pretrained(),
        _foreign(),
        _run(),
        *_settings(),
        _bench(),
        _images(),
    ]
    return sorted(parsers, key=lambda parser: parser.bound)


_PUBLISHED = (
    (CIFAR10, read_cifar10),
    (CIFAR10_PYTHON, read_cifar10),
    (CIFAR100, read_cifar100),
    (CIFAR100_PYTHON, read_cifar100),
    (STL10, read_stl10),
)


@contextmanager
def _few_records(number=2):
    """Data sets of so few images."""
    before, published_data.NUM_RECORDS = published_data.NUM_RECORDS, number
    try:
        yield
    finally:
        published_data.NUM_RECORDS = before


def _published(version, read):
    with _few_records(1 if version is STL10 else 2):
        contents = published_data.contents(version)
    return Parser(
        name=f"{version.title}, {version.version}",
        files={f"{version.folder}/{name}": contents[name] for name in version.files},
        read=read,
        errors=(DataError,),
    )


def _archives():
    for version, read in ((CIFAR100, read_cifar100), (CIFAR100_PYTHON, read_cifar100)):
        with TemporaryDirectory() as folder, _few_records(2):
            path = published_data.write_archive(Path(folder) / version.archive, version)
            content = path.read_bytes()
        yield Parser(
            name=f"archive of {version.title}, {version.version}",
            files={version.archive: content},
            read=read,
            errors=(DataError,),
        )


def _arrays():
    random = np.random.default_rng(0)
    x, y = random.random((10, 1, 8), np.float32), np.arange(10) % 2
    names = np.array(["a", "b"])
    npz = io.BytesIO()
    np.savez(npz, x=x, y=y, class_names=names)
    yield _array_file("npz", {"data.npz": npz.getvalue()})
    tensors = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    yield _array_file("safetensors", {"data.safetensors": save(tensors)})
    yield _array_file(
        "npy",
        {"data/x.npy": _npy(x), "data/y.npy": _npy(y), "data/class_names.txt": b"a\nb\n"},
    )


def _npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _array_file(kind, files):
    place = next(iter(files)).partition("/")[0]

    def read(folder):
        array_dimension(folder / place)
        read_arrays(folder / place)

    return Parser(name=f"arrays, {kind}", files=files, read=read, errors=(DataError,))


def _files_of(folder, leave_out=()):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in leave_out
    }


def _mend_manifest(folder):
    """The SHA-256 of the files as they are."""
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}
    (folder / MANIFEST).write_text(json.dumps({"sha256": hashes}))


def _checkpoint():
    trainer = make_trainer(make_network(channels=(2, 2), num_steps=1), average_decay=0.9)
    with TemporaryDirectory() as folder:
        save_checkpoint(trainer, Path(folder) / "checkpoint")
        files = _files_of(Path(folder) / "checkpoint", leave_out=("README.md",))
    return Parser(
        name="checkpoint",
        files=files,
        read=lambda folder: load_checkpoint(trainer, folder),
        errors=(CheckpointError,),
        mend=_mend_manifest,
        rewritten=(MANIFEST,),
    )


def _pretrained():
    with TemporaryDirectory() as folder:
        make_network(channels=(2, 2), num_steps=2).save_pretrained(Path(folder))
        files = _files_of(Path(folder), leave_out=("README.md", MANIFEST))
    return Parser(
        name="saved network",
        files=files,
        read=pdecnn.Network.from_pretrained,
        errors=(CheckpointError,),
    )


def _foreign():
    """A file of torch.save with more than the weights in it."""
    network = make_network(channels=(2, 2), num_steps=2)
    stream = io.BytesIO()
    torch.save({"epoch": 3, "rates": [0.1, 0.2], "state_dict": network.state_dict()}, stream)
    return Parser(
        name="foreign weights",
        files={"weights.pt": stream.getvalue()},
        read=lambda folder: take_foreign_weights(network, folder / "weights.pt"),
        errors=(CheckpointError,),
    )


def _run():
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        complete_run(run, small_config(**TINY))
        (run / CONDITIONS).write_text('{"runs_at_a_time": 1}')
        files = {name: text for name, text in _files_of(run).items() if name in _RUN_FILES}
    assert files.keys() == set(_RUN_FILES)

    def read(folder):
        Run(folder).append_timing({"epoch": 1})
        assert isinstance(Run(folder).num_ranks, int)
        assert isinstance(Run(folder).data_fingerprint, str)
        read_result(folder)

    return Parser(
        name="run directory",
        files=files,
        read=read,
        errors=(CheckpointError,),
        rewritten=(TIMING,),
    )


_RUN_FILES = (
    "config.json",
    "environment.json",
    DATA,
    "metrics.jsonl",
    TIMING,
    "summary.json",
    "predictions.safetensors",
    TRAINING_EVALUATION,
    CONDITIONS,
)


def _settings():
    toml = b"""recipe = "hamiltonian_digits"
seed = 3
[network]
channels = [8, 16]
step_size = 0.5
[data]
fraction = 0.5
[training]
epochs = 4
learning_rates = [0.1, 0.02]
phases = [2, 1]
time_limit_seconds = 1e3
"""
    yield Parser(
        name="settings in TOML",
        files={"a.toml": toml},
        read=lambda folder: resolve_run(str(folder / "a.toml"), assignments=[]),
        errors=(ConfigError,),
    )
    recipe = pdecnn.recipe("hamiltonian_digits")
    texts = (
        "network.channels=[8,16]\nnetwork.step_size=0.5\ntraining.epochs=5\nseed=1\n"
        "training.learning_rates=0.1,0.02,0.004\ndata.flip=true\nnetwork.layer=symmetric\n"
    )

    def read(folder):
        text = (folder / "assignments").read_text(encoding="utf-8", errors="surrogateescape")
        recipe.with_settings(dict(parse_assignment(line) for line in text.split("\n") if line))

    yield Parser(
        name="settings on the command line",
        files={"assignments": texts.encode()},
        read=read,
        errors=(ConfigError,),
    )


def _bench():
    return Parser(
        name="bench results",
        files={"speed.json": json.dumps(make_own_result()).encode()},
        read=lambda folder: check_output(folder, quick=False),
        errors=(CheckpointError,),
    )


def _images():
    """Every format that is read, a palette and grey, and a tag that turns the image."""
    pixels = np.random.default_rng(0).integers(0, 256, (10, 12, 3), dtype=np.uint8)
    colour = Image.fromarray(pixels)
    images = {
        "a/0.png": colour,
        "b/0.jpg": colour,
        "a/1.webp": colour,
        "b/1.bmp": colour,
        "a/2.png": colour.convert("P"),
        "b/2.png": Image.fromarray(pixels[..., 0].astype(np.uint16) * 257),
        "a/3.tiff": colour,
        "b/3.tiff": Image.fromarray(pixels[..., 0].astype(np.uint16) * 257),
    }
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = 6
    files = {}
    for name, image in images.items():
        stream = io.BytesIO()
        options = {} if name.endswith("bmp") else {"exif": exif}
        image.save(stream, name.rpartition(".")[2].replace("jpg", "jpeg"), **options)
        files[name] = stream.getvalue()
    return Parser(
        name="folder of images",
        files=files,
        read=lambda folder: read_image_folder(folder, channels=3, size=8),
        errors=(DataError,),
        bound=IMAGE_BOUND,
    )
