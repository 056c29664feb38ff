"""The command line: arguments in, one call into a room below, results out."""

import csv
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pdecnn.errors import (
    BadFilesError,
    BusyError,
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    ExportError,
    RankError,
    TooLargeError,
)
from pdecnn.experiments.signals import Interrupted

EXIT_CODES: dict[type[Exception], int] = {
    ConfigError: 2,
    DataError: 3,
    DivergedError: 4,
    CheckpointError: 5,
    RankError: 6,
    ExportError: 7,
    BusyError: 8,
    TooLargeError: 9,
}
FAILED_RUNS = 1
# What several processes do together; anything else each would do for itself.
WITH_TORCHRUN = ("train", "evaluate")

app = typer.Typer(
    name="pdecnn",
    help="Convolutional networks that are partial differential equations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="The folder or file of the data set.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
WeightsOption = Annotated[str, typer.Option("--weights", help="best or last.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _version(value: bool) -> None:
    if value:
        from pdecnn import __version__

        print(f"pdecnn {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Convolutional networks that are partial differential equations."""
    del version
    if os.environ.get("WORLD_SIZE", "1") != "1" and context.invoked_subcommand not in WITH_TORCHRUN:
        raise ConfigError(
            f"torchrun is for {' and '.join(WITH_TORCHRUN)}; run "
            f"`pdecnn {context.invoked_subcommand}` without it"
        )


@app.command()
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
        typer.Option("--from", metavar="RUN|FOLDER|FILE", help="Start from these weights."),
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
    debug: DebugOption = False,
) -> None:
    """Train a network and leave all about it in a run directory."""
    del debug
    from pdecnn import experiments, reports
    from pdecnn.experiments.environment import resolve_device
    from pdecnn.learning.distributed import joined_ranks
    from pdecnn.reports.console import ConsoleListener

    listener = experiments.Listener() if quiet else ConsoleListener(to_stderr=as_json)
    with joined_ranks(resolve_device(device)) as ranks:
        config, folder = ranks.together(
            lambda: experiments.resolve_run(
                recipe,
                output=output,
                data=data,
                seed=seed,
                freeze=_names("--freeze", freeze),
                deterministic=deterministic,
                assignments=settings or [],
                resume=resume,
            )
        )
        run = experiments.train(
            config,
            output=folder,
            resume=resume,
            device=device,
            initial=initial,
            foreign=foreign,
            listener=listener,
        )
    if not ranks.is_first:
        return
    figures = reports.draw_run_figures(run)
    listener.finished(run, figures)
    if as_json:
        _print_json({"run": str(run.folder), **(run.summary or {})})


@app.command()
def evaluate(
    run: RunArgument,
    data: DataOption = None,
    split: Annotated[str, typer.Option("--split", help="test, validation or train.")] = "test",
    weights: WeightsOption = "best",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure a run on images of its data set; JSON on stdout."""
    del debug
    from pdecnn import experiments

    result = experiments.evaluate(run, data=data, split=split, weights=weights, device=device)
    if _rank() == 0:
        _print_json(result, indent=None if as_json else 2)


@app.command()
def predict(
    run: RunArgument,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Image files.")],
    top: Annotated[int, typer.Option("--top", help="How many classes an image.")] = 3,
    weights: WeightsOption = "best",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Name the most probable classes of image files; CSV or JSON."""
    del debug
    from pdecnn import experiments

    results = experiments.predict(run, images, top=top, weights=weights, device=device)
    if as_json:
        _print_json({"images": results})
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["image", "rank", "class", "probability"])
    for result in results:
        for rank, entry in enumerate(result["predictions"], start=1):
            writer.writerow([result["image"], rank, entry["class"], f"{entry['probability']:.6f}"])


SpaceOption = Annotated[
    int, typer.Option("--space", metavar="FACTOR", help="How many times in space.")
]
TimeOption = Annotated[
    int, typer.Option("--time", metavar="FACTOR", help="How many times in time, to the same end.")
]
InterpolationOption = Annotated[
    str, typer.Option("--interpolation", help="Weights in time: constant or linear.")
]
EvaluateOption = Annotated[
    bool, typer.Option("--evaluate", help="Measure accuracy and speed beside the original's.")
]
NewRunOption = Annotated[
    Path | None,
    typer.Option("--output", metavar="RUN", help="The new run; fresh in runs/ if none."),
]


@app.command()
def coarsen(
    run: RunArgument,
    space: SpaceOption = 1,
    time: TimeOption = 1,
    method: Annotated[
        str, typer.Option("--method", help="Stencils: rediscretize or galerkin.")
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
    from pdecnn.experiments.leveling import coarsen_run

    new = coarsen_run(
        run,
        space=space,
        time=time,
        method=method,
        interpolation=interpolation,
        weights=weights,
        settings=_assignments(settings),
        output=output,
    )
    _show_level(new, run, evaluate, weights=weights, data=data, device=device, as_json=as_json)


@app.command()
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
    from pdecnn.experiments.leveling import refine_run

    new = refine_run(
        run,
        space=space,
        time=time,
        interpolation=interpolation,
        weights=weights,
        settings=_assignments(settings),
        output=output,
    )
    _show_level(new, run, evaluate, weights=weights, data=data, device=device, as_json=as_json)


def _assignments(texts: list[str] | None) -> dict[str, Any]:
    from pdecnn.experiments.settings import parse_assignment

    return dict(parse_assignment(text) for text in texts or [])


def _show_level(
    new: Any,
    original: Path,
    evaluate: bool,
    *,
    weights: str,
    data: Path | None,
    device: str,
    as_json: bool,
) -> None:
    from pdecnn.experiments.leveling import compare_levels
    from pdecnn.reports.listings import print_level

    figures = None
    if evaluate:
        figures = compare_levels(new, original, weights=weights, data=data, device=device)
    if as_json:
        _print_json({"run": str(new.folder), **(figures or {})})
    else:
        print_level(new, figures)


@app.command()
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
        bool, typer.Option("--quick", help="All of it on digits in two minutes; needs no data.")
    ] = False,
    settings: SetOption = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", help="Runs at a time; 3 on cuda, else 1.")
    ] = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Rebuild the paper's tables and figures from the data."""
    del debug
    from pdecnn import reports
    from pdecnn.experiments import Listener
    from pdecnn.experiments.paper import make_plan
    from pdecnn.experiments.queue import run_queue
    from pdecnn.reports.console import ConsoleListener

    plan = make_plan(
        target,
        data=data,
        datasets=_names("--datasets", datasets),
        dynamics=_names("--dynamics", dynamics),
        num_seeds=seeds,
        quick=quick,
        settings=_assignments(settings),
    )
    output = output or Path("reproduction-quick" if quick else "reproduction")
    listener = Listener() if quiet else ConsoleListener(to_stderr=as_json)
    for note in plan.notes:
        listener.note(note)
    failures = run_queue(
        plan.runs, output / "runs", device=device, num_parallel=jobs, listener=listener
    )
    files, failures = reports.draw_paper(plan, output, failures)
    listener.note(f"in {output}: {', '.join(path.name for path in files)}")
    if as_json:
        _print_json({"files": [str(path) for path in files], "failures": failures})
    for name, failure in failures.items():
        print(f"pdecnn: {name} failed: {failure}", file=sys.stderr)
    if failures:
        raise typer.Exit(FAILED_RUNS)


@app.command()
def diagnose(
    run: RunArgument,
    data: DataOption = None,
    weights: WeightsOption = "best",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="For the files; RUN/diagnosis if none."),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure what PDE theory predicts of a run."""
    del debug
    from pdecnn.experiments import diagnosis
    from pdecnn.reports.diagnosis import print_diagnosis
    from pdecnn.reports.diagnosis_files import write_diagnosis

    found = diagnosis.diagnose(
        run, data=data, weights=weights, device=device, say=_say(quiet=as_json)
    )
    files = write_diagnosis(found, output or run / "diagnosis")
    if as_json:
        _print_json(found.to_dict())
    else:
        print_diagnosis(found, files)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page, FILE.html.")
    ] = Path("report.html"),
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data", metavar="DIR", help="The folder or file of the data; once, or for each run."
        ),
    ] = None,
    weights: WeightsOption = "best",
    images: Annotated[
        int, typer.Option("--images", help="How many images a part shows of each run.")
    ] = 12,
    no_diagnosis: Annotated[
        bool, typer.Option("--no-diagnosis", help="Leave out what takes longest.")
    ] = False,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Show runs side by side in one HTML file."""
    del debug
    from pdecnn.reports.page import check_output, write_page
    from pdecnn.reports.page_runs import read_page_runs

    check_output(output)
    found = read_page_runs(
        runs,
        data=data or [],
        weights=weights,
        device=device,
        num_images=images,
        diagnosis=not no_diagnosis,
        say=_say(quiet=quiet),
    )
    write_page(found, output)
    if not quiet:
        print(
            f"{output}: {len(found)} {'run' if len(found) == 1 else 'runs'}; open it in a browser"
        )


@app.command()
def attack(
    run: RunArgument,
    epsilons: Annotated[
        list[float] | None,
        typer.Option("--epsilon", metavar="E", help="In pixel values of [0, 1]; may be repeated."),
    ] = None,
    norm: Annotated[str, typer.Option("--norm", help="linf or l2.")] = "linf",
    images: Annotated[
        int | None, typer.Option("--images", help="How many test images; all if none.")
    ] = None,
    data: DataOption = None,
    weights: WeightsOption = "best",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="For the files; RUN/attack if none."),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure a run under attack and on noisy images."""
    del debug
    from pdecnn.experiments import diagnosis
    from pdecnn.reports.diagnosis_files import write_attack
    from pdecnn.reports.robustness import print_attack

    found = diagnosis.attack(
        run,
        epsilons=diagnosis.EPSILONS if epsilons is None else epsilons,
        norm=norm,
        num_images=images,
        data=data,
        weights=weights,
        device=device,
        say=_say(quiet=as_json),
    )
    files = write_attack(found, output or run / "attack")
    if as_json:
        _print_json(found.to_dict())
    else:
        print_attack(found, files)


@app.command()
def explore(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|MODEL", help="A run directory, or a model with published weights."
        ),
    ],
    data: DataOption = None,
    weights: WeightsOption = "best",
    port: Annotated[int, typer.Option("--port", help="0 is any free one.")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, open nothing.")
    ] = False,
    device: DeviceOption = "auto",
    debug: DebugOption = False,
) -> None:
    """Watch features flow through a network, on a page of your own."""
    del debug
    from pdecnn.explorer.answers import Explorer
    from pdecnn.explorer.server import serve
    from pdecnn.explorer.subject import open_subject

    subject = open_subject(run, data=data, weights=weights, device=device)
    serve(
        Explorer(subject),
        port=port,
        browser=not no_browser,
        say=lambda text: print(text, flush=True),
    )


@app.command()
def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|FOLDER", help="A run directory or a saved network.")
    ],
    onnx: Annotated[
        Path | None, typer.Option("--onnx", metavar="FILE", help="Write ONNX, FILE.onnx.")
    ] = None,
    torch_export: Annotated[
        Path | None,
        typer.Option("--torch-export", metavar="FILE", help="Write torch.export's FILE.pt2."),
    ] = None,
    pixels: Annotated[
        str | None,
        typer.Option(
            "--pixels", help="What it takes: uint8 (for images if none), or float32 in [0, 1]."
        ),
    ] = None,
    weights: WeightsOption = "best",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a network as one ONNX or torch.export file, and check it."""
    del debug
    from pdecnn.experiments.export import export_run

    files = {"onnx": onnx, "torch-export": torch_export}
    given = [(kind, file) for kind, file in files.items() if file is not None]
    if len(given) != 1:
        raise ConfigError("pass one of --onnx FILE and --torch-export FILE")
    (kind, file) = given[0]
    exported = export_run(source, file, kind=kind, weights=weights, pixels=pixels)
    if as_json:
        _print_json(exported)
        return
    from pdecnn.reports.listings import print_export

    print_export(exported)


@app.command()
def recipes(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the recipes that `train` takes."""
    del debug
    from pdecnn import experiments

    if as_json:
        configs = {name: experiments.recipe(name).to_dict() for name in experiments.list_recipes()}
        _print_json(configs)
        return
    from pdecnn.reports.listings import print_recipes

    print_recipes()


@app.command()
def models(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the networks that `create_model` knows and their sizes."""
    del debug
    from pdecnn.networks import create_model, list_models

    counts = {name: create_model(name).num_weights for name in list_models()}
    if as_json:
        _print_json(counts)
        return
    from pdecnn.reports.listings import print_models

    print_models(counts)


def _names(option: str, texts: list[str] | None) -> list[str]:
    """'a,b' and repeated options alike."""
    names = [name.strip() for text in texts or [] for name in text.split(",") if name.strip()]
    if texts and not names:
        raise ConfigError(f"{option} names nothing; say which, or leave it out for all")
    return names


data_app = typer.Typer(
    help="List, fetch and check the data sets of the paper.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="stl10, cifar10 or cifar100.")]


@data_app.command("list")
def list_data(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the data sets that can be fetched."""
    del debug
    from pdecnn.data.registry import PUBLISHED

    if as_json:
        _print_json({name: versions[0].describe() for name, versions in PUBLISHED.items()})
        return
    from pdecnn.reports.listings import print_published

    print_published()


@data_app.command("download")
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
    from pdecnn.reports.listings import download_bar

    with nullcontext() if quiet else download_bar(name) as progress:
        path = download(name, output, url=url, progress=progress)
    print(path)


@data_app.command("verify")
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


@app.command()
def bench(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PARTS", help="Of steps,digits,depth,large,compile."),
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
    debug: DebugOption = False,
) -> None:
    """Measure speed and memory beside plain torch."""
    del debug
    from pdecnn.experiments.bench import run_bench
    from pdecnn.reports.bench import print_bench
    from pdecnn.reports.bench_files import check_output, write_bench

    if output is not None:
        check_output(output, quick=quick)
    result = run_bench(
        _names("--only", only),
        device=device,
        quick=quick,
        say=lambda text: print(text, file=sys.stderr, flush=True),
        on_part=lambda result: None if output is None else write_bench(result, output),
    )
    if as_json:
        _print_json(result)
    else:
        print_bench(result)


def _say(*, quiet: bool) -> Callable[[str], None]:
    """How a command tells who looks at a terminal that it is at work."""

    def say(text: str) -> None:
        if not quiet and sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)

    return say


def _print_json(value: Any, indent: int | None = None) -> None:
    print(json.dumps(value, indent=indent))


def main() -> None:
    """Run a command; errors become one line and an exit code, with a traceback on --debug."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        app()
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        code, message = _explain(error)
        if _speaks_of(error):
            # One line, whatever it quotes; but a report of bad files has one for each.
            lines = [message] if isinstance(error, BadFilesError) else message.splitlines()
            speaker = f"pdecnn (rank {_rank()}):" if _rank() else "pdecnn:"
            print(speaker, *lines, file=sys.stderr)
        sys.exit(code)


def _rank() -> int:
    """Which of the processes that torchrun started this is; 0 without it."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0


def _speaks_of(error: Exception) -> bool:
    """Whether this rank says what went wrong: of what all know rank 0 speaks."""
    if isinstance(error, RankError):
        return not error.told
    return _rank() == 0 or not isinstance(error, Interrupted | DivergedError)


def _explain(error: Exception) -> tuple[int, str]:
    """The exit code and the message of an error."""
    if isinstance(error, Interrupted):
        return error.exit_code, str(error)
    for kind, code in EXIT_CODES.items():
        if isinstance(error, kind):
            return code, str(error)
    from pdecnn.learning.memory import is_out_of_memory

    if is_out_of_memory(error):
        return 1, (
            "not enough memory; lower training.batch_size, training.evaluation_batch_size, "
            "data.size or network.channels, raise training.accumulation, or set "
            "network.backprop=reversible"
        )
    return 1, f"unexpected {type(error).__name__}: {error}; run again with --debug and report it"
