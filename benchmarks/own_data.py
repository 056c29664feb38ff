"""Train the signals and volumes recipes on the data of two examples; write docs/results/own-data.

    python benchmarks/own_data.py [--seeds 3] [--output docs/results]

Test accuracy at the best validation accuracy, and the seconds of training on one thread.
"""

import argparse
import runpy
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pdecnn
from benchmarks.provenance import measured_on
from pdecnn.files import write_atomically, write_json
from pdecnn.runs.preparation import describe_environment

DYNAMICS = ("hamiltonian", "parabolic", "second_order", "resnet")
EXAMPLES = Path(__file__).parents[1] / "examples"
TASKS = {"signals": ("chirps", "make_signals", 1500), "volumes": ("rotations", "make_videos", 800)}


def main() -> None:
    """Measure, then write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    environment = describe_environment(torch.device("cpu"), 0)  # of the code that is measured
    environment.pop("command")
    environment.pop("seed")
    runs = [
        measure(task, dynamics, seed)
        for task in TASKS
        for dynamics in DYNAMICS
        for seed in range(arguments.seeds)
    ]
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_json(arguments.output / "own-data.json", {"environment": environment, "runs": runs})
    text = page(runs, environment, arguments.seeds)
    write_atomically(arguments.output / "own-data.md", text.encode())


def measure(task: str, dynamics: str, seed: int) -> dict[str, Any]:
    """One run of a recipe with everything at its default but the seed and the thread."""
    example, function, number = TASKS[task]
    module = runpy.run_path(str(EXAMPLES / f"{example}.py"))
    x, y = module[function](number, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, x=x, y=y, class_names=np.array(module["CLASSES"]))
        settings = {"seed": seed, "data.folder": str(path), "training.num_threads": 1}
        config = pdecnn.recipe(f"{dynamics}_{task}").with_settings(settings)
        run = pdecnn.train(config, output=Path(folder) / "run", device="cpu")
        summary = run.summary
        assert summary is not None
        timing = run.timing
    result = {
        "task": task,
        "dynamics": dynamics,
        "seed": seed,
        "test_accuracy": summary["test"]["accuracy"],
        "test_images": summary["test"]["num_images"],
        "num_weights": summary["num_weights"],
        "training_seconds": round(sum(entry["seconds"] for entry in timing), 1),
    }
    print(result, flush=True)
    return result


def page(runs: list[dict[str, Any]], environment: dict[str, Any], num_seeds: int) -> str:
    """The table with what it was measured on."""
    rows = []
    for task, (example, _, number) in TASKS.items():
        for dynamics in DYNAMICS:
            own = [run for run in runs if (run["task"], run["dynamics"]) == (task, dynamics)]
            accuracies = [100 * run["test_accuracy"] for run in own]
            rows.append(
                f"| {task} ({number} of `{example}.py`) | {dynamics} | {own[0]['num_weights']:,} | "
                f"{statistics.mean(accuracies):.1f} | "
                f"{', '.join(f'{value:.1f}' for value in accuracies)} | "
                f"{max(run['training_seconds'] for run in own):.0f} s |"
            )
    table = "\n".join(rows)
    seeds = "seed 0" if num_seeds == 1 else f"seeds 0 to {num_seeds - 1}"
    found = [100 * run["test_accuracy"] for run in runs]
    return f"""# Data of one's own: {min(found):.1f} to {max(found):.1f} %

Test accuracy (%) of the `*_signals` and `*_volumes` recipes on a fifth of what the examples
make, four classes each, with the weights of the best validation accuracy, of equal ones those
of the lower validation loss; {seeds}, one thread, everything else at its default. Other
programs ran on the machine meanwhile: the seconds are upper bounds. Written by
`benchmarks/own_data.py`; every run is in `own-data.json`.

| task | dynamics | weights | mean | by seed | longest training |
|---|---|---|---|---|---|
{table}

{measured_on(environment)}, one thread.
"""


if __name__ == "__main__":
    main()
