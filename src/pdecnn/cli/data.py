"""The data sets of the paper."""

from pathlib import Path
from typing import Annotated

import typer

from pdecnn.cli.options import (
    DebugOption,
    JsonOption,
    QuietOption,
    SetOption,
    parse_assignments,
    print_json,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="stl10, cifar10 or cifar100.")]


def list_data(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the data sets that can be fetched."""
    del debug
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
    debug: DebugOption = False,
) -> None:
    """Fetch the published archive of a data set, which training reads as it is."""
    del debug
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
    debug: DebugOption = False,
) -> None:
    """Put a folder of pictures, of images with labels, or of sounds into one file for `--data`."""
    del debug
    from pdecnn.data.pictures import pack_pictures
    from pdecnn.data.segmented import dimension_of, pack_segmented
    from pdecnn.data.sounds import has_sounds, pack_sounds
    from pdecnn.errors import ConfigError, DataError
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
            f"{key} changes nothing of what is packed, which {', '.join(read)} do; leave it to "
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
    debug: DebugOption = False,
) -> None:
    """Check that a data set is as published."""
    del debug
    from pdecnn.data.download import verify

    print(verify(name, data))
