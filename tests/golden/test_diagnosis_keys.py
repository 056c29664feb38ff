"""The JSON of `pdecnn diagnose` and `pdecnn attack` is a promise: docs/diagnostics.md names it."""

import json
import re
from pathlib import Path

import pytest
import torch

import pdecnn
from pdecnn.data.registry import read_digits
from pdecnn.diagnostics import (
    Certificate,
    Factor,
    diagnose_network,
    measure_corruptions,
    measure_robustness,
    stability,
)
from pdecnn.errors import DivergedError
from pdecnn.runs.certification import CertificateReport, CertifiedResult
from pdecnn.runs.diagnosis import AttackReport, Diagnosis
from tests.unit.learning.trainings import make_network

PAGE = (Path(__file__).parents[2] / "docs" / "diagnostics.md").read_text()
NETWORKS = {
    "parabolic": {},
    "hamiltonian": {},
    "second_order": {"normalization": "none", "step_size": 0.1},
}


def documented(heading):
    """The keys in the first column of the table below a heading, with their other columns."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \| (.+) \|$", section, flags=re.MULTILINE)
    assert len({row[0] for row in rows}) == len(rows), "a key is documented twice"
    return {key: (unit, meaning) for key, unit, meaning in rows}


def keys_of(value, prefix=""):
    """Dotted names of all leaves; [] stands for any place of a list."""
    if isinstance(value, dict):
        dotted = prefix and f"{prefix}."
        return {key for name, part in value.items() for key in keys_of(part, f"{dotted}{name}")}
    if isinstance(value, list):
        return {key for part in value for key in keys_of(part, f"{prefix}[]")}
    return {prefix}


def diagnosis_of(dynamics):
    network = make_network(dynamics, channels=(4, 4), num_steps=2, **NETWORKS[dynamics])
    images = network.preprocess(read_digits().test.images[:2, :, :5, :5])
    blocks = diagnose_network(network, images, num_iterations=2)
    known = dynamics == "parabolic"
    return Diagnosis(
        run="runs/digits-1",
        recipe=f"{dynamics}_digits",
        weights="best",
        num_images=2,
        num_weights=network.num_weights,
        blocks=tuple(blocks),
        factors=(Factor("opening", 1.0),) if known else (),
        lipschitz_missing=None if known else "a part is not known",
    )


@pytest.fixture(scope="module")
def diagnoses():
    torch.manual_seed(0)
    found = {dynamics: diagnosis_of(dynamics).to_dict() for dynamics in NETWORKS}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("spectrum", "largest_symmetric_eigenvalue"):
            patch.setattr(stability, name, find_nothing)
        return found | {"without eigenvalues": diagnosis_of("parabolic").to_dict()}


def find_nothing(*arguments, **options):
    raise DivergedError("no eigenvalue was found")


def test_every_key_of_a_diagnosis_is_documented_and_written(diagnoses):
    found = {key for values in diagnoses.values() for key in keys_of(values)}
    # A part that is null for one network has keys for another.
    parts = {key for key in found if any(other.startswith(f"{key}.") for other in found)}
    assert found - parts == set(documented("The JSON of a diagnosis"))


def test_null_is_documented_where_it_may_stand(diagnoses):
    """Every key that was null once, and the page says what that means."""
    table = documented("The JSON of a diagnosis")
    for values in diagnoses.values():
        for key in nulls_of(values):
            meanings = [text for name, (_, text) in table.items() if name.startswith(key)]
            assert any("null" in text for text in meanings), key


def nulls_of(value, prefix=""):
    if isinstance(value, dict):
        dotted = prefix and f"{prefix}."
        return {key for name, part in value.items() for key in nulls_of(part, f"{dotted}{name}")}
    if isinstance(value, list):
        return {key for part in value for key in nulls_of(part, f"{prefix}[]")}
    return {prefix} if value is None else set()


def test_every_key_of_an_attack_is_documented_and_written():
    network = make_network("parabolic", channels=(4, 4), num_steps=1)
    test = read_digits().test
    images, labels = test.images[:4], test.labels[:4]
    robustness = measure_robustness(network, images, labels, epsilons=[0.1], methods=["fgsm"])
    report = AttackReport(
        run="runs/digits-1",
        recipe="parabolic_digits",
        weights="best",
        num_images=4,
        restarts=1,
        num_steps=100,
        seed=0,
        clean_accuracy=robustness.clean_accuracy,
        results=robustness.results,
        corruptions=tuple(measure_corruptions(network, images, labels)),
    )
    assert keys_of(report.to_dict()) == set(documented("The JSON of an attack"))


def test_every_key_of_a_certificate_is_documented_and_written():
    labels = torch.tensor([0, 1])
    certificate = Certificate(
        labels=labels,
        predictions=labels,
        radii=torch.tensor([0.0, 0.1], dtype=torch.float64),
        disagreeing=torch.tensor([0]),
        lipschitz=1.0,
        factors=(Factor("opening", 1.0),),
    )
    report = CertificateReport(
        run="runs/digits-1",
        recipe="parabolic_stable_digits",
        weights="best",
        num_weights=9,
        certificate=certificate,
        places=(4, 7),
        results=(CertifiedResult(radius=0.1, certified_accuracy=0.5, attacked_accuracy=None),),
    )
    values = report.to_dict()
    assert keys_of(values) == set(documented("The JSON of a certificate"))
    assert values["disagreeing"] == [4]


def test_every_key_has_a_unit_and_a_meaning():
    names = ("a diagnosis", "an attack", "a certificate")
    for heading in (f"The JSON of {name}" for name in names):
        for key, (unit, meaning) in documented(heading).items():
            assert unit.strip(), key
            assert len(meaning.strip()) > 5, key


def test_a_diagnosis_is_valid_json(diagnoses):
    for values in diagnoses.values():
        assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_the_settings_of_the_guard_are_documented():
    for name in ("reversal_guard", "reversal_tolerance", "reversal_interval"):
        assert f"`training.{name}`" in PAGE
        assert name in pdecnn.TrainingConfig.__dataclass_fields__
