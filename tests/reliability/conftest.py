"""One small run that all tests of this folder may read, but not change."""

import pytest

import pdecnn
from tests.runs import small_config


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return pdecnn.train(small_config(), output=folder, device="cpu")
