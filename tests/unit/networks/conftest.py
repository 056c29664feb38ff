"""A saved network, and a copy of it that a test may change."""

import shutil

import pytest

from tests.unit.networks.saved import make


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    make().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "copy")
