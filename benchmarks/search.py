"""Search for settings of the tuned recipes on the validation split: docs/results/search.csv.

    python -m benchmarks.search hamiltonian_cifar10_tuned --data DIR \\
        --trials 12 --epochs 8 --most-epochs 24 [--seconds 500] [--jobs 12]

Successive halving: many trials of few epochs, of which the best third goes on to three times as
many, and so on, each trained from the start. Training images are split 40,000/10,000; the test
images are never scored. Every finished trial is a line of the file, and a search goes on where
the file ends: with `--seconds` it stops in time, and the same command takes it further. Searches at
the same time need files of their own. Several trials share one card, by MPS where there is its
daemon. Training is searched with hamiltonian networks; trials of parabolic and second-order ones
are the networks alone, each once, with the training of `OF_OTHERS`:

    python -m benchmarks.search parabolic_cifar10_tuned --data DIR \\
        --trials 5 --epochs 12 --most-epochs 12

What came later is asked of each recipe by itself: with `--ask norms` the trials are the recipe with
either norm in its blocks, with `--ask shared` wider networks whose steps share their weights, and
with `--ask augmented` what may keep trainings as long as the published ones from learning their
images by heart, of which they know 98 to 99.7 % in the end.
"""

import argparse
import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple

import torch

from benchmarks.resnets import TrainableResNet
from pdecnn.data.augmentation import cpu_generator, stable_seed
from pdecnn.errors import DivergedError, in_one_line
from pdecnn.files import csv_bytes, write_atomically
from pdecnn.learning import Trainer, evaluate_network
from pdecnn.networks.network import Network
from pdecnn.runs.config import VALIDATION_FRACTION, RunConfig
from pdecnn.runs.preparation import (
    Splits,
    make_network,
    make_preprocessing,
    read_splits,
    resolve_device,
)
from pdecnn.runs.recipes import recipe

Settings = dict[str, Any]


class Choice(NamedTuple):
    """One of these values."""

    values: tuple[Any, ...]

    def draw(self, generator: torch.Generator) -> Any:
        """Each as likely as another."""
        return self.values[int(torch.randint(len(self.values), (1,), generator=generator))]


class Between(NamedTuple):
    """A number whose logarithm is uniform, rounded to two digits."""

    low: float
    high: float

    def draw(self, generator: torch.Generator) -> float:
        """One of them."""
        share = float(torch.rand((1,), generator=generator, dtype=torch.float64))
        return float(f"{self.low * (self.high / self.low) ** share:.2g}")


Space = Mapping[str, Choice | Between]
# Rates and decay are searched for every network.
OPTIMIZERS: dict[str, Space] = {
    "nesterov": {
        "training.learning_rates": Between(0.05, 0.5),
        "training.weight_decay": Choice((0.0,)),
        "training.decay_weight": Between(1e-4, 1e-3),
    },
    "muon": {
        "training.learning_rates": Between(4e-3, 2e-2),
        "training.weight_decay": Between(1e-2, 0.5),
        "training.decay_weight": Choice((0.0,)),
    },
}
TURNS = ("muon", "muon", "nesterov")
"""Which optimiser each trial has, over and over."""
TRAINING: Space = {
    "training.batch_size": Choice((250, 500)),
    "training.label_smoothing": Choice((0.0, 0.1)),
    "training.smoothness_weight": Choice((0.0, 2e-5, 2e-4)),
    "data.cutout": Choice((0, 8)),
    "network.step_size": Choice((1.0, 2.0)),
}
# Networks with no more weights than `MOST_WEIGHTS`, the paper's first; then more steps in the
# middle, a wider first level, two levels instead of three. Layers of 16, 32, 64 or 128 channels are
# what the fused kernels compute without waste.
MOST_WEIGHTS = {"parabolic": 503_000, "hamiltonian": 270_000, "second_order": 503_000}


def _network(num_steps: Any, *channels: int, **others: Any) -> Settings:
    values = {"num_steps": num_steps, "channels": list(channels), **others}
    return {f"network.{key}": value for key, value in values.items()}


_LAYERS_OF_ALL_CHANNELS = (
    _network(3, 32, 64, 112, 112),
    _network([3, 4, 2], 32, 64, 128, 128),
    _network([2, 2, 2], 64, 64, 128, 128),
)
NETWORKS: dict[str, tuple[Settings, ...]] = {
    "hamiltonian": (
        _network(3, 32, 64, 112, 112),
        _network([3, 4, 2], 32, 64, 128, 128),
        _network([2, 2, 2], 64, 64, 128, 128),
        _network([4, 3], 32, 128, 128),
    ),
    # States that are never computed backwards may have batch norms between.
    "parabolic": (
        *(one | {"network.normalization": "tv"} for one in _LAYERS_OF_ALL_CHANNELS),
        _network(3, 32, 64, 112, 112, normalization="batch"),
        _network([2, 2, 2], 64, 64, 128, 128, normalization="batch"),
    ),
    "second_order": _LAYERS_OF_ALL_CHANNELS,
}
SEARCHED = "hamiltonian"
"""The dynamics whose training is searched; for the others networks alone are."""
OF_OTHERS: Settings = {
    "training.optimizer": "muon",
    "training.learning_rates": 0.012,
    "training.weight_decay": 0.047,
    "training.decay_weight": 0.0,
    "training.batch_size": 250,
    "training.label_smoothing": 0.1,
    "training.smoothness_weight": 2e-5,
    "data.cutout": 8,
    "network.step_size": 2.0,
}
"""The training of the others: that of the hamiltonian trial that was best after 8 epochs."""
_SHARED = _network(3, 64, 128, 160, 160, share_weights=True) | {"network.normalization": "tv"}
ASKED: dict[str, dict[int, Settings]] = {
    "norms": {
        100: {"network.normalization": "tv"},
        101: {"network.normalization": "batch"},
    },
    # 266,698 weights of a hamiltonian network, 474,058 of the others.
    "shared": {
        110: _SHARED,
        111: _SHARED | {"network.num_steps": [2, 4, 6]},
        112: _SHARED | {"network.num_steps": [4, 4, 4], "network.step_size": 1.0},
    },
    "augmented": {
        120: {},
        121: {"data.cutout": 8},
        122: {"training.mixup": 0.2},
        123: {"training.cutmix": 1.0},
        124: {"data.trivial_augment": True},
    },
}
"""Trials by number: what a recipe is tried with once more."""
RESNETS = {"resnet20": 20, "resnet32": 32}
RESNET_RECIPE = "hamiltonian_cifar10_tuned"
"""Whose data and training ResNets take over where nothing is searched."""
REDUCTION = 3
COLUMNS = ("network", "rung", "trial", "epochs", "seed", "validation_accuracy", "seconds", "config")


class Trial(NamedTuple):
    """A network, its settings and for how long it is trained."""

    network: str
    rung: int
    trial: int
    epochs: int
    seed: int
    settings: Settings

    @property
    def key(self) -> tuple[str, int, int, int, int]:
        """What tells it from others of a search."""
        return self[:5]


class Row(NamedTuple):
    """A finished trial; its accuracy is 0 where it diverged."""

    trial: Trial
    accuracy: float
    seconds: float


# ------------------------------------------------------------------ which trials


def draw(network: str, number: int, seed: int) -> Settings:
    """The settings of a trial: the same in every call."""
    for asked in ASKED.values():
        if number in asked:
            return settings_of(network) | asked[number]
    generator = cpu_generator(seed, "search", network, number)
    dynamics = network.partition("_cifar10")[0]
    settings: Settings = {}
    if network in RESNETS or dynamics == SEARCHED:
        optimizer = TURNS[number % len(TURNS)]
        settings["training.optimizer"] = optimizer
        spaces = [OPTIMIZERS[optimizer], {} if network in RESNETS else TRAINING]
        for key, choice in (entry for space in spaces for entry in space.items()):
            settings[key] = choice.draw(generator)
        number //= len(TURNS)  # each network meets each optimiser
    else:
        settings |= OF_OTHERS
    if network not in RESNETS:
        settings |= NETWORKS[dynamics][number % len(NETWORKS[dynamics])]
    return settings


def settings_of(network: str) -> Settings:
    """What its recipe has for all that is searched."""
    config = recipe(network)
    training = (*OPTIMIZERS[config.training.optimizer], "training.optimizer", *TRAINING)
    keys = {key for one in NETWORKS[network.partition("_cifar10")[0]] for key in one}
    found: Settings = {}
    for key in (*training, *sorted(keys)):
        section, _, name = key.partition(".")
        value = config.to_dict()[section][name]
        found[key] = value[0] if name == "learning_rates" else value
    return found


def rungs(num_trials: int, epochs: int, most_epochs: int) -> list[tuple[int, int]]:
    """(trials, epochs) of each rung, from many short ones to few of `most_epochs`."""
    found = [(num_trials, epochs)]
    while found[-1][1] < most_epochs and found[-1][0] > 1:
        number, length = found[-1]
        found.append((max(1, number // REDUCTION), min(most_epochs, REDUCTION * length)))
    return found


def next_trials(
    network: str,
    plan: Sequence[tuple[int, int]],
    seed: int,
    rows: Sequence[Row],
    numbers: Sequence[int] | None = None,
) -> list[Trial]:
    """The trials of the first rung that is not finished, without those that are.

    `numbers` are those of the first rung, 0, 1, ... unless said.
    """
    done = {row.trial.key: row for row in rows}
    settings = {k: draw(network, k, seed) for k in numbers or range(plan[0][0])}
    for rung, (number, epochs) in enumerate(plan):
        trials = [
            Trial(network, rung, k, epochs, seed, values)
            for k, values in list(settings.items())[:number]
        ]
        missing = [trial for trial in trials if trial.key not in done]
        if missing:
            return missing
        found = [done[trial.key] for trial in trials]
        # Of equals the first: the order must not depend on which trial finished when.
        found.sort(key=lambda row: (-row.accuracy, row.trial.trial))
        settings = {row.trial.trial: row.trial.settings for row in found}
    return []


# ------------------------------------------------------------------ one trial


def configured(trial: Trial) -> RunConfig:
    """The recipe with the trial's settings, on the validation split."""
    base = recipe(RESNET_RECIPE if trial.network in RESNETS else trial.network)
    changes = {"training.epochs": trial.epochs, "data.validation_fraction": VALIDATION_FRACTION}
    return base.with_settings({**changes, "seed": trial.seed, **trial.settings})


def run_trial(trial: Trial, splits: Splits, device: torch.device) -> Row:
    """Train, then validate the last weights once."""
    config, begin = configured(trial), monotonic()
    assert splits.validation is not None
    trainer = Trainer(
        _make_network(trial, config, splits).to(device),
        config.training,
        train=splits.train,
        validation=None,
        augmentation=config.data.augmentation(),
        seed=config.seed,
    )
    accuracy = 0.0
    try:
        for _ in trainer.epochs(poll=_go_on, on_step=_go_on):
            pass
        validation = splits.validation.to(device)
        how: dict[str, Any] = {"batch_size": 1000, "precision": config.training.precision}
        accuracy = evaluate_network(trainer.evaluated, validation, **how).accuracy
    except DivergedError as error:
        print(f"trial {trial.trial}: {error}", file=sys.stderr, flush=True)
    return Row(trial, accuracy, monotonic() - begin)


def _make_network(trial: Trial, config: RunConfig, splits: Splits) -> Network:
    if trial.network in RESNETS:
        return make_resnet(RESNETS[trial.network], config, splits)
    return make_network(config, splits.train)


def make_resnet(depth: int, config: RunConfig, splits: Splits) -> Network:
    """A fresh one, its weights drawn from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stable_seed(config.seed, "weights"))
        preprocessing = make_preprocessing(config.data, splits.train)
        return TrainableResNet(depth, splits.train.num_classes, preprocessing)


def _go_on() -> None:
    pass


def work(network: str, folder: str | None, seed: int) -> None:
    """A process that takes trials as lines of JSON and answers with accuracy and seconds."""
    device = resolve_device("auto")
    config = configured(Trial(network, 0, 0, 1, seed, {}))
    data = config.with_settings({"data.folder": folder} if folder else {}).data
    splits = read_splits(data, seed)
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever else is printed is no answer
    for line in sys.stdin:
        row = run_trial(Trial._make(json.loads(line)), splits, device)
        os.write(answers, (json.dumps([row.accuracy, row.seconds]) + "\n").encode())


# ------------------------------------------------------------------ all trials


class Workers:
    """Processes that run trials, as many at once as there are."""

    def __init__(self, number: int, network: str, folder: str | None, seed: int) -> None:
        command = [sys.executable, "-m", "benchmarks.search", network, "--work"]
        command += ["--seed", str(seed), *(["--data", folder] if folder else [])]
        self.processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            for _ in range(number)
        ]
        self.idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        for process in self.processes:
            self.idle.put(process)

    def run(self, trial: Trial) -> Row | None:
        """The result of a trial; None where its process has ended."""
        process = self.idle.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(trial) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            return None
        if not answer:
            return None
        self.idle.put(process)
        return Row(trial, *json.loads(answer))

    def end(self) -> None:
        """End all of them, trials that are under way included."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def search(
    network: str,
    plan: Sequence[tuple[int, int]],
    *,
    path: Path,
    workers: Any,
    jobs: int,
    seed: int = 0,
    seconds: float = math.inf,
    numbers: Sequence[int] | None = None,
) -> bool:
    """Run trials until the plan is done or the time is over; whether it is done.

    A trial that would hardly end in time is not begun.
    """
    deadline = monotonic() + seconds
    with ThreadPoolExecutor(jobs) as pool:
        running: dict[Future[Row | None], Trial] = {}
        try:
            while True:
                rows = read_rows(path)
                under_way = {trial.key for trial in running.values()}
                todo = next_trials(network, plan, seed, rows, numbers)
                pace = _seconds_an_epoch(rows, network)
                for trial in todo:
                    if len(running) >= jobs or trial.key in under_way:
                        continue
                    if monotonic() + pace * trial.epochs < deadline:
                        running[pool.submit(workers.run, trial)] = trial
                if not running:
                    return not todo
                left = max(0.0, deadline - monotonic())
                timeout = None if math.isinf(left) else left
                finished, _ = wait(running, timeout=timeout, return_when=FIRST_COMPLETED)
                if not finished:  # the time is over
                    return False
                for future in finished:
                    trial, row = running.pop(future), future.result()
                    if row is None:
                        raise RuntimeError(f"the process of trial {trial.trial} has ended")
                    append_row(path, row)
                    print(describe(row), flush=True)
        finally:
            workers.end()  # what waits for an answer gets none


def _seconds_an_epoch(rows: Sequence[Row], network: str) -> float:
    """What an epoch of earlier trials took, start included; 0 where there was none."""
    found = sorted(row.seconds / row.trial.epochs for row in rows if row.trial.network == network)
    return found[len(found) // 2] if found else 0.0


def describe(row: Row) -> str:
    """A finished trial in one line."""
    trial = row.trial
    return (
        f"{trial.network} rung {trial.rung} trial {trial.trial}: {row.accuracy:.2%} after "
        f"{trial.epochs} epochs, {row.seconds:.0f} s, {json.dumps(trial.settings)}"
    )


def read_rows(path: Path) -> list[Row]:
    """The trials of a file; none where there is no file."""
    if not path.exists():
        return []
    rows, lines = [], path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines[1:], start=2):
        try:
            [entry] = csv.DictReader([lines[0], line], strict=True)
            numbers = [int(entry[name]) for name in ("rung", "trial", "epochs", "seed")]
            trial = Trial._make([entry["network"], *numbers, json.loads(entry["config"])])
            rows.append(Row(trial, float(entry["validation_accuracy"]), float(entry["seconds"])))
        except (ValueError, TypeError, KeyError, csv.Error) as error:
            raise ValueError(
                f"{path}: line {number} is no finished trial ({in_one_line(error)}); remove it, "
                f"and the search runs that trial again"
            ) from error
    return rows


def append_row(path: Path, row: Row) -> None:
    """Add a finished trial to the file: whole or, if this is killed, not at all."""
    figures = f"{row.accuracy:.6f}", f"{row.seconds:.1f}"
    line = csv_bytes([*row.trial.key, *figures, json.dumps(row.trial.settings)], [])
    before = path.read_bytes() if path.exists() else b""
    write_atomically(path, (before or csv_bytes(COLUMNS, [])) + line)


@contextmanager
def shared_card(jobs: int) -> Iterator[None]:
    """Within it processes share the GPU by MPS, if there is its daemon."""
    control = shutil.which("nvidia-cuda-mps-control")
    is_shared = "CUDA_MPS_PIPE_DIRECTORY" in os.environ  # by who started this
    if jobs == 1 or is_shared or control is None or not torch.cuda.is_available():
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ |= places
        started = subprocess.run([control, "-d"], check=False).returncode == 0
        if not started:
            print("MPS does not start: trials take turns on the card", file=sys.stderr)
            for name in places:
                del os.environ[name]
        try:
            yield
        finally:
            if started:
                subprocess.run([control], input="quit\n", text=True, check=False)


def main() -> None:
    """Search, or be one of the processes of a search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", help="a tuned recipe for CIFAR-10, resnet20 or resnet32")
    parser.add_argument("--data", help="where the data set lies")
    parser.add_argument("--output", type=Path, default=Path("docs/results/search.csv"))
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=10, help="of a trial of the first rung")
    parser.add_argument("--most-epochs", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=12, help="trials at once")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop in this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ask", choices=ASKED, help="try the recipe with these once more")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    network, folder, seed = arguments.network, arguments.data, arguments.seed
    if arguments.work:
        work(network, folder, seed)
        return
    # Else trials, which are processes of their own, would go on after it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    begin, plan = monotonic(), rungs(arguments.trials, arguments.epochs, arguments.most_epochs)
    numbers = None
    if arguments.ask:
        numbers = list(ASKED[arguments.ask])
        plan = [(len(numbers), arguments.epochs)]
    with shared_card(arguments.jobs):
        workers = Workers(arguments.jobs, network, folder, seed)
        done = search(
            network,
            plan,
            path=arguments.output,
            workers=workers,
            jobs=arguments.jobs,
            seed=seed,
            seconds=arguments.seconds - (monotonic() - begin),
            numbers=numbers,
        )
    print("done" if done else "not done: the same command goes on")


if __name__ == "__main__":
    main()
