"""Time training steps of one process and of all ranks in turn; started by benchmarks/scaling.py.

    torchrun --standalone --nproc-per-node 2 benchmarks/scaling_steps.py FILE

Every rank has one thread. In each repeat what is compared runs in turn, so that whatever else the
machine does meets all of it.
"""

import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import pdecnn
from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import ImageSet
from pdecnn.learning import Trainer, TrainingConfig
from pdecnn.learning.distributed import ALONE, Ranks, joined_ranks
from pdecnn.learning.optimizer import flatten
from pdecnn.learning.synchronization import synchronize_batch_norms_

NETWORKS = {"hamiltonian_digits": 32, "hamiltonian_cifar10": 32, "parabolic_cifar10": 32}
REPEATS = 11
SECONDS_A_REPEAT = 0.5


def main() -> None:
    """Measure all networks; rank 0 writes."""
    torch.set_num_threads(1)
    with joined_ranks(torch.device("cpu")) as ranks:
        rows = [measure(name, batch_size, ranks) for name, batch_size in NETWORKS.items()]
        agreement, _ = timed(lambda: ranks.largest(0), 200)
        result = {"rows": rows, "agreement_seconds": agreement, "load": os.getloadavg()[0]}
        if ranks.is_first:
            Path(sys.argv[1]).write_text(json.dumps(result))


def measure(name: str, batch_size: int, ranks: Ranks) -> dict[str, object]:
    """Seconds of a step alone, together, in halves, and by DDP; of the clock and of a core."""
    alone = make_trainer(name, batch_size, ALONE)
    together = make_trainer(name, batch_size, ranks)
    share = make_trainer(name, batch_size // ranks.size, ALONE)
    flat = torch.randn(alone.network.num_weights)
    kinds: dict[str, Callable[[], object]] = {
        "alone": lambda: alone.step() if ranks.is_first else None,
        "together": together.step,
        "share": share.step,
        "flat": gradient_by_one_message(name, batch_size // ranks.size, ranks),
        "ddp": gradient_by_ddp(name, batch_size // ranks.size, ranks),
        "message": lambda: ranks.sum_(flat),
    }
    numbers, seconds = {}, {kind: list[float]() for kind in kinds}
    processor = {kind: list[float]() for kind in kinds}
    for kind, function in kinds.items():
        dist.barrier()
        function()
        estimate = ranks.largest(int(1e9 * timed(function, 1)[0])) / 1e9
        most = 50 if kind == "message" else 400
        numbers[kind] = ranks.largest(max(1, min(int(SECONDS_A_REPEAT / estimate), most)))
    for _ in range(REPEATS):
        for kind, function in kinds.items():
            begin_epochs(alone, together, share)
            dist.barrier()
            elapsed, computed = timed(function, numbers[kind])
            seconds[kind].append(elapsed)
            processor[kind].append(ranks.largest(int(1e9 * computed)) / 1e9)
    return {
        "network": name,
        "batch_size": batch_size,
        "num_weights": alone.network.num_weights,
        "ranks": ranks.size,
        "seconds": seconds,
        "processor_seconds": processor,
        "medians": {kind: statistics.median(values) for kind, values in seconds.items()},
    }


def make_trainer(name: str, batch_size: int, ranks: Ranks) -> Trainer:
    """A training on random images, long enough never to end an epoch within a repeat."""
    torch.manual_seed(0)
    network = pdecnn.create_model(name)
    size = 8 if name.endswith("digits") else 32
    number = batch_size * 420
    images = torch.randint(0, 256, (512, network.config.in_channels, size, size))
    images = images.to(torch.uint8).repeat(-(-number // 512), 1, 1, 1)[:number]
    labels = torch.randint(0, network.num_classes, (number,))
    names = tuple(map(str, range(network.num_classes)))
    train = ImageSet(images=images, labels=labels, class_names=names)
    trainer = Trainer(
        network,
        TrainingConfig(batch_size=batch_size, epochs=1, learning_rates=(1e-3,), phases=(1,)),
        train=train,
        validation=train.subset(torch.arange(10)),
        augmentation=Augmentation(),
        seed=0,
        ranks=ranks,
    )
    begin_epochs(trainer)
    return trainer


def begin_epochs(*trainers: Trainer) -> None:
    """Let an epoch begin anew, so that there is always a next batch."""
    for trainer in trainers:
        trainer.begin_epoch()


def gradient_parts(
    name: str, batch_size: int, ranks: Ranks
) -> tuple[pdecnn.Network, Tensor, Tensor]:
    """A network with synchronised batch norms, and a batch for it."""
    torch.manual_seed(0)
    network = pdecnn.create_model(name)
    synchronize_batch_norms_(network, ranks.sum_)
    size = 8 if name.endswith("digits") else 32
    images = torch.randn(batch_size, network.config.in_channels, size, size)
    return network, images, torch.randint(0, network.num_classes, (batch_size,))


def gradient_by_one_message(name: str, batch_size: int, ranks: Ranks) -> Callable[[], object]:
    """The gradient as pdecnn takes it: autograd.grad, one vector, one message."""
    network, images, labels = gradient_parts(name, batch_size, ranks)
    weights = list(network.parameters())

    def gradient() -> None:
        loss = torch.nn.functional.cross_entropy(network(images), labels)
        flat = flatten(torch.autograd.grad(loss, weights))
        ranks.sum_(flat)

    return gradient


def gradient_by_ddp(name: str, batch_size: int, ranks: Ranks) -> Callable[[], object]:
    """The same by DistributedDataParallel: .grad, buckets, messages during backward."""
    network, images, labels = gradient_parts(name, batch_size, ranks)
    wrapped = DistributedDataParallel(network, forward_sync_buffers=False)

    def gradient() -> None:
        wrapped.zero_grad()
        torch.nn.functional.cross_entropy(wrapped(images), labels).backward()

    return gradient


def timed(function: Callable[[], object], number: int) -> tuple[float, float]:
    """Seconds a call: of the clock, and of the processor for this process."""
    begin, computed = perf_counter(), process_time()
    for _ in range(number):
        function()
    return (perf_counter() - begin) / number, (process_time() - computed) / number


if __name__ == "__main__":
    main()
