"""A trained run and its weights: on data, on single images, and to begin another run with."""

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdecnn.checks import check_number
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
from pdecnn.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    system_errors_as,
)
from pdecnn.fast.acceleration import use_kernels
from pdecnn.learning.distributed import joined_ranks
from pdecnn.learning.metrics import Evaluation, class_scores, evaluate_network
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.foreign import take_foreign_weights
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import WEIGHTS as MODEL
from pdecnn.networks.pretrained import refuse_nonfinite
from pdecnn.networks.registry import PUBLISHED_WEIGHTS, published_name, take_weights
from pdecnn.runs.config import RunConfig
from pdecnn.runs.environment import resolve_device
from pdecnn.runs.preparation import make_run_task, read_splits, refuse_without_classes
from pdecnn.runs.recipes import recipe
from pdecnn.runs.runs import Run

log = logging.getLogger(__name__)
SPLITS = ("test", "validation", "train")
SHOWN_IMAGES = "shown images"
"""What draws the test images that people see: the same ones for every run on a data set."""


def load(path: str | Path, weights: str = "best") -> Network:
    """The trained network of a run directory or `save_pretrained` folder, in evaluation mode.

    The name of a model with published weights will do where no path is called so.
    """
    return _read(Path(path), weights).eval()


def _read(path: Path, weights: str = "best") -> Network:
    name = published_name(path)
    if name is not None:
        return read_weights(PublishedRun(name), weights)
    if os.path.isfile(path / MODEL):
        return Network.from_pretrained(path)
    return read_weights(Run(path), weights)


class PublishedRun(Run):
    """The published weights of a model in the place of a run; its config is the recipe's."""

    def __init__(self, name: str) -> None:
        super().__init__(name, elsewhere=True)

    @cached_property
    def config(self) -> RunConfig:
        """That of the recipe of the same name."""
        return recipe(str(self.folder))

    def weights(self, which: str = "best") -> Path:
        """Where they are."""
        if which != "best":
            raise ConfigError(f"{self.folder} has its published weights only; leave out --weights")
        return PUBLISHED_WEIGHTS / self.folder


def open_run(run: str | Path | Run) -> Run:
    """The run itself, that of a folder, or the published weights of a name."""
    if isinstance(run, Run):
        return run
    name = published_name(run)
    return Run(run) if name is None else PublishedRun(name)


def read_weights(run: Run, which: str = "best") -> Network:
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
    source = _read(Path(initial))
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


def evaluate(
    run: str | Path | Run,
    *,
    data: str | Path | None = None,
    split: str = "test",
    weights: str = "best",
    device: str = "auto",
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
        how: dict[str, Any] = {
            "batch_size": training.evaluation_batch_size,
            "precision": training.precision,
        }
        use_kernels(network.to(where))
        quick = partial(ranks.scoring, network, images.images, **how)
        evaluation = ranks.agreed(
            task.evaluate(network, images, poll=lambda: None, quick=quick, **how)
        )
    return {**evaluation.to_dict(), "num_weights": network.num_weights}


def read_run(
    run: Run,
    data: str | Path | None,
    *,
    split: str = "test",
    weights: str = "best",
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
    run: str | Path,
    images: Sequence[str | Path] | Tensor | npt.NDArray[Any],
    *,
    top: int = 3,
    weights: str = "best",
    device: str = "auto",
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


def _ready(run: str | Path, weights: str, device: str) -> Network:
    network = load(run, weights).to(resolve_device(device))
    refuse_nonfinite(network, Path(run))
    return network


def predict_images(
    run: str | Path,
    images: Sequence[str | Path],
    output: str | Path,
    *,
    force: bool = False,
    weights: str = "best",
    device: str = "auto",
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
        if targets.count(target) > 1:
            raise DataError(f"{target}: would be written for two images; rename one of them")
        if os.path.lexists(target) and (not force or target.resolve() == file.resolve()):
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
    network: Network, images: Sequence[str | Path] | Tensor | npt.NDArray[Any]
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
    return ", ".join((*sounds, *SAMPLES))


def _sound(network: Network, path: Path) -> Tensor:
    """A sound file as the network takes it."""
    size, rate = network.preprocessing.size, network.preprocessing.rate
    if rate is None or size is None:
        raise ConfigError(
            f"{path}: is a sound, and the network was not trained on sounds; pass samples in "
            f"{', '.join(SAMPLES)} files"
        )
    return read_wave(path, rate=rate, length=size[0])[None]


def _found_files(paths: Sequence[str | Path]) -> list[Path]:
    """The files, and those of folders by name."""
    found: list[Path] = []
    for path in map(Path, paths):
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
    weights: str = "best",
    device: str = "auto",
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
