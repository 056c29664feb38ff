"""Statistics of batch norms for the weights as they are, not for those of the steps before."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pdecnn.errors import ConfigError
from pdecnn.learning.metrics import compute_scores
from pdecnn.learning.optimizer import flatten, unflatten
from pdecnn.learning.step import TrainingStep
from pdecnn.networks.network import Network
from pdecnn.pde.grid import deferred_checks
from pdecnn.pde.stable import following

NUM_IMAGES = 4000
"""So many training images, rounded up to whole batches, give the statistics."""


def reestimating_copy(network: Network, frozen: Sequence[nn.Module]) -> Network:
    """A copy in evaluation mode but for its batch norms, those of frozen parts excepted."""
    kept = {part for frozen_part in frozen for part in frozen_part.modules()}
    numbers = [k for k, part in enumerate(network.modules()) if part in kept]
    copied = deepcopy(network).eval()
    parts = list(copied.modules())
    norms = set(batch_norms(copied)) - {parts[k] for k in numbers}
    if not norms:
        raise ConfigError(
            "training.batch_norm_statistics=reestimated needs batch norms that are trained, and "
            "this network has none; leave it out"
        )
    for norm in norms:
        norm.train()
    return copied


def batch_norms(network: nn.Module) -> Iterator[_BatchNorm]:
    """The batch norms that keep statistics."""
    for part in network.modules():
        if isinstance(part, _BatchNorm) and part.track_running_stats:
            yield part


@contextmanager
def no_memory(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Within it batch norms in training mode keep the statistics of the last batch alone."""
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 1.0
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


class ReestimatedStatistics:
    """The evaluated weights with statistics of their own: means over batches of the epoch.

    At a high rate running statistics are those of weights that are long gone. The network here is
    a copy, which validation and users see; that of the training keeps its running statistics.
    """

    def __init__(self, copied: Network, step: TrainingStep) -> None:
        self.network, self.training_step = copied, step
        num_rows, batch_size = step.batches.shape[0], step.config.batch_size
        self.num_batches = min(num_rows, -(-NUM_IMAGES // batch_size))
        self.estimated_at: int | None = None
        """The number of steps of the training when they were estimated last."""
        own, source = copied.state_dict(), step.evaluated.state_dict()
        self.own, self.source = list(own.values()), list(source.values())
        self.counts = [
            pair
            for pair in zip(self.own, self.source, strict=True)
            if not pair[0].dtype.is_floating_point
        ]
        self.norms = [norm for norm in batch_norms(copied) if norm.training]
        self.statistics = [
            statistic
            for norm in self.norms
            for statistic in (norm.running_mean, norm.running_var)
            if statistic is not None
        ]
        self.sums = torch.zeros_like(flatten(self.statistics), dtype=step.sums.dtype)
        self.num_parts = step.sums.new_zeros(())
        self.row = torch.zeros(1, dtype=torch.int64, device=step.sums.device)

    @property
    def state(self) -> list[Tensor]:
        """Every tensor that taking in a batch changes."""
        return [*self.own, self.sums, self.num_parts, self.row]

    @torch.no_grad()
    def take_batch(self) -> None:
        """Add the statistics of the next batch; on a GPU it is only launched."""
        step = self.training_step
        # Whether a state is out of range validation finds out, for the very same weights.
        with deferred_checks(), no_memory(self.norms):
            for batch in step.parts(self.row):
                compute_scores(self.network, batch[0], step.config.precision)
                # Of a batch that training throws away no trace, which NaN would leave for good.
                met = flatten(self.statistics)
                finite = met.isfinite().all()
                met = torch.where(finite, met, 0)
                torch._foreach_copy_(self.statistics, unflatten(met, self.statistics))
                self.sums.add_(met)
                self.num_parts.add_(finite)
        self.row.add_(1)

    @torch.no_grad()
    def estimate(self, launch: Callable[[], None], before: Callable[[int], None]) -> None:
        """Take the weights of the training, then their statistics.

        `launch` takes in a batch, `before` runs before each and may raise.
        """
        torch._foreach_copy_(self.own, self.source)
        for part in following(self.network):
            part.refresh()
        for tensor in (self.sums, self.num_parts, self.row):
            tensor.zero_()
        for number in range(self.num_batches):
            before(number)
            launch()
        means = unflatten(self.sums / self.num_parts, self.statistics)
        torch._foreach_copy_(self.statistics, means)
        for own, source in self.counts:
            own.copy_(source)
