"""What stability buys: the page, the published card and the floors follow from the stored runs."""

import json
from pathlib import Path

import pytest

from benchmarks import publish_weights, stability_page
from pdecnn.reports.paper_results import read_result

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
RUNS = RESULTS / "stability" / "runs"
NAME = "parabolic_stable_cifar10"


def measured(name):
    return json.loads((RUNS / name / "robustness.json").read_bytes())


def test_the_page_is_written_from_the_stored_runs():
    assert (RESULTS / "stability.md").read_text() == stability_page.page(RUNS)


def test_the_card_of_the_published_weights_is_that_of_the_stored_run():
    result = read_result(RUNS / f"{NAME}-seed0", of_queue=False)
    card = (ROOT / "src" / "pdecnn" / "networks" / "weights" / NAME / "README.md").read_text()
    assert card == publish_weights.card(result, NAME)


@pytest.mark.parametrize("seed", range(3))
def test_a_small_network_is_certified_on_56_of_100_images_and_right_on_68(seed):
    found = measured(f"{NAME}-seed{seed}")
    assert found["num_images"] == 10_000
    assert found["num_weights"] <= 503_000
    assert found["certified"]["lipschitz"] <= 1
    assert found["certified"]["accuracies"][0] >= 0.56
    assert found["certified"]["clean"] >= 0.68


@pytest.mark.parametrize(
    "path",
    sorted(path.parent for path in RUNS.glob("*/robustness.json")),
    ids=lambda path: path.name,
)
def test_no_attack_leaves_less_than_is_certified(path):
    found = measured(path.name)
    left = found["attacked"]["worst"] if "attacked" in found else []
    for attacked, certified in zip(left, found["certified"]["accuracies"], strict=False):
        assert certified <= attacked <= found["clean"]
    assert not any(found.get("certified_but_fallen", []))


@pytest.mark.parametrize("seed", range(3))
def test_digits_are_certified_on_half_of_the_images_in_the_time_of_the_demo(seed):
    folder = RUNS / f"parabolic_stable_digits-seed{seed}"
    found = json.loads((folder / "certificate.json").read_bytes())
    (certified,) = [row["certified_accuracy"] for row in found["results"] if row["radius"] == 0.5]
    assert (found["num_images"], found["clean_accuracy"] >= 0.95, certified >= 0.5) == (360, 1, 1)
    lines = (folder / "timing.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["seconds"] for line in lines) < 120


def test_nothing_stored_names_a_folder_of_a_machine():
    for path in RUNS.rglob("*.json"):
        assert '"/' not in path.read_text(), path
