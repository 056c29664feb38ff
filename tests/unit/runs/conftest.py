"""Trained runs for all tests that only read them."""

import pytest

import pdecnn
from tests.runs import SOPHISTICATED, small_config


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return pdecnn.train(small_config(), output=folder, device="cpu")


@pytest.fixture(scope="session")
def undisturbed_sophisticated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "sophisticated"
    return pdecnn.train(small_config(**SOPHISTICATED), output=folder, device="cpu")
