"""What is not installed is named as what it is, and never as a fault of the tokenizer."""

import sys
from pathlib import Path

import pytest

from coca_train.hub.transformers_side import token_ids
from coca_train.runtime.errors import UserError

transformers = pytest.importorskip("transformers")


def test_transformers_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match="E-IOP-17") as refused:
        token_ids(tmp_path, "text")
    assert "coca-train[interop]" in str(refused.value)


def test_what_transformers_reads_a_tokenizer_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: object, **__: object) -> None:
        raise ImportError("requires the protobuf library but it was not found in your environment.\nCheck out …")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lacks)
    with pytest.raises(UserError, match="E-IOP-17") as refused:
        token_ids(tmp_path, "text")
    assert "protobuf" in str(refused.value) and "coca-train[interop]" in str(refused.value)


def test_files_that_are_no_tokenizer_are_none(tmp_path: Path) -> None:
    assert token_ids(tmp_path, "text") is None
