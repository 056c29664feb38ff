"""A network as one file, and lists of what there is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdecnn.cli.options import DebugOption, JsonOption, WeightsOption, choice, print_json
from pdecnn.errors import ConfigError
from pdecnn.networks.preprocessing import Pixels

if TYPE_CHECKING:
    from pdecnn.runs.export import Kind


def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|FOLDER|MODEL",
            help="A run directory, a saved network, or a model with published weights.",
        ),
    ],
    onnx: Annotated[
        Path | None, typer.Option("--onnx", metavar="FILE", help="Write ONNX, FILE.onnx.")
    ] = None,
    torch_export: Annotated[
        Path | None,
        typer.Option("--torch-export", metavar="FILE", help="Write torch.export's FILE.pt2."),
    ] = None,
    pixels: Annotated[
        Pixels | None,
        choice("--pixels", "What it takes: uint8, or float32 in [0, 1]; as in training if none."),
    ] = None,
    weights: WeightsOption = "best",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a network as one ONNX or torch.export file, and check it."""
    del debug
    from pdecnn.runs import export as exporting

    files: dict[Kind, Path | None] = {"onnx": onnx, "torch-export": torch_export}
    given = [(kind, file) for kind, file in files.items() if file is not None]
    if len(given) != 1:
        raise ConfigError("pass one of --onnx FILE and --torch-export FILE")
    (kind, file) = given[0]
    exported = exporting.export(source, file, kind=kind, weights=weights, pixels=pixels)
    if as_json:
        print_json(exported)
        return
    from pdecnn.reports.terminal import print_export

    print_export(exported)


def recipes(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the recipes that `train` takes."""
    del debug
    from pdecnn import runs

    if as_json:
        configs = {name: runs.recipe(name).to_dict() for name in runs.list_recipes()}
        print_json(configs)
        return
    from pdecnn.reports.terminal import print_recipes

    print_recipes()


def settings(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="Show the values of a recipe or TOML file too."),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the settings that `--set` takes."""
    del debug
    from pdecnn.runs.config import describe_settings
    from pdecnn.runs.recipes import read_recipe

    found = describe_settings(None if recipe is None else read_recipe(recipe))
    if as_json:
        print_json(found)
        return
    from pdecnn.reports.terminal import print_settings

    print_settings(found)


def models(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the networks that `create_model` knows and their sizes."""
    del debug
    from pdecnn.networks import create_model, list_models

    counts = {name: create_model(name).num_weights for name in list_models()}
    if as_json:
        print_json(counts)
        return
    from pdecnn.reports.terminal import print_models

    print_models(counts)
