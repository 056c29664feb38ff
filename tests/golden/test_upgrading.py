"""What 0.1 had and 0.2 has not is refused in one line that names what to write instead."""

import importlib
from pathlib import Path

import pytest
import torch

import pdecnn
from pdecnn.diagnostics import measure_robustness
from pdecnn.errors import ConfigError
from pdecnn.learning import Trainer, evaluate_network
from pdecnn.runs.config import REMOVED

PAGE = (Path(__file__).parents[2] / "docs" / "upgrading.md").read_text()
NETWORK = torch.nn.Linear(1, 1)
REFUSED = {
    "pdecnn.experiments": (
        lambda: importlib.import_module("pdecnn.experiments"),
        "pdecnn.runs",
    ),
    "measure_robustness(attacks=": (
        lambda: measure_robustness(NETWORK, 0, 0, epsilons=[0.1], attacks=["pgd"]),
        "methods",
    ),
    "pgd_config=": (
        lambda: measure_robustness(NETWORK, 0, 0, epsilons=[0.1], pgd_config=None),
        "restarts, num_steps and seed",
    ),
    "ProjectedSGD(network=": (
        lambda: pdecnn.ProjectedSGD(network=NETWORK, learning_rate=0.1),
        "module",
    ),
    "Trainer(note=": (
        lambda: Trainer(NETWORK, None, note=print),
        "the logger pdecnn",
    ),
    "evaluate_network(ranks=": (
        lambda: evaluate_network(NETWORK, None, ranks=None),
        "leave it out",
    ),
    "training.precision=float16": (
        lambda: pdecnn.recipe("hamiltonian_digits").with_settings(
            {"training.precision": "float16"}
        ),
        "bfloat16",
    ),
}
REFUSED |= {
    key: (lambda key=key: pdecnn.recipe("hamiltonian_digits").with_settings({key: 7}), advice)
    for key, (_, advice) in REMOVED.items()
}


@pytest.mark.parametrize("gone", REFUSED)
def test_what_is_gone_names_its_successor(gone):
    use, successor = REFUSED[gone]
    with pytest.raises((ConfigError, ImportError, TypeError)) as caught:
        use()
    assert successor in str(caught.value)
    assert "\n" not in str(caught.value)
    assert gone in PAGE
