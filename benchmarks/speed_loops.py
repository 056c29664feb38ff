"""The loop of docs/how-to/accelerate.md beside the trainer's step and plain torch, and inference.

A loop takes uint8 batches that lie on the device, each call the next: standardise, forward, cross
entropy, backward, SGD with momentum. Inference goes from uint8 on the device to scores.
"""

from collections.abc import Callable, Sequence
from itertools import cycle
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.fresh_process import cold_and_cached
from pdecnn.data.image_set import ImageSet
from pdecnn.fast.acceleration import accelerate, fast_layout
from pdecnn.learning.memory import free_memory
from pdecnn.learning.metrics import autocast
from pdecnn.networks.network import Network
from pdecnn.networks.registry import model_config
from pdecnn.runs.bench import (
    NOT_RUN,
    PAPER_DYNAMICS,
    BenchSizes,
    Say,
    make_network,
    make_steps,
    precision_of,
    random_images,
)
from pdecnn.runs.plain_twin import PlainNetwork, copy_weights_
from pdecnn.runs.timing import Timing, synchronize, time_in_turn

TRAINER, GRAPH, LOOP, PLAIN_LOOP = "trainer", "loop, graph", "loop", "loop, plain torch"
PLAIN_GRAPH = "loop, plain torch compiled, graph"
_NUM_BATCHES = 8
_NUM_WARM_UPS = 3
_RATE = 1e-3  # low enough that no network diverges on noise
_CIFAR10 = [f"{dynamics}_cifar10" for dynamics in PAPER_DYNAMICS]
_VOLUMES = "hamiltonian_volumes"
WAYS = (GRAPH, LOOP, PLAIN_GRAPH, PLAIN_LOOP)


class Subject(NamedTuple):
    """A network and what it is trained on here."""

    name: str
    batch_size: int
    size: tuple[int, ...] = (32, 32)
    num_images: int = 0
    """Of the trainer's training set; as many batches as a loop has if 0."""

    def images(self, number: int) -> ImageSet:
        """Random bytes, with labels of the network's."""
        config = model_config(self.name)
        return random_images(number, config.in_channels, self.size, num_classes=config.num_classes)


class Captured:
    """A function without arguments as a CUDA graph, captured as PyTorch's pages say."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_NUM_WARM_UPS):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outcome = function()

    def __call__(self) -> Tensor:
        """Replay it."""
        self.graph.replay()
        return self.outcome


class Loop:
    """Steps of a model in a loop of its own."""

    def __init__(
        self,
        model: nn.Module,
        preprocess: Callable[[Tensor], Tensor],
        subject: Subject,
        *,
        device: torch.device,
        graph: bool,
    ) -> None:
        size = subject.batch_size
        images = subject.images(_NUM_BATCHES * size).to(device)
        pairs = zip(images.images[:].split(size), images.labels.split(size), strict=True)
        self.batches = cycle(pairs)
        self.images, self.labels = (part.clone() for part in next(self.batches))
        self.model, self.preprocess = model.train(), preprocess
        self.precision = precision_of(device)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=_RATE, momentum=0.9, fused=True)
        self.step: Callable[[], Tensor] = Captured(self.compute) if graph else self.compute

    def compute(self) -> Tensor:
        """One step on the images that are there now; the loss."""
        features = fast_layout(self.preprocess(self.images))
        with autocast(self.precision, self.images.device):
            scores = self.model(features)
        loss = functional.cross_entropy(scores.float(), self.labels)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def __call__(self) -> Tensor:
        """Take the next batch."""
        images, labels = next(self.batches)
        self.images.copy_(images)
        self.labels.copy_(labels)
        return self.step()

    def finish(self) -> None:
        """Refuse figures of a training that went wrong."""
        loss = float(self())
        if not 0 < loss < 100:
            raise RuntimeError(f"the loss of a loop is {loss}: its times mean nothing")


def make_loop(subject: Subject, way: str, device: torch.device) -> Loop:
    """The loop of an accelerated network, or of its twin in plain torch."""
    network = make_network(model_config(subject.name), device)
    model: nn.Module = accelerate(network)
    if way in (PLAIN_LOOP, PLAIN_GRAPH):
        model = make_twin(subject.name, network, device)
    if way == PLAIN_GRAPH:
        torch._dynamo.reset()  # each shape has code of its own
        model = torch.compile(model, dynamic=False)  # type: ignore[assignment]
    graph = way in (GRAPH, PLAIN_GRAPH)
    return Loop(model, network.preprocess, subject, device=device, graph=graph)


def make_twin(name: str, network: Network, device: torch.device) -> PlainNetwork:
    """The same network with the same weights, channels last where there is a GPU."""
    config = network.config
    twin = PlainNetwork(
        name.rpartition("_")[0],
        config.channels,
        in_channels=config.in_channels,
        num_classes=config.num_classes,
        dimension=config.dimension,
    ).to(device)
    copy_weights_(twin, network)
    if device.type == "cuda":
        for weight in twin.parameters():
            weight.data = fast_layout(weight.data)
    return twin


def make_inference(name: str, batch_size: int, device: torch.device) -> Callable[[], Tensor]:
    """Scores of uint8 images on the device, as a graph where there is a GPU."""
    network: Network = accelerate(make_network(model_config(name), device)).eval()
    images = random_images(batch_size, 3, (32, 32)).to(device).images[:]

    @torch.no_grad()
    def score() -> Tensor:
        features = fast_layout(network.preprocess(images))
        with autocast(precision_of(device), device):
            scores: Tensor = network(features)
        return scores

    return Captured(score) if device.type == "cuda" else score


def bench_loops(sizes: BenchSizes, device: torch.device, say: Say) -> dict[str, Any]:
    """Steps of all ways in turn, inference, and the first step of the loop, cold and cached."""
    rows = [
        row
        for batch_size in sizes.batch_sizes
        for name in _CIFAR10
        for row in _time_steps(
            Subject(name, batch_size, num_images=sizes.num_images), WAYS, sizes, device, say
        )
    ]
    batch_size = sizes.batch_sizes[-1]
    say(f"inference of {batch_size} images")
    timings = time_in_turn(
        {name: make_inference(name, batch_size, device) for name in _CIFAR10},
        device=device,
        num_repeats=sizes.num_repeats,
        repeat_seconds=sizes.repeat_seconds,
    )
    inference = [
        {"network": name, "batch_size": batch_size} | _rate(timing, batch_size)
        for name, timing in timings.items()
    ]
    first: list[dict[str, Any]] = []
    if device.type == "cuda":  # on a CPU nothing is compiled
        for name in _CIFAR10[-1:]:  # it has the most kernels
            code = (
                f"from benchmarks.speed_loops import first_step_seconds as measure\n"
                f"print(measure({name!r}, {sizes.batch_sizes[0]}, {str(device)!r}))"
            )
            first.append({"network": name} | cold_and_cached(code, say, name))
    return {
        "repeats": sizes.num_repeats,
        "precision": precision_of(device),
        "rows": rows,
        "inference": inference,
        "first_steps": first,
    }


def first_step_seconds(name: str, batch_size: int, device: str) -> float:
    """Of the loop without a graph, in this process."""
    where = torch.device(device)
    loop = make_loop(Subject(name, batch_size), LOOP, where)
    synchronize(where)
    begin = perf_counter()
    loop()
    synchronize(where)
    return perf_counter() - begin


def bench_volumes(sizes: BenchSizes, device: torch.device, say: Say) -> dict[str, Any]:
    """Steps of the network for volumes beside plain torch, in three dimensions."""
    size, batch_size = (64, 8) if device.type == "cuda" else (8, 2)
    subject = Subject(_VOLUMES, batch_size, (size,) * 3)
    blocks = accelerate(make_network(model_config(_VOLUMES), device)).acceleration
    return {
        "blocks": [f"{block.path}: {block.reason}" for block in blocks],
        "repeats": sizes.num_repeats,
        "precision": precision_of(device),
        "size": list(subject.size),
        "rows": _time_steps(subject, (PLAIN_GRAPH, PLAIN_LOOP), sizes, device, say),
    }


def _time_steps(
    subject: Subject, ways: Sequence[str], sizes: BenchSizes, device: torch.device, say: Say
) -> list[dict[str, Any]]:
    name, batch_size = subject.name, subject.batch_size
    say(f"steps of {name}, {batch_size} images")
    on_gpu = device.type == "cuda"
    loops = {
        way: make_loop(subject, way, device)
        for way in ways
        if on_gpu or way not in (GRAPH, PLAIN_GRAPH)
    }
    trainer = make_steps(
        model_config(name),
        subject.images(subject.num_images or _NUM_BATCHES * batch_size),
        batch_size=batch_size,
        device=device,
        capture=on_gpu,
    )
    timings = time_in_turn(
        {TRAINER: trainer, **loops},
        device=device,
        num_repeats=sizes.num_repeats,
        repeat_seconds=sizes.repeat_seconds,
    )
    for loop in loops.values():
        loop.finish()
    run = trainer.finish() if timings[TRAINER] is not None else NOT_RUN
    free_memory()
    plain = timings[PLAIN_LOOP]
    return [
        {
            "network": name,
            "variant": way,
            "batch_size": batch_size,
            "ratio_to_trainer": _ratio(timing, timings[TRAINER]),
            "ratio_to_plain": _ratio(timing, plain),
        }
        | _rate(timing, batch_size)
        | (run if way == TRAINER else NOT_RUN)
        for way, timing in timings.items()
    ]


def _rate(timing: Timing | None, batch_size: int) -> dict[str, Any]:
    return {
        "time": None if timing is None else timing.to_dict(),
        "images_per_second": None if timing is None else batch_size / timing.median,
    }


def _ratio(timing: Timing | None, other: Timing | None) -> float | None:
    return None if timing is None or other is None else timing.ratio(other)
