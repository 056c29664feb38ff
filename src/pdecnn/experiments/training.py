"""One run from config to summary, resumable at any point."""

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from pdecnn.data.image_set import ImageSet
from pdecnn.data.random_numbers import cpu_generator
from pdecnn.data.split import imbalance
from pdecnn.errors import CheckpointError
from pdecnn.experiments.config import RunConfig
from pdecnn.experiments.environment import cpu_threads, resolve_device
from pdecnn.experiments.listener import Listener
from pdecnn.experiments.opening import agreed_config, open_run
from pdecnn.experiments.preparation import Splits, fit_network, make_network, read_splits
from pdecnn.experiments.runs import (
    METRICS,
    PREDICTIONS,
    SUMMARY,
    TIME_LIMIT,
    Run,
)
from pdecnn.experiments.signals import Interrupted, StopSignals
from pdecnn.experiments.tensorboard import EventWriter
from pdecnn.files import write_atomically, write_json
from pdecnn.learning.checkpoint import load_checkpoint, save_checkpoint, set_aside
from pdecnn.learning.distributed import Ranks, joined_ranks
from pdecnn.learning.metrics import Evaluation, class_scores, evaluate_network
from pdecnn.learning.trainer import EpochReport, Trainer
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import WEIGHTS as MODEL
from pdecnn.networks.pretrained import serialize
from pdecnn.networks.registry import take_weights

NUM_SHOWN = 6
SHOWN_IMAGES = "shown images"
"""What draws the test images that people see: the same ones for every run on a data set."""


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

    Of several processes that torchrun started each calls this; rank 0 alone writes and speaks.
    """
    listener = Listener() if listener is None else listener
    if initial is not None:
        config = replace(config, initial=str(Path(initial).absolute()))
    with StopSignals() as signals:
        where = resolve_device(device)
        with joined_ranks(where) as ranks, cpu_threads(config.training.num_threads):
            listener = listener if ranks.is_first else Listener()
            config = ranks.together(partial(fit_network, config))
            folder = None if output is None else Path(output)
            opened = ranks.first(lambda: open_run(folder, config, where, resume, listener))
            run = Run(opened["folder"], elsewhere=not ranks.is_first)
            if not opened["finished"]:
                config, is_new = agreed_config(config, opened), opened["is_new"]
                _go_on(run, config, where, is_new, signals, listener, ranks)
    return run


def _go_on(
    run: Run,
    config: RunConfig,
    where: torch.device,
    is_new: bool,
    signals: StopSignals,
    listener: Listener,
    ranks: Ranks,
) -> None:
    """Train from the newest checkpoint, or the beginning, to the end."""
    try:
        splits, trainer = ranks.together(lambda: _prepare(run, config, where, listener, ranks))
        first_data = ranks.first(splits.fingerprint)
        ranks.together(partial(splits.check_same, first_data))
    except Exception as error:
        if is_new and ranks.is_first and not isinstance(error, Interrupted):
            run.discard()  # a start that fails for its data or settings leaves nothing behind
        raise
    ranks.first(lambda: _restore_newest(run, trainer, listener))
    trainer.copy_from_first()
    signals.deferred = True
    listener.begin(run.folder, trainer)
    try:
        _train(run, trainer, signals, listener)
    except Interrupted:
        ranks.first(lambda: _save(run, trainer))
        listener.note(f"interrupted; go on with `pdecnn train --output {run.folder} --resume`")
        raise
    finally:
        listener.end()
    signals.deferred = False
    _finish(run, trainer, splits)


def _prepare(
    run: Run, config: RunConfig, device: torch.device, listener: Listener, ranks: Ranks
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
        ranks=ranks,
    )
    return splits, trainer


def weights_folder(path: str | Path, weights: str = "best") -> Path:
    """The `from_pretrained` folder meant by a run directory or by such a folder itself."""
    path = Path(path)
    return path if os.path.isfile(path / MODEL) else Run(path).weights(weights)


def load(path: str | Path, weights: str = "best") -> Network:
    """The trained network of a run directory or `save_pretrained` folder, in evaluation mode."""
    return Network.from_pretrained(weights_folder(path, weights)).eval()


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


def _entries(run: Run, trainer: Trainer) -> list[dict[str, Any]]:
    """The metrics of the epochs done."""
    entries = run.metrics[: trainer.progress.epoch]
    if len(entries) < trainer.progress.epoch:
        raise CheckpointError(
            f"{run.folder / METRICS}: has {len(entries)} of {trainer.progress.epoch} epochs; "
            f"restore it from a copy, or start anew with another --output"
        )
    return entries


def _train(run: Run, trainer: Trainer, signals: StopSignals, listener: Listener) -> None:
    ranks = trainer.ranks
    entries = ranks.first(lambda: _entries(run, trainer))
    begin, first_step = monotonic(), trainer.progress.step
    deadline = begin + (trainer.config.time_limit_seconds or float("inf"))
    poll = partial(signals.poll, ranks.largest)
    reports = trainer.epochs(poll=poll, on_step=lambda: listener.step(trainer.progress))
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
            ranks.first(partial(_write_epoch, run, trainer, entries, report, timing, writer))
            listener.epoch(report, timing)
            begin, first_step = monotonic(), trainer.progress.step
            if ranks.largest(begin > deadline):
                break
    poll()


def _write_epoch(
    run: Run,
    trainer: Trainer,
    entries: list[dict[str, Any]],
    report: EpochReport,
    timing: dict[str, Any],
    writer: EventWriter,
) -> None:
    # Metrics first: a checkpoint then never lacks the lines of its epochs.
    _write(run, run.write_metrics, entries)
    _save(run, trainer)
    _write(run, run.append_timing, timing)
    _write(run, writer.write, report, timing)


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
    config, ranks = trainer.config, trainer.ranks
    ranks.first(lambda: _write(run, _point, run, trainer))
    test = splits.test.to(trainer.sums.device)
    network = _best_network(run, trainer)
    evaluation = evaluate_network(
        network,
        test,
        batch_size=config.evaluation_batch_size,
        precision=config.precision,
        ranks=ranks,
    )
    ranks.first(lambda: _summarize(run, trainer, network, test, evaluation))


def _best_network(run: Run, trainer: Trainer) -> Network:
    """The best weights, which rank 0 reads for all."""
    ranks, current, read = trainer.ranks, trainer.network, list[Network]()
    ranks.first(lambda: read.append(Network.from_pretrained(run.weights("best"))))
    network = read[0] if read else Network(current.config, current.preprocessing)
    network.to(current.classifier.weight.device, current.classifier.weight.dtype)
    ranks.copy_from_first_(list(network.state_dict().values()))
    return network


def _summarize(
    run: Run, trainer: Trainer, network: Network, test: ImageSet, evaluation: Evaluation
) -> None:
    """Write the test figures and the answers to a few images."""
    config, progress = trainer.config, trainer.progress
    shown = torch.randperm(len(test), generator=cpu_generator(SHOWN_IMAGES))[:NUM_SHOWN]
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
