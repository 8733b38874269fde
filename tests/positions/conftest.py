"""Fixtures of the position tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tests share the machine; tiny tensors gain nothing from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
