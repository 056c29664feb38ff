"""The parts of a training step that hand-written kernels can do, where they fit it.

They compute what `TrainingStep` says, up to rounding, and nothing is compiled but the kernels: one
for the batch, one for the loss and some five for regulariser, finite check, update, projection,
average and statistics, however many weights there are.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pdecnn.data.augmentation import ALTERNATE, Augmentation, random_bits, stable_seed
from pdecnn.fast.fused import joined_late
from pdecnn.fast.kernels.step import (
    MOST_CLASSES,
    Bookkeeping,
    FlatRule,
    FlatUpdate,
    FlatWeight,
    Reading,
    cross_entropy,
    kernels_run_on,
    read_batch,
)
from pdecnn.learning.metrics import compute_scores
from pdecnn.learning.mixing import Targets
from pdecnn.learning.objective import Objective
from pdecnn.learning.optimizer import ProjectedSGD
from pdecnn.learning.step import Count, Gradient, TrainingStep
from pdecnn.learning.tasks import Classification
from pdecnn.learning.update_rules import RULES, orthogonalize
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Preprocessing, constant
from pdecnn.pde.grid import deferred_checks

Parts = dict[str, Callable[..., Any]]


def kernel_parts(step: TrainingStep) -> Parts:
    """The methods of a step that kernels can stand in for, by name.

    They hold on to where its tensors lie now.
    """
    if not kernels_run_on(step.sums.device):
        return {}
    parts: Parts = {}
    if _fits_batches(step):
        parts |= KernelBatches(step).parts
    if _fits_update(step):
        parts |= KernelUpdate(step).parts
    step.kernel_parts = (
        parts  # a captured graph reads their tables for as long as there is the step
    )
    return parts


def _fits_batches(step: TrainingStep) -> bool:
    """Images of bytes, standardised as they are, flipped, shifted and cut out."""
    network, augmentation = step.network, step.augmentation
    preprocessing, images = network.preprocessing, step.images
    return (
        type(network).preprocess is Network.preprocess
        and type(preprocessing) is Preprocessing
        and type(augmentation) is Augmentation
        and not (augmentation.trivial_augment or step.changes_sounds)
        and step.patches is None
        and isinstance(images, Tensor)
        and (images.dtype, images.dim()) == (torch.uint8, 4)
        and (images.is_contiguous() or images.is_contiguous(memory_format=torch.channels_last))
        and images.device == network.weight.device
        and images[0].numel() < 2**31
        and step.labels.is_contiguous()
        and network.weight.dtype == torch.float32
        and preprocessing.size in (None, tuple(images.shape[2:]))
        and preprocessing.pooling == 1
        and preprocessing.emphasis == 0
        and len(preprocessing.mean or images[0]) == images.shape[1]
    )


class KernelBatches:
    """Gather, standardise and augment in one kernel."""

    def __init__(self, step: TrainingStep) -> None:
        self.step = step
        augmentation, preprocessing = step.augmentation, step.network.preprocessing
        device = step.images.device
        names = (("crop", 0), ("crop", 1), ("flip",), ("cutout", 0), ("cutout", 1))
        seeds = torch.tensor([stable_seed(step.seed, *name) for name in names])
        means, deviations = (
            None if values is None else constant(values, torch.float32, device)
            for values in (preprocessing.mean, preprocessing.std)
        )
        height, width = map(augmentation.padding_pixels, step.images.shape[2:])
        self.reading = Reading(
            each=preprocessing.standardize == "image",
            means=means,
            deviations=deviations,
            keys=random_bits(counters=seeds).to(device),
            flip=bool(augmentation.flip),
            alternate=augmentation.flip == ALTERNATE,
            padding=(height, width),
            reflect=augmentation.padding_mode == "reflect",
            cutout=augmentation.cutout,
        )
        self.parts: Parts = {"_prepare": self.prepare}

    def prepare(self) -> list[tuple[Tensor, Targets]]:
        """The augmented images and targets of each part of the next batch."""
        step = self.step
        features, labels = read_batch(
            step.images,
            step.labels,
            step.batches,
            step.counts,
            step.epoch,
            self.reading,
            held=step.holds_batch,
        )
        indices = labels  # nobody reads them but who mixes
        if step.mixing is not None:
            indices = step.batches.index_select(0, step.counts[Count.BATCH].view(1))[0]
        number = step.config.accumulation
        chunks = (tensor.chunk(number) for tensor in (features, labels, indices))
        return list(map(step._mixed, *chunks))


def _fits_update(step: TrainingStep) -> bool:
    """Plain weights of float32, all of them trained, by a rule that the kernels know."""
    weights = list(step.network.parameters())
    buffers = list(step.network.buffers())
    blocks = step.weights_in_time.blocks
    entries = [*step.weights_in_time.outside, *(e for block in blocks for e in block.matrices)]
    decayed = [getattr(part, name) for part, name in entries]
    known = set(map(id, weights))
    tensors = [*weights, *buffers, *(t for state in step.states for t in state.values())]
    return (
        step.gated
        and not step.following
        and step.sums.dtype == torch.float64
        and list(map(id, step.weights)) == list(map(id, weights))
        and len({weight.data_ptr() for weight in weights}) == len(weights)
        and all(tensor.is_contiguous() for tensor in tensors)
        and all(weight.dtype == torch.float32 for weight in weights)
        and all(buffer.dtype in (torch.float32, torch.int64) for buffer in buffers)
        and all(id(weight) in known for weight in decayed)
        and type(step.objective) is Objective
        and type(step.optimizer) is ProjectedSGD
        and type(step.optimizer.rule) is RULES[step.config.optimizer]
    )


class KernelUpdate:
    """Loss, regulariser, finite check, update, projection, average and statistics."""

    def __init__(self, step: TrainingStep) -> None:
        self.step, config = step, step.config
        objective, network = step.objective.config, step.network
        self.measures = (
            type(step.objective.task) is Classification
            and objective.loss == "cross_entropy"
            and objective.class_weights is None
            and objective.margin_offset == 0
            and network.num_classes <= MOST_CLASSES
        )
        decay = config.average_decay if step.moving_average is not None else None
        averages: dict[str, Tensor] = {}
        if step.average is not None and decay is not None:
            averages = step.average.state_dict()
        rule = FlatRule(
            name=config.optimizer,
            momentum=config.momentum,
            rate_inside=config.optimizer == "sgd" and config.momentum_convention == "rate_inside",
            betas=(config.betas[0], config.betas[1]),
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            average_share=None if decay is None else 1 - decay,
            smoothness=objective.smoothness_weight,
            corner=objective.smoothing,
            h1=objective.smoothness == "h1",
            patience=config.max_nonfinite_steps,
        )
        self.update = FlatUpdate(
            _flat_weights(step, averages),
            [(buffer, averages.get(name)) for name, buffer in network.named_buffers()],
            rule,
            orthogonalize,
        )
        self.book = Bookkeeping(step.rates, step.counts, step.skipped, step.sums)
        self.parts: Parts = {
            "_keep_statistics": self.update.keep_buffers,
            "_gradient": self.gradient,
            "_apply": self.apply,
        }

    def gradient(self, batch: list[tuple[Tensor, Targets]]) -> Gradient:
        """That of the data loss, and what `apply` measures it by."""
        step = self.step
        gradients: list[Tensor] = []
        measures: list[Tensor] = []
        with deferred_checks() as outside:
            for features, targets in batch:
                scores = compute_scores(step.network, features, step.config.precision)
                measured, value, slope = self._measured(scores, targets)
                with joined_late(value.device):
                    new = step._differentiate(value, slope)
                gradients = new if not gradients else list(torch._foreach_add(gradients, new))
                measures.append(measured)
        return Gradient(gradients, [], torch.cat(measures), [], outside)

    def _measured(self, scores: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Tensor | None]:
        """Losses and right answers, what to differentiate, and with which slope."""
        objective = self.step.objective.config
        if not self.measures:
            loss, measured = self.step._measure(scores, targets)
            return measured[None], loss, None
        mixed = targets.mixed
        losses = cross_entropy(
            scores,
            targets.labels,
            None if mixed is None else (mixed.labels, mixed.shares, mixed.main),
            smoothing=objective.label_smoothing,
            temperature=objective.temperature,
            factor=1 / self.step.config.batch_size,
        )
        return losses.measured, scores, losses.gradient

    @torch.no_grad()
    def apply(self, gradient: Gradient, statistics: Tensor | None) -> None:
        """Update everything if loss and gradient are finite; count the step if not."""
        number = self.step.config.batch_size
        outside = gradient.outside
        self.update(
            gradient.parts,
            gradient.measured,
            number if self.measures else 1,
            torch.stack(outside).any() if outside else None,
            statistics,
            self.book,
            number,
        )


def _flat_weights(step: TrainingStep, averages: dict[str, Tensor]) -> list[FlatWeight]:
    """All weights of a step with what is done to each."""
    in_time, objective = step.weights_in_time, step.objective.config
    found: dict[int, FlatWeight] = {}
    for (name, weight), state in zip(step.network.named_parameters(), step.states, strict=True):
        found[id(weight)] = FlatWeight(
            weight=weight,
            first=state["mean"] if "mean" in state else state["velocity"],
            second=state.get("square"),
            steps=state.get("step"),
            average=averages.get(name),
            orthogonal=step.config.optimizer == "muon" and weight.dim() > 1,
        )
    for part, name in in_time.outside:
        found[id(getattr(part, name))].decay = objective.decay_weight
    for block in in_time.blocks:
        for part, name in block.matrices:
            found[id(getattr(part, name))].decay = objective.decay_weight * block.duration
        width = len(block.weights) // block.num_rows
        for before, after in zip(block.weights, block.weights[width:], strict=False):
            found[id(after)].earlier, found[id(before)].later = before, after
        for shared in block.weights:
            found[id(shared)].step_size = block.step_size
    for bound, boxed in step.boxes:
        for kept in boxed:
            found[id(kept)].bound = bound
    return list(found.values())
