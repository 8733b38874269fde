"""Fixtures of the position tests, and which part of the contracts' products `make test` runs."""

from typing import Any

import pytest
import torch

from coca_train.testing.definition import ATTENTION_PATTERNS
from coca_train.testing.pattern import PatternContract
from coca_train.testing.scheme import SchemeContract


@pytest.hookimpl(tryfirst=True)  # before the slow ones are left out
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """A contract holds all settings under all attention patterns, a scheme's and an attention pattern's own from both
    sides. Quick are the first settings under all, every other under one, and every shipped scheme under one; the rest
    is slow."""
    names = list(ATTENTION_PATTERNS)
    for item in items:
        at, contract = getattr(getattr(item, "callspec", None), "indices", {}), getattr(item, "cls", None) or object
        turn = 0
        if issubclass(contract, SchemeContract) and at.get("settings") and "attention_pattern" in at:
            turn = at["settings"] + at["attention_pattern"] + len(item.originalname)  # another for each test
        elif issubclass(contract, PatternContract) and "scheme" in at and contract.attention_pattern in names:
            turn = at["scheme"] + names.index(contract.attention_pattern)
        if turn % len(names):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def one_thread():
    """Tests share the machine; tiny tensors gain nothing from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
