"""The suite runs on one thread and draws the same examples every time."""

import gc
import os

import pytest
import torch
from hypothesis import settings

from tests.browser import browser as browser
from tests.browser import firefox as firefox

# One thread: quick on small tensors, and sums have one order, so that bits can be compared.
torch.set_num_threads(1)

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("repeatable")


def pytest_collection_finish():
    """Thousands of tests are no garbage: looking through them took most of every collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _no_wait_for_the_disk():
    """What fsync is for, a loss of power, no test causes; what is no file stays an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


def pytest_addoption(parser):
    parser.addoption(
        "--cifar10",
        metavar="DIR",
        help="the folder that holds cifar-10-batches-bin, if you have it",
    )


@pytest.fixture
def cifar10_folder(request):
    folder = request.config.getoption("--cifar10")
    if folder is None:
        pytest.skip("needs the real CIFAR-10: pass --cifar10 DIR")
    return folder
