"""The suite runs on one thread and draws the same examples every time."""

import pytest
import torch
from hypothesis import settings

# One thread: quick on small tensors, and sums have one order, so that bits can be compared.
torch.set_num_threads(1)

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)
