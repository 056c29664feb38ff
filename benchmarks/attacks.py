"""Compare the default attack with 20 restarts of 100 steps with momentum, on the demo's network.

    python benchmarks/attacks.py [--run RUN] [--device cpu] [--output docs/results]

Writes attacks.{md,json}. The other attack is written here anew, so that it shares no step with
pdecnn's: x_{k+1} = P(x_k + 0.1 epsilon d(v_k)), v_k = 0.9 v_{k-1} + g_k/|g_k|_1, from random points
(Dong et al. 2018), and every iterate counts. Without --run the demo's network is trained.
"""

import argparse
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import pdecnn
from benchmarks.provenance import measured_on
from pdecnn.data.registry import read_digits
from pdecnn.diagnostics import measure_robustness, scores_of_pixels
from pdecnn.diagnostics import robustness as ours
from pdecnn.files import write_atomically, write_json
from pdecnn.networks.network import Network
from pdecnn.reports.charts import ATTACKS
from pdecnn.runs.preparation import describe_environment, resolve_device

EPSILONS = {"linf": (0.02, 0.05, 0.1, 0.2), "l2": (0.5,)}
RESTARTS, STEPS, MOMENTUM, RELATIVE_STEP = 20, 100, 0.9, 0.1


def main() -> None:
    """Measure, then write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    network = trained(arguments.run).to(device)
    environment = describe_environment(device, 0)
    environment.pop("command")
    budget = {"restarts": ours.RESTARTS, "num_steps": ours.NUM_STEPS}
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for norm, epsilons in EPSILONS.items():
        for epsilon in epsilons:
            rows.append(compare(network, norm, epsilon))
            found = {"environment": environment, "budget": budget, "rows": rows}
            write_json(arguments.output / "attacks.json", found)
            write_atomically(arguments.output / "attacks.md", page(rows, environment).encode())


def trained(run: Path | None) -> Network:
    """The demo's network."""
    if run is not None:
        return pdecnn.load(run)
    with tempfile.TemporaryDirectory() as folder:
        recipe = pdecnn.recipe("hamiltonian_digits")
        return pdecnn.load(pdecnn.train(recipe, output=Path(folder) / "run", device="cpu").folder)


def compare(network: Network, norm: str, epsilon: float) -> dict[str, Any]:
    """Both attacks on all test images."""
    test = read_digits().test
    images = torch.as_tensor(test.images[:])
    begin = process_time()
    found = measure_robustness(
        network, images, test.labels, epsilons=[epsilon], norms=[norm], batch_size=len(images)
    )
    row: dict[str, Any] = {"norm": norm, "epsilon": epsilon, "clean": found.clean_accuracy}
    row |= {result.attack: result.accuracy for result in found.results}
    row["processor_seconds"] = round(process_time() - begin, 1)
    device = next(network.parameters()).device
    pixels, labels = (images.float() / 255).to(device), test.labels.to(device)
    with scores_of_pixels(network) as scores:
        row["momentum"] = [
            float(left.double().mean()) for left in restarted(scores, pixels, labels, epsilon, norm)
        ]
    print(row, flush=True)
    return row


def restarted(scores: Any, pixels: Tensor, labels: Tensor, epsilon: float, norm: str) -> Any:
    """After each restart, which images still resist; only those are attacked again."""
    resists = scores(pixels).argmax(1) == labels
    generator = torch.Generator().manual_seed(20)
    for _ in range(RESTARTS):
        left = resists.nonzero()[:, 0]
        if len(left):
            resists = resists.clone()
            resists[left] = ascend(scores, pixels[left], labels[left], epsilon, norm, generator)
        yield resists


def ascend(
    scores: Any,
    clean: Tensor,
    labels: Tensor,
    epsilon: float,
    norm: str,
    generator: torch.Generator,
) -> Tensor:
    """Which images are right at every point from one random start on."""

    def size(values: Tensor, order: float) -> Tensor:
        sizes: Tensor = torch.linalg.vector_norm(values.flatten(1), ord=order, dim=1)
        return sizes.clamp(min=1e-30).view(-1, *(1,) * (values.dim() - 1))

    def project(points: Tensor) -> Tensor:
        offset = points - clean
        if norm == "linf":
            offset = offset.clamp(-epsilon, epsilon)
        else:
            offset = offset * (epsilon / size(offset, 2)).clamp(max=1)
        return (clean + offset).clamp(0, 1)

    if norm == "linf":
        start = 2 * torch.rand(clean.shape, generator=generator) - 1
    else:
        start = torch.randn(clean.shape, generator=generator)
        start = start / size(start, 2)
    points = project(clean + epsilon * start.to(clean.device))
    right = torch.ones_like(labels, dtype=torch.bool)
    velocity = torch.zeros_like(points)
    for step in range(STEPS + 1):
        points = points.detach().requires_grad_()
        found = scores(points)
        right &= found.argmax(1) == labels
        if step == STEPS:
            break
        loss = functional.cross_entropy(found, labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, points)
        velocity = MOMENTUM * velocity + gradient / size(gradient, 1)
        direction = velocity.sign() if norm == "linf" else velocity / size(velocity, 2)
        points = project(points.detach() + RELATIVE_STEP * epsilon * direction)
    return right


def page(rows: list[dict[str, Any]], environment: dict[str, Any]) -> str:
    """The results as a page."""
    lines, names = [], " | ".join(ATTACKS.values())
    for row in rows:
        shares = [row["clean"], *(row[name] for name in ATTACKS), row["momentum"][0]]
        shares.append(row["momentum"][-1])
        written = " | ".join(f"{100 * share:.1f}" for share in shares)
        gap = 100 * (row["worst"] - row["momentum"][-1])
        lines.append(f"| {row['norm']} | {row['epsilon']:g} | {written} | {gap:+.1f} |")
    largest = max(100 * (row["worst"] - row["momentum"][-1]) for row in rows)
    return "\n".join(
        [
            f"# Attacks: within {largest:.1f} points of {RESTARTS} restarts with momentum",
            "",
            "How many of the 360 test images (%) of digits the demo's network still gets right",
            "(`hamiltonian_digits`, seed 0): under each attack of `pdecnn attack` at its defaults,",
            f"PGD and both losses of APGD with {ours.RESTARTS} starts of {ours.NUM_STEPS} steps",
            f"each; under the worst of them; and under 1 and {RESTARTS} restarts of {STEPS} steps",
            "with momentum (Dong et al. 2018) by a program that shares no step with ours. The gap",
            f"is the worst of ours minus what {RESTARTS} restarts leave, in points: at most",
            f"{largest:+.1f}. Written by",
            "`benchmarks/attacks.py`; what each restart left is in `attacks.json`.",
            "",
            f"| norm | epsilon | clean | {names} | momentum, 1 | {RESTARTS} | gap |",
            "|---" * (6 + len(ATTACKS)) + "|",
            *lines,
            "",
            f"{measured_on(environment)}.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
