"""What a trained network does and why: diagnosis, report, attack, certificate, explorer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from pdecnn.cli.application import (
    DataOption,
    DeviceOption,
    ImagesOption,
    JsonOption,
    NetworkArgument,
    QuietOption,
    WeightsOption,
    parse_fraction,
    print_json,
    say_to_terminal,
    split_names,
    warn,
)

if TYPE_CHECKING:
    from pdecnn.diagnostics.attacks import Norm


def _beside(run: Path) -> Path:
    """Where files of a run go; a folder called as a model would be taken for it next time."""
    from pdecnn.runs.runs import RUNS

    return run if run.exists() else RUNS / run


def diagnose(
    run: NetworkArgument,
    data: DataOption = None,
    weights: WeightsOption = "best",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="For the files; RUN/diagnosis if none."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print every table, and what proofs rest on.")
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure what PDE theory predicts of a run."""
    from pdecnn.reports.diagnosis import print_diagnosis
    from pdecnn.reports.diagnosis_files import write_diagnosis
    from pdecnn.runs import diagnosis

    found = diagnosis.diagnose(
        run, data=data, weights=weights, device=device, say=say_to_terminal(quiet=as_json)
    )
    files = write_diagnosis(found, output or _beside(run) / "diagnosis")
    if found.notice is not None:
        warn(found.notice)
    if as_json:
        print_json(found.to_dict())
    else:
        print_diagnosis(found, files, full=full)


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
) -> None:
    """Show runs side by side in one HTML file."""
    from pdecnn.reports import page
    from pdecnn.runs.training import notes_shown_by

    with notes_shown_by(warn):
        page.report(
            runs,
            output,
            data=data or [],
            weights=weights,
            num_images=images,
            diagnosis=not no_diagnosis,
            device=device,
            say=say_to_terminal(quiet=quiet),
        )
    if not quiet:
        print(f"{output}: {len(runs)} {'run' if len(runs) == 1 else 'runs'}; open it in a browser")


def attack(
    run: NetworkArgument,
    epsilons: Annotated[
        list[float] | None,
        typer.Option("--epsilon", metavar="E", help="In pixel values of [0, 1]; may be repeated."),
    ] = None,
    norm: Annotated[str, typer.Option("--norm", help="linf or l2.")] = "linf",
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="NAMES", help="Of fgsm, pgd, apgd; all if none."),
    ] = None,
    restarts: Annotated[
        int, typer.Option("--restarts", help="Random starts of PGD and of APGD.")
    ] = 4,
    steps: Annotated[int, typer.Option("--steps", help="From each start.")] = 25,
    seed: Annotated[int, typer.Option("--seed", help="Of the starts.")] = 0,
    images: Annotated[
        int | None,
        typer.Option(
            "--images", help="How many test images; if none all, or 8 if each pixel has an answer."
        ),
    ] = None,
    data: DataOption = None,
    weights: WeightsOption = "best",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="For the files; RUN/attack if none."),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure a run under attack and on noisy images."""
    from pdecnn.diagnostics.robustness import METHODS
    from pdecnn.reports.robustness import print_attack, print_field_attack
    from pdecnn.reports.robustness_files import write_attack
    from pdecnn.runs import diagnosis

    found = diagnosis.attack(
        run,
        epsilons=diagnosis.EPSILONS if epsilons is None else epsilons,
        norm=cast("Norm", norm),
        methods=split_names("--method", methods) or METHODS,
        restarts=restarts,
        num_steps=steps,
        seed=seed,
        num_images=images,
        data=data,
        weights=weights,
        device=device,
        say=say_to_terminal(quiet=as_json),
    )
    files = write_attack(found, output or _beside(run) / "attack")
    if as_json:
        print_json(found.to_dict())
    elif isinstance(found, diagnosis.AttackReport):
        print_attack(found, files)
    else:
        print_field_attack(found, files)


def certify(
    run: NetworkArgument,
    data: DataOption = None,
    radii: Annotated[
        list[str] | None,
        typer.Option(
            "--radius",
            metavar="R",
            help="L2, such as 0.5 or 36/255; may be repeated. 36, 72 and 108/255 if none.",
        ),
    ] = None,
    images: ImagesOption = None,
    no_attack: Annotated[
        bool, typer.Option("--no-attack", help="Leave out APGD, which takes longest.")
    ] = False,
    weights: WeightsOption = "best",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="For the files; RUN/certificate if none."),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Prove within which radius the classes of images stay."""
    from pdecnn.reports.robustness import CERTIFICATE, print_certificate
    from pdecnn.reports.robustness_files import write_certificate
    from pdecnn.runs import certification

    found = certification.certify_run(
        run,
        radii=[parse_fraction("--radius", text) for text in radii or ()] or certification.RADII,
        data=data,
        weights=weights,
        num_images=images,
        attack=not no_attack,
        device=device,
        say=say_to_terminal(quiet=as_json),
    )
    files = write_certificate(found, output or _beside(run) / CERTIFICATE)
    if as_json:
        print_json(found.to_dict())
    else:
        print_certificate(found, files)


def explore(
    run: NetworkArgument,
    other: Annotated[
        Path | None,
        typer.Argument(metavar="RUN|MODEL", help="Another one, beside it on the same pictures."),
    ] = None,
    data: DataOption = None,
    weights: WeightsOption = "best",
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write the page, FILE.html, and end."),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="0 is any free one.")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, open nothing.")
    ] = False,
    device: DeviceOption = "auto",
) -> None:
    """Watch features flow through a network, or two side by side."""
    from pdecnn.explorer.answers import explore_together
    from pdecnn.explorer.recording import write_recording
    from pdecnn.explorer.server import serve
    from pdecnn.explorer.subject import open_subject

    explorers = explore_together(
        [
            open_subject(one, data=data, weights=weights, device=device)
            for one in (run, other)
            if one is not None
        ]
    )
    if export is not None:
        number = write_recording(explorers, export)
        print(f"{export}: {number} {'sample' if number == 1 else 'samples'}; open it in a browser")
        return
    serve(
        explorers,
        port=port,
        browser=not no_browser,
        say=lambda text: print(text, flush=True),
    )
