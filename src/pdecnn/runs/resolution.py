"""Which run is meant: a recipe or TOML file with settings on top, or a run that goes on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pdecnn.data.arrays import KINDS
from pdecnn.data.registry import needs_folder, recognize
from pdecnn.errors import ConfigError
from pdecnn.runs.config import RunConfig
from pdecnn.runs.recipes import DEFAULT_RECIPE, list_recipes, recipe
from pdecnn.runs.runs import Run, is_run, newest_folder
from pdecnn.runs.settings import parse_assignment, read_settings


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
        if "data.name" not in settings and not needs_folder(base.data.name):
            raise ConfigError(_unread(base.recipe, Path(folder)))
    return base.with_settings(settings), output


def _unread(name: str, place: Path) -> str:
    """What to say of data for a recipe that reads none: which ones read what lies there."""
    said = ", the recipe if none is named," if name == DEFAULT_RECIPE else ""
    said = f"{name}{said} trains on digits that are built in and does not read {place}"
    found, remark = recognize(place), ""
    fitting = [one for one in list_recipes() if _reads(recipe(one), found)]
    if found == {"arrays": 2}:  # which have no recipe of their own
        fitting, remark = list_recipes("*_images"), " with --set data.name=arrays"
    if not fitting:
        return (
            f"{said}; no recipe reads what lies there: it is neither a folder with one of images "
            f"for each class, nor arrays x and y ({KINDS}), nor a data set of the paper as "
            f"published"
        )
    return f"{said}; name one that does: {', '.join(fitting)}{remark}"


def _reads(config: RunConfig, found: dict[str, int]) -> bool:
    is_single = config.training.num_levels == 1
    return is_single and found.get(config.data.name) == config.network.dimension


def _base(name: str | None) -> tuple[RunConfig, dict[str, Any]]:
    if name is None or not name.endswith(".toml"):
        return recipe(name or DEFAULT_RECIPE), {}
    settings = read_settings(Path(name))
    return recipe(str(settings.pop("recipe", DEFAULT_RECIPE))), settings
