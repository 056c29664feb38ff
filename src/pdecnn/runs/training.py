"""One run from config to summary, resumable at any point: open, prepare, restore, train, finish."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from pdecnn.data.augmentation import cpu_generator
from pdecnn.data.image_set import ImageSet, imbalance
from pdecnn.data.registry import OWN, suggested_groups
from pdecnn.errors import CheckpointError, ConfigError, DataError, system_errors_as
from pdecnn.fast.acceleration import use_kernels
from pdecnn.files import finite_number, write_atomically, write_json
from pdecnn.learning.checkpoint import Progress, load_checkpoint, save_checkpoint, set_aside
from pdecnn.learning.distributed import Ranks, joined_ranks, num_ranks
from pdecnn.learning.metrics import (
    AUTO,
    EpochReport,
    Measured,
    Precision,
    resolve_precision,
)
from pdecnn.learning.tasks import AbstractTask
from pdecnn.learning.trainer import Trainer
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import serialize
from pdecnn.networks.registry import published_name
from pdecnn.runs.config import RunConfig, assignment, differing_keys, run_config_from_dict
from pdecnn.runs.preparation import (
    SHOWN_IMAGES,
    Device,
    Interrupted,
    Splits,
    StopSignals,
    cpu_threads,
    describe_environment,
    deterministic_algorithms,
    make_network,
    make_run_task,
    read_own,
    read_splits,
    read_weights,
    resolve_device,
    take_initial,
)
from pdecnn.runs.runs import (
    DATA,
    INITIAL,
    METRICS,
    PREDICTIONS,
    RUN_WAIT_SECONDS,
    RUNS,
    SUMMARY,
    TENSORBOARD,
    TIME_LIMIT,
    Run,
    check_free,
    choose_folder,
    create_run,
    is_run,
    locked_folder,
)

log = logging.getLogger(__name__)
"""What is worth a line: of what a run does by itself, and why."""
NUM_SHOWN = 6
_NUM_PREVIEWS = 6
# What may differ between a run and its resumption without changing any result.
_FREE_ON_RESUME = {"data.folder", "training.time_limit_seconds", "initial"}


class Listener:
    """Receives the events of a run; subclasses show them. One that cannot is not waited for."""

    def begin(self, folder: Path, trainer: Trainer) -> None:
        """Training begins or goes on."""

    def step(self, progress: Progress) -> None:
        """A batch is done."""

    def epoch(self, report: EpochReport, timing: dict[str, Any]) -> None:
        """An epoch is done and saved."""

    def end(self) -> None:
        """Training ended, for whatever reason."""

    def finished(self, run: Run, figures: list[Path]) -> None:
        """The run has its summary and its figures."""


class _Notes(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self.show = show

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # a log that cannot be written ends no training
            self.show(record.getMessage())


@contextmanager
def notes_shown_by(show: Callable[[str], None]) -> Iterator[None]:
    """Within it what pdecnn logs is passed on to `show`, line by line."""
    logger, handler = logging.getLogger("pdecnn"), _Notes(show)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def train(
    config: RunConfig,
    *,
    data: tuple[Any, ...] | Mapping[str, Any] | str | Path | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    device: Device = "auto",
    initial: str | Path | Run | None = None,
    foreign: bool = False,
    listener: Listener | None = None,
) -> Run:
    """Train as the config says, or go on with a run, and return its directory.

    `data` takes the place of the config's: samples and labels (x, y), tensors or numpy arrays
    with the axes of `pdecnn.data.read_arrays`, or with groups (x, y, group), which are never
    split between training, validation and test, or several such parts by its names, or a file of
    arrays. `initial` is a run, a `save_pretrained` folder or a model with published weights to take
    the weights from; with `foreign` it may be a file of torch.save, of which the tensors alone are
    read. With `resume` the newest checkpoint that verifies is taken; a finished run is left as it
    is. What is worth a line is logged (`logging.getLogger("pdecnn")`).

    Of several processes that torchrun started each calls this; rank 0 alone writes and speaks.
    """
    if not isinstance(config, RunConfig):
        raise ConfigError(
            f"train takes a RunConfig, found {config!r}; for a recipe by name use recipe(name)"
        )
    if initial is not None:
        place = published_name(os.fspath(initial)) or str(Path(initial).absolute())
        config = replace(config, initial=place)
    arrays = _by_name(data)
    if data is not None:
        folder_of_data = None if arrays is not None else str(Path(str(data)).absolute())
        settings = replace(config.data, name="arrays", folder=folder_of_data, channels=None)
        config = replace(config, data=settings)
    with StopSignals() as signals:
        where = resolve_device(device)
        with (
            joined_ranks(where) as ranks,
            cpu_threads(config.training.num_threads),
            deterministic_algorithms(config.training.deterministic, where),
            ExitStack() as held,
        ):
            folder = None if output is None else Path(output)
            if folder is not None and not resume:  # told before the data is read
                ranks.first(partial(_existing_run, folder, config, resume))
            config, own = ranks.together(partial(read_own, config, arrays))
            opened = ranks.first(partial(_open, folder, config, where, resume, held))
            run = Run(opened["folder"], elsewhere=not ranks.is_first)
            if not opened["finished"]:
                stored = run_config_from_dict(opened["config"])
                training = with_precision(config, stored.training.precision).training
                config = replace(stored, data=config.data, training=training)
                walk = _Walk(
                    run=run,
                    config=config,
                    arrays=arrays,
                    own=own,
                    device=where,
                    ranks=ranks,
                    signals=signals,
                    listener=listener if listener and ranks.is_first else Listener(),
                    foreign=foreign,
                )
                made = [Path(path) for path in opened["made"]] if opened["is_new"] else None
                walk.go(made)
    return run


def _by_name(
    data: tuple[Any, ...] | Mapping[str, Any] | str | Path | None,
) -> Mapping[str, Any] | None:
    """The arrays by their names; None: those of the config, or of a file."""
    if data is None or isinstance(data, Mapping | str | Path):
        return data if isinstance(data, Mapping) else None
    if not isinstance(data, tuple):
        raise DataError(
            f"data must be (x, y), (x, y, group), arrays by name or a file of arrays, found "
            f"{type(data).__name__}"
        )
    if len(data) not in (2, 3):
        raise DataError(f"data must be (x, y) or (x, y, group), found {len(data)} arrays")
    return dict(zip(("x", "y", "group"), data, strict=False))


# ------------------------------------------------------------------ open


def _open(
    folder: Path | None, config: RunConfig, device: torch.device, resume: bool, held: ExitStack
) -> dict[str, Any]:
    """Make the run or find the one to go on with; what the ranks must know of it, as JSON.

    No other process has its folder while `held` is open, unless the run is finished.
    """
    with usable(folder or RUNS):
        folder, made = choose_folder(folder, config.recipe)
    run = _existing_run(folder, config, resume)
    if run is None or not run.is_finished:
        with usable(folder):
            held.enter_context(locked_folder(folder, wait_seconds=RUN_WAIT_SECONDS))
        run = _existing_run(folder, config, resume)  # another process may have made it meanwhile
    is_new = run is None
    if run is None:
        run = begin_run(folder, config, device, made)
        if resume:
            log.info("no run to resume yet; starting %s anew", config.recipe)
    elif run.is_finished:
        log.info("%s is finished; nothing to do", run.folder)
    elif run.num_ranks != num_ranks():
        log.info(
            "%s began with %d ranks and goes on with %d: its figures will agree to rounding, not "
            "to the bit",
            *(run.folder, run.num_ranks, num_ranks()),
        )
    with usable(folder):
        run.clean()
    return {
        "folder": str(run.folder),
        "is_new": is_new,
        "made": [str(path) for path in made],
        "finished": not is_new and run.is_finished,
        "config": run.config.to_dict(),
    }


def begin_run(folder: Path, config: RunConfig, device: torch.device, made: list[Path]) -> Run:
    """Make the directory of a run of which nothing is trained yet."""
    config = with_precision(config, resolve_precision(AUTO, device))
    config = replace(config, network=config.network.with_grid())
    with usable(folder):
        environment = describe_environment(device, config.seed)
        return create_run(folder, config, environment, made=made)


def _existing_run(folder: Path, config: RunConfig, resume: bool) -> Run | None:
    """The run to go on with; None where there is none yet, an error where there must not be."""
    if not (resume and is_run(folder)):
        with usable(folder):
            check_free(folder, "pass --resume to go on with it, or another --output")
        return None
    run = Run(folder)
    check_settings(run, config)
    return run


def with_precision(config: RunConfig, precision: Precision) -> RunConfig:
    """The config with 'auto' resolved: a run says what it computes in, wherever it goes on."""
    if config.training.precision != AUTO:
        return config
    return replace(config, training=replace(config.training, precision=precision))


def check_settings(run: Run, config: RunConfig) -> None:
    """Raise a ConfigError if going on with the config would mix two runs in one folder."""
    stored = run.config
    config = with_precision(config, stored.training.precision)
    # Where none is said the grid is that of the run.
    free = _FREE_ON_RESUME | ({"network.grid_bits"} if config.network.grid_bits is None else set())
    differing = [key for key in differing_keys(stored, config) if key not in free]
    if differing:
        values = ", ".join(assignment(stored, key) for key in differing)
        raise ConfigError(
            f"{run.folder} was made with other settings ({values}); resume it with its own, or "
            f"start anew with another --output"
        )


def check_data(run: Run, fingerprint: str) -> None:
    """Raise a DataError if the run was begun with other data than that of the fingerprint."""
    if run.data_fingerprint != fingerprint:
        raise DataError(
            f"{run.folder} was begun with other data ({DATA} has another SHA-256); give it the "
            f"same --data, or start anew with another --output"
        )


def usable(folder: Path) -> AbstractContextManager[None]:
    """Say in one line that the folder cannot hold a run."""
    return system_errors_as(CheckpointError, f"{folder}: cannot be used")


# ------------------------------------------------------------------ the walk


@dataclass(kw_only=True, slots=True)
class _Walk:
    """A run that is open, on its way to the summary; each rank has one."""

    run: Run
    config: RunConfig
    arrays: Mapping[str, Any] | None
    own: Splits | None
    """Data of one's own, which was read already."""
    device: torch.device
    ranks: Ranks
    signals: StopSignals
    listener: Listener
    foreign: bool
    splits: Splits = field(init=False)
    trainer: Trainer = field(init=False)

    def go(self, made: list[Path] | None) -> None:
        """Train from the newest checkpoint, or the beginning, to the end.

        `made` are the folders made for a new run, None for one that goes on.
        """
        try:
            self.prepare()
        except Exception as error:
            if made is not None and self.ranks.is_first and not isinstance(error, Interrupted):
                self.run.discard(made)  # a start that fails for its data leaves nothing behind
            raise
        self.restore()
        self.signals.deferred = True
        self._tell(self.listener.begin, self.run.folder, self.trainer)
        try:
            self.train()
        except Interrupted:
            self.ranks.first(self.save)
            log.info("interrupted; go on with `pdecnn train --output %s --resume`", self.run.folder)
            raise
        finally:
            self.trainer.release_graphs()
            self._tell(self.listener.end)
        self.signals.deferred = False
        self.finish()

    def prepare(self) -> None:
        """Read the data, make network and trainer, and refuse other data than the run's."""
        self.splits = self.ranks.together(self._read_data)
        self.trainer = self.ranks.together(self._make_trainer)
        fingerprint = self.ranks.first(self._remember_data)
        self.ranks.together(partial(self.splits.check_same, fingerprint))

    def _read_data(self) -> Splits:
        splits = self.own or read_splits(self.config.data, self.config.seed)
        if splits.train.masks is None:
            warning = imbalance(splits.train.labels, splits.train.class_names)
            if warning is not None:
                log.info(warning)
        data = self.config.data
        if data.name in OWN and splits.train.groups is None:
            source = data.folder if self.arrays is None else self.arrays
            assert source is not None, "the data has been read"
            hint = suggested_groups(data.name, source)
            if hint is not None:
                log.info(hint)
        return splits

    def _make_trainer(self) -> Trainer:
        config, splits = self.config, self.splits
        if config.network.share_weights and config.network.normalization == "batch":
            log.info(
                "the steps of a block share a batch norm, which meets other statistics at every "
                "step, so that in evaluation it has those of none; set network.normalization=tv"
            )
        network = make_network(config, splits.train)
        if not self.run.checkpoints:
            # A coarsened run brings what it begins with along, wherever its folder is moved.
            own = self.run.folder / INITIAL
            initial = str(own) if own.is_dir() else config.initial
            take_initial(network, initial, foreign=self.foreign)
        return Trainer(
            network.to(self.device),
            config.training,
            train=splits.train,
            validation=splits.validation,
            augmentation=config.data.augmentation(),
            seed=config.seed,
            ranks=self.ranks,
            task=make_run_task(config),
            patches=config.data.patches(config.network.dimension),
        )

    def _remember_data(self) -> str:
        """Write down the fingerprint of the data, or refuse other data than at the beginning."""
        fingerprint = self.splits.fingerprint()
        if self.run.data_fingerprint is not None:
            check_data(self.run, fingerprint)
            return fingerprint
        sizes = {name: len(part or ()) for name, part in self.splits._asdict().items()}
        self._write(write_json, self.run.folder / DATA, {"sha256": fingerprint, "images": sizes})
        return fingerprint

    def restore(self) -> None:
        """Put the trainers of all ranks where the newest intact checkpoint was."""
        self.ranks.first(self._restore_newest)
        self.trainer.copy_from_first()

    def _restore_newest(self) -> None:
        """Damaged checkpoints are named and kept."""
        failures: dict[Path, str] = {}
        for folder in reversed(self.run.checkpoints):
            try:
                load_checkpoint(self.trainer, folder)
            except CheckpointError as error:
                log.info("skipped a checkpoint: %s", error)
                failures[folder] = str(error)
                continue
            log.info("resumed from %s", folder.name)
            for damaged in failures:
                self._write(set_aside, damaged)
            return
        if failures:
            raise CheckpointError(
                f"{self.run.folder}: none of its {len(failures)} checkpoints is intact "
                f"({next(iter(failures.values()))}); start anew with another --output"
            )

    def train(self) -> None:
        """Train epoch by epoch, each written down, to the end or the time limit."""
        trainer, ranks = self.trainer, self.ranks
        entries = ranks.first(self._entries)
        begin, first_step = monotonic(), trainer.progress.step
        deadline = begin + (trainer.config.time_limit_seconds or float("inf"))
        poll = partial(self.signals.poll, ranks.largest)
        on_step = partial(self._tell, self.listener.step, trainer.progress)
        reports = trainer.epochs(poll=poll, on_step=on_step)
        with closing(EventWriter(self.run.folder / TENSORBOARD, trainer.task)) as writer:
            for report in reports:
                seconds = monotonic() - begin
                images = (trainer.progress.step - first_step) * trainer.config.batch_size
                timing = {
                    "epoch": report.epoch,
                    "seconds": round(seconds, 4),
                    "images_per_second": round(images / max(seconds, 1e-9), 1),
                }
                entries.append(epoch_entry(report, trainer.task))
                ranks.first(partial(self._write_epoch, entries, report, timing, writer))
                self._tell(self.listener.epoch, report, timing)
                begin, first_step = monotonic(), trainer.progress.step
                if ranks.largest(begin > deadline):
                    break
        poll()

    def _entries(self) -> list[dict[str, Any]]:
        """The metrics of the epochs done; a summary of them goes, since there will be more."""
        path, done = self.run.folder / METRICS, self.trainer.progress.epoch
        entries, remedy = self.run.metrics[:done], "restore it from a copy, or start anew"
        if len(entries) < done:
            raise CheckpointError(
                f"{path}: has {len(entries)} of {done} epochs; {remedy} with another --output"
            )
        for number, entry in enumerate(entries, start=1):
            if not isinstance(entry, dict) or entry.get("epoch") != number:
                raise CheckpointError(
                    f"{path}: line {number} is not of epoch {number}; {remedy} with another "
                    f"--output"
                )
        if self.trainer.progress.stopped is None:
            for name in (SUMMARY, PREDICTIONS):
                self._write(partial((self.run.folder / name).unlink, missing_ok=True))
        return entries

    def _write_epoch(
        self,
        entries: list[dict[str, Any]],
        report: EpochReport,
        timing: dict[str, Any],
        writer: "EventWriter",
    ) -> None:
        # Metrics first: a checkpoint then never lacks the lines of its epochs.
        self._write(self.run.write_metrics, entries)
        self.save()
        self._write(self.run.append_timing, timing)
        self._write(writer.write, report, timing)
        self._preview(report.epoch)

    def _preview(self, epoch: int) -> None:
        """Every few epochs the answer to a validation image, where each pixel has one."""
        trainer, validation = self.trainer, self.trainer.validation
        task = trainer.task
        last = trainer.config.epochs
        is_due = epoch in (1, last) or epoch % ceil(last / _NUM_PREVIEWS) == 0
        if task.has_classes or validation is None or not is_due:
            return
        first = validation.subset(torch.arange(1))
        shown = task.show(trainer.evaluated, first, trainer.config.precision)
        columns = [shown[name][0] for name in task.columns]
        self._write(self.run.write_preview, epoch, columns)

    def save(self) -> None:
        """Write a checkpoint, then point `best` and `last` at what they mean."""
        progress = self.trainer.progress
        folder = self.run.checkpoint_path(progress.epoch, progress.batch)
        self._write(save_checkpoint, self.trainer, folder)
        self._write(self.point)

    def point(self) -> None:
        """Let `best` and `last` be the checkpoints they mean; drop those that nothing needs."""
        run, progress = self.run, self.trainer.progress
        run.link("last", run.checkpoint_path(progress.epoch, progress.batch))
        best = run.checkpoint_path(progress.best_epoch, 0)
        if progress.best_epoch and best.is_dir():
            run.link("best", best)
        if progress.epoch and not progress.batch:
            run.prune(progress.best_epoch)

    def finish(self) -> None:
        """Test the best weights and write the summary, which marks the run as finished."""
        trainer, ranks = self.trainer, self.ranks
        ranks.first(partial(self._write, self.point))
        test, network = self.splits.test.to(trainer.sums.device), self._best_network()
        evaluation = ranks.evaluate(trainer.task, network, test, trainer.config)
        ranks.first(partial(self._summarize, network, test, evaluation))

    def _best_network(self) -> Network:
        """The best weights, which rank 0 reads for all."""
        current, read = self.trainer.network, list[Network]()
        self.ranks.first(lambda: read.append(read_weights(self.run)))
        network = read[0] if read else Network(current.config, current.preprocessing)
        network.to(current.weight.device, current.weight.dtype)
        self.ranks.copy_from_first_(list(network.state_dict().values()))
        return use_kernels(network)

    def _summarize(self, network: Network, test: ImageSet, evaluation: Measured) -> None:
        """Write the test figures and the answers to a few images."""
        progress, folder = self.trainer.progress, self.run.folder
        selected = self.trainer.validation is not None
        shown = torch.randperm(len(test), generator=cpu_generator(SHOWN_IMAGES))[:NUM_SHOWN]
        task, precision = self.trainer.task, self.trainer.config.precision
        predictions = task.show(network, test.subset(shown), precision)
        summary = {
            "stopped": progress.stopped or TIME_LIMIT,
            "epochs": progress.epoch,
            "best_epoch": progress.best_epoch,
            f"best_validation_{task.score}": progress.best_accuracy if selected else None,
            "selected_by": f"validation {task.score}" if selected else None,
            "num_weights": network.num_weights,
            "class_names": list(test.class_names),
            "test": evaluation.summary(),
        }
        self._write(write_atomically, folder / PREDICTIONS, serialize(predictions))
        self._write(write_json, folder / SUMMARY, summary)

    def _write(self, action: Callable[..., None], *arguments: Any) -> None:
        """Write, once more if it fails; then say so, with what was saved before intact."""
        with system_errors_as(
            CheckpointError,
            f"{self.run.folder}: cannot be written",
            "make room or allow writing, then go on with --resume (earlier checkpoints are intact)",
        ):
            try:
                action(*arguments)
            except OSError:
                action(*arguments)

    def _tell(self, event: Callable[..., None], *arguments: Any) -> None:
        """Tell the listener; one whose terminal or log is gone ends no training."""
        with suppress(OSError):
            event(*arguments)


def epoch_entry(report: EpochReport, task: AbstractTask) -> dict[str, Any]:
    """The figures of an epoch as JSON values, the score by the name it has in the task."""
    return {
        name.replace("accuracy", task.score): finite_number(value)
        if isinstance(value, float)
        else value
        for name, value in report._asdict().items()
    }


class EventWriter:
    """Writes every figure of an epoch as a scalar; does nothing without TensorBoard."""

    def __init__(self, folder: Path, task: AbstractTask) -> None:
        self._folder, self._task = folder, task
        self._installed = find_spec("tensorboard") is not None
        self._writer: Any = None

    def write(self, report: EpochReport, timing: dict[str, Any]) -> None:
        """Add the figures of an epoch."""
        if not self._installed:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder))
        for name, value in (epoch_entry(report, self._task) | timing).items():
            if name != "epoch" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, report.epoch)
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            with suppress(OSError):  # every write was flushed, and its failure reported
                self._writer.close()
