"""What many tests of the data preparation share."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.data.vocabularies import trained


@pytest.fixture(scope="session", autouse=True)
def plain_main() -> Iterator[None]:
    """A spawned process imports the main module of its parent: an empty one here, where each would import pytest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", ModuleType("__main__"))
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vocabulary of the corpora that `support_corpus.make` writes."""
    return trained(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model", 600)
