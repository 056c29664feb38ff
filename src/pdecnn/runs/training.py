"""One run from config to summary, resumable at any point."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from pdecnn.data.augmentation import cpu_generator
from pdecnn.data.image_set import ImageSet
from pdecnn.data.split import imbalance
from pdecnn.errors import CheckpointError
from pdecnn.files import write_atomically, write_json
from pdecnn.learning.distributed import Ranks, joined_ranks
from pdecnn.learning.metrics import EpochReport, Evaluation, class_scores, evaluate_network
from pdecnn.learning.trainer import Trainer
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import serialize
from pdecnn.runs.config import RunConfig
from pdecnn.runs.environment import (
    cpu_threads,
    deterministic_algorithms,
    resolve_device,
)
from pdecnn.runs.listener import Listener
from pdecnn.runs.opening import agreed_config, open_run
from pdecnn.runs.preparation import Splits, fit_network, make_network, read_splits
from pdecnn.runs.runs import (
    INITIAL,
    METRICS,
    PREDICTIONS,
    SUMMARY,
    TIME_LIMIT,
    Run,
)
from pdecnn.runs.saving import point, remember_data, restore_newest, save, write
from pdecnn.runs.signals import Interrupted, StopSignals
from pdecnn.runs.tensorboard import EventWriter
from pdecnn.runs.weights import take_initial

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
    foreign: bool = False,
    listener: Listener | None = None,
) -> Run:
    """Train as the config says, or go on with a run, and return its directory.

    `initial` is a run or a `save_pretrained` folder to take the weights from; with `foreign` it
    may be a file of torch.save, of which the tensors alone are read. With `resume` the newest
    checkpoint that verifies is taken; a finished run is left as it is.

    Of several processes that torchrun started each calls this; rank 0 alone writes and speaks.
    """
    listener = Listener() if listener is None else listener
    if initial is not None:
        config = replace(config, initial=str(Path(initial).absolute()))
    with StopSignals() as signals:
        where = resolve_device(device)
        with (
            joined_ranks(where) as ranks,
            cpu_threads(config.training.num_threads),
            deterministic_algorithms(config.training.deterministic, where),
        ):
            listener = listener if ranks.is_first else Listener()
            config = ranks.together(partial(fit_network, config))
            folder = None if output is None else Path(output)
            with ExitStack() as held:
                opened = ranks.first(
                    lambda: open_run(folder, config, where, resume, listener, held)
                )
                run = Run(opened["folder"], elsewhere=not ranks.is_first)
                if not opened["finished"]:
                    config = agreed_config(config, opened)
                    take = partial(take_initial, _initial(run, config), foreign, listener.note)
                    made = [Path(path) for path in opened["made"]] if opened["is_new"] else None
                    _go_on(run, config, where, made, signals, listener, ranks, take)
    return run


def _initial(run: Run, config: RunConfig) -> str | None:
    """What a run begins with; a coarsened one brings it along wherever its folder is moved."""
    own = run.folder / INITIAL
    return str(own) if own.is_dir() else config.initial


def _go_on(
    run: Run,
    config: RunConfig,
    where: torch.device,
    made: list[Path] | None,
    signals: StopSignals,
    listener: Listener,
    ranks: Ranks,
    take: Callable[[Network], None],
) -> None:
    """Train from the newest checkpoint, or the beginning, to the end.

    `made` are the folders made for a new run, None for one that goes on.
    """
    try:
        splits = ranks.together(partial(_read_data, config, listener))
        trainer = ranks.together(
            partial(_make_trainer, run, config, splits, where, listener, ranks, take)
        )
        first_data = ranks.first(partial(remember_data, run, splits))
        ranks.together(partial(splits.check_same, first_data))
    except Exception as error:
        if made is not None and ranks.is_first and not isinstance(error, Interrupted):
            run.discard(made)  # a start that fails for its data or settings leaves nothing behind
        raise
    _restore(run, trainer, listener)
    signals.deferred = True
    _train_to_the_end(run, trainer, signals, listener)
    signals.deferred = False
    _finish(run, trainer, splits)


def _restore(run: Run, trainer: Trainer, listener: Listener) -> None:
    """Put the trainers of all ranks where the newest intact checkpoint was."""
    trainer.ranks.first(lambda: restore_newest(run, trainer, listener))
    trainer.copy_from_first()


def _train_to_the_end(run: Run, trainer: Trainer, signals: StopSignals, listener: Listener) -> None:
    """Train; where a signal ends it, leave a checkpoint."""
    listener.begin(run.folder, trainer)
    try:
        _train(run, trainer, signals, listener)
    except Interrupted:
        trainer.ranks.first(lambda: save(run, trainer))
        listener.note(f"interrupted; go on with `pdecnn train --output {run.folder} --resume`")
        raise
    finally:
        listener.end()


def _read_data(config: RunConfig, listener: Listener) -> Splits:
    splits = read_splits(config.data, config.seed)
    warning = imbalance(splits.train.labels, splits.train.class_names)
    if warning is not None:
        listener.note(warning)
    return splits


def _make_trainer(
    run: Run,
    config: RunConfig,
    splits: Splits,
    device: torch.device,
    listener: Listener,
    ranks: Ranks,
    take: Callable[[Network], None],
) -> Trainer:
    network = make_network(config, splits.train)
    if not run.checkpoints:
        take(network)
    return Trainer(
        network.to(device),
        config.training,
        train=splits.train,
        validation=splits.validation,
        augmentation=config.data.augmentation(),
        seed=config.seed,
        note=listener.note,
        ranks=ranks,
    )


def _entries(run: Run, trainer: Trainer) -> list[dict[str, Any]]:
    """The metrics of the epochs done."""
    entries = run.metrics[: trainer.progress.epoch]
    if len(entries) < trainer.progress.epoch:
        raise CheckpointError(
            f"{run.folder / METRICS}: has {len(entries)} of {trainer.progress.epoch} epochs; "
            f"restore it from a copy, or start anew with another --output"
        )
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict) or entry.get("epoch") != number:
            raise CheckpointError(
                f"{run.folder / METRICS}: line {number} is not of epoch {number}; restore it from "
                f"a copy, or start anew with another --output"
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
            entries.append({name: _json_value(value) for name, value in report._asdict().items()})
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
    write(run, run.write_metrics, entries)
    save(run, trainer)
    write(run, run.append_timing, timing)
    write(run, writer.write, report, timing)


def _json_value(value: float | list[int] | None) -> float | list[int] | None:
    """JSON has no infinity and no NaN; None stands for both."""
    return None if isinstance(value, float) and not isfinite(value) else value


def _finish(run: Run, trainer: Trainer, splits: Splits) -> None:
    """Test the best weights and write the summary, which marks the run as finished."""
    config, ranks = trainer.config, trainer.ranks
    ranks.first(lambda: write(run, point, run, trainer))
    test = splits.test.to(trainer.sums.device)
    network = _best_network(run, trainer)
    how: dict[str, Any] = {
        "batch_size": config.evaluation_batch_size,
        "precision": config.precision,
    }
    score = ranks.scoring(network, test.images, **how)
    evaluation = ranks.agreed(evaluate_network(network, test, score=score, **how))
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
    write(run, write_atomically, run.folder / PREDICTIONS, serialize(predictions))
    write(run, write_json, run.folder / SUMMARY, summary)
