"""Which run is meant: a recipe or TOML file with settings on top, or a run that goes on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pdecnn.errors import ConfigError
from pdecnn.experiments.config import RunConfig
from pdecnn.experiments.recipes import DEFAULT_RECIPE, recipe
from pdecnn.experiments.runs import Run, is_run, newest_folder
from pdecnn.experiments.settings import parse_assignment, read_settings


def resolve_run(
    name: str | None,
    *,
    output: Path | None = None,
    data: Path | None = None,
    seed: int | None = None,
    freeze: Sequence[str] = (),
    deterministic: bool = False,
    assignments: list[str],
    resume: bool = False,
) -> tuple[RunConfig, Path | None]:
    """The config and the folder of a run from what was said on the command line.

    When a run is resumed what was not said again is taken from the run itself.
    """
    base, settings = _base(name)
    if resume and output is None:
        output = newest_folder(base.recipe)
    if resume and output is not None and is_run(output):
        stored = Run(output).config
        if name is not None and stored.recipe != base.recipe:
            raise ConfigError(
                f"{output} is a run of {stored.recipe}, not of {base.recipe}; leave the recipe "
                f"out to resume it"
            )
        base = stored
    settings |= dict(parse_assignment(text) for text in assignments)
    if seed is not None:
        settings["seed"] = seed
    if data is not None:
        settings["data.folder"] = str(data)
    if deterministic:
        settings["training.deterministic"] = True
    if freeze:
        settings["training.freeze"] = list(freeze)
    folder = settings.get("data.folder")
    if isinstance(folder, str) and folder != "none":  # found from any working directory later
        settings["data.folder"] = str(Path(folder).absolute())
    return base.with_settings(settings), output


def _base(name: str | None) -> tuple[RunConfig, dict[str, Any]]:
    if name is None or not name.endswith(".toml"):
        return recipe(name or DEFAULT_RECIPE), {}
    settings = read_settings(Path(name))
    return recipe(str(settings.pop("recipe", DEFAULT_RECIPE))), settings
