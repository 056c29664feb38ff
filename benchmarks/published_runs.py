"""Write the tables and Figure 4 of docs/results/paper anew from the runs that are stored there.

    python benchmarks/published_runs.py [--results docs/results/paper]

The runs are those of docs/results/paper.md, kept without checkpoints and images.
"""

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdecnn.reports.paper import PAGE, draw_paper
from pdecnn.runs.paper import (
    DYNAMICS,
    NUM_SEEDS,
    PAPER_DYNAMICS,
    TITLES,
    Experiment,
    Plan,
    experiment_config,
)

# All runs are of before ties were settled by the loss.
SETTINGS: dict[str, Any] = {"training.ties": "first"}
PRINTED_WEIGHTS = {"training.smoothness_weight": 4e-4, "training.decay_weight": 1e-4}
# Of these no runs with the recipe's weights of the regulariser were kept.
ONLY_AS_PRINTED = (Experiment("hamiltonian", "stl10"),)


def main() -> None:
    """Both tables, the figure, and a page for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("docs/results/paper"))
    results = parser.parse_args().results
    write(table_plan(), results)
    write(figure_plan(), results)
    write(printed_plan(), results / "stl10-as-printed")


def table_plan() -> Plan:
    """Table 1: the paper's networks on its three data sets, the baselines on CIFAR-10."""
    shown = [
        Experiment(dynamics, dataset)
        for dataset in TITLES
        for dynamics in (DYNAMICS if dataset == "cifar10" else PAPER_DYNAMICS)
    ]
    return make_plan("table1", shown, SETTINGS)


def figure_plan() -> Plan:
    """Figure 4: both CIFARs by epoch, in which no rule for ties can be seen."""
    datasets = ("cifar10", "cifar100")
    shown = [Experiment(dynamics, dataset) for dataset in datasets for dynamics in PAPER_DYNAMICS]
    return replace(make_plan("figure4", shown, SETTINGS), settings={})


def printed_plan() -> Plan:
    """What Table 1 has with the recipe's weights on STL-10, with the printed ones."""
    shown = [Experiment(dynamics, "stl10") for dynamics in PAPER_DYNAMICS]
    shown = [one for one in shown if one not in ONLY_AS_PRINTED]
    return make_plan("table1", shown, SETTINGS | PRINTED_WEIGHTS)


def make_plan(target: str, shown: Iterable[Experiment], settings: dict[str, Any]) -> Plan:
    """A plan of finished runs, which needs no data."""
    configs = {
        one: experiment_config(one, settings | (PRINTED_WEIGHTS if one in ONLY_AS_PRINTED else {}))
        for one in shown
    }
    return Plan(
        experiments={target: tuple(configs)},
        trained={one: one for one in configs},
        runs={
            one.run_name(seed): replace(config, seed=seed)
            for one, config in configs.items()
            for seed in range(NUM_SEEDS)
        },
        num_seeds=NUM_SEEDS,
        quick=False,
        settings=settings,
        notes=(),
    )


def write(plan: Plan, folder: Path) -> None:
    """Draw from the runs stored in the folder: all must be there, and of the plan."""
    failures = draw_paper(plan, folder, {}).failures
    (folder / PAGE).unlink()  # docs/results/paper.md stands in its place
    if failures:
        raise SystemExit("\n".join(f"{name}: {why}" for name, why in failures.items()))


if __name__ == "__main__":
    main()
