"""Runs of this folder's tests: a corpus for each file, and what nothing here looks at left out."""

import pytest

from tests.faults import real
from tests.stages.support import Runs, leave_out


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return real.prepare(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def runs(corpus, tmp_path, monkeypatch):
    leave_out(monkeypatch.setattr)
    return Runs(tmp_path, corpus, monkeypatch)
