"""A trained run on another level: coarsened or refined, as a run of its own (Sec. 2)."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pdecnn.data.image_set import ImageSet
from pdecnn.errors import ConfigError
from pdecnn.learning.metrics import class_scores, evaluate_network
from pdecnn.networks.multilevel import (
    Interpolation,
    MeshMethod,
    check_transfer,
    coarsen_in_space,
    coarsen_in_time,
    refine_in_space,
    refine_in_time,
)
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Preprocessing
from pdecnn.networks.pretrained import refuse_nonfinite
from pdecnn.runs.config import DataConfig, RunConfig
from pdecnn.runs.evaluation import read_run
from pdecnn.runs.preparation import (
    Device,
    cpu_threads,
    describe_environment,
    read_weights,
    resolve_device,
)
from pdecnn.runs.runs import (
    INITIAL,
    RUN_WAIT_SECONDS,
    RUNS,
    WEIGHTS,
    Run,
    Weights,
    as_run,
    check_free,
    choose_folder,
    create_run,
    locked_folder,
)
from pdecnn.runs.timing import time_in_turn
from pdecnn.runs.training import usable

_NUM_TIMED, _NUM_REPEATS = 2000, 5


def coarsen(
    run: str | Path | Run,
    *,
    space: int = 1,
    time: int = 1,
    method: MeshMethod = "rediscretize",
    interpolation: Interpolation = "constant",
    weights: Weights = "best",
    settings: dict[str, Any] | None = None,
    output: str | Path | None = None,
) -> Run:
    """A run that begins with a run's weights on a coarser mesh, with fewer steps, or both.

    `settings` are for training it on, e.g. {'training.epochs': 1}.
    """
    check_transfer(interpolation, method)
    source, network = _open(run, weights, space, time)
    if space != 1:
        network = coarsen_in_space(network, space, method=method)
    if time != 1:
        network = coarsen_in_time(network, time, interpolation=interpolation)
    return _begin_run(source, network, settings or {}, output, "coarsened")


def refine(
    run: str | Path | Run,
    *,
    space: int = 1,
    time: int = 1,
    interpolation: Interpolation = "constant",
    weights: Weights = "best",
    settings: dict[str, Any] | None = None,
    output: str | Path | None = None,
) -> Run:
    """A run that begins with a run's weights on a finer mesh, with more steps, or both.

    `settings` are for training it on, e.g. {'training.epochs': 1}.
    """
    check_transfer(interpolation)
    source, network = _open(run, weights, space, time)
    if space != 1:
        network = _on_finer_mesh(network, space)
    if time != 1:
        network = refine_in_time(network, time, interpolation=interpolation)
    return _begin_run(source, network, settings or {}, output, "refined")


def compare_levels(
    run: Run,
    original: str | Path | Run,
    *,
    weights: Weights = "best",
    data: str | Path | None = None,
    device: Device = "auto",
) -> dict[str, Any]:
    """Test accuracy, loss and images a second of a run, those of its original beside them.

    Each is tested in its own precision on images as it reads them, image files in its own size;
    both are timed on the same ones, with the original's number of threads.
    """
    where = resolve_device(device)
    networks, tests, trainings = {}, {}, {}
    which: Weights
    for name, one, which in (("run", run, "best"), ("original", as_run(original), weights)):
        network, test, trainings[name] = read_run(one, data, weights=which)
        networks[name], tests[name] = network.to(where), test.to(where)
    precisions = {name: training.precision for name, training in trainings.items()}
    with cpu_threads(trainings["original"].num_threads):
        speeds = images_per_second(networks, tests["original"], precisions=precisions)
        figures = {
            name: {
                **evaluate_network(network, tests[name], precision=precisions[name]).to_dict(),
                "images_per_second": speeds[name],
                "num_weights": network.num_weights,
            }
            for name, network in networks.items()
        }
    return {**figures["run"], "original": figures["original"]}


def images_per_second(
    networks: Mapping[str, Network], test: ImageSet, *, precisions: Mapping[str, str]
) -> dict[str, float]:
    """How fast each network classifies images, eagerly and measured in turn."""
    images = test.images[:_NUM_TIMED]
    measure = partial(class_scores, images=images, batch_size=min(len(images), 250))
    calls = {
        name: partial(measure, network, precision=precisions[name])
        for name, network in networks.items()
    }
    timings = time_in_turn(
        calls, device=images.device, num_repeats=_NUM_REPEATS, repeat_seconds=0, num_warm_ups=1
    )
    missing = [name for name, timing in timings.items() if timing is None]
    if missing:
        raise torch.OutOfMemoryError(f"out of memory in timing {missing[0]}")
    return {name: len(images) / t.median for name, t in timings.items() if t is not None}


def _open(run: str | Path | Run, weights: Weights, space: int, time: int) -> tuple[Run, Network]:
    """A run and its network, of which something is to change."""
    source = as_run(run)
    network = read_weights(source, weights)
    refuse_nonfinite(network, source.weights(weights))
    if space == 1 and time == 1:
        raise ConfigError("nothing would change; pass --space or --time with a factor of 2 or more")
    return source, network


def _on_finer_mesh(network: Network, factor: int) -> Network:
    new = refine_in_space(network, factor)
    size = new.preprocessing.size
    if size is not None and size != network.preprocessing.size and len(set(size)) > 1:
        raise ConfigError(
            f"a run cannot resize its images to {size}, since data.size is one number for all "
            f"axes; refine in time only, or use refine_in_space on finer data"
        )
    return new


def _begin_run(
    source: Run, network: Network, settings: dict[str, Any], output: str | Path | None, what: str
) -> Run:
    """A run at its start: `train --resume` goes on from there, `evaluate` measures it.

    Where no `output` is given its name says `what` was done, so that none takes it for a training.
    """
    config = _on_level(source.config, network, settings)
    with usable(RUNS if output is None else Path(output)):
        if output is not None:
            check_free(Path(output))
        name = f"{config.recipe}-{what}"
        folder, made = choose_folder(None if output is None else Path(output), name)
    new_config = replace(config, initial=str((folder / INITIAL).absolute()))
    environment = describe_environment(torch.device("cpu"), config.seed)

    def fill(run: Run) -> None:
        network.save_pretrained(folder / INITIAL)
        for which in WEIGHTS:
            run.link(which, folder / INITIAL)

    with usable(folder), locked_folder(folder, wait_seconds=RUN_WAIT_SECONDS):
        return create_run(folder, new_config, environment, fill, made)


def _on_level(config: RunConfig, network: Network, settings: dict[str, Any]) -> RunConfig:
    """The config with which the network is trained on: its level, a single one."""
    training = replace(config.training, level_epochs=None, level_sizes=None, level_steps=None)
    new = replace(config, training=training).with_settings(settings)
    is_remeshed = network.config.mesh_size != config.network.mesh_size
    data = _data_on_level(new.data, network.preprocessing, is_remeshed=is_remeshed)
    if new.network != config.network or new.seed != config.seed:
        raise ConfigError(
            "network and seed of a coarsened or refined run are those of its original"
        )
    if (new.data.size, new.data.pooling) != (config.data.size, config.data.pooling):
        raise ConfigError("data.size and data.pooling of a coarsened or refined run are its level")
    if new.training.num_levels > 1:
        raise ConfigError(
            "a coarsened or refined run is trained on a single level, its own; leave "
            "training.level_epochs, level_sizes and level_steps unset"
        )
    return replace(new, network=network.config, data=data)


def _data_on_level(
    data: DataConfig, preprocessing: Preprocessing, *, is_remeshed: bool
) -> DataConfig:
    size = preprocessing.size
    if data.name in ("pictures", "segmented", "sounds"):
        if is_remeshed:
            raise ConfigError(
                f"a run on {data.name} reads them neither averaged nor resized; pass --time alone, "
                f"or change the mesh of its network in Python (coarsen_in_space, refine_in_space)"
            )
        return data
    if size is None or len(set(size)) > 1:
        if data.size is not None:
            raise ConfigError(f"images of size {size} are not square; data.size cannot say that")
        return replace(data, pooling=preprocessing.pooling)
    return replace(data, size=size[0], pooling=preprocessing.pooling)
