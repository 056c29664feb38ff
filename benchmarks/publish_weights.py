"""Copy the best weights of a reproduction, or of one run, into the package, with a model card.

    python -m benchmarks.publish_weights reproduction [--dataset cifar10] [--seed 0]
    python -m benchmarks.publish_weights RUN --model parabolic_stable_cifar10

The run of a tuned recipe is that of seed 0, whatever its test accuracy: nothing is picked by it.

Afterwards `create_model("hamiltonian_cifar10", pretrained=True)` loads them. A run that
`benchmarks/stability.py` measured has its certified accuracies on the card.
"""

import argparse
import json
from pathlib import Path

import pdecnn
from benchmarks.stability import RADII, ROBUSTNESS
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.files import write_atomically
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import CARD
from pdecnn.networks.registry import PUBLISHED_WEIGHTS
from pdecnn.reports.paper_results import Result, read_result
from pdecnn.reports.recorded import TIES
from pdecnn.runs.config import RunConfig, assignment, differing_keys, parse_assignment
from pdecnn.runs.paper import PAPER_DYNAMICS, TITLES, Experiment
from pdecnn.runs.runs import Run

# What the command of a card says in other ways than --set.
_SAID_APART = ("seed", "data.folder")


def main() -> None:
    """Publish the networks of the paper, once all of them are found to be in order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="the --output of `pdecnn reproduce`, or a run")
    parser.add_argument("--model", help="what the run is a network of")
    parser.add_argument("--dataset", choices=TITLES, default="cifar10")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--destination", type=Path, default=PUBLISHED_WEIGHTS)
    arguments = parser.parse_args()
    folders = {arguments.model: arguments.source}
    if arguments.model is None:
        folders = {
            f"{dynamics}_{arguments.dataset}": arguments.source
            / "runs"
            / Experiment(dynamics, arguments.dataset).run_name(arguments.seed)
            for dynamics in PAPER_DYNAMICS
        }
    prepared = {
        name: prepare(folder, name, arguments.model is None) for name, folder in folders.items()
    }
    for name, (network, text) in prepared.items():
        folder = arguments.destination / name
        network.save_pretrained(folder)
        write_atomically(folder / CARD, text.encode())
        print(folder)


def prepare(folder: Path, name: str, of_queue: bool = True) -> tuple[Network, str]:
    """The network and its card; a run that is damaged or of something else is refused."""
    try:
        result = read_result(folder, of_queue=of_queue)
        if result.config.data.name not in name.split("_"):
            raise ConfigError(f"was trained on {result.config.data.name}")
        network = pdecnn.create_model(name, pretrained=Run(folder).weights("best"))
        return network, card(result, name)
    except (CheckpointError, ConfigError) as error:
        raise SystemExit(f"{folder}: {error}") from error


def command(config: RunConfig) -> str:
    """The command that trains the run again; a run that no command gives is refused."""
    base = pdecnn.recipe(config.recipe)
    differing = [key for key in differing_keys(base, config) if key not in _SAID_APART]
    assignments = [assignment(config, key) for key in differing]
    try:
        rebuilt = base.with_settings(dict(map(parse_assignment, assignments)))
    except ConfigError as error:
        raise ConfigError(f"no recipe with settings gives this run: {error}") from error
    if any(key not in _SAID_APART for key in differing_keys(rebuilt, config)):
        raise ConfigError("no recipe with settings gives this run")
    options = "".join(f" --set {text}" for text in assignments)
    return f"pdecnn train {config.recipe} --data DIR --seed {config.seed}{options}"


def card(result: Result, name: str) -> str:
    """What a user of the weights must know."""
    config, summary, environment = result.config, result.summary, result.environment
    versions, hardware, data = environment["versions"], environment["hardware"], config.data
    test, training, title = summary["test"], config.training, TITLES[data.name]
    trained_on = data.fraction * (1 - data.validation_fraction)
    loss = "not finite" if test["loss"] is None else f"{test['loss']:.3f}"
    num_images = sum(map(sum, test["confusion"]))
    best, selection = summary["best_validation_accuracy"], "the last: no validation, no selection"
    if best is not None:
        selection = f"validation accuracy {best:.2%}, {TIES[training.ties]}"
    return f"""---
library_name: pdecnn
license: mit
datasets: [{data.name}]
tags: [image-classification, pde, {config.network.integrator}]
---

# {name}

A convolutional network that is a discretised partial differential equation (Ruthotto & Haber,
*Deep Neural Networks Motivated by Partial Differential Equations*), {summary["num_weights"]:,}
weights, trained on {title}.

```python
import pdecnn

network = pdecnn.create_model("{name}", pretrained=True).eval()
scores = network(network.preprocess(images))  # uint8, (batch, channels, y, x)
```

| what | value |
|---|---|
| data | {title}: {100 * trained_on:.3g}% of its training images to train, \
{f"{data.validation_fraction:.0%}" if best is not None else "none"} to choose the epoch |
| training | `{command(config)}`: epochs {training.epochs}, batches of {training.batch_size}, \
computed in {result.precision} |
| seed | {config.seed} |
| weights of | epoch {summary["best_epoch"]}, {selection} |
| test accuracy | {test["accuracy"]:.2%} (loss {loss}, {num_images:,} images) |
{certified(result.folder)}| trained on | {hardware["gpu"] or hardware["processor"]} |
| versions | pdecnn {versions["pdecnn"]}, torch {versions["torch"]}, Python {versions["python"]}, \
commit {environment["commit"]} |

Classes: {", ".join(summary["class_names"])}.
"""


def certified(folder: Path) -> str:
    """The row of certified accuracies, where they were measured."""
    path = folder / ROBUSTNESS
    if not path.exists():
        return ""
    found = json.loads(path.read_bytes())["certified"]
    shares = zip(RADII, found["accuracies"], strict=True)
    listed = ", ".join(f"{share:.2%} within {round(255 * r)}/255" for r, share in shares)
    return f"| certified, L2 | {listed} (L = {found['lipschitz']:.6g}) |\n"


if __name__ == "__main__":
    main()
