"""A run is diagnosed and attacked as its data set and weights say."""

from functools import partial

import numpy as np
import pytest
import torch

import pdecnn
from pdecnn.data.published import CIFAR10
from pdecnn.data.registry import read_digits
from pdecnn.diagnostics import corruptions, measure_robustness, network_stability
from pdecnn.errors import CheckpointError, ConfigError, DataError
from pdecnn.runs import diagnosis
from pdecnn.runs.diagnosis import attack, diagnose
from tests.runs import small_config
from tests.unit.data.test_cifar import write_files

small_attack = partial(attack, epsilons=[0.1], num_images=20, num_steps=5, device="cpu")


@pytest.fixture(scope="module")
def found(undisturbed):
    said = []
    return diagnose(undisturbed.folder, device="cpu", say=said.append), said


def test_a_diagnosis_has_every_part_of_every_block(found, undisturbed):
    result, said = found
    assert result.run == str(undisturbed.folder)
    assert (result.recipe, result.weights) == ("hamiltonian_digits", "best")
    assert result.num_images == diagnosis.NUM_IMAGES
    assert said == ["block 0 (of 1): 8 channels of 8 x 8 pixels"]
    (block,) = result.blocks
    assert block.stability.verdict.name in ("measured", "unstable")
    assert len(block.stability.steps) == len(block.latex) == len(block.coefficients.steps) == 2
    assert [str(errors.dtype) for errors in block.reversibility] == [
        "torch.float64",
        "torch.float32",
        "torch.bfloat16",
    ]
    assert block.energy.norms.shape == (3, diagnosis.NUM_IMAGES)


def test_it_is_that_of_the_library_on_the_runs_network(found, undisturbed):
    result, _ = found
    network = pdecnn.load(undisturbed.folder)
    test = diagnosis._sample(read_digits().test, diagnosis.NUM_IMAGES)
    (expected,) = network_stability(network, network.preprocess(test.images))
    assert result.blocks[0].stability == expected


def test_every_run_is_diagnosed_at_the_same_images():
    test = read_digits().test
    first, second = (diagnosis._sample(test, 16) for _ in range(2))
    assert torch.equal(first.images, second.images)
    assert len(first.labels.unique()) > 3
    assert len(diagnosis._sample(test, 10**6)) == len(test)


def test_the_last_weights_may_be_meant(undisturbed, monkeypatch):
    loaded = []

    def remember(network, images, say):
        loaded.append(network)
        return []

    monkeypatch.setattr(diagnosis, "diagnose_network", remember)
    assert diagnose(undisturbed, weights="last", device="cpu").to_dict()["weights"] == "last"
    expected = pdecnn.load(undisturbed.folder, "last").state_dict()
    for name, value in loaded[0].state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_an_attack_is_that_of_the_library(undisturbed):
    test = diagnosis._sample(read_digits().test, 20)
    expected = measure_robustness(
        pdecnn.load(undisturbed.folder),
        test.images,
        test.labels,
        epsilons=[0.05, 0.1],
        methods=["pgd", "apgd"],
        num_steps=5,
        restarts=2,
        seed=7,
    )
    found = small_attack(
        undisturbed, epsilons=[0.1, 0.05, 0.1], methods=["pgd", "apgd"], restarts=2, seed=7
    )
    assert found.results == expected.results
    assert (found.restarts, found.num_steps, found.seed) == (2, 5, 7)


def test_one_epsilon_and_one_method_need_not_be_in_lists(undisturbed):
    listed = small_attack(undisturbed, epsilons=[0.25], methods=["fgsm"])
    for epsilon in (0.25, np.float32(0.25)):
        alone = small_attack(undisturbed, epsilons=epsilon, methods="fgsm")
        assert alone.results == listed.results


def test_an_attack_is_on_all_test_images_unless_told_otherwise(undisturbed):
    result = attack(undisturbed, epsilons=[0.1], methods=["fgsm"], device="cpu")
    assert result.num_images == len(read_digits().test)
    assert result.clean_accuracy == pdecnn.evaluate(undisturbed, device="cpu")["accuracy"]


def test_corruptions_come_with_an_attack(undisturbed):
    result = small_attack(undisturbed)
    assert [(entry.corruption, entry.amount) for entry in result.corruptions] == [
        (name, amount) for name, amounts in corruptions.AMOUNTS.items() for amount in amounts
    ]
    assert all(0 <= entry.accuracy <= 1 for entry in result.corruptions)
    worst = min(entry.accuracy for entry in result.corruptions)
    assert worst < result.clean_accuracy


def test_either_norm_and_fewer_images(undisturbed):
    result = small_attack(undisturbed, norm="l2")
    assert result.num_images == 20
    assert {entry.norm for entry in result.results} == {"l2"}
    values = result.to_dict()
    assert values["results"][0].keys() == {"epsilon", "norm", "attack", "accuracy"}
    names = ["fgsm", "pgd", "apgd_ce", "apgd_dlr", "worst"]
    assert [entry["attack"] for entry in values["results"]] == names


@pytest.mark.parametrize("dynamics", ["parabolic", "second_order", "resnet"])
def test_every_dynamics_can_be_diagnosed_and_attacked(dynamics, tmp_path):
    settings = {"training__epochs": 1, "data__size": 5, "network__channels": [4, 4]}
    config = small_config(f"{dynamics}_digits", **settings)
    run = pdecnn.train(config, output=tmp_path / "run", device="cpu")
    result = diagnose(run, device="cpu")
    hyperbolic = dynamics == "second_order"
    assert len(result.blocks[0].reversibility) == (3 if hyperbolic else 0)
    assert result.blocks[0].size == (5, 5)
    operators = result.blocks[0].coefficients.steps[0]
    assert len(operators) == (2 if dynamics == "resnet" else 1)
    accuracies = {entry.attack: entry.accuracy for entry in small_attack(run).results}
    assert accuracies["pgd"] <= accuracies["fgsm"]


def test_colour_images_in_a_folder_that_has_moved(tmp_path):
    """Read from where `data` says, resized as the run was: gradients go through that too."""
    (tmp_path / "before").mkdir()
    write_files(tmp_path / "before", CIFAR10, records_per_file=40)
    settings = {
        "network__channels": [4, 4],
        "training__epochs": 1,
        "data__folder": str(tmp_path / "before"),
        "data__size": 6,
        "data__fraction": 1.0,
    }
    run = pdecnn.train(
        small_config("hamiltonian_cifar10", **settings), output=tmp_path / "run", device="cpu"
    )
    (tmp_path / "before").rename(tmp_path / "after")
    with pytest.raises(DataError, match="before"):
        diagnose(run, device="cpu")
    found = diagnose(run, data=tmp_path / "after", device="cpu")
    assert found.blocks[0].size == (6, 6)
    attacked = small_attack(run, data=tmp_path / "after", epsilons=[0.1])
    assert attacked.num_images == 20
    assert attacked.results[1].accuracy <= attacked.results[0].accuracy <= attacked.clean_accuracy


def test_what_cannot_be_is_refused(undisturbed, tmp_path):
    with pytest.raises(ConfigError, match="unknown norm 'l1'"):
        small_attack(undisturbed, norm="l1")
    with pytest.raises(ConfigError, match="at least one epsilon"):
        small_attack(undisturbed, epsilons=[])
    with pytest.raises(ConfigError, match=r"epsilon must be a number of at least 0, found -0\.1"):
        small_attack(undisturbed, epsilons=[-0.1])
    with pytest.raises(ConfigError, match="num_images must be a whole number of at least 1"):
        small_attack(undisturbed, num_images=0)
    with pytest.raises(ConfigError, match="weights must be one of best, last"):
        diagnose(undisturbed, weights="worst")
    with pytest.raises(CheckpointError, match="not a run directory"):
        diagnose(tmp_path)


def test_float64_is_not_asked_of_mps(monkeypatch):
    monkeypatch.setattr(diagnosis, "resolve_device", lambda name: torch.device("mps"))
    assert diagnosis.float64_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="which mps does not have; use cpu"):
        diagnosis.float64_device("mps")
