"""A network as one file, lists of what there is, and the data sets of the paper."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdecnn.cli.application import (
    JsonOption,
    QuietOption,
    SetOption,
    WeightsOption,
    choice,
    parse_assignments,
    print_json,
)
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
) -> None:
    """Write a network as one ONNX or torch.export file, and check it."""
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


def recipes(as_json: JsonOption = False) -> None:
    """List the recipes that `train` takes."""
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
) -> None:
    """List the settings that `--set` takes."""
    from pdecnn.runs.config import describe_settings
    from pdecnn.runs.recipes import read_recipe

    found = describe_settings(None if recipe is None else read_recipe(recipe))
    if as_json:
        print_json(found)
        return
    from pdecnn.reports.terminal import print_settings

    print_settings(found)


def models(as_json: JsonOption = False) -> None:
    """List the networks that `create_model` knows and their sizes."""
    from pdecnn.networks import create_model, list_models

    counts = {name: create_model(name).num_weights for name in list_models()}
    if as_json:
        print_json(counts)
        return
    from pdecnn.reports.terminal import print_models

    print_models(counts)


# ------------------------------------------------------------------ data sets

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="stl10, cifar10 or cifar100.")]


def list_data(as_json: JsonOption = False) -> None:
    """List the data sets that can be fetched."""
    from pdecnn.data.registry import PUBLISHED

    if as_json:
        print_json({name: versions[0].describe() for name, versions in PUBLISHED.items()})
        return
    from pdecnn.reports.terminal import print_published

    print_published()


def download_data(
    name: NameArgument,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="The folder for the archive.")
    ] = Path("data"),
    url: Annotated[
        str | None, typer.Option("--url", help="Another address of the same archive.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Fetch the archive of a data set, which training reads as it is."""
    from contextlib import nullcontext

    from pdecnn.data.download import download
    from pdecnn.reports.terminal import download_bar

    with nullcontext() if quiet else download_bar(name) as progress:
        path = download(name, output, url=url, progress=progress)
    print(path)


def pack_data(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Images, perhaps with labels, or sounds, perhaps in train, validation and test.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="The file, FILE.npz.")],
    settings: SetOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
) -> None:
    """Put pictures, images with labels, or sounds into one file."""
    from pdecnn.data.images import pack_pictures
    from pdecnn.data.segmented import dimension_of, pack_segmented
    from pdecnn.data.sounds import has_sounds, pack_sounds
    from pdecnn.errors import DataError
    from pdecnn.runs.recipes import recipe

    is_segmented = dimension_of(folder) is not None
    name, read = "parabolic_denoising", ["data.channels"]
    if has_sounds(folder):
        name, read = "parabolic_sounds", ["data.seconds", "data.rate", "data.label", "data.group"]
    elif is_segmented:
        name, read = "parabolic_segmentation", ["data.channels", "data.group"]
    chosen = parse_assignments(settings)
    for key in sorted(chosen.keys() - set(read)):
        raise ConfigError(
            f"{key} changes nothing of what is packed, unlike {', '.join(read)}; leave it to "
            f"`pdecnn train`"
        )
    data = recipe(name).with_settings(chosen).data
    sounds = data.sounds()
    if output.exists() and not force:
        raise DataError(f"{output}: is there already; pass --force, or another --output")
    if sounds is not None:
        numbers = pack_sounds(folder, output, sounds)
    elif is_segmented:
        numbers = pack_segmented(folder, output, channels=data.channels, group=data.group)
    else:
        numbers = pack_pictures(folder, output, channels=data.channels)
    print(f"{output}: " + ", ".join(f"{number} {part}" for part, number in numbers.items()))


def verify_data(
    name: NameArgument,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Where it lies.")] = Path(
        "data"
    ),
) -> None:
    """Check that a data set is as published."""
    from pdecnn.data.download import verify

    print(verify(name, data))
