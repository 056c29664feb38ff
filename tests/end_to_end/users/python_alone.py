"""A user of Python alone: tensors in, a trained network out, no command and no file format.

python python_alone.py FOLDER
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.func import functional_call, grad, vmap

import pdecnn
from pdecnn.diagnostics import measure_robustness


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, 8, 8) of floats in [0, 1] and their classes."""
    found = load_digits()
    images = torch.tensor(found.images / 16, dtype=torch.float32).unsqueeze(1)
    return images, torch.tensor(found.target)


def main(folder: Path) -> dict[str, object]:
    """Train, evaluate, predict, attack, certify, save, load, differentiate, take features."""
    x, y = digits()
    config = pdecnn.recipe("parabolic_stable_images").with_settings(
        {
            "network.channels": [16, 16],
            "network.hidden_channels": 16,
            "network.num_steps": 2,
            "network.patch_size": 1,
            "training.epochs": 3,
            "training.batch_size": 32,
        }
    )
    run = pdecnn.train(config, data=(x[:1500], y[:1500]), output=folder / "run")
    result: dict[str, object] = {"evaluation": run.summary["test"]}

    network = pdecnn.load(run.folder).eval()
    fresh = pdecnn.predict(run.folder, x[1500:], top=1)
    found = [int(row["predictions"][0]["class"]) for row in fresh]
    result["accuracy"] = sum(a == b for a, b in zip(found, y[1500:].tolist(), strict=True)) / len(
        found
    )
    result["certificate"] = pdecnn.certify(network, x[1500:1550], y[1500:1550])
    result["attacked"] = measure_robustness(
        network, x[1500:1550], y[1500:1550], epsilons=[0.1], norms=["l2"], restarts=1, num_steps=10
    )

    # A network of one's own making: saved, loaded, and followed by torch.func.
    wave = pdecnn.create_model("hamiltonian_digits", channels=(8, 8), num_steps=2).eval()
    wave.save_pretrained(folder / "wave")
    again = pdecnn.Network.from_pretrained(folder / "wave").eval()
    inputs = wave.preprocess(x[:4])
    assert torch.equal(again(inputs), wave(inputs))
    weights = dict(wave.named_parameters())

    def loss(given: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor):
        scores = functional_call(wave, given, (image[None],))
        return torch.nn.functional.cross_entropy(scores, label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, inputs, y[:4])
    result["gradients"] = {name: gradient.shape for name, gradient in each.items()}

    # Published weights for images of one channel, as features for something else.
    features = pdecnn.create_model("hamiltonian_cifar10", pretrained=True, in_channels=1)
    features.reset_classifier(0)
    pooled = features.eval()(features.preprocess(x[:4]))
    result["features"] = tuple(pooled.shape)
    levels = pdecnn.create_model("hamiltonian_digits", features_only=True).eval()
    result["levels"] = [tuple(level.shape) for level in levels(levels.preprocess(x[:4]))]
    result["channels"] = levels.feature_info.channels()
    return result


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
