"""Made-up results of a plan: run directories as the real ones, but without training."""

import json

import numpy as np
import torch
from safetensors.torch import save_file

from pdecnn.files import write_json
from pdecnn.reports.paper_results import read_runs
from pdecnn.runs.runs import PREDICTIONS, TIMING, create_run

STL10 = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]
ENVIRONMENT = {
    "versions": {"pdecnn": "0.1.0", "torch": "2.13.0", "python": "3.12.1"},
    "hardware": {"gpu": None, "processor": "A processor", "cpu_cores": 4},
    "commit": "abc",
    "command": [],
}
ACCURACY = {
    "parabolic": 0.77,
    "hamiltonian": 0.78,
    "second_order": 0.74,
    "resnet": 0.7,
    "resnet_narrow": 0.69,
}


def make_result(folder, config, accuracy, *, loss=0.5, class_names=STL10):
    """A finished run with that test accuracy, to within the 1000 images it was tested on."""
    random = np.random.default_rng(abs(hash_of(folder.name)))
    run = create_run(folder, config, ENVIRONMENT)
    epochs = config.training.epochs
    rates = [
        config.training.learning_rate(e, steps_per_epoch=1, epochs=epochs) for e in range(epochs)
    ]
    curve = accuracy * (1 - 0.6 * np.exp(-3 * np.arange(1, epochs + 1) / epochs))
    noise = random.normal(0, 0.3, epochs) * np.minimum(rates, 0.1)
    run.write_metrics(
        [
            {
                "epoch": e + 1,
                "learning_rate": rates[e],
                "validation_accuracy": float(curve[e] + noise[e]),
            }
            for e in range(epochs)
        ]
    )
    timings = [{"epoch": epoch + 1, "seconds": 1.5} for epoch in range(epochs)]
    (folder / TIMING).write_text("".join(json.dumps(timing) + "\n" for timing in timings))
    num_classes = len(class_names)
    right = round(accuracy * 1000 / num_classes)
    counts = np.full((num_classes, num_classes), 0)
    for row in range(num_classes):
        wrong = random.multinomial(
            1000 // num_classes - right, np.ones(num_classes - 1) / (num_classes - 1)
        )
        counts[row] = np.insert(wrong, row, right)
    write_json(
        folder / "summary.json",
        {
            "stopped": "completed",
            "epochs": epochs,
            "best_epoch": epochs,
            "best_validation_accuracy": accuracy,
            "num_weights": 1234,
            "class_names": list(class_names),
            "test": {
                "accuracy": accuracy,
                "loss": loss,
                "balanced_accuracy": accuracy,
                "per_class": dict.fromkeys(class_names, accuracy),
                "num_images": int(counts.sum()),
                "confusion": counts.tolist(),
            },
        },
    )
    write_json(folder / "training_evaluation.json", {"accuracy": 0.999})
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.arange(6) % num_classes
    scores = torch.from_numpy(random.normal(0, 3, (6, num_classes)))
    tensors = {"images": images, "labels": labels, "probabilities": scores.softmax(1).float()}
    save_file(tensors, folder / PREDICTIONS)


def accuracy_of(experiment, seed):
    percentage = experiment.percentage or 80
    return round(ACCURACY[experiment.dynamics] - 0.004 * (80 - percentage) + 0.02 * seed, 4)


def make_results(plan, runs, without=()):
    """A finished run for each of the plan but those named in `without`."""
    for several in plan.experiments.values():
        for experiment in several:
            for seed in range(plan.num_seeds):
                name = plan.trained[experiment].run_name(seed, quick=plan.quick)
                if name in plan.runs and name not in without and not (runs / name).exists():
                    accuracy, loss = accuracy_of(experiment, seed), 0.49 + 0.02 * seed
                    make_result(runs / name, plan.runs[name], accuracy, loss=loss)


def results_in(plan, output):
    return read_runs(plan, output / "runs")[0]


def hash_of(text):
    """A number that is the same in every process."""
    return sum(ord(letter) * 31**place for place, letter in enumerate(text)) % 2**32
