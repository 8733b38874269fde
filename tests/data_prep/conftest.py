"""What many tests of the data preparation share."""

import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from data_prep import workers
from tests.data.vocabularies import trained


@pytest.fixture(scope="session", autouse=True)
def plain_main() -> Iterator[None]:
    """A spawned process imports the main module of its parent: an empty one here, where each would import pytest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", ModuleType("__main__"))
        yield


class ForkedContext:
    """A multiprocessing context whose processes are forked, but get what a spawned one would: pickled arguments."""

    def __init__(self) -> None:
        self._fork = multiprocessing.get_context("fork")
        self.Pipe = self._fork.Pipe

    def Process(self, target: Any, args: tuple[Any, ...], daemon: bool) -> Any:
        connection, *pickled = args
        arguments = (connection, *pickle.loads(pickle.dumps(pickled)))
        return self._fork.Process(target=target, args=arguments, daemon=daemon)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes that start at once. Spawned ones are tested in test_pool and test_kills."""
    context = ForkedContext()
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda _: context)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vocabulary of the corpora that `support_corpus.make` writes."""
    return trained(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model", 600)
