"""The training loop: batches, gradient, update, validation (Sec. 5)."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import ImageSet, StoredImages, training_batches
from pdecnn.data.patches import AbstractPatches
from pdecnn.errors import ConfigError, DivergedError, RankError, TooLargeError
from pdecnn.files import finite_number
from pdecnn.learning.capture import TrainingGraphs
from pdecnn.learning.checkpoint import Progress, progress_from_dict
from pdecnn.learning.distributed import ALONE, Ranks
from pdecnn.learning.guard import NUM_PROBES, TrainingGuard
from pdecnn.learning.memory import finer_division, is_out_of_memory
from pdecnn.learning.metrics import (
    EpochReport,
    Measured,
    is_better,
    report_epoch,
    training_flops,
)
from pdecnn.learning.objective import Objective
from pdecnn.learning.optimizer import ProjectedSGD
from pdecnn.learning.statistics import ReestimatedStatistics, reestimating_copy
from pdecnn.learning.step import Failure, TrainingStep
from pdecnn.learning.synchronization import synchronize_batch_norms_
from pdecnn.learning.tasks import CLASSIFICATION, AbstractTask
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.multilevel import transfer_tensors
from pdecnn.networks.network import Network
from pdecnn.networks.reversal import GUARDED
from pdecnn.settings import formerly

log = logging.getLogger(__name__)

SYNCHRONIZE_INTERVAL = 20
"""Steps on a GPU between two looks at how they went."""
_REMEDY = (
    "lower training.learning_rates, clip with training.clip_norm, or allow "
    "training.max_nonfinite_steps"
)
_REASONS = {
    Failure.NOT_FINITE: f"the loss or its gradient is not finite; {_REMEDY}",
    Failure.OUT_OF_RANGE: (
        f"the state left the range of exact reversal; use fewer network.grid_bits, a "
        f"normalisation, a smaller network.step_size on the same grid, or "
        f"network.backprop=checkpointed; {_REMEDY}"
    ),
}


class Trainer:
    """Trains a network on images held on its device, or read from the disk a batch at a time.

    The order of the samples is a function of (seed, epoch), their augmentation of (seed, epoch,
    sample index): a training goes on from `progress` and its tensors as if never interrupted.

    With several `ranks` each takes its share of every batch and of the images to evaluate. All
    have the same weights, statistics and figures at any time, those of one rank up to rounding.

    Without `validation` no epoch is selected: the last one counts as the best.
    """

    @formerly(note="read the logger pdecnn")
    def __init__(
        self,
        network: Network,
        config: TrainingConfig,
        *,
        train: ImageSet,
        validation: ImageSet | None,
        augmentation: Augmentation,
        seed: int,
        ranks: Ranks = ALONE,
        task: AbstractTask = CLASSIFICATION,
        patches: AbstractPatches | None = None,
    ) -> None:
        for image_set in (train, validation):
            if image_set is not None:
                task.check_fit(network, image_set)
        if patches is not None:
            patches.check_fit(train)
        self.task, self.patches = task, patches
        if validation is None:
            for name in ("patience", "ties"):
                config.refuse_unused(name, "without validation (data.validation_fraction=0)")
        config.check_first_level(network)
        device = network.weight.device
        self.config = config
        self.train = train.to(device)
        if patches is not None:
            self.train = patches.prepared(self.train, network.preprocess)
        self.validation = None if validation is None else validation.to(device)
        self.augmentation = augmentation
        self.seed = seed
        self.ranks = ranks
        self.objective = Objective(config, task)
        self.objective.check_classes(network.num_classes)
        self.progress = Progress()
        self.num_samples = len(train) * (1 if patches is None else patches.repeats)
        self.steps_per_epoch = self.num_samples // config.batch_size
        if self.steps_per_epoch == 0:
            what = f"{network.subject}s" if patches is None else "patches"
            more = "data.fraction" if patches is None else "data.repeats"
            raise ConfigError(
                f"training.batch_size={config.batch_size} is larger than the {self.num_samples} "
                f"training {what}; lower it, or raise {more}"
            )
        _check_share(config, ranks, network.num_classes)
        self._assemble(network, None if config.average_decay is None else deepcopy(network))
        augmentation.check_images(train.channels, self._size, train.images.dtype)

    def _assemble(self, network: Network, average: Network | None) -> None:
        """Train this network from now on, with an optimiser that has seen no step."""
        self.network, self.average = network, average
        for either in (network, average):
            if either is not None:
                freeze_(either, self.config.freeze)
        self.optimizer = ProjectedSGD(network, learning_rate=0.0, config=self.config)
        copied = None
        if self.config.batch_norm_statistics == "reestimated":
            copied = reestimating_copy(network, _parts(network, self.config.freeze))
        if self.ranks.size > 1:
            if copied is not None:
                synchronize_batch_norms_(copied, self.ranks.sum_)
            synchronize_batch_norms_(network, self.ranks.sum_)
        self._step = TrainingStep(
            network,
            self.config,
            train=self.train,
            augmentation=self.augmentation,
            objective=self.objective,
            optimizer=self.optimizer,
            average=average,
            seed=self.seed,
            patches=self.patches,
            num_processes=self.ranks.size,
            sum_=self.ranks.sum_ if self.ranks.size > 1 else None,
        )
        self.guard: TrainingGuard | None = None
        if any(getattr(block, "backprop", None) == GUARDED for block in network.blocks):
            self.guard = TrainingGuard(network, self.config, largest_of=self.ranks.largest_of)
        self._steps_left = 0
        self._stream: Iterator[Tensor] | None = None
        self._statistics = None if copied is None else ReestimatedStatistics(copied, self._step)
        self._graphs = TrainingGraphs(
            self._step,
            validation=self.validation,
            statistics=self._statistics,
            largest_of=self.ranks.largest_of,
        )

    @property
    def sums(self) -> Tensor:
        """Sums over the epoch, on the device: loss parts, right answers, images."""
        return self._step.sums

    @property
    def evaluated(self) -> Network:
        """The network that validation and users see: the moving average where there is one.

        At the end of an epoch it has the statistics that it was validated with.
        """
        statistics, progress = self._statistics, self.progress
        if statistics is not None and (statistics.estimated_at, 0) == (
            progress.step,
            progress.batch,
        ):
            return statistics.network
        return self._step.evaluated

    def epochs(
        self, *, poll: Callable[[], None], on_step: Callable[[], None]
    ) -> Iterator[EpochReport]:
        """Train on from `progress`, yielding after each epoch and its validation.

        `poll` runs between batches, of validation too, and may raise to interrupt: the trainer
        is then in a state from which a checkpoint can go on. `on_step` runs after each update.
        """
        while self.progress.stopped is None:
            level = self._level_of(self.progress.epoch)
            if level != self.progress.level:
                self.enter_level(level)
                log.info("level %d of %d: %s", level + 1, self.config.num_levels, self._described())
            self._train_epoch(poll, on_step)
            poll()
            yield self._finish_epoch(self._validate(poll))

    def _reestimated(self, statistics: ReestimatedStatistics, poll: Callable[[], None]) -> Network:
        """The evaluated network with statistics of its own."""

        def before(number: int) -> None:
            poll()
            if isinstance(self.train.images, StoredImages):
                self._step.images.copy_(self.train.images[self._step.batches[number].cpu()])

        statistics.estimate(self._graphs.launch_statistics, before)
        statistics.estimated_at = self.progress.step
        return statistics.network

    def _validate(self, poll: Callable[[], None]) -> Measured | None:
        network = self._step.evaluated
        if self._statistics is not None:
            network = self._reestimated(self._statistics, poll)
        if self.validation is None:
            return None
        return self.ranks.evaluate(
            self.task,
            network,
            self.validation,
            self.config,
            poll=poll,
            alone=self._graphs.scores,
        )

    def enter_level(self, level: int) -> None:
        """Refine the network with its average and velocities up to that level."""
        for finer in range(self.progress.level + 1, level + 1):
            network, optimizer = self.network, self.optimizer
            guard = self.guard
            # A velocity is a change of the weights; the means of AdamW begin anew.
            velocities = {
                name: state["velocity"]
                for name, weight in network.named_parameters()
                if "velocity" in (state := optimizer.state_of(weight))
            }
            average = None if self.average is None else self.config.refine(self.average, finer)
            refined = self.config.refine(network, finer)
            switched = [] if guard is None else guard.drift.switched
            if guard is not None:
                guard.drift.carry_over(refined)
            self._assemble(refined, average)
            self.switch_blocks(switched)
            for name, velocity in transfer_tensors(network, self.network, velocities).items():
                self.optimizer.velocity(self.network.get_parameter(name)).copy_(velocity)
            self.progress.level = finer

    @contextmanager
    def trying_level(self, level: int) -> Iterator[None]:
        """Within it on that level; an error puts the trainer back to where it was."""
        before, level_before = dict(vars(self)), self.progress.level
        try:
            self.enter_level(level)
            yield
        except Exception:
            vars(self).update(before)
            self.progress.level = level_before
            raise

    def _level_of(self, epoch: int) -> int:
        return self.config.level_of(epoch, self.config.epochs)

    @property
    def _size(self) -> tuple[int, ...]:
        """The size of the images the network sees on its level."""
        preprocessing, size = self.network.preprocessing, self.train.size
        if self.patches is not None:
            size = self.patches.size
        return tuple(n // preprocessing.pooling for n in preprocessing.size or size)

    def _described(self) -> str:
        size, steps = " x ".join(map(str, self._size)), self.network.config.num_steps
        return f"{size} pixels, {steps} steps a block"

    def _train_epoch(self, poll: Callable[[], None], on_step: Callable[[], None]) -> None:
        # A CPU is never waited for; a GPU is asked now and then only.
        interval = SYNCHRONIZE_INTERVAL if self.sums.is_cuda else 1
        self.begin_epoch()
        if self.guard is not None and self.guard.is_due(self.progress):
            self._look_at_reversal(self.guard)
        batch = self.progress.batch
        while batch < self.steps_per_epoch:
            try:
                poll()
            except RankError:
                raise  # a GPU may wait for that rank
            except BaseException:
                self.synchronize()  # a checkpoint may follow
                raise
            self.step()
            batch += 1
            if batch % interval == 0 or batch == self.steps_per_epoch:
                self.synchronize()
            on_step()

    @property
    def watched_blocks(self) -> tuple[int, ...]:
        """The blocks that began in mode 'reversible', which the guard may switch."""
        return () if self.guard is None else self.guard.drift.watched

    def switch_blocks(self, indices: Sequence[int]) -> None:
        """Checkpoint these of the blocks that are watched."""
        if self.guard is not None:
            self.guard.drift.switch(indices)

    def _look_at_reversal(self, guard: TrainingGuard) -> None:
        """Compare gradients on the first images to come; a switch means capturing anew."""
        if isinstance(self.train.images, StoredImages):  # the next batch is still on the disk
            self._step.images.copy_(self.train.images[self._step.batches[0].cpu()])
        images, labels = self._step.next_images(NUM_PROBES)
        loss = partial(self._step.loss, labels=labels)
        if guard.look(self.progress, images, loss):
            self._graphs.forget()

    def begin_epoch(self) -> None:
        """Put the order and the learning rates of the current epoch on the device."""
        progress, step = self.progress, self._step
        batches = training_batches(
            self.num_samples, self.config.batch_size, seed=self.seed, epoch=progress.epoch
        )
        batches = self._share(batches)
        step.batches.copy_(batches)
        if isinstance(self.train.images, StoredImages):
            left = batches[progress.batch :]
            self._stream = self.train.images.batches(left, pin_memory=self.sums.is_cuda)
        first = progress.step - progress.batch
        rates = [self._learning_rate(first + k) for k in range(self.steps_per_epoch)]
        step.rates.copy_(torch.tensor(rates, dtype=torch.float64))
        step.epoch.fill_(progress.epoch)
        step.counts.copy_(
            torch.tensor(
                [
                    progress.batch,
                    progress.nonfinite_in_row,
                    progress.nonfinite_steps,
                    Failure.NONE,
                ]
            )
        )
        step.skipped.zero_()
        step.skipped[torch.tensor(progress.nonfinite_batches, dtype=torch.int64)] = 1
        training_mode_(self.network, self.config.freeze)
        if step.collect_weights():
            self._graphs.forget_step()  # what was captured trains others
        self._steps_left = self.steps_per_epoch - progress.batch

    def _share(self, batches: Tensor) -> Tensor:
        """This rank's share of each part of each batch, so that parts hold what they hold alone."""
        parts = batches.view(len(batches), self.config.accumulation, self.ranks.size, -1)
        return parts[:, :, self.ranks.rank].flatten(1)

    def copy_from_first(self) -> None:
        """Go on where rank 0 stands."""
        progress = progress_from_dict(self.ranks.first(self.progress.to_dict))
        self.enter_level(progress.level)
        self.progress = progress
        self.switch_blocks(progress.checkpointed_blocks)
        self.ranks.copy_from_first_(self._step.state)

    def step(self) -> None:
        """One update from the next batch, or none if its loss or gradient is not finite.

        On a GPU it is launched only: `synchronize` says how it went.
        """
        if self._steps_left == 0:
            raise RuntimeError("the epoch has no batch left; call begin_epoch()")
        if self._stream is not None:
            self._step.images.copy_(next(self._stream), non_blocking=True)
        try:
            self._graphs.launch_step()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise TooLargeError(self._too_large()) from error
        self._steps_left -= 1

    def _too_large(self) -> str:
        """What to do about a step that does not fit into memory."""
        batch_size, parts = self.config.batch_size, self.config.accumulation
        divided = f" in {parts} parts" if parts > 1 else ""
        finer = finer_division(batch_size, parts, self.ranks.size)
        remedy = "lower data.size or network.channels"
        if finer is not None:
            remedy = f"set training.accumulation={finer} (batch norms then see a part at a time)"
        return (
            f"not enough memory for a batch of {batch_size}{divided}; {remedy} or set "
            f"network.backprop=exact (checkpointed for parabolic networks)"
        )

    def synchronize(self) -> None:
        """Wait for the device, bring `progress` up to date, and raise if the training failed."""
        progress = self.progress
        self.ranks.wait_for(self.sums.device)
        batch, *counters, failure = self._step.counts.tolist()
        progress.step += batch - progress.batch
        progress.batch = batch
        before = progress.nonfinite_steps
        progress.nonfinite_in_row, progress.nonfinite_steps = counters
        if progress.nonfinite_steps > before:
            progress.nonfinite_batches = self._step.skipped.nonzero().flatten().tolist()
        if failure != Failure.NONE:
            raise self._diverged(_REASONS[failure])

    @property
    def captured(self) -> bool:
        """Whether steps are replayed from a graph."""
        return self._graphs.captured

    def release_graphs(self) -> None:
        """Let what was captured go: the ranks cannot part while a graph holds their messages."""
        self._graphs.forget()

    def _learning_rate(self, step: int) -> float:
        return self.config.learning_rate(
            step, steps_per_epoch=self.steps_per_epoch, epochs=self.config.epochs
        )

    def _diverged(self, reason: str) -> DivergedError:
        # torch's max, unlike Python's, is NaN if one of them is.
        weights = [weight.detach().abs().max() for weight in self.network.parameters()]
        largest = float(torch.stack(weights).max())
        rate = self._learning_rate(self.progress.step)
        return DivergedError(
            f"diverged at step {self.progress.step + 1} (epoch {self.progress.epoch + 1}, batch "
            f"{self.progress.batch + 1}, learning rate {rate:g}, largest weight {largest:.3g}): "
            f"{reason}"
        )

    def _finish_epoch(self, evaluation: Measured | None) -> EpochReport:
        progress = self.progress
        is_last_level = progress.level == self.config.num_levels - 1
        # Accuracies compare on one level only: the first epoch of a new one is its best so far.
        begins = progress.epoch > 0 and self._level_of(progress.epoch - 1) != progress.level
        progress.epoch += 1
        progress.batch = 0
        progress.work += self.steps_per_epoch * training_flops(
            self.network.config, self._size, self.config.batch_size
        )
        best, ties = (progress.best_accuracy, progress.best_loss), self.config.ties
        if evaluation is None:
            progress.best_epoch = progress.epoch
        elif begins or is_better(evaluation.score, evaluation.loss, *best, ties=ties):
            progress.best_accuracy, progress.best_epoch = evaluation.score, progress.epoch
            progress.best_loss = finite_number(evaluation.loss)
        patience = self.config.patience
        if progress.epoch >= self.config.epochs:
            progress.stopped = "completed"
        elif (
            patience is not None
            and is_last_level
            and progress.epoch - progress.best_epoch >= patience
        ):
            progress.stopped = "early_stopping"
        report = report_epoch(
            progress,
            self.sums,
            evaluation,
            learning_rate=self._learning_rate(progress.step - 1),
        )
        self.sums.zero_()
        progress.reversal_error, progress.nonfinite_batches = None, []
        return report


def _check_share(config: TrainingConfig, ranks: Ranks, num_classes: int) -> None:
    """Refuse batches that the ranks cannot share evenly, or whose images have none to mix with."""
    batch_size, accumulation = config.batch_size, config.accumulation
    parts = f" in {accumulation} parts" if accumulation > 1 else ""
    if batch_size % (accumulation * ranks.size):
        raise ConfigError(
            f"training.batch_size={batch_size}{parts} cannot be divided among {ranks.size} ranks; "
            f"set it to a multiple of {accumulation * ranks.size}"
        )
    if config.mixup is None and config.cutmix is None:
        return
    if num_classes < 2:
        raise ConfigError(
            f"training.mixup and training.cutmix mix the labels of two classes, found "
            f"{num_classes}; leave them out"
        )
    if batch_size // (accumulation * ranks.size) % 2:
        raise ConfigError(
            f"training.mixup and training.cutmix mix images in pairs, but training.batch_size="
            f"{batch_size}{parts} gives each of {ranks.size} ranks an odd number at a time; set it "
            f"to a multiple of {2 * accumulation * ranks.size}"
        )


def freeze_(network: Network, names: Sequence[str]) -> None:
    """Take the weights of these parts out of the training."""
    for part in _parts(network, names):
        part.requires_grad_(False)


def training_mode_(network: Network, names: Sequence[str]) -> None:
    """Training mode, but for frozen parts: their batch norms use and keep their statistics."""
    network.train()
    for part in _parts(network, names):
        part.eval()


def _parts(network: Network, names: Sequence[str]) -> list[nn.Module]:
    parts: dict[str, list[nn.Module]] = {
        "opening": [network.opening],
        "blocks": [network.blocks, network.connectors],
    }
    return [part for name in names for part in parts[name]]
