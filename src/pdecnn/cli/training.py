"""Train a network, measure it, use it; and on coarser and finer levels."""

import csv
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from pdecnn.cli.application import (
    DataOption,
    DeviceOption,
    JsonOption,
    NetworkArgument,
    QuietOption,
    RunArgument,
    SetOption,
    WeightsOption,
    choice,
    parse_assignments,
    print_json,
    process_rank,
    shown_training,
    split_names,
    warn,
)
from pdecnn.networks.multilevel import Interpolation, MeshMethod
from pdecnn.runs.evaluation import Split
from pdecnn.runs.preparation import Device
from pdecnn.runs.runs import Weights

NUM_CLASSES = 3
"""That `predict` names of an image."""


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE", help="A recipe by name, or a TOML file; hamiltonian_digits if none."
        ),
    ] = None,
    data: DataOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="RUN", help="The run directory; fresh in runs/ if none."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Drives everything random.")] = None,
    settings: SetOption = None,
    initial: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN|FOLDER|FILE|MODEL", help="Start from these weights."),
    ] = None,
    foreign: Annotated[
        bool, typer.Option("--foreign", help="Let --from be a .pt file; its tensors alone count.")
    ] = False,
    freeze: Annotated[
        list[str] | None,
        typer.Option("--freeze", metavar="PARTS", help="Leave opening, blocks or both untrained."),
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Refuse what cannot be repeated to the bit.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run where it stopped.")
    ] = False,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a network and leave all about it in a run directory."""
    from pdecnn import runs
    from pdecnn.learning.distributed import joined_ranks
    from pdecnn.runs.preparation import QUEUED, end_with_input, resolve_device

    is_queued = QUEUED in os.environ
    if is_queued:
        end_with_input()
    with (
        shown_training(quiet=quiet, to_stderr=as_json, notes_alone=is_queued) as listener,
        joined_ranks(resolve_device(device)) as ranks,
    ):
        config, folder = ranks.together(
            lambda: runs.resolve_run(
                recipe,
                output=output,
                data=data,
                seed=seed,
                freeze=split_names("--freeze", freeze),
                deterministic=deterministic,
                assignments=settings or [],
                resume=resume,
            )
        )
        run = runs.train(
            config,
            output=folder,
            resume=resume,
            device=device,
            initial=initial,
            foreign=foreign,
            listener=listener,
        )
        if ranks.is_first and not is_queued:
            from pdecnn.reports.run_figures import draw_run_figures

            figures = draw_run_figures(run)
            with suppress(OSError):  # the run is there, whether or not its words can be written
                listener.finished(run, figures)
    if as_json and ranks.is_first:
        print_json({"run": str(run.folder), **(run.summary or {})})


def evaluate(
    run: NetworkArgument,
    data: DataOption = None,
    split: Annotated[Split, choice("--split", "test, validation or train.")] = "test",
    noise: Annotated[
        float | None,
        typer.Option("--noise", help="Of a denoiser: the noise to measure with, of 255."),
    ] = None,
    weights: WeightsOption = "best",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure a run on images of its data set; JSON on stdout."""
    from pdecnn import runs

    result = runs.evaluate(run, data=data, split=split, weights=weights, device=device, noise=noise)
    if process_rank() == 0:
        if result["loss"] is None:
            warn("the loss is not finite: some scores are NaN or infinite")
        print_json(result, indent=None if as_json else 2)


def predict(
    run: NetworkArgument,
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE", help="Image, sound or array files, or folders of them."),
    ],
    top: Annotated[int, typer.Option("--top", help="How many classes an image.")] = NUM_CLASSES,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Where images go, if the answers are images."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite images in DIR.")] = False,
    weights: WeightsOption = "best",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Name the classes of images or sounds, or write images."""
    from pdecnn import runs
    from pdecnn.errors import ConfigError

    if output is not None:
        if top != NUM_CLASSES:
            raise ConfigError("--top is for classes, and --output for images; leave out one")
        rows = runs.predict_images(run, images, output, force=force, weights=weights, device=device)
        if as_json:
            print_json({"images": rows})
        else:
            print("\n".join(row["output"] for row in rows))
        return
    if force:
        raise ConfigError("--force is for files of --output; leave it out")
    results = runs.predict(run, images, top=top, weights=weights, device=device)
    if as_json:
        print_json({"images": results})
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["image", "rank", "class", "probability"])
    for result in results:
        for rank, entry in enumerate(result["predictions"], start=1):
            writer.writerow([result["image"], rank, entry["class"], f"{entry['probability']:.6f}"])
    sys.stdout.flush()


# ------------------------------------------------------------------ levels

SpaceOption = Annotated[
    int, typer.Option("--space", metavar="FACTOR", help="How many times in space.")
]
TimeOption = Annotated[
    int, typer.Option("--time", metavar="FACTOR", help="How many times in time, to the same end.")
]
InterpolationOption = Annotated[
    Interpolation, choice("--interpolation", "Weights in time: constant or linear.")
]
EvaluateOption = Annotated[
    bool, typer.Option("--evaluate", help="Measure accuracy and speed beside the original's.")
]
NewRunOption = Annotated[
    Path | None,
    typer.Option("--output", metavar="RUN", help="The new run; fresh in runs/ if none."),
]


def coarsen(
    run: RunArgument,
    space: SpaceOption = 1,
    time: TimeOption = 1,
    method: Annotated[
        MeshMethod, choice("--method", "Stencils: rediscretize or galerkin.")
    ] = "rediscretize",
    interpolation: InterpolationOption = "constant",
    evaluate: EvaluateOption = False,
    data: DataOption = None,
    settings: SetOption = None,
    output: NewRunOption = None,
    weights: WeightsOption = "best",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Make a run of a trained network with a coarser mesh or steps."""
    from pdecnn.runs import leveling

    if evaluate:
        _check_comparable(run)
    new = leveling.coarsen(
        run,
        space=space,
        time=time,
        method=method,
        interpolation=interpolation,
        weights=weights,
        settings=parse_assignments(settings),
        output=output,
    )
    _show_level(new, run, evaluate, weights=weights, data=data, device=device, as_json=as_json)


def refine(
    run: RunArgument,
    space: SpaceOption = 1,
    time: TimeOption = 1,
    interpolation: InterpolationOption = "constant",
    evaluate: EvaluateOption = False,
    data: DataOption = None,
    settings: SetOption = None,
    output: NewRunOption = None,
    weights: WeightsOption = "best",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Make a run of a trained network with a finer mesh or steps."""
    from pdecnn.runs import leveling

    if evaluate:
        _check_comparable(run)
    new = leveling.refine(
        run,
        space=space,
        time=time,
        interpolation=interpolation,
        weights=weights,
        settings=parse_assignments(settings),
        output=output,
    )
    _show_level(new, run, evaluate, weights=weights, data=data, device=device, as_json=as_json)


def _check_comparable(original: Path) -> None:
    """Refuse, before anything is made, a run whose accuracy cannot stand beside another's."""
    from pdecnn.errors import ConfigError
    from pdecnn.runs.preparation import make_run_task
    from pdecnn.runs.runs import as_run

    if not make_run_task(as_run(original).config).has_classes:
        raise ConfigError(
            f"--evaluate compares accuracies, and {original} has an answer for each pixel; leave "
            f"it out, and use `pdecnn evaluate` on the new run"
        )


def _show_level(
    new: Any,
    original: Path,
    evaluate: bool,
    *,
    weights: Weights,
    data: Path | None,
    device: Device,
    as_json: bool,
) -> None:
    from pdecnn.reports.terminal import print_level
    from pdecnn.runs.leveling import compare_levels

    figures = None
    if evaluate:
        figures = compare_levels(new, original, weights=weights, data=data, device=device)
    if as_json:
        print_json({"run": str(new.folder), **(figures or {})})
    else:
        print_level(new, figures)
