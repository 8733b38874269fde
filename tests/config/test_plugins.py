"""Modules of other distributions, offered as entry points."""

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from coca_train.config import files
from coca_train.positions import SCHEMES
from coca_train.runtime.errors import UserError


def offered(monkeypatch: pytest.MonkeyPatch, name: str) -> files.Registry:
    """The schemes, where another distribution offers this one."""
    point = EntryPoint(name, "theirs.module", SCHEMES.plugins)
    monkeypatch.setattr(files, "entry_points", lambda group: [point] if group == SCHEMES.plugins else [])
    return replace(SCHEMES)


def test_a_plugin_is_a_choice_like_any_other(monkeypatch):
    assert set(offered(monkeypatch, "mine").names()) == {"mine", *SCHEMES.names()}


def test_a_plugin_hides_no_shipped_module(monkeypatch):
    """A run that names rope would train with something else, and nothing would say so."""
    with pytest.raises(UserError, match=r"^E-CFG-70 entry point coca_train\.schemes: rope = theirs\.module: .*Fix: "):
        offered(monkeypatch, "rope").module("rope")
