"""The training loop: batches, gradient, update, validation (Sec. 5)."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.batches import training_batches
from pdecnn.data.image_set import ImageSet
from pdecnn.errors import ConfigError, DivergedError
from pdecnn.learning.metrics import Evaluation, check_fit, evaluate_network
from pdecnn.learning.objective import Objective
from pdecnn.learning.optimizer import ProjectedSGD, gradients_of, norm_of, update_average_
from pdecnn.learning.precision import LossScale, compute_scores
from pdecnn.learning.progress import Progress
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.network import Network


class EpochReport(NamedTuple):
    """The figures of one epoch; nothing in it depends on the clock."""

    epoch: int
    step: int
    learning_rate: float
    loss: float
    data_loss: float
    smoothness: float
    decay: float
    accuracy: float
    validation_loss: float
    validation_accuracy: float
    nonfinite_steps: int
    overflow_steps: int


class Trainer:
    """Trains a network on images held on its device.

    The order of the samples is a function of (seed, epoch), their augmentation of (seed, epoch,
    sample index): a training goes on from `progress` and its tensors as if never interrupted.
    """

    def __init__(
        self,
        network: Network,
        config: TrainingConfig,
        *,
        train: ImageSet,
        validation: ImageSet,
        augmentation: Augmentation,
        seed: int,
    ) -> None:
        for image_set in (train, validation):
            check_fit(network, image_set)
        device = network.classifier.weight.device
        self.network = network
        self.config = config
        self.train = train.to(device)
        self.validation = validation.to(device)
        self.augmentation = augmentation
        self.seed = seed
        self.objective = Objective(config)
        self.objective.check_classes(network.num_classes)
        self.optimizer = ProjectedSGD(network, learning_rate=0.0, config=config)
        self.average = None if config.average_decay is None else deepcopy(network)
        self.loss_scale = LossScale(config.precision)
        self.progress = Progress()
        self.steps_per_epoch = len(train) // config.batch_size
        if self.steps_per_epoch == 0:
            raise ConfigError(
                f"batch_size={config.batch_size} is larger than the {len(train)} training images; "
                f"lower training.batch_size or raise data.fraction"
            )
        # Sums over the epoch of loss parts, right answers and images; float64 where there is any.
        wide = torch.float32 if device.type == "mps" else torch.float64
        self.sums = torch.zeros(6, device=device, dtype=wide)

    @property
    def evaluated(self) -> Network:
        """The network that validation and users see: the moving average where there is one."""
        return self.network if self.average is None else self.average

    def epochs(
        self, *, poll: Callable[[], None], on_step: Callable[[], None]
    ) -> Iterator[EpochReport]:
        """Train on from `progress`, yielding after each validated epoch.

        `poll` runs between batches, of validation too, and may raise to interrupt: the trainer
        is then in a state from which a checkpoint can go on. `on_step` runs after each update.
        """
        while self.progress.stopped is None:
            self._train_epoch(poll, on_step)
            poll()
            evaluation = evaluate_network(
                self.evaluated,
                self.validation,
                batch_size=self.config.evaluation_batch_size,
                precision=self.config.precision,
                poll=poll,
            )
            yield self._finish_epoch(evaluation)

    def _train_epoch(self, poll: Callable[[], None], on_step: Callable[[], None]) -> None:
        progress = self.progress
        batches = training_batches(
            len(self.train), self.config.batch_size, seed=self.seed, epoch=progress.epoch
        ).to(self.train.images.device)
        self.network.train()
        while progress.batch < self.steps_per_epoch:
            poll()
            self.train_step(batches[progress.batch])
            progress.batch += 1
            progress.step += 1
            on_step()

    def train_step(self, indices: Tensor) -> None:
        """One update from one batch, or none if its loss or gradient is not finite."""
        self.optimizer.learning_rate = self._learning_rate(self.progress.step)
        # A batch that is thrown away must leave no trace in the statistics of the batch norms.
        statistics = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        self.optimizer.zero_grad()
        try:
            loss, sums = self._gradient(indices)
            norm = self._unscaled_gradient_norm()
            # Both at once: the device is waited for a single time.
            finite_loss, finite = torch.stack([loss.isfinite(), norm.isfinite()]).tolist()
            reason = "the loss or its gradient is not finite"
        except DivergedError as error:
            finite_loss, finite, reason = False, False, str(error)
        if finite_loss and finite:
            self.optimizer.step()
            self.loss_scale.update(finite=True)
            if self.average is not None and self.config.average_decay is not None:
                update_average_(self.average, self.network, self.config.average_decay)
            self.sums += sums
            self.progress.nonfinite_in_row = 0
        else:
            for buffer, before in statistics:
                buffer.copy_(before)
            self._count_skipped_step(finite_loss, reason)

    def _learning_rate(self, step: int) -> float:
        return self.config.learning_rate(
            step, steps_per_epoch=self.steps_per_epoch, epochs=self.config.epochs
        )

    def _gradient(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Accumulate the gradient of the objective; return its value and the sums to report."""
        config, scale = self.config, self.loss_scale.value
        data_loss = self.sums.new_zeros(())
        correct = self.sums.new_zeros(())
        for part in indices.chunk(config.accumulation):
            features = self.network.preprocess(self.train.images[part])
            features = self.augmentation.augment(
                features, part, seed=self.seed, epoch=self.progress.epoch
            )
            labels = self.train.labels[part]
            scores = compute_scores(self.network, features, config.precision)
            loss = self.objective.data_loss(scores, labels) / config.accumulation
            (loss * scale).backward()  # type: ignore[no-untyped-call]
            data_loss += loss.detach()
            correct += (scores.detach().argmax(1) == labels).sum()
        smoothness, decay = self.objective.regularization(self.network)
        ((smoothness + decay) * scale).backward()  # type: ignore[no-untyped-call]
        total = data_loss + smoothness.detach() + decay.detach()
        parts = torch.stack([total, data_loss, smoothness.detach(), decay.detach()])
        count = torch.full_like(correct, len(indices))
        return total, torch.cat([parts * count, torch.stack([correct, count])])

    def _unscaled_gradient_norm(self) -> Tensor:
        gradients = gradients_of(self.network.parameters())
        if self.loss_scale.active:
            torch._foreach_mul_(gradients, 1 / self.loss_scale.value)
        return norm_of(gradients)

    def _count_skipped_step(self, finite_loss: bool, reason: str) -> None:
        progress = self.progress
        # The scale can help a gradient only: a loss that is not finite is so at any scale.
        if self.loss_scale.active and finite_loss:
            progress.overflow_steps += 1
            try:
                self.loss_scale.update(finite=False)
            except DivergedError as error:
                raise self._diverged(str(error)) from error
            return
        progress.nonfinite_steps += 1
        progress.nonfinite_in_row += 1
        if progress.nonfinite_in_row > self.config.max_nonfinite_steps:
            raise self._diverged(
                f"{reason}; lower training.learning_rates, clip with training.clip_norm, or allow "
                f"training.max_nonfinite_steps"
            )

    def _diverged(self, reason: str) -> DivergedError:
        # torch's max, unlike Python's, is NaN if one of them is.
        weights = [weight.detach().abs().max() for weight in self.network.parameters()]
        largest = float(torch.stack(weights).max())
        return DivergedError(
            f"diverged at step {self.progress.step + 1} (learning rate "
            f"{self.optimizer.learning_rate:g}, largest weight {largest:.3g}): {reason}"
        )

    def _finish_epoch(self, evaluation: Evaluation) -> EpochReport:
        progress = self.progress
        progress.epoch += 1
        progress.batch = 0
        if evaluation.accuracy > progress.best_accuracy:
            progress.best_accuracy, progress.best_epoch = evaluation.accuracy, progress.epoch
        patience = self.config.patience
        if progress.epoch >= self.config.epochs:
            progress.stopped = "completed"
        elif patience is not None and progress.epoch - progress.best_epoch >= patience:
            progress.stopped = "early_stopping"
        sums = self.sums.tolist()
        self.sums.zero_()
        count = sums[5] or nan  # no figures for an epoch whose every step was skipped
        loss, data_loss, smoothness, decay, accuracy = (value / count for value in sums[:5])
        return EpochReport(
            epoch=progress.epoch,
            step=progress.step,
            # Not the optimiser's, which has no rate yet if a resumed training validates first.
            learning_rate=self._learning_rate(progress.step - 1),
            loss=loss,
            data_loss=data_loss,
            smoothness=smoothness,
            decay=decay,
            accuracy=accuracy,
            validation_loss=evaluation.loss,
            validation_accuracy=evaluation.accuracy,
            nonfinite_steps=progress.nonfinite_steps,
            overflow_steps=progress.overflow_steps,
        )
