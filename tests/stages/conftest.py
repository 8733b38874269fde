"""Runs in this process, without what costs seconds and is not about stages."""

import copy
import functools
from pathlib import Path

import pytest
import torch

from coca_train.config import load as config_load
from coca_train.config.compose import Composed, compose
from coca_train.config.root import Root
from tests.faults import real
from tests.stages.support import Runs, leave_out


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return real.prepare(tmp_path_factory.mktemp("corpus"))


@functools.cache
def composed(root: Root, groups: tuple[tuple[str, str], ...], dirs: tuple[Path, ...]) -> Composed:
    return compose(root, dict(groups), dirs)


@pytest.fixture
def runs(tmp_path: Path, corpus: list[str], monkeypatch: pytest.MonkeyPatch) -> Runs:
    torch.set_num_threads(1)
    leave_out(monkeypatch.setattr)
    # the same files are merged for every launch
    again = lambda root, groups, dirs: copy.deepcopy(composed(root, tuple(groups.items()), dirs))  # noqa: E731
    monkeypatch.setattr(config_load, "compose", again)
    return Runs(tmp_path, corpus, monkeypatch)
