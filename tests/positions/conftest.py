"""Fixtures of the position tests, and which part of the contracts' products `make test` runs."""

from typing import Any

import pytest
import torch

from coca_train.testing.definition import VISIBILITIES
from coca_train.testing.scheme import SchemeContract
from coca_train.testing.visibility import VisibilityContract


@pytest.hookimpl(tryfirst=True)  # before the slow ones are left out
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """A contract holds all settings under all visibilities, a scheme's and a visibility's own from both sides. Quick
    are the first settings under all, every other under one, and every shipped scheme under one; the rest is slow."""
    names = list(VISIBILITIES)
    for item in items:
        at, contract = getattr(getattr(item, "callspec", None), "indices", {}), getattr(item, "cls", None) or object
        turn = 0
        if issubclass(contract, SchemeContract) and at.get("settings") and "visibility" in at:
            turn = at["settings"] + at["visibility"] + len(item.originalname)  # another for each test
        elif issubclass(contract, VisibilityContract) and "scheme" in at and contract.visibility in names:
            turn = at["scheme"] + names.index(contract.visibility)
        if turn % len(names):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def one_thread():
    """Tests share the machine; tiny tensors gain nothing from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
