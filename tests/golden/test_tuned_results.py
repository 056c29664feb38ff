"""The pages of tuned training and of segmentation follow from what is stored; so do the models."""

from pathlib import Path

import pytest

from benchmarks import hippocampus, publish_weights, tuned_page
from benchmarks.search import ASKED, MOST_WEIGHTS, draw, read_rows
from benchmarks.tuned import DYNAMICS, best_trial, final
from pdecnn.networks.registry import PUBLISHED_WEIGHTS, model_config
from pdecnn.reports.paper_results import read_result

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RUNS = RESULTS / "tuned" / "runs"


def test_the_pages_are_written_from_what_is_stored():
    for name, content in tuned_page.written(RESULTS).items():
        assert (RESULTS / name).read_bytes() == content
    page = hippocampus.page(RESULTS / "hippocampus")
    assert (RESULTS / "segmentation.md").read_text() == page


def test_the_hippocampus_is_found_as_wanted_with_each_of_three_seeds():
    runs = hippocampus.read(RESULTS / "hippocampus", hippocampus.RECIPE)
    assert [run["seed"] for run in runs] == [0, 1, 2]
    for run in runs:
        for label, (_, wanted) in hippocampus.PARTS.items():
            assert run["test"]["median_dice"][label] >= wanted


def test_trials_of_the_search_are_those_that_its_seed_draws():
    rows = read_rows(RESULTS / "search.csv")
    assert len(rows) == 28
    assert len({row.trial.key for row in rows}) == 28
    for row in rows:
        if row.trial.trial < 100:  # else of recipes that may have changed since
            assert row.trial.settings == draw(row.trial.network, row.trial.trial, row.trial.seed)


@pytest.mark.parametrize(("dynamics", "better"), [("hamiltonian", "tv"), ("second_order", "batch")])
def test_each_wave_has_the_norm_that_its_validation_images_prefer(dynamics, better):
    name = f"{dynamics}_cifar10_tuned"
    rows = [row for row in read_rows(RESULTS / "search.csv") if row.trial.network == name]
    accuracies, others = {}, []
    for row in rows:
        if row.trial.trial in ASKED["norms"]:
            settings = dict(row.trial.settings)
            accuracies[settings.pop("network.normalization")] = row.accuracy
            others.append(settings)
    assert len(others) == len(ASKED["norms"])
    assert all(settings == others[0] for settings in others), "nothing else differs"
    assert max(accuracies, key=accuracies.get) == better == model_config(name).normalization


@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_the_tuned_network_is_that_of_the_best_of_the_longest_trials(dynamics):
    name = f"{dynamics}_cifar10_tuned"
    config, best = final()[name].config(), best_trial(name).trial.settings
    assert config.network == model_config(name)
    of_network = {key: value for key, value in best.items() if key.startswith("network.")}
    assert {"network.step_size", "network.num_steps", "network.channels"} <= of_network.keys()
    assert config.with_settings(of_network) == config
    assert final()["hamiltonian_cifar10_tuned"].config().training == config.training
    if dynamics == "hamiltonian":
        assert config.with_settings(best) == config
    found = tuned_page.read(RUNS, name)
    assert len(found) == 3
    assert all(run.num_weights <= MOST_WEIGHTS[dynamics] for run in found)


def test_the_parabolic_network_is_as_accurate_as_was_wanted_with_every_seed():
    found = tuned_page.read(RUNS, "parabolic_cifar10_tuned")
    assert all(run.accuracy >= tuned_page.FLOORS["parabolic"] for run in found)


@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_the_cards_of_the_published_weights_are_those_of_the_stored_runs(dynamics):
    name = f"{dynamics}_cifar10_tuned"
    card = publish_weights.card(read_result(RUNS / f"{name}-seed0", of_queue=False), name)
    assert (PUBLISHED_WEIGHTS / name / "README.md").read_text() == card


def test_all_published_weights_are_a_small_download():
    files = PUBLISHED_WEIGHTS.rglob("*.safetensors")
    assert sum(path.stat().st_size for path in files) < 14e6
