"""Runs in this process, without what costs seconds and is not about stages."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.faults import real
from tests.stages.support import SIZES, Runs, leave_out, tokenizer_of


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return real.prepare(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def runs(tmp_path: Path, corpus: list[str], monkeypatch: pytest.MonkeyPatch) -> Runs:
    torch.set_num_threads(1)
    leave_out(monkeypatch.setattr)
    return Runs(tmp_path, corpus, monkeypatch)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory, corpus: list[str]) -> Path:
    """A folder as transformers writes it, with the tokenizer of the corpus beside it; not to be written to."""
    pytest.importorskip("transformers")
    from tests.hub import models

    folder = models.write(tmp_path_factory.mktemp("hub") / "llama", "llama", **SIZES)
    shutil.copy(tokenizer_of(corpus), folder / "tokenizer.model")
    return folder


@pytest.fixture
def spoilt(llama: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(llama, tmp_path / "spoilt"))
