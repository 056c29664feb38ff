"""A trained run on data and on single images."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdecnn.data.arrays import SAMPLES, read_samples, samples_of
from pdecnn.data.image_file import (
    SUFFIXES,
    image_form,
    read_image,
    write_image,
    write_label_image,
)
from pdecnn.data.image_set import ImageSet, StoredImages
from pdecnn.data.sound_file import SOUNDS
from pdecnn.data.sounds import read_wave
from pdecnn.data.volumes import SUFFIXES as VOLUMES
from pdecnn.data.volumes import is_volume, read_volume, write_label_volume
from pdecnn.errors import ConfigError, DataError, DivergedError, system_errors_as
from pdecnn.fast.acceleration import use_kernels
from pdecnn.learning.distributed import joined_ranks
from pdecnn.learning.metrics import Evaluation, class_scores, evaluate_network
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import refuse_nonfinite
from pdecnn.runs.preparation import (
    Device,
    load,
    make_run_task,
    open_run,
    read_splits,
    read_weights,
    refuse_without_classes,
    resolve_device,
)
from pdecnn.runs.runs import Run, Weights
from pdecnn.settings import check_number

Split = Literal["test", "validation", "train"]
SPLITS: tuple[Split, ...] = get_args(Split)


def evaluate(
    run: str | Path | Run,
    *,
    data: str | Path | None = None,
    split: Split = "test",
    weights: Weights = "best",
    device: Device = "auto",
    noise: float | None = None,
) -> dict[str, Any]:
    """The figures of a run on its test, validation or training images, as its task has them.

    The training images come as they are, without augmentation. Several ranks share the images.
    A denoiser is measured with the `noise`, in units of 255, of the middle of what it was trained
    with unless said otherwise.
    """
    if noise is not None:
        check_number("noise", noise, smallest=0.0)
    where, opened = resolve_device(device), open_run(run)
    with joined_ranks(where) as ranks:
        network, images, training = ranks.together(
            lambda: read_run(opened, data, split=split, weights=weights, any_task=True)
        )
        if noise is not None and opened.config.data.noise is None:
            raise ConfigError(f"{run}: was trained without noise; leave out --noise")
        task = make_run_task(opened.config, noise=noise)
        evaluation = ranks.evaluate(task, use_kernels(network.to(where)), images, training)
    return {**evaluation.to_dict(), "num_weights": network.num_weights}


def read_run(
    run: Run,
    data: str | Path | None,
    *,
    split: Split = "test",
    weights: Weights = "best",
    finite: bool = True,
    any_task: bool = False,
) -> tuple[Network, ImageSet, TrainingConfig]:
    """The network of a run, the images to measure it on, which must fit it, and its settings.

    `data` is where its data lie now, if that is not where they were. With `finite` a network of
    weights that are no numbers is refused, without `any_task` one whose samples have no classes.
    """
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, found {split!r}")
    config = run.config
    if not any_task:
        refuse_without_classes(run.folder, config)
    if data is not None:
        config = replace(config, data=replace(config.data, folder=str(data)))
    network = read_weights(run, weights)
    if finite:
        refuse_nonfinite(network, run.weights(weights))
    images: ImageSet | None = getattr(read_splits(config.data, config.seed), split)
    if images is None:
        samples = f"{network.subject}s"
        raise ConfigError(
            f"{run.folder} has no validation {samples}: it was trained on all training {samples} "
            f"(data.validation_fraction=0); use --split test or train"
        )
    make_run_task(config).check_fit(network, images)
    return network, images, config.training


def predict(
    run: str | Path | Run,
    images: str | Path | Sequence[str | Path] | Tensor | npt.NDArray[Any],
    *,
    top: int = 3,
    weights: Weights = "best",
    device: Device = "auto",
) -> list[dict[str, Any]]:
    """The most probable classes, by name: one entry per image, or per sample of an array.

    `images` are image or sound files, .npy, .npz or .safetensors files with samples (n, channels,
    *spatial), folders with such files in them at any depth, or one array of samples.
    """
    if top < 1:
        raise ConfigError(f"top must be at least 1, found {top}")
    network = _ready(run, weights, device)
    if network.config.is_field:
        raise ConfigError(f"{run} gives an answer for each pixel; say where to with --output DIR")
    if network.num_classes == 0:
        raise ConfigError(
            f"{run} has no classes to predict (network.num_classes=0); give it some with "
            f"reset_classifier and train it, or take features, network(network.preprocess(images))"
        )
    class_names = network.preprocessing.class_names or tuple(map(str, range(network.num_classes)))
    results = []
    for names, samples in _samples(network, images):
        scores = class_scores(network, samples, batch_size=TrainingConfig.evaluation_batch_size)
        for name, row in zip(names, scores, strict=True):
            if not bool(row.isfinite().all()):
                raise DivergedError(
                    f"{name}: its class scores are not finite: the features leave the range of "
                    f"floating-point numbers on their way; take other weights"
                )
            probabilities, classes = torch.topk(row.softmax(0), min(top, network.num_classes))
            predictions = [
                {"class": class_names[index], "probability": probability}
                for index, probability in zip(classes.tolist(), probabilities.tolist(), strict=True)
            ]
            results.append({"image": name, "predictions": predictions})
    return results


def _ready(run: str | Path | Run, weights: Weights, device: Device) -> Network:
    network = load(run, weights).to(resolve_device(device))
    refuse_nonfinite(network, Path(run))
    return network


def predict_images(
    run: str | Path,
    images: Sequence[str | Path],
    output: str | Path,
    *,
    force: bool = False,
    weights: Weights = "best",
    device: Device = "auto",
) -> list[dict[str, Any]]:
    """Write what a network makes of each pixel of files: images, or the numbers of classes.

    Images become PNG files of the same stem, of 16 bits where theirs have more than 8, volumes
    NIfTI files of the same name, with the header and the order of axes of theirs. Nothing is
    overwritten without `force`, and where something would be nothing is written. An entry per
    image: `image`, `output`, its `size` and the size it was `padded` to for the levels.
    """
    network, folder = _ready(run, weights, device), Path(output)
    if not network.config.is_field:
        raise ConfigError(f"{run} gives classes, not images; leave out --output")
    files = _found_files(images)
    targets = [folder / (file.name if is_volume(file) else f"{file.stem}.png") for file in files]
    kinds = VOLUMES if network.config.dimension == 3 else SUFFIXES
    for file, target in zip(files, targets, strict=True):
        if not file.name.lower().endswith(kinds):
            subject = network.subject
            raise DataError(f"{file}: is no {subject} file; they end in {', '.join(kinds)}")
        if not file.exists():
            raise DataError(f"{file}: no such file; check the path")
        if targets.count(target) > 1:
            raise DataError(f"{target}: would be written for two images; rename one of them")
        if target.resolve() == file.resolve():
            raise DataError(
                f"{target}: would be overwritten with its answer; choose another --output"
            )
        if os.path.lexists(target) and not force:
            raise DataError(f"{target}: is there already; pass --force, or another --output")
    with system_errors_as(DataError, f"{folder}: cannot be a folder for files"):
        folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for file, target in zip(files, targets, strict=True):
        with torch.no_grad():
            answer = network(network.preprocess(_read_whole(network, file)))[0]
        if not bool(answer.isfinite().all()):
            raise DivergedError(f"{file}: what comes of it is not finite; take other weights")
        with system_errors_as(DataError, f"{target}: cannot be written"):
            _write_answer(network, target, answer, file)
        size = tuple(answer.shape[1:])
        padded = list(network.padded_size(size))
        rows.append({"image": str(file), "output": str(target), "size": list(size)})
        rows[-1]["padded"] = padded
    return rows


def _read_whole(network: Network, file: Path) -> Tensor:
    """One image or volume of its own size, (1, channels, *spatial)."""
    if not is_volume(file):
        return read_image(file, network.config.in_channels)[None]
    return _fitting(network, read_volume(file).voxels[None], str(file))


def _write_answer(network: Network, target: Path, answer: Tensor, source: Path) -> None:
    """Classes where the network knows what its outputs mean, else pixels."""
    if network.preprocessing.class_names is None:
        write_image(target, answer, deep=image_form(source).is_deep)
    elif is_volume(source):
        write_label_volume(target, answer.argmax(0), source)
    else:
        write_label_image(target, answer.argmax(0))


def _samples(
    network: Network, images: str | Path | Sequence[str | Path] | Tensor | npt.NDArray[Any]
) -> Iterator[tuple[list[str], Tensor]]:
    """What is to be classified, file by file, with names."""
    if isinstance(images, Tensor | np.ndarray):
        array = images.detach().cpu().numpy() if isinstance(images, Tensor) else images
        samples = _fitting(network, samples_of(array, "the array given"), "the array given")
        yield [str(place) for place in range(len(samples))], samples
        return
    size = network.preprocessing.size
    for path in _found_files(images):
        if path.suffix.lower() in SOUNDS:
            yield [str(path)], _sound(network, path)
        elif path.suffix in SAMPLES:
            samples = _fitting(network, read_samples(path), str(path))
            yield [f"{path}[{place}]" for place in range(len(samples))], samples
        elif network.config.dimension != 2:
            raise ConfigError(
                f"{path}: image files have 2 dimensions, and the network takes "
                f"{network.config.dimension}D samples; pass {_files_for(network)} files"
            )
        else:
            height_width = None if size is None else (size[0], size[1])
            image = read_image(path, network.config.in_channels, height_width)
            yield [str(path)], image.unsqueeze(0)


def _files_for(network: Network) -> str:
    sounds = () if network.preprocessing.rate is None else SOUNDS
    images = SUFFIXES if network.config.dimension == 2 else ()
    return ", ".join((*images, *sounds, *SAMPLES))


def _sound(network: Network, path: Path) -> Tensor:
    """A sound file as the network takes it."""
    size, rate = network.preprocessing.size, network.preprocessing.rate
    if rate is None or size is None:
        raise ConfigError(
            f"{path}: is a sound, and the network was not trained on sounds; pass "
            f"{_files_for(network)} files"
        )
    return read_wave(path, rate=rate, length=size[0])[None]


def _found_files(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files, and those of folders by name."""
    found: list[Path] = []
    listed = [paths] if isinstance(paths, str | Path) else paths
    for place in listed:
        if not isinstance(place, str | Path):
            raise DataError(
                f"what to classify must be files, folders or one array of samples (n, channels, "
                f"*spatial), found {type(place).__name__} in a list; make one array of them"
            )
    for path in map(Path, listed):
        if not path.is_dir():
            found.append(path)
            continue
        inside = [
            file
            for file in sorted(path.rglob("*"))
            if file.name.lower().endswith((*SUFFIXES, *SOUNDS, *SAMPLES, *VOLUMES))
            and file.is_file()
        ]
        if not inside:
            raise DataError(
                f"{path}: is a folder without files to classify; they end in "
                f"{', '.join((*SUFFIXES, *SOUNDS, *SAMPLES, *VOLUMES))}"
            )
        found += inside
    return found


def _fitting(network: Network, samples: Tensor, path: str) -> Tensor:
    config = network.config
    if samples.dim() - 2 != config.dimension or samples.shape[1] != config.in_channels:
        spatial = ", ".join(("depth", "height", "width")[3 - config.dimension :])
        raise DataError(
            f"{path}: the network takes samples with the axes (samples, {config.in_channels} "
            f"channels, {spatial}), found shape {tuple(samples.shape)}"
        )
    return samples


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Examination:
    """The network of a run on all test images."""

    evaluation: Evaluation
    class_names: tuple[str, ...]
    images: Tensor | StoredImages
    """As the data has them, (n, channels, *spatial)."""
    labels: Tensor
    predicted: Tensor
    """The most probable class of each image."""
    certainty: Tensor
    """Its probability."""
    truth: Tensor
    """The probability of the true class."""
    test_set: str
    """Equal for runs with the same test labels and classes, whose accuracies can be compared."""


def examine(
    run: str | Path | Run,
    *,
    data: str | Path | None = None,
    weights: Weights = "best",
    device: Device = "auto",
) -> Examination:
    """Score all test images and keep what the network says of each."""
    where = resolve_device(device)
    network, test, training = read_run(open_run(run), data, weights=weights)
    scores = class_scores(
        network.to(where),
        test.images,
        batch_size=training.evaluation_batch_size,
        precision=training.precision,
    )
    probabilities, labels = scores.double().softmax(1).cpu(), test.labels.cpu()
    predicted = scores.argmax(1).cpu()
    return Examination(
        evaluation=evaluate_network(network, test, score=lambda poll: scores),
        class_names=test.class_names,
        images=test.images,
        labels=labels,
        predicted=predicted,
        certainty=probabilities.gather(1, predicted[:, None])[:, 0],
        truth=probabilities.gather(1, labels[:, None])[:, 0],
        test_set=_digest(labels, test.class_names),
    )


def _digest(labels: Tensor, class_names: Sequence[str]) -> str:
    digest = hashlib.sha256(repr(tuple(class_names)).encode())
    digest.update(labels.numpy().tobytes())
    return digest.hexdigest()
