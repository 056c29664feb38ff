"""The paper's experiments, and speed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from pdecnn.cli.application import (
    DeviceOption,
    JsonOption,
    QuietOption,
    SetOption,
    parse_assignments,
    print_json,
    shown_training,
    split_names,
)

if TYPE_CHECKING:
    from pdecnn.runs.paper import TargetName

FAILED_RUNS = 1


def reproduce(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="table1, figure1, ... figure4, or all."),
    ],
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="The folder that holds the data sets."),
    ] = None,
    datasets: Annotated[
        list[str] | None,
        typer.Option("--datasets", metavar="NAMES", help="Of stl10,cifar10,cifar100; all if none."),
    ] = None,
    dynamics: Annotated[
        list[str] | None,
        typer.Option(
            "--dynamics",
            metavar="NAMES",
            help="Of parabolic,hamiltonian,second_order,resnet,resnet_narrow; all if none.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="How many seeds; 3, or 2 with --quick.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="DIR", help="reproduction if none, or reproduction-quick."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="All of it on digits in ten minutes; needs no data.")
    ] = False,
    settings: SetOption = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", help="Runs at a time; 3 on cuda, else 1.")
    ] = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the paper's tables and figures from the data."""
    from pdecnn.reports import paper

    with shown_training(quiet=quiet, to_stderr=as_json):
        files, failures = paper.reproduce(
            cast("TargetName", target),
            output,
            data=data,
            datasets=split_names("--datasets", datasets),
            dynamics=split_names("--dynamics", dynamics),
            num_seeds=seeds,
            quick=quick,
            settings=parse_assignments(settings),
            num_parallel=jobs,
            device=device,
        )
    if as_json:
        print_json({"files": [str(path) for path in files], "failures": failures})
    for name, failure in failures.items():
        print(f"pdecnn: {name} failed: {failure}", file=sys.stderr)
    if failures:
        raise typer.Exit(FAILED_RUNS)


def bench(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PARTS", help="Of steps,depth; both if none."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Write speed.md, speed.json and a figure."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes, to see in seconds whether it runs.")
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure speed and memory beside plain torch."""
    from pdecnn.reports.bench import check_output, print_bench, write_bench
    from pdecnn.runs.bench import run_bench

    if output is not None:
        check_output(output, quick=quick)
    result = run_bench(
        split_names("--only", only),
        device=device,
        quick=quick,
        say=lambda text: print(text, file=sys.stderr, flush=True),
        on_part=lambda result: None if output is None else write_bench(result, output),
    )
    if as_json:
        print_json(result)
    else:
        print_bench(result)
