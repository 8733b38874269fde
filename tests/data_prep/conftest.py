"""What many tests of finished corpora share."""

from pathlib import Path

import pytest

from tests.data_prep.support_corpus import tokenizer


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small SentencePiece model."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    tokenizer(path)
    return path
