"""`pdecnn bench`: whole training steps beside plain torch, and memory and time against depth.

What else is measured, against the ceilings of the machine and on large inputs, is in the
repository alone: `python -m benchmarks.speed`.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import ImageSet
from pdecnn.errors import ConfigError, unknown_name
from pdecnn.fast.acceleration import fast_layout
from pdecnn.learning.memory import free_memory, is_out_of_memory
from pdecnn.learning.metrics import Precision, autocast
from pdecnn.learning.trainer import Trainer
from pdecnn.learning.training_config import TrainingConfig
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network
from pdecnn.networks.registry import DYNAMICS, model_config
from pdecnn.pde.backprop import BACKPROP_MODES
from pdecnn.runs.plain_twin import PlainNetwork, PlainStep, copy_weights_
from pdecnn.runs.preparation import describe_environment, resolve_device
from pdecnn.runs.timing import Timing, time_in_turn
from pdecnn.runs.training import notes_shown_by

FORMAT_VERSION = 4
CAPTURED, EAGER, PLAIN = "captured", "eager", "plain"
"""Our steps replayed as one CUDA graph, operator by operator, and those of plain torch."""
NOT_RUN: dict[str, Any] = {"captured": None, "notes": []}
"""In place of what `TrainerSteps.finish` says, where no such steps were timed."""
PAPER_DYNAMICS = ("parabolic", "second_order", "hamiltonian")
TIMED = "hamiltonian"

_LEARNING_RATE = 1e-3  # low enough that no network diverges on noise, however often it is timed
_DEPTH_STEP_SIZE = 0.01  # small, so that a thousand steps stay as bounded as three
_DEPTH_BATCHES = 16  # no epoch of eager steps ends while they are timed
_PLAIN_BATCHES = 8
_MOST_TIMED_STEPS = 100

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSizes:
    """How much is measured."""

    name: str
    """What the report calls it."""
    num_repeats: int
    repeat_seconds: float
    """About how long a repeat lasts."""
    num_images: int
    """Random 32x32 images of the training set."""
    batch_sizes: tuple[int, ...]
    """Of whole training steps."""
    depths: tuple[int, ...]
    """Numbers of time steps of the one block whose memory is measured."""
    depth_channels: int
    depth_batch_size: int


GPU = BenchSizes(
    name="GPU version",
    num_repeats=5,
    repeat_seconds=0.1,
    num_images=50_000,
    batch_sizes=(125, 1000),
    depths=(3, 10, 30, 100, 300, 1000),
    depth_channels=32,
    depth_batch_size=125,
)
CPU = BenchSizes(
    name="CPU version: smaller batches, images and depths",
    num_repeats=5,
    repeat_seconds=0.2,
    num_images=1000,
    batch_sizes=(16,),
    depths=(3, 10, 30),
    depth_channels=16,
    depth_batch_size=4,
)
QUICK = BenchSizes(
    name="Quick version: a look whether it runs, with too little work to conclude from",
    num_repeats=5,
    repeat_seconds=0.01,
    num_images=20,
    batch_sizes=(2,),
    depths=(2, 4),
    depth_channels=4,
    depth_batch_size=1,
)

Part = Callable[[BenchSizes, torch.device, Say], dict[str, Any]]


def run_bench(
    only: Sequence[str] = (),
    *,
    device: str = "auto",
    quick: bool = False,
    say: Say = lambda text: None,
    on_part: Callable[[dict[str, Any]], object] = lambda result: None,
) -> dict[str, Any]:
    """Measure the parts named, or all; the figures as JSON values.

    `say` gets a line before each measurement, `on_part` the result so far after each part. A
    part carries hardware, versions and commit with it, so that parts of several runs may stand
    side by side.
    """
    for name in only:
        if name in ELSEWHERE and name not in PARTS:
            raise ConfigError(
                f"{name!r} is not measured by the package; run python -m benchmarks.speed "
                f"--only {name} in a checkout of the repository"
            )
        if name not in PARTS:
            raise unknown_name("part of the bench", name, PARTS)
    where = resolve_device(device)
    sizes = QUICK if quick else GPU if where.type == "cuda" else CPU
    say(sizes.name)
    result: dict[str, Any] = {"format_version": FORMAT_VERSION, "parts": {}}
    for name, part in PARTS.items():
        if only and name not in only:
            continue
        environment = describe_device(where)
        say(f"{name}, on {environment['hardware']['gpu'] or 'the CPU'}")
        begin = perf_counter()
        measured = part(sizes, where, lambda text: say(f"  {text}"))
        seconds = perf_counter() - begin
        say(f"  all of {name} took {seconds:.0f} s")
        head = {"version": sizes.name, "quick": quick, "environment": environment}
        result["parts"][name] = head | {"measuring_seconds": seconds} | measured
        free_memory()
        on_part(result)
    return result


def describe_device(device: torch.device) -> dict[str, Any]:
    """Hardware, versions and commit, with what only a GPU has."""
    environment = describe_environment(device, seed=0)
    del environment["command"], environment["seed"]
    if device.type == "cuda":
        environment["versions"] |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
        environment["hardware"]["gpu_bytes"] = torch.cuda.get_device_properties(device).total_memory
    return environment


# Training steps: ours, and those of the plain twin.


def bench_steps(sizes: BenchSizes, device: torch.device, say: Say) -> dict[str, Any]:
    """Whole training steps of the CIFAR-10 networks, all of a batch size in turn."""
    rows: list[dict[str, Any]] = []
    for batch_size in sizes.batch_sizes:
        say(f"training steps of {batch_size} images")
        rows += time_steps(batch_size, plain_steps(batch_size, device), sizes, device)
        free_memory()
    return {"repeats": sizes.num_repeats, "precision": precision_of(device), "rows": rows}


def time_steps(
    batch_size: int, plain: Mapping[str, PlainStep], sizes: BenchSizes, device: torch.device
) -> list[dict[str, Any]]:
    """Time ours and the plain steps, by name of the network, side by side."""
    images = random_images(sizes.num_images, 3, (32, 32))
    ours = {
        (name, variant): make_steps(
            model_config(name),
            images,
            batch_size=batch_size,
            device=device,
            capture=variant == CAPTURED,
        )
        for name in (f"{dynamics}_cifar10" for dynamics in PAPER_DYNAMICS)
        for variant in ((CAPTURED, EAGER) if device.type == "cuda" else (EAGER,))
    }
    timings = time_in_turn(
        {**ours, **{(name, PLAIN): step for name, step in plain.items()}},
        device=device,
        num_repeats=sizes.num_repeats,
        repeat_seconds=sizes.repeat_seconds,
    )
    runs = {key: step.finish() for key, step in ours.items() if timings[key] is not None}
    order = list(plain)
    return [
        {
            "network": network,
            "variant": variant,
            "batch_size": batch_size,
            "time": None if timing is None else timing.to_dict(),
            "images_per_second": None if timing is None else batch_size / timing.median,
            "ratio_to_plain": _ratio(timing, timings[network, PLAIN]),
        }
        | runs.get((network, variant), NOT_RUN)
        for (network, variant), timing in sorted(
            timings.items(), key=lambda item: order.index(item[0][0])
        )
    ]


def _ratio(timing: Timing | None, other: Timing | None) -> float | None:
    return None if timing is None or other is None else timing.ratio(other)


class TrainerSteps:
    """Whole training steps of a trainer, one a call, epoch after epoch.

    A step gathers and standardises a batch, augments it, computes the gradient of loss and
    regulariser, looks whether it is finite, updates and projects the weights, and adds to the
    sums that are reported.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.notes: list[str] = []
        self.steps_left = 0

    def __call__(self) -> None:
        """Train on the next batch."""
        if self.steps_left == 0:
            with notes_shown_by(self.notes.append):  # of the first step, which may be captured
                self._begin_epoch()
                self.trainer.step()
        else:
            self.trainer.step()
        self.steps_left -= 1

    def _begin_epoch(self) -> None:
        trainer = self.trainer
        trainer.synchronize()  # it raises if a step failed, which `begin_epoch` would forget
        if trainer.progress.batch:
            trainer.progress.epoch += 1
            trainer.progress.batch = 0
        trainer.begin_epoch()
        self.steps_left = trainer.steps_per_epoch

    def finish(self) -> dict[str, Any]:
        """Raise if a step failed, after which later ones did nothing; how the steps were run.

        captured  whether they were replayed from a graph, which wanting it does not ensure
        notes     what went other than wanted
        """
        self.trainer.synchronize()
        return {"captured": self.trainer.captured, "notes": self.notes}


def make_steps(
    config: NetworkConfig,
    images: ImageSet,
    *,
    batch_size: int,
    device: torch.device,
    capture: bool,
    training: TrainingConfig | None = None,
    augmentation: Augmentation | None = None,
) -> TrainerSteps:
    """Training steps of a fresh network on the images, by default those of the paper's recipe."""
    training = replace(
        TrainingConfig() if training is None else training,
        batch_size=batch_size,
        precision=precision_of(device),
        learning_rates=(_LEARNING_RATE,),
        phases=(1,),
        capture=capture,
    )
    trainer = Trainer(
        make_network(config, device),
        training,
        train=images,
        validation=images.subset(torch.arange(1)),
        augmentation=Augmentation() if augmentation is None else augmentation,
        seed=0,
    )
    return TrainerSteps(trainer)


def make_network(config: NetworkConfig, device: torch.device) -> Network:
    """A network with the same random weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network(config).to(device)


def random_images(
    number: int, channels: int, size: tuple[int, ...], *, num_classes: int = 10
) -> ImageSet:
    """Uniformly random bytes with random labels, the same every time."""
    generator = torch.Generator().manual_seed(0)
    shape = (number, channels, *size)
    return ImageSet(
        images=torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8),
        labels=torch.randint(0, num_classes, (number,), generator=generator),
        class_names=tuple(str(k) for k in range(num_classes)),
    )


def precision_of(device: torch.device) -> Precision:
    """What all networks of a bench compute in."""
    return "bfloat16" if device.type == "cuda" else "float32"


def plain_layout(device: torch.device) -> torch.memory_format:
    """Of plain networks and their batches: what convolutions are fastest in, as ours are."""
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


def plain_steps(
    batch_size: int, device: torch.device, others: Mapping[str, nn.Module] | None = None
) -> dict[str, PlainStep]:
    """A step of the plain twin of each CIFAR-10 network, and of any others for 32x32 images."""
    twins: dict[str, nn.Module] = {}
    for dynamics in PAPER_DYNAMICS:
        config = model_config(f"{dynamics}_cifar10")
        twins[f"{dynamics}_cifar10"] = twin = PlainNetwork(dynamics, config.channels).to(device)
        copy_weights_(twin, make_network(config, device))
    generator = torch.Generator().manual_seed(1)
    batches = [
        (
            torch.randn(batch_size, 3, 32, 32, generator=generator).to(device),
            torch.randint(0, 10, (batch_size,), generator=generator).to(device),
        )
        for _ in range(_PLAIN_BATCHES)
    ]
    half = precision_of(device) == "bfloat16"
    return {
        name: PlainStep(network.to(device), batches, half=half, layout=plain_layout(device))
        for name, network in (twins | dict(others or {})).items()
    }


# Memory and time of a block against its number of steps, in every backprop mode.


def bench_depth(sizes: BenchSizes, device: torch.device, say: Say) -> dict[str, Any]:
    """One block of growing depth, each of its steps with weights of its own.

    Eager steps; those of more than a hundred time steps take seconds, and are not timed.
    """
    images = random_images(_DEPTH_BATCHES * sizes.depth_batch_size, 3, (32, 32))
    batch = images.subset(torch.arange(sizes.depth_batch_size)).to(device)
    rows: list[dict[str, Any]] = []
    for num_steps in sizes.depths:
        say(f"{TIMED}, {num_steps} steps in {len(BACKPROP_MODES)} backprop modes")
        configs: dict[str, NetworkConfig] = {
            mode: NetworkConfig(
                channels=(sizes.depth_channels, sizes.depth_channels),
                num_steps=num_steps,
                step_size=_DEPTH_STEP_SIZE,
                backprop=mode,
                **DYNAMICS[TIMED],
            )
            for mode in BACKPROP_MODES
        }
        memory = {
            mode: activation_bytes(make_network(config, device), batch)
            for mode, config in configs.items()
        }
        timings: dict[str, Timing | None] = dict.fromkeys(BACKPROP_MODES)
        if num_steps <= _MOST_TIMED_STEPS:
            timings = _time_modes(configs, images, sizes, device)
        rows += [
            {
                "num_steps": num_steps,
                "backprop": mode,
                "activation_bytes": memory[mode],
                "timed": num_steps <= _MOST_TIMED_STEPS,
                "time": None if timing is None else timing.to_dict(),
                "ratio_to_stored": _ratio(timing, timings["stored"]),
            }
            for mode, timing in timings.items()
        ]
        free_memory()
    return {
        "repeats": sizes.num_repeats,
        "dynamics": TIMED,
        "channels": sizes.depth_channels,
        "batch_size": sizes.depth_batch_size,
        "image_size": 32,
        "step_size": _DEPTH_STEP_SIZE,
        "memory": "peak" if device.type == "cuda" else "saved",
        "rows": rows,
    }


def _time_modes(
    configs: dict[str, NetworkConfig], images: ImageSet, sizes: BenchSizes, device: torch.device
) -> dict[str, Timing | None]:
    batch_size = sizes.depth_batch_size
    steps = {
        mode: make_steps(config, images, batch_size=batch_size, device=device, capture=False)
        for mode, config in configs.items()
    }
    timings = time_in_turn(
        steps, device=device, num_repeats=sizes.num_repeats, repeat_seconds=0, num_warm_ups=1
    )
    for mode, step in steps.items():
        if timings[mode] is not None:
            step.finish()
    return timings


def activation_bytes(network: Network, batch: ImageSet) -> int | None:
    """Of forward and backward of one batch; None if it does not fit.

    On a GPU the peak of what is allocated, less what was before (weights and the batch) and
    less the weights' gradients. Elsewhere the bytes saved for backward, weights left out.
    """
    images = fast_layout(network.preprocess(batch.images[:]))
    targets = batch.labels if batch.masks is None else batch.masks.long()
    used = _activation_bytes_or_none(network.train(), images, targets)
    network.zero_grad()
    if used is None:
        free_memory()
    return used


def _activation_bytes_or_none(network: Network, images: Tensor, labels: Tensor) -> int | None:
    # A function of its own: while the error lives, so do the tensors of the frames it names.
    try:
        if images.device.type == "cuda":
            # The first batch makes the libraries take workspaces, which are not meant.
            _loss(network, images, labels).backward()  # type: ignore[no-untyped-call]
            return _peak_bytes(network, images, labels)
        return _saved_bytes(network, images, labels)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None


def _peak_bytes(network: Network, images: Tensor, labels: Tensor) -> int:
    device = images.device
    network.zero_grad()
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    _loss(network, images, labels).backward()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    gradients = sum(w.grad.nbytes for w in network.parameters() if w.grad is not None)
    return torch.cuda.max_memory_allocated(device) - before - gradients


def _saved_bytes(network: Network, images: Tensor, labels: Tensor) -> int:
    weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = _loss(network, images, labels)
    total = sum(saved.values())
    loss.backward()  # type: ignore[no-untyped-call]
    return total


def _loss(network: Network, images: Tensor, labels: Tensor) -> Tensor:
    with autocast(precision_of(images.device), images.device):
        scores = network(images)
    return functional.cross_entropy(scores, labels)


PARTS: dict[str, Part] = {"steps": bench_steps, "depth": bench_depth}
ELSEWHERE = ("recipes", "digits", "images", "large", "compile", "loops", "volumes")
"""Parts that `benchmarks.speed` measures."""
