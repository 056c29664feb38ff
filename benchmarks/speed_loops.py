"""The loop of docs/how-to/accelerate.md beside the trainer's step and plain torch, and inference.

A loop takes uint8 batches that lie on the device, each call the next: standardise, forward, cross
entropy, backward, SGD with momentum. Inference goes from uint8 on the device to scores.
"""

from collections.abc import Callable
from itertools import cycle
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.fresh_process import cold_and_cached
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
    plain_layout,
    precision_of,
    random_images,
)
from pdecnn.runs.plain_twin import PlainNetwork, copy_weights_
from pdecnn.runs.timing import Timing, synchronize, time_in_turn

TRAINER, GRAPH, LOOP, PLAIN_LOOP = "trainer", "loop, graph", "loop", "loop, plain torch"
_NUM_BATCHES = 8
_NUM_WARM_UPS = 3
_RATE = 1e-3  # low enough that no network diverges on noise
_CIFAR10 = [f"{dynamics}_cifar10" for dynamics in PAPER_DYNAMICS]


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
        *,
        batch_size: int,
        device: torch.device,
        graph: bool,
    ) -> None:
        images = random_images(_NUM_BATCHES * batch_size, 3, (32, 32)).to(device)
        pairs = zip(
            images.images[:].split(batch_size), images.labels.split(batch_size), strict=True
        )
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


def make_loop(name: str, way: str, batch_size: int, device: torch.device) -> Loop:
    """The loop of an accelerated network, or of its twin in plain torch."""
    network = make_network(model_config(name), device)
    model: nn.Module = accelerate(network)
    if way == PLAIN_LOOP:
        config = network.config
        model = PlainNetwork(name.removesuffix("_cifar10"), config.channels).to(device)
        copy_weights_(model, network)
        model.to(memory_format=plain_layout(device))  # type: ignore[call-overload]
    return Loop(model, network.preprocess, batch_size=batch_size, device=device, graph=way == GRAPH)


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
        for row in _time_steps(name, batch_size, sizes, device, say)
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
    loop = make_loop(name, LOOP, batch_size, where)
    synchronize(where)
    begin = perf_counter()
    loop()
    synchronize(where)
    return perf_counter() - begin


def _time_steps(
    name: str, batch_size: int, sizes: BenchSizes, device: torch.device, say: Say
) -> list[dict[str, Any]]:
    say(f"steps of {name}, {batch_size} images")
    on_gpu = device.type == "cuda"
    loops = {
        way: make_loop(name, way, batch_size, device)
        for way in ([GRAPH] if on_gpu else []) + [LOOP, PLAIN_LOOP]
    }
    images = random_images(sizes.num_images, 3, (32, 32))
    config = model_config(name)
    trainer = make_steps(
        config, images, batch_size=batch_size, device=device, capture=device.type == "cuda"
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
