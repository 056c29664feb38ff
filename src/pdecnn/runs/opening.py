"""Making the folder of a run, or finding the one to go on with."""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pdecnn.errors import CheckpointError, ConfigError, system_errors_as
from pdecnn.learning.distributed import num_ranks
from pdecnn.learning.metrics import AUTO, resolve_precision
from pdecnn.runs.config import (
    RunConfig,
    assignment,
    differing_keys,
    run_config_from_dict,
)
from pdecnn.runs.environment import describe_environment
from pdecnn.runs.folder_lock import RUN_WAIT_SECONDS, locked_folder
from pdecnn.runs.listener import Listener
from pdecnn.runs.runs import RUNS, Run, check_free, choose_folder, create_run, is_run

# What may differ between a run and its resumption without changing any result.
_FREE_ON_RESUME = {"data.folder", "training.time_limit_seconds", "initial"}


def open_run(
    folder: Path | None,
    config: RunConfig,
    device: torch.device,
    resume: bool,
    listener: Listener,
    held: ExitStack,
) -> dict[str, Any]:
    """Make the run or find the one to go on with; what the ranks must know of it, as JSON.

    No other process has its folder while `held` is open, unless the run is finished.
    """
    with usable(folder or RUNS):
        folder, made = choose_folder(folder, config.recipe)
    run = _existing_run(folder, config, resume)
    if run is None or not run.is_finished:
        with usable(folder):
            held.enter_context(locked_folder(folder, wait_seconds=RUN_WAIT_SECONDS))
        run = _existing_run(folder, config, resume)  # another process may have made it meanwhile
    is_new = run is None
    if run is None:
        config = _with_precision(config, resolve_precision(AUTO, device))
        config = replace(config, network=config.network.with_grid())
        run = _new_run(folder, config, device, made)
        if resume:
            listener.note(f"no run to resume yet; starting {config.recipe} anew")
    elif run.is_finished:
        listener.note(f"{run.folder} is finished; nothing to do")
    elif run.num_ranks != num_ranks():
        listener.note(
            f"{run.folder} began with {run.num_ranks} ranks and goes on with {num_ranks()}: its "
            f"figures will agree to rounding, not to the bit"
        )
    return {
        "folder": str(run.folder),
        "is_new": is_new,
        "made": [str(path) for path in made],
        "finished": not is_new and run.is_finished,
        "config": run.config.to_dict(),
    }


def agreed_config(config: RunConfig, opened: dict[str, Any]) -> RunConfig:
    """The config of the opened run, with what may differ in this process."""
    stored = run_config_from_dict(opened["config"])
    config = _with_precision(config, stored.training.precision)
    return replace(stored, data=config.data, training=config.training)


def _new_run(folder: Path, config: RunConfig, device: torch.device, made: list[Path]) -> Run:
    with usable(folder):
        environment = describe_environment(device, config.seed)
        return create_run(folder, config, environment, made=made)


def _existing_run(folder: Path, config: RunConfig, resume: bool) -> Run | None:
    """The run to go on with; None where there is none yet, an error where there must not be."""
    if not (resume and is_run(folder)):
        with usable(folder):
            check_free(folder)
        return None
    run = Run(folder)
    check_settings(run, config)
    return run


def _with_precision(config: RunConfig, precision: str) -> RunConfig:
    """The config with 'auto' resolved: a run says what it computes in, wherever it goes on."""
    if config.training.precision != AUTO:
        return config
    return replace(config, training=replace(config.training, precision=precision))


def check_settings(run: Run, config: RunConfig) -> None:
    """Raise a ConfigError if going on with the config would mix two runs in one folder."""
    stored = run.config
    config = _with_precision(config, stored.training.precision)
    # Where none is said the grid is that of the run.
    free = _FREE_ON_RESUME | ({"network.grid_bits"} if config.network.grid_bits is None else set())
    differing = [key for key in differing_keys(stored, config) if key not in free]
    if differing:
        values = ", ".join(assignment(stored, key) for key in differing)
        raise ConfigError(
            f"{run.folder} was made with other settings ({values}); resume it with its own, or "
            f"start anew with another --output"
        )


def usable(folder: Path) -> AbstractContextManager[None]:
    """Say in one line that the folder cannot hold a run."""
    return system_errors_as(CheckpointError, f"{folder}: cannot be used")
