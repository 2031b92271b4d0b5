"""The clinic is not installed with the package: find it beside the tests."""

import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))


@pytest.fixture(autouse=True)
def one_thread():
    """Models this small only lose by threads, and much so on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
