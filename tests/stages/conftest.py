"""Runs in this process, without what costs seconds and is not about stages."""

from pathlib import Path

import pytest
import torch

from tests.faults import real
from tests.stages.support import Runs, leave_out


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return real.prepare(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def runs(tmp_path: Path, corpus: list[str], monkeypatch: pytest.MonkeyPatch) -> Runs:
    torch.set_num_threads(1)
    leave_out(monkeypatch.setattr)
    return Runs(tmp_path, corpus, monkeypatch)
