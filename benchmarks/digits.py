"""Train the digits recipes with several seeds and write docs/results/digits.{md,json}.

    python benchmarks/digits.py [--seeds 3] [--output docs/results]

Test accuracy at the best validation accuracy, and the processor's seconds, for each dynamics.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

import torch

import pdecnn
from benchmarks.provenance import measured_on
from pdecnn.files import write_atomically, write_json
from pdecnn.runs.preparation import describe_environment

DYNAMICS = ("hamiltonian", "parabolic", "second_order", "resnet")


def main() -> None:
    """Measure, then write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    runs = [measure(name, seed) for name in DYNAMICS for seed in range(arguments.seeds)]
    environment = describe_environment(torch.device("cpu"), 0)
    environment.pop("command")
    environment.pop("seed")
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_json(arguments.output / "digits.json", {"environment": environment, "runs": runs})
    text = page(runs, environment, arguments.seeds)
    write_atomically(arguments.output / "digits.md", text.encode())


def measure(dynamics: str, seed: int) -> dict[str, Any]:
    """One run of a recipe with everything at its default but the seed."""
    config = pdecnn.recipe(f"{dynamics}_digits").with_settings({"seed": seed})
    begin = process_time()  # of one thread: other programs hardly count in it
    with tempfile.TemporaryDirectory() as folder:
        summary = pdecnn.train(config, output=Path(folder) / "run", device="cpu").summary
    seconds = process_time() - begin
    assert summary is not None
    result = {
        "dynamics": dynamics,
        "seed": seed,
        "test_accuracy": summary["test"]["accuracy"],
        "test_loss": summary["test"]["loss"],
        "validation_accuracy": summary["best_validation_accuracy"],
        "best_epoch": summary["best_epoch"],
        "num_weights": summary["num_weights"],
        "processor_seconds": round(seconds, 1),
    }
    print(result, flush=True)
    return result


def page(runs: list[dict[str, Any]], environment: dict[str, Any], num_seeds: int) -> str:
    """The results as a page."""
    rows, means = [], []
    for dynamics in DYNAMICS:
        mine = [run for run in runs if run["dynamics"] == dynamics]
        accuracies = [100 * run["test_accuracy"] for run in mine]
        seconds = max(run["processor_seconds"] for run in mine)
        means.append(statistics.mean(accuracies))
        each = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies)
        rows.append(
            f"| {dynamics} | {mine[0]['num_weights']:,} | {means[-1]:.2f} | "
            f"{each} | {seconds:.0f} s |"
        )
    return "\n".join(
        [
            f"# Digits: {min(means):.1f} to {max(means):.1f} %",
            "",
            "Test accuracy (%) of the `*_digits` recipes on the 360 held-out images, with the",
            "weights of the best validation accuracy, of equal ones those of the lower validation",
            f"loss; seeds 0 to {num_seeds - 1}, everything else at its default. Seconds are",
            "the processor's, from reading the data to the test; other programs ran on the machine",
            "meanwhile, so that they are upper bounds. Written by `benchmarks/digits.py`; every",
            "run is in `digits.json`.",
            "",
            "| dynamics | weights | mean | by seed | longest run |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"{measured_on(environment)}, one thread.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
