"""One run from config to summary, resumable at any point."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from pdecnn.data.random_numbers import cpu_generator
from pdecnn.data.split import imbalance
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.experiments.config import RunConfig, differing_keys
from pdecnn.experiments.environment import cpu_threads, describe_environment, resolve_device
from pdecnn.experiments.listener import Listener
from pdecnn.experiments.preparation import Splits, fit_network, make_network, read_splits
from pdecnn.experiments.runs import (
    METRICS,
    PREDICTIONS,
    RUNS,
    SUMMARY,
    TIME_LIMIT,
    Run,
    check_free,
    create_run,
    fresh_folder,
    is_run,
)
from pdecnn.experiments.signals import Interrupted, StopSignals
from pdecnn.experiments.tensorboard import EventWriter
from pdecnn.files import write_atomically, write_json
from pdecnn.learning.checkpoint import load_checkpoint, save_checkpoint, set_aside
from pdecnn.learning.metrics import class_scores, evaluate_network
from pdecnn.learning.precision import AUTO, resolve_precision
from pdecnn.learning.trainer import Trainer
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import WEIGHTS as MODEL
from pdecnn.networks.pretrained import serialize
from pdecnn.networks.registry import take_weights

NUM_SHOWN = 6
# What may differ between a run and its resumption without changing any result.
_FREE_ON_RESUME = {"data.folder", "training.time_limit_seconds", "initial"}


def train(
    config: RunConfig,
    *,
    output: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    initial: str | Path | None = None,
    listener: Listener | None = None,
) -> Run:
    """Train as the config says, or go on with a run, and return its directory.

    `initial` is a run or a `save_pretrained` folder to take the weights from. With `resume` the
    newest checkpoint that verifies is taken; a finished run is left as it is.
    """
    listener = Listener() if listener is None else listener
    if initial is not None:
        config = replace(config, initial=str(Path(initial).absolute()))
    config = fit_network(config)
    with StopSignals() as signals, cpu_threads(config.training.num_threads):
        where = resolve_device(device)
        folder = None if output is None else Path(output)
        run = None if folder is None else _existing_run(folder, config, resume)
        if run is not None and run.is_finished:
            listener.note(f"{run.folder} is finished; nothing to do")
            return run
        is_new = run is None
        if run is not None:
            config = _with_precision(config, run.config.training.precision)
        else:
            config = _with_precision(config, resolve_precision(AUTO, where))
            run = _new_run(folder, config, where)
        if is_new and resume:
            listener.note(f"no run to resume yet; starting {config.recipe} anew")
        config = replace(run.config, data=config.data, training=config.training)
        try:
            splits, trainer = _prepare(run, config, where, listener)
        except Exception as error:
            if is_new and not isinstance(error, Interrupted):
                run.discard()  # a start that fails for its data or settings leaves nothing behind
            raise
        _restore_newest(run, trainer, listener)
        signals.deferred = True
        listener.begin(run.folder, trainer)
        try:
            _train(run, trainer, signals, listener)
        except Interrupted:
            _save(run, trainer)
            listener.note(f"interrupted; go on with `pdecnn train --output {run.folder} --resume`")
            raise
        finally:
            listener.end()
        signals.deferred = False
        _finish(run, trainer, splits)
    return run


def _prepare(
    run: Run, config: RunConfig, device: torch.device, listener: Listener
) -> tuple[Splits, Trainer]:
    splits = read_splits(config.data, config.seed)
    warning = imbalance(splits.train.labels, splits.train.class_names)
    if warning is not None:
        listener.note(warning)
    network = make_network(config, splits.train)
    if config.initial is not None and not run.checkpoints:
        fresh = network.classifier.weight.detach().clone()
        take_weights(network, weights_folder(config.initial))
        if torch.equal(network.classifier.weight, fresh):
            listener.note(f"other classes than in {config.initial}: the classifier starts anew")
    trainer = Trainer(
        network.to(device),
        config.training,
        train=splits.train,
        validation=splits.validation,
        augmentation=config.data.augmentation(),
        seed=config.seed,
        note=listener.note,
    )
    return splits, trainer


def weights_folder(path: str | Path, weights: str = "best") -> Path:
    """The `from_pretrained` folder meant by a run directory or by such a folder itself."""
    path = Path(path)
    return path if os.path.isfile(path / MODEL) else Run(path).weights(weights)


def load(path: str | Path, weights: str = "best") -> Network:
    """The trained network of a run directory or `save_pretrained` folder, in evaluation mode."""
    return Network.from_pretrained(weights_folder(path, weights)).eval()


def _new_run(folder: Path | None, config: RunConfig, device: torch.device) -> Run:
    with _usable(folder or RUNS):
        folder = fresh_folder(config.recipe) if folder is None else folder
        return create_run(folder, config, describe_environment(device, config.seed))


def _existing_run(folder: Path, config: RunConfig, resume: bool) -> Run | None:
    """The run to go on with; None where there is none yet, an error where there must not be."""
    if not (resume and is_run(folder)):
        with _usable(folder):
            check_free(folder)
        return None
    run = Run(folder)
    check_settings(run, config)
    return run


def _with_precision(config: RunConfig, precision: str) -> RunConfig:
    """The config with 'auto' resolved: a run says what it computes in, wherever it goes on."""
    if config.training.precision != AUTO:
        return config
    return replace(config, training=replace(config.training, precision=precision))


def check_settings(run: Run, config: RunConfig) -> None:
    """Raise a ConfigError if going on with the config would mix two runs in one folder."""
    config = _with_precision(config, run.config.training.precision)
    differing = [key for key in differing_keys(run.config, config) if key not in _FREE_ON_RESUME]
    if differing:
        raise ConfigError(
            f"{run.folder} was made with other settings ({', '.join(differing)}); resume it with "
            f"its own, or start anew with another --output"
        )


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Say in one line that the folder cannot hold a run."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{folder}: cannot be used ({error.strerror}); choose another --output"
        ) from error


def _restore_newest(run: Run, trainer: Trainer, listener: Listener) -> None:
    """Put the trainer where the newest intact checkpoint was; damaged ones are named and kept."""
    failures: dict[Path, str] = {}
    for folder in reversed(run.checkpoints):
        try:
            load_checkpoint(trainer, folder)
        except CheckpointError as error:
            listener.note(f"skipped a checkpoint: {error}")
            failures[folder] = str(error)
            continue
        listener.note(f"resumed from {folder.name}")
        for damaged in failures:
            _write(run, set_aside, damaged)
        return
    if failures:
        raise CheckpointError(
            f"{run.folder}: none of its {len(failures)} checkpoints is intact "
            f"({next(iter(failures.values()))}); start anew with another --output"
        )


def _train(run: Run, trainer: Trainer, signals: StopSignals, listener: Listener) -> None:
    entries = run.metrics[: trainer.progress.epoch]
    if len(entries) < trainer.progress.epoch:
        raise CheckpointError(
            f"{run.folder / METRICS}: has {len(entries)} of {trainer.progress.epoch} epochs; "
            f"restore it from a copy, or start anew with another --output"
        )
    begin, first_step = monotonic(), trainer.progress.step
    deadline = begin + (trainer.config.time_limit_seconds or float("inf"))
    reports = trainer.epochs(poll=signals.poll, on_step=lambda: listener.step(trainer.progress))
    with closing(EventWriter(run.folder / "tensorboard")) as writer:
        for report in reports:
            seconds = monotonic() - begin
            images = (trainer.progress.step - first_step) * trainer.config.batch_size
            timing = {
                "epoch": report.epoch,
                "seconds": round(seconds, 4),
                "images_per_second": round(images / max(seconds, 1e-9), 1),
            }
            entries.append({name: _json_number(value) for name, value in report._asdict().items()})
            # Metrics first: a checkpoint then never lacks the lines of its epochs.
            _write(run, run.write_metrics, entries)
            _save(run, trainer)
            _write(run, run.append_timing, timing)
            _write(run, writer.write, report, timing)
            listener.epoch(report, timing)
            begin, first_step = monotonic(), trainer.progress.step
            if begin > deadline:
                break
    signals.poll()


def _json_number(value: float | None) -> float | None:
    """JSON has no infinity and no NaN; None stands for both."""
    return value if value is not None and isfinite(value) else None


def _save(run: Run, trainer: Trainer) -> None:
    """Write a checkpoint, then point `best` and `last` at what they mean."""
    progress = trainer.progress
    _write(run, save_checkpoint, trainer, run.checkpoint_path(progress.epoch, progress.batch))
    _write(run, _point, run, trainer)


def _point(run: Run, trainer: Trainer) -> None:
    progress = trainer.progress
    run.link("last", run.checkpoint_path(progress.epoch, progress.batch))
    best = run.checkpoint_path(progress.best_epoch, 0)
    if progress.best_epoch and best.is_dir():
        run.link("best", best)
    if progress.epoch and not progress.batch:
        run.prune(progress.best_epoch)


def _write(run: Run, action: Callable[..., None], *arguments: Any) -> None:
    """Write, once more if it fails; then say so, with what was saved before intact."""
    try:
        try:
            action(*arguments)
        except OSError:
            action(*arguments)
    except OSError as error:
        raise CheckpointError(
            f"{run.folder}: cannot be written ({error.strerror}); make room or allow writing, "
            f"then go on with --resume (earlier checkpoints are intact)"
        ) from error


def _finish(run: Run, trainer: Trainer, splits: Splits) -> None:
    """Test the best weights and write the summary, which marks the run as finished."""
    _write(run, _point, run, trainer)
    config, progress = trainer.config, trainer.progress
    test = splits.test.to(trainer.sums.device)
    network = Network.from_pretrained(run.weights("best")).to(trainer.sums.device)
    evaluation = evaluate_network(
        network, test, batch_size=config.evaluation_batch_size, precision=config.precision
    )
    shown = torch.randperm(len(test), generator=cpu_generator("shown images"))[:NUM_SHOWN]
    sample = test.subset(shown)
    images = sample.images[:]
    scores = class_scores(network, images, batch_size=NUM_SHOWN, precision=config.precision)
    predictions = {
        "images": images,
        "labels": sample.labels,
        "probabilities": scores.softmax(1),
    }
    summary = {
        "stopped": progress.stopped or TIME_LIMIT,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch,
        "best_validation_accuracy": progress.best_accuracy,
        "num_weights": network.num_weights,
        "class_names": list(test.class_names),
        "test": {**evaluation.to_dict(), "confusion": evaluation.confusion},
    }
    _write(run, write_atomically, run.folder / PREDICTIONS, serialize(predictions))
    _write(run, write_json, run.folder / SUMMARY, summary)
