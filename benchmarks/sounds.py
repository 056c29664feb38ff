"""Spoken digits from the raw wave: a random split, and each speaker held out in turn.

    pdecnn data pack DIR --output digits.npz --set 'data.label=^([0-9])_'
    python -m benchmarks.sounds choose --data digits.npz --output DIR [--jobs 8]
    python -m benchmarks.sounds measure TRIAL --data digits.npz --output DIR [--jobs 8]
    python -m benchmarks.sounds page --output DIR

DIR of the first line has the files `digit_speaker_take.wav` of the Free Spoken Digit Dataset.
`choose` trains every trial with one speaker held out and prints how well each knows that speaker;
`measure` takes the settings of one trial for all: three seeds on a random split, one for each
speaker held out. Nothing is selected on test sounds, not even an epoch: the last weights count.
Every training is a process that writes one JSON file; those that are there are not trained again.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, NamedTuple

import torch

from benchmarks.provenance import measured_on
from benchmarks.search import shared_card
from pdecnn.files import write_atomically, write_json
from pdecnn.runs.evaluation import evaluate
from pdecnn.runs.preparation import describe_environment, resolve_device
from pdecnn.runs.recipes import recipe
from pdecnn.runs.training import train

SPEAKERS = ("george", "jackson", "lucas", "nicolas", "yweweler")
VALIDATION_SPEAKER = "george"
SEEN = ("george", "jackson")
"""Whose figures were known before the settings were fixed."""
SEEDS = (0, 1, 2)
SPEAKER_PATTERN = "^[0-9]_([a-z]+)_"
WANTED_RANDOM, WANTED_NEW = 0.98, 0.72

Settings = dict[str, Any]
_SHARED: Settings = {"training.epochs": 100}
_SPEED: Settings = {"data.speed": [0.75, 1.35]}
_COLOUR: Settings = {"data.colour": 0.3}
_HISS: Settings = {"data.hiss": 0.3}
_MIXUP: Settings = {"training.mixup": 0.3}
_STRONG = _SPEED | _COLOUR | _HISS
_WIDE: Settings = {"network.channels": [48, 96, 96, 144, 144, 192, 192]}
_FULL_RATE: Settings = {
    "network.opening": "convolution",
    "network.patch_size": 1,
    "network.channels": [16, 16, 32, 32, 64, 64, 96, 96, 128, 128],
}
TRIALS: dict[str, tuple[str, Settings]] = {
    "recipe": ("hamiltonian", {}),
    "no-emphasis": ("hamiltonian", {"data.emphasis": 0.0}),
    "speed": ("hamiltonian", _SPEED),
    "colour": ("hamiltonian", _COLOUR),
    "hiss": ("hamiltonian", _HISS),
    "strong": ("hamiltonian", _STRONG),
    "mixup": ("hamiltonian", _MIXUP),
    "strong-mixup": ("hamiltonian", _STRONG | _MIXUP),
    "cutout": ("hamiltonian", {"data.cutout": 1200}),
    "epsilon": ("hamiltonian", {"network.epsilon": 1.0}),
    "parabolic": ("parabolic", {}),
    "batch-norm": ("parabolic", {"network.normalization": "batch"}),
    "second-order": ("second_order", {}),
    "wide": ("hamiltonian", _WIDE),
    "strong-wide": ("hamiltonian", _STRONG | _WIDE),
    "full-rate": ("hamiltonian", _FULL_RATE),
}
"""By name: the dynamics, and what differs from its recipe."""


class Job(NamedTuple):
    """One training."""

    trial: str
    speaker: str | None
    """Who is held out; None: a random split."""
    seed: int

    @property
    def name(self) -> str:
        """The stem of its file."""
        return f"{self.trial}-{self.speaker or 'random'}-{self.seed}"


def settings_of(job: Job, data: str, changes: Settings) -> Settings:
    """What the run sets beyond its recipe."""
    settings = (
        _SHARED | TRIALS[job.trial][1] | {"data.folder": data, "data.validation_fraction": 0.0}
    )
    if job.speaker is not None:
        settings |= {"data.group": SPEAKER_PATTERN, "data.test_groups": [job.speaker]}
    return settings | {"seed": job.seed} | changes


def run_one(job: Job, data: str, output: Path, changes: Settings) -> None:
    """Train, test the last weights once, and write it down."""
    config = recipe(f"{TRIALS[job.trial][0]}_sounds")
    config = config.with_settings(settings_of(job, data, changes))
    folder, begin = output / "runs" / job.name, perf_counter()
    run = train(config, output=folder, resume=folder.exists())
    seconds = perf_counter() - begin
    found = evaluate(run)
    device = resolve_device("auto")
    environment = describe_environment(device, job.seed)
    environment.pop("command")
    shared = _SHARED | TRIALS[job.trial][1] | changes
    write_json(
        output / f"{job.name}.json",
        {
            **job._asdict(),
            "recipe": config.recipe,
            "settings": shared,
            "accuracy": found["accuracy"],
            "num_weights": found["num_weights"],
            "seconds": round(seconds, 1),
            "environment": environment,
        },
    )


def run_all(jobs: Sequence[Job], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What each training found, several of them at a time."""
    arguments.output.mkdir(parents=True, exist_ok=True)
    shared = ["--data", str(arguments.data), "--output", str(arguments.output)]
    shared += [word for text in arguments.set for word in ("--set", text)]

    def launch(job: Job) -> dict[str, Any] | None:
        path = arguments.output / f"{job.name}.json"
        if not path.exists():
            words = [job.trial, job.speaker or "random", str(job.seed), *shared]
            with (arguments.output / f"{job.name}.log").open("w") as log:
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.sounds", "one", *words],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
        if not path.exists():
            print(f"{job.name}: failed, see {job.name}.log", flush=True)
            return None
        found: dict[str, Any] = json.loads(path.read_text())
        print(
            f"{job.name}: {found['accuracy']:.2%}, {found['num_weights']:,} weights, "
            f"{found['seconds']:.0f} s",
            flush=True,
        )
        return found

    with shared_card(arguments.jobs), ThreadPoolExecutor(arguments.jobs) as pool:
        return [found for found in pool.map(launch, jobs) if found is not None]


# ------------------------------------------------------------------ the page


def page(folder: Path) -> str:
    """The results of the trial that was measured, as a page."""
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    trials = {row["trial"] for row in rows if row["speaker"] is None}
    if len(trials) != 1:
        raise SystemExit(f"{folder}: has random splits of {len(trials)} trials; keep those of one")
    (trial,) = trials
    final = [row for row in rows if row["trial"] == trial]
    random = [row for row in final if row["speaker"] is None]
    speakers = {row["speaker"]: row for row in final if row["speaker"] is not None}
    new = [row["accuracy"] for row in speakers.values()]
    unseen = [row["accuracy"] for name, row in speakers.items() if name not in SEEN]
    tried = sorted(
        (row for row in rows if row["speaker"] == VALIDATION_SPEAKER),
        key=lambda row: -float(row["accuracy"]),
    )
    first = final[0]
    changes = ", ".join(f"`{k}={json.dumps(v)}`" for k, v in first["settings"].items())
    random_mean = fmean(row["accuracy"] for row in random)
    title = f"# Spoken digits: {random_mean:.1%}"
    lines = [
        f"{title}, and {fmean(new):.1%} of a new speaker's" if new else title,
        "",
        "The Free Spoken Digit Dataset (CC BY-SA 4.0): 2,500 recordings of the ten digits by five",
        "speakers, 8,000 samples a second, cut or padded to one second; from the raw wave, without",
        f"a spectrogram. `{first['recipe']}`, {first['num_weights']:,} weights, the same settings",
        f"for all rows: {changes}.",
        f"They were chosen with {VALIDATION_SPEAKER} held out, and in first trials, which led to",
        "`data.emphasis`, jackson was seen too: their rows are optimistic. No epoch is selected:",
        "the last weights are tested, once. Written by",
        "`python -m benchmarks.sounds page` from `docs/results/sounds`.",
        "",
        "| test sounds | seed | accuracy | training |",
        "|---|---|---|---|",
        *(
            f"| a random fifth | {row['seed']} | {row['accuracy']:.1%} | {row['seconds']:.0f} s |"
            for row in random
        ),
        *(
            f"| speaker {name}, never heard | {row['seed']} | {row['accuracy']:.1%} "
            f"| {row['seconds']:.0f} s |"
            for name, row in sorted(speakers.items())
        ),
        "",
        f"Random split: {random_mean:.1%} on average (wanted: {WANTED_RANDOM:.0%}).",
    ]
    if new:
        lines.append(f"A new speaker: {fmean(new):.1%} on average (wanted: {WANTED_NEW:.0%}).")
    if unseen:
        lines.append(f"Without {' and '.join(SEEN)}: {fmean(unseen):.1%}.")
    if len(tried) > 1:
        lines += [
            "",
            f"## What was tried, with {VALIDATION_SPEAKER} held out",
            "",
            "| trial | network | weights | accuracy | beyond the recipe |",
            "|---|---|---|---|---|",
            *(
                f"| {row['trial']} | `{row['recipe']}` | {row['num_weights']:,} "
                f"| {row['accuracy']:.1%} | {_differing(row['settings'])} |"
                for row in tried
            ),
        ]
    missing = [
        *(f"seed {seed} of the random split" for seed in SEEDS if seed not in _seeds(random)),
        *(f"speaker {name}" for name in SPEAKERS if name not in speakers),
    ]
    if missing:
        lines += ["", f"Not measured: {', '.join(missing)}."]
    measured = f"Measured {measured_on(first['environment'])}."
    return "\n".join([*lines, "", measured, ""])


def _seeds(rows: Sequence[dict[str, Any]]) -> set[int]:
    return {row["seed"] for row in rows}


def _differing(settings: Settings) -> str:
    return ", ".join(f"`{k}={json.dumps(v)}`" for k, v in settings.items()) or "nothing"


def main() -> None:
    """Choose, measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("choose", "measure", "page", "one"))
    parser.add_argument("names", nargs="*", help="trials; choose: all of them if none is named")
    parser.add_argument("--data", type=Path, help="the packed sounds")
    parser.add_argument("--output", type=Path, default=Path("docs/results/sounds"))
    parser.add_argument("--speaker", default=VALIDATION_SPEAKER, help="held out by choose")
    parser.add_argument("--jobs", type=int, default=8, help="trainings at a time")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    if arguments.what == "page":
        target = arguments.output.with_suffix(".md")
        write_atomically(target, page(arguments.output).encode())
        print(target)
        return
    if arguments.data is None or not arguments.data.is_file():
        parser.error("--data FILE.npz is needed; make it with `pdecnn data pack`")
    if arguments.what == "one":
        from pdecnn.runs.config import parse_assignment

        trial, speaker, seed = arguments.names
        torch.set_num_threads(1)
        changes = dict(map(parse_assignment, arguments.set))
        job = Job(trial, None if speaker == "random" else speaker, int(seed))
        run_one(job, str(arguments.data.absolute()), arguments.output, changes)
        return
    unknown = [name for name in arguments.names if name not in TRIALS]
    if unknown:
        parser.error(f"no trial {unknown[0]!r}; there are {', '.join(TRIALS)}")
    if arguments.what == "choose":
        names = arguments.names or list(TRIALS)
        found = run_all([Job(name, arguments.speaker, 0) for name in names], arguments)
        for row in sorted(found, key=lambda row: -float(row["accuracy"])):
            print(f"{row['accuracy']:.2%}  {row['trial']}")
        return
    (trial,) = arguments.names or ("recipe",)
    jobs = [Job(trial, None, seed) for seed in SEEDS]
    jobs += [Job(trial, name, 0) for name in SPEAKERS]
    found = run_all(jobs, arguments)
    for kind, rows in (
        ("random split", [row for row in found if row["speaker"] is None]),
        ("new speaker", [row for row in found if row["speaker"] is not None]),
    ):
        if rows:
            print(f"{kind}: {fmean(row['accuracy'] for row in rows):.2%}")


if __name__ == "__main__":
    main()
