"""Measure what stability buys: clean, noisy, attacked and certified accuracy of trained networks.

    python -m benchmarks.stability RUN... [--images N] [--no-attack]

Writes robustness.json into each run, which `benchmarks/stability_page.py` reads. APGD in L2 with
both of its losses, 100 steps: one start on all test images, five on the first 1,000. An image that
fell at a radius counts as fallen at larger ones; what is tried at a radius are the images that
still resist. On a GPU the network is compiled for batches of one size.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import pdecnn
from pdecnn.diagnostics import scores_of_pixels
from pdecnn.diagnostics.attacks import Classifier, apgd, is_right
from pdecnn.diagnostics.corruptions import gaussian_noise
from pdecnn.errors import ConfigError
from pdecnn.files import write_json
from pdecnn.learning.capture import compiled_network
from pdecnn.networks.network import Network
from pdecnn.runs.preparation import describe_environment, read_splits, resolve_device
from pdecnn.runs.runs import Run

ROBUSTNESS = "robustness.json"
RADII = (36 / 255, 72 / 255, 108 / 255)
ATTACKED_RADII = RADII[:2]
NOISE = (0.05, 0.1)
STEPS, RESTARTS, NUM_RESTARTED = 100, 5, 1000
BATCH = 1000


def main() -> None:
    """Measure each run and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--images", type=int, help="only so many, to try the script")
    parser.add_argument("--no-attack", action="store_true")
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    for folder in arguments.runs:
        # Written after each part: an attack takes minutes.
        for found in measure(Run(folder), device, arguments):
            write_json(folder / ROBUSTNESS, found)
        print(folder.name, {key: found[key] for key in found if key != "environment"}, flush=True)


def measure(
    run: Run, device: torch.device, arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """What is known of one network, after each part."""
    config = run.config
    network = pdecnn.load(run.folder).to(device).eval()
    test = read_splits(config.data, config.seed).test
    images = torch.as_tensor(test.images[: arguments.images])
    labels = test.labels[: arguments.images]
    environment = describe_environment(device, config.seed)
    environment.pop("command")
    found: dict[str, Any] = {
        "environment": environment,
        "num_images": len(images),
        "num_weights": network.num_weights,
    }
    found["certified"], holds = certified(network, images, labels)
    yield found
    pixels, labels = images.to(device).float() / 255, labels.to(device)
    begin = perf_counter()
    with fast_scores(network) as scores:
        found["clean"] = share(is_right(scores, pixels, labels))
        found["noise"] = {
            f"{amount:g}": share(is_right(scores, gaussian_noise(pixels, amount), labels))
            for amount in NOISE
        }
        yield found
        if arguments.no_attack:
            return
        found["attacked"], resists = attacked(scores, pixels, labels, restarts=1)
        # No image may fall within its radius: 0, or the certificate is wrong.
        found["certified_but_fallen"] = [
            int((mask & ~left.cpu()).sum()) for mask, left in zip(holds, resists, strict=False)
        ]
        found["seconds_attacked"] = round(perf_counter() - begin, 1)
        yield found
        few = slice(NUM_RESTARTED)
        found["restarted"], _ = attacked(scores, pixels[few], labels[few], restarts=RESTARTS)
        found["seconds_attacked"] = round(perf_counter() - begin, 1)
        yield found


def certified(
    network: Network, images: Tensor, labels: Tensor
) -> tuple[dict[str, Any], list[Tensor]]:
    """The certificate, or why there is none; of which images it holds at each radius."""
    begin = perf_counter()
    try:
        certificate = pdecnn.certify(network, images, labels)
    except ConfigError as error:
        return {"refused": str(error)}, []
    right = certificate.predictions == certificate.labels
    holds = [(right & (certificate.radii >= radius)).cpu() for radius in RADII]
    return {
        "accuracies": [certificate.certified_accuracy(radius) for radius in RADII],
        "lipschitz": certificate.lipschitz,
        "clean": certificate.clean_accuracy,
        "disagreeing": len(certificate.disagreeing),
        "seconds": round(perf_counter() - begin, 1),
    }, holds


def attacked(
    scores: Classifier, pixels: Tensor, labels: Tensor, *, restarts: int
) -> tuple[dict[str, list[float]], list[Tensor]]:
    """What resists at each radius the cross entropy alone, and both losses; which images do."""
    resists = is_right(scores, pixels, labels)
    shares: dict[str, list[float]] = {"ce": [], "worst": []}
    masks = []
    for radius in ATTACKED_RADII:
        for name, loss in (("ce", "ce"), ("worst", "dlr")):
            left = resists.nonzero()[:, 0]
            if len(left):
                resists = resists.clone()
                resists[left] = apgd(
                    scores,
                    pixels[left],
                    labels[left],
                    epsilon=radius,
                    norm="l2",
                    loss=loss,
                    num_steps=STEPS,
                    restarts=restarts,
                ).resists
            shares[name].append(share(resists))
        masks.append(resists)
    return shares, masks


@contextmanager
def fast_scores(network: Network) -> Iterator[Classifier]:
    """Scores of any number of images, computed in batches of one size on a GPU."""
    with scores_of_pixels(network) as scores:
        if not next(network.parameters()).is_cuda:
            yield scores
            return
        with compiled_network(network):

            def in_batches(pixels: Tensor) -> Tensor:
                missing = -len(pixels) % BATCH
                padded = functional.pad(pixels, (0, 0, 0, 0, 0, 0, 0, missing))
                return torch.cat([scores(part) for part in padded.split(BATCH)])[: len(pixels)]

            yield in_batches


def share(right: Tensor) -> float:
    """How many are."""
    return float(right.double().mean())


if __name__ == "__main__":
    main()
