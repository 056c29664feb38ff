"""Coarser and finer runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pdecnn.cli.options import (
    DataOption,
    DebugOption,
    DeviceOption,
    JsonOption,
    RunArgument,
    SetOption,
    WeightsOption,
    choice,
    parse_assignments,
    print_json,
)
from pdecnn.networks.multilevel import Interpolation, MeshMethod
from pdecnn.runs.environment import Device
from pdecnn.runs.runs import Weights

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
    debug: DebugOption = False,
) -> None:
    """Make a run of a trained network with a coarser mesh or steps."""
    del debug
    from pdecnn.runs import leveling

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
    debug: DebugOption = False,
) -> None:
    """Make a run of a trained network with a finer mesh or steps."""
    del debug
    from pdecnn.runs import leveling

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
