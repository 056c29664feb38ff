"""One training step, computed on the device from first to last (Sec. 5).

Batch, augmentation, gradient, finite check, update, projection, average and sums: nothing here
waits for a number, so that on a GPU the whole step can be captured as one graph.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import ImageSet, StoredImages
from pdecnn.data.patches import AbstractPatches
from pdecnn.fast.acceleration import fast_layout
from pdecnn.learning.metrics import compute_scores
from pdecnn.learning.mixing import Mixing, Targets
from pdecnn.learning.objective import Objective, WeightsInTime
from pdecnn.learning.optimizer import (
    MovingAverage,
    ProjectedSGD,
    flatten,
    project_,
    unflatten,
)
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.learning.update_rules import State
from pdecnn.networks.network import Network
from pdecnn.pde.grid import deferred_checks
from pdecnn.pde.stable import following


# Plain numbers, no Enum: compiled code takes the comparison of a tensor with an Enum for false.
class Count:
    """The places of the whole numbers that a step keeps on the device."""

    BATCH = 0
    """Batches done in the epoch."""
    NONFINITE_IN_ROW = 1
    NONFINITE = 2
    FAILURE = 3
    """Why the training cannot go on, a `Failure`; from then on a step changes nothing."""


class Failure:
    """What ended a training."""

    NONE = 0
    NOT_FINITE = 1
    OUT_OF_RANGE = 2


class Gradient(NamedTuple):
    """What a batch gives, all of it on the device."""

    parts: list[Tensor]
    """Of the data loss, one for each trained weight."""
    regularization: list[Tensor]
    """Of the regulariser; empty where it is part of the former."""
    measured: Tensor
    """Rows of data loss and right answers, which add up to those of the batch."""
    penalties: list[Tensor]
    """Smoothness and decay; empty where the update finds them by itself."""
    outside: list[Tensor]
    """Whether a state left the range of exact reversal."""


class TrainingStep:
    """x <- P(x - move) from the next batch, or nothing at all if its gradient is not finite.

    Where `num_processes` share each batch, `sum_` replaces a tensor by its sum over them: once a
    step, for all that they must know of each other.
    """

    def __init__(
        self,
        network: Network,
        config: TrainingConfig,
        *,
        train: ImageSet,
        augmentation: Augmentation,
        objective: Objective,
        optimizer: ProjectedSGD,
        average: Network | None,
        seed: int,
        patches: AbstractPatches | None = None,
        num_processes: int = 1,
        sum_: Callable[[Tensor], None] | None = None,
    ) -> None:
        weight = network.weight
        device = weight.device
        self.network, self.average, self.optimizer = network, average, optimizer
        self.config, self.augmentation, self.seed = config, augmentation, seed
        self.changes_sounds = augmentation.changes_sounds
        self.num_processes, self.sum_ = num_processes, sum_
        self.train, self.patches = train, patches
        self.kernel_parts: dict[str, Callable[..., Any]] = {}
        # Where reading a number costs nothing the host decides whether a step is taken.
        self.gated = device.type != "cpu"
        self.labels = train.labels
        # Of images on the disk the device holds one batch, which the trainer puts there.
        self.holds_batch = isinstance(train.images, StoredImages)
        self.images = (
            torch.zeros(
                (config.batch_size // num_processes, *train.images.shape[1:]),
                dtype=train.images.dtype,
                device=device,
            )
            if isinstance(train.images, StoredImages)
            else train.images
        )
        self.objective = objective
        self.mixing = None
        if config.mixup is not None or config.cutmix is not None:
            self.mixing = Mixing(config, seed=seed, device=device)
        self.weights_in_time = WeightsInTime(network)
        self.following = list(following(network))
        self.weights: list[Tensor] = []
        self.states: list[State] = []
        self.boxes: list[tuple[float, list[Tensor]]] = []
        self.collect_weights()
        self.moving_average = None
        if average is not None and config.average_decay is not None:
            self.moving_average = MovingAverage(average, network, config.average_decay)
        buffers = list(network.buffers())
        kinds = dict.fromkeys(buffer.dtype for buffer in buffers)
        self.statistics = [[b for b in buffers if b.dtype == kind] for kind in kinds]
        number = len(train) * (1 if patches is None else patches.repeats)
        shape = (number // config.batch_size, config.batch_size // num_processes)
        self.batches = torch.zeros(shape, dtype=torch.int64, device=device)
        self.rates = torch.zeros(shape[0], dtype=weight.dtype, device=device)
        self.epoch = torch.zeros((), dtype=torch.int64, device=device)
        self.counts = torch.zeros(4, dtype=torch.int64, device=device)
        # Which batches of the epoch were skipped as not finite.
        self.skipped = torch.zeros(shape[0], dtype=torch.int64, device=device)
        # Sums over the epoch of loss parts, right answers and images; float64 where there is any.
        wide = torch.float32 if device.type == "mps" else torch.float64
        self.sums = torch.zeros(6, device=device, dtype=wide)

    def collect_weights(self) -> bool:
        """Find the weights that are trained now; whether they are others than before."""
        trained = [weight for weight in self.network.parameters() if weight.requires_grad]
        if list(map(id, trained)) == list(map(id, self.weights)):
            return False
        self.weights = list(trained)
        self.states = [self.optimizer.state_of(weight) for weight in trained]
        self.boxes = self.optimizer.boxes
        return True

    @property
    def evaluated(self) -> Network:
        """The network that validation and users see: the moving average where there is one."""
        return self.network if self.average is None else self.average

    @property
    def state(self) -> list[Tensor]:
        """Every tensor a step changes."""
        networks = [self.network] if self.average is None else [self.network, self.average]
        tensors = [tensor for network in networks for tensor in network.state_dict().values()]
        tensors += [tensor for state in self.states for tensor in state.values()]
        return [*tensors, self.counts, self.skipped, self.sums]

    def __call__(self) -> None:
        """Take the step; on a GPU it is only launched."""
        # A batch that is thrown away must leave no trace in the statistics of the batch norms.
        statistics = self._keep_statistics()
        gradient = self._gradient(self._prepare())
        if self.sum_ is not None:
            gradient = self._summed(gradient, self.sum_)
        self._apply(gradient, statistics)

    def _keep_statistics(self) -> list[Tensor]:
        return list(map(flatten, self.statistics))

    def _prepare(self) -> list[tuple[Tensor, Targets]]:
        """The augmented images and targets of each part of the next batch."""
        return self.parts(self.counts[Count.BATCH].view(1))

    def parts(self, row: Tensor) -> list[tuple[Tensor, Targets]]:
        """The augmented images and targets of each part of a batch of the epoch."""
        indices = self.batches.index_select(0, row)[0]
        parts = []
        whole = self.images.chunk(self.config.accumulation) if self.holds_batch else ()
        for k, part in enumerate(indices.chunk(self.config.accumulation)):
            if self.patches is not None:
                inputs, wanted = self.patches.examples(
                    self.train, part, self.network.preprocess, seed=self.seed, epoch=self.epoch
                )
                parts.append((fast_layout(inputs), Targets(wanted)))
                continue
            images = whole[k] if self.holds_batch else self.images[part]
            how: dict[str, Any] = {"seed": self.seed, "epoch": self.epoch}
            if self.augmentation.trivial_augment:
                images = self.augmentation.change_colours(images, part, **how)
            features = self.network.preprocess(images)
            if self.changes_sounds:
                features = self.augmentation.change_sounds(features, part, **how)
            features = self.augmentation.augment(features, part, **how)
            if self.augmentation.cutout:
                features = self.augmentation.cut_out(features, part, **how)
            parts.append(self._mixed(features, self.labels[part], part))
        return parts

    def _mixed(self, features: Tensor, labels: Tensor, part: Tensor) -> tuple[Tensor, Targets]:
        """The images of a part of the batch, mixed if they are to be, and their targets."""
        targets = Targets(labels)
        if self.mixing is not None:
            features, targets = self.mixing.mix(features, labels, part, self.epoch)
        return fast_layout(features), targets

    def next_images(self, number: int) -> tuple[Tensor, Tensor]:
        """The first augmented images and labels of the next batch."""
        images, targets = self._prepare()[0]
        return images[:number], targets.labels[:number]

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss as it is differentiated, without the regulariser."""
        return self._measure(scores, Targets(labels))[0]

    def _gradient(self, batch: list[tuple[Tensor, Targets]]) -> Gradient:
        gradients: list[Tensor] = []
        measures: list[Tensor] = []
        smoothness, decay = self._regularization()
        joint = not (self.gated or self.sum_ is not None)
        with deferred_checks() as outside:
            for features, targets in batch:
                scores = compute_scores(self.network, features, self.config.precision)
                loss, measured = self._measure(scores, targets)
                if joint and not gradients:
                    loss = loss + smoothness + decay
                new = self._differentiate(loss)
                gradients = new if not gradients else list(torch._foreach_add(gradients, new))
                measures.append(measured)
        regularization = [] if joint else self._differentiate(smoothness + decay)
        penalties = [smoothness.detach(), decay.detach()]
        return Gradient(gradients, regularization, torch.stack(measures), penalties, outside)

    @torch.no_grad()
    def _summed(self, gradient: Gradient, sum_: Callable[[Tensor], None]) -> Gradient:
        """What the shares of all processes give together, in one message; the same bits on each."""
        measured, outside = gradient.measured.sum(0), gradient.outside
        flag = torch.stack(outside).any() if outside else measured.new_zeros(())
        told = torch.cat([measured, flag.view(1)]).to(gradient.parts[0].dtype)
        flat = flatten([*gradient.parts, told])
        sum_(flat)
        *parts, told = unflatten(flat, [*self.weights, told])
        return gradient._replace(
            parts=parts,
            measured=told[None, :2].to(measured.dtype),
            outside=[told[2] > 0] if outside else [],
        )

    def _measure(self, scores: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """The loss of a part to differentiate; its share of data loss and right answers."""
        # Parts of one size: their mean is the mean over the batch.
        num_parts = self.config.accumulation * self.num_processes
        task, config = self.objective.task, self.objective.config
        losses, main = task.losses(config, scores, targets.labels), targets.labels
        if targets.mixed is not None:
            others = task.losses(config, scores, targets.mixed.labels)
            losses = torch.lerp(others, losses, targets.mixed.shares.to(losses.dtype))
            main = targets.mixed.main
        loss = losses.mean() / num_parts
        correct = task.measure(scores, main)
        measured = torch.stack([loss.detach().to(self.sums.dtype), correct.to(self.sums.dtype)])
        return loss, measured

    def _regularization(self) -> tuple[Tensor, Tensor]:
        smoothness, decay = self.objective.regularization(self.weights_in_time)
        return smoothness, decay

    def _differentiate(self, value: Tensor, slope: Tensor | None = None) -> list[Tensor]:
        return list(torch.autograd.grad(value, self.weights, slope, materialize_grads=True))

    @torch.no_grad()
    def _apply(self, gradient: Gradient, statistics: list[Tensor]) -> None:
        """Update everything if loss and gradient are finite; count the step if not."""
        rate = self.rates.index_select(0, self.counts[Count.BATCH].view(1))[0]
        flat = flatten(gradient.parts)
        if gradient.regularization:
            flat = flat + flatten(gradient.regularization)
        norm = torch.linalg.vector_norm(flat)
        data_loss, correct = gradient.measured.sum(0)
        smoothness, decay = gradient.penalties
        total = data_loss + smoothness + decay
        finite_loss = total.isfinite()
        in_range = ~torch.stack(gradient.outside).any() if gradient.outside else None
        if in_range is not None:
            finite_loss = finite_loss & in_range
        running = self.counts[Count.FAILURE] == Failure.NONE
        finite = finite_loss & norm.isfinite()
        accepted = running & finite
        if self.config.clip_norm is not None:
            flat = flat * (self.config.clip_norm / norm).clamp(max=1)
        if self.gated:
            # The average needs the statistics of accepted steps only.
            self._choose_statistics(statistics, accepted)
            self._update(torch.where(accepted, flat, 0), rate, accepted)
        elif accepted:
            self._update(flat, float(rate), None)
        else:
            self._choose_statistics(statistics, accepted)
        self._count(accepted, running, finite, in_range)
        number = self.config.batch_size
        losses = torch.stack([total, data_loss, smoothness, decay]) * number
        sums = torch.cat([losses, torch.stack([correct, correct.new_full((), number)])])
        self.sums.add_(torch.where(accepted, sums, 0))

    def _update(self, flat: Tensor, rate: float | Tensor, accepted: Tensor | None) -> None:
        """Move the weights and their average, where the step is accepted."""
        gradients = unflatten(flat, self.weights)
        self.optimizer.rule.update_(self.weights, self.states, gradients, rate, accepted)
        for bound, boxed in self.boxes:
            project_(boxed, bound, accepted)
        for part in self.following:
            part.follow_(accepted)
        if self.moving_average is not None:
            self.moving_average.update_(accepted)

    def _choose_statistics(self, before: list[Tensor], accepted: Tensor) -> None:
        """Put the statistics of the batch norms back, unless the step is accepted."""
        for buffers, old in zip(self.statistics, before, strict=True):
            chosen = torch.where(accepted, flatten(buffers), old)
            torch._foreach_copy_(buffers, unflatten(chosen, buffers))

    def _count(
        self,
        accepted: Tensor,
        running: Tensor,
        finite: Tensor,
        in_range: Tensor | None,
    ) -> None:
        """Count what happened; note a failure from which the training cannot go on."""
        counts = self.counts
        if not self.gated and accepted:
            counts[Count.BATCH] += 1
            counts[Count.NONFINITE_IN_ROW] = 0
            return
        skipped = running & ~finite
        row = counts[Count.BATCH].view(1)
        self.skipped.index_copy_(0, row, self.skipped.index_select(0, row) | skipped)
        in_row = torch.where(accepted, 0, counts[Count.NONFINITE_IN_ROW] + skipped)
        failed = skipped & (in_row > self.config.max_nonfinite_steps)
        failure = counts[Count.FAILURE] + Failure.NOT_FINITE * failed
        if in_range is not None:
            failure = torch.where(failed & ~in_range, Failure.OUT_OF_RANGE, failure)
        counts.copy_(
            torch.stack(
                [
                    counts[Count.BATCH] + (failure == Failure.NONE),
                    in_row,
                    counts[Count.NONFINITE] + skipped,
                    failure,
                ]
            )
        )
