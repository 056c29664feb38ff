"""Copy the best weights of a reproduction into the package, each with a model card.

    python benchmarks/publish_weights.py reproduction [--dataset cifar10] [--seed 0]

Afterwards `create_model("hamiltonian_cifar10", pretrained=True)` loads them.
"""

import argparse
import json
from pathlib import Path

import pdecnn
from pdecnn.experiments.paper import PAPER_DYNAMICS, TITLES, Experiment
from pdecnn.experiments.runs import ENVIRONMENT, Run
from pdecnn.files import write_atomically
from pdecnn.networks.pretrained import CARD
from pdecnn.networks.registry import PUBLISHED_WEIGHTS


def main() -> None:
    """Publish every network of the paper whose run is finished."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reproduction", type=Path, help="the --output of `pdecnn reproduce`")
    parser.add_argument("--dataset", choices=TITLES, default="cifar10")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--destination", type=Path, default=PUBLISHED_WEIGHTS)
    arguments = parser.parse_args()
    for dynamics in PAPER_DYNAMICS:
        experiment = Experiment(dynamics, arguments.dataset)
        run = Run(arguments.reproduction / "runs" / experiment.run_name(arguments.seed))
        print(publish(run, f"{dynamics}_{arguments.dataset}", arguments.destination))


def publish(run: Run, name: str, destination: Path) -> Path:
    """Write the folder of one network; a run of another architecture or data set is refused."""
    summary, config = run.summary, run.config
    if summary is None:
        raise SystemExit(f"{run.folder}: is not finished")
    if config.data.name != name.rpartition("_")[2]:
        raise SystemExit(f"{run.folder}: was trained on {config.data.name}")
    network = pdecnn.create_model(name, pretrained=run.weights("best"))
    folder = destination / name
    network.save_pretrained(folder)
    write_atomically(folder / CARD, card(run, name).encode())
    return folder


def card(run: Run, name: str) -> str:
    """What a user of the weights must know."""
    config, summary = run.config, run.summary
    assert summary is not None
    environment = json.loads((run.folder / ENVIRONMENT).read_bytes())
    versions, hardware = environment["versions"], environment["hardware"]
    test, training, title = summary["test"], config.training, TITLES[config.data.name]
    return f"""---
library_name: pdecnn
license: mit
datasets: [{config.data.name}]
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
| data | {title}: {1 - config.data.validation_fraction:.0%} of its training images to train, the \
rest to choose the epoch |
| recipe | `pdecnn train {config.recipe} --seed {config.seed}`: {training.epochs} epochs, batches \
of {training.batch_size}, precision {training.precision} |
| seed | {config.seed} |
| weights of | epoch {summary["best_epoch"]}, validation accuracy \
{summary["best_validation_accuracy"]:.2%} |
| test accuracy | {test["accuracy"]:.2%} (loss {test["loss"]:.3f}, {test["num_images"]:,} images) |
| trained on | {hardware["gpu"] or hardware["processor"]} |
| versions | pdecnn {versions["pdecnn"]}, torch {versions["torch"]}, Python {versions["python"]}, \
commit {environment["commit"]} |

Classes: {", ".join(summary["class_names"])}.
"""


if __name__ == "__main__":
    main()
