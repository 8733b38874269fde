"""What is not installed is named as what it is, and never as a fault of the tokenizer."""

import importlib.abc
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from coca_train.data.tokenizer import Tokenizer
from coca_train.evaluation import measures
from coca_train.evaluation.measures.harness_text import FolderText
from coca_train.evaluation.suites import harness
from coca_train.hub import tokenizer_files, transformers_side
from coca_train.hub.transformers_side import token_ids
from coca_train.runtime.errors import DataError, UserError
from tests.data.vocabularies import sentencepiece_model

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


def test_a_version_that_another_package_forbids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers is there, and says on import what it needs."""

    class Theirs(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name == "transformers":
                raise ImportError("tokenizers>=0.22,<=0.23.0 is required, but found tokenizers==0.20.0")

    monkeypatch.delitem(sys.modules, "transformers")
    monkeypatch.setattr(sys, "meta_path", [Theirs(), *sys.meta_path])
    with pytest.raises(UserError, match="E-IOP-17") as refused:
        token_ids(tmp_path, "text")
    assert "tokenizers==0.20.0" in str(refused.value) and "not installed" not in str(refused.value)


def test_files_that_are_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="E-IOP-24"):
        token_ids(tmp_path, "text")


@pytest.mark.parametrize(
    "error",
    [OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, Exception],
    ids=lambda e: e.__name__,
)
def test_what_transformers_raises_is_told_in_its_words(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error("cut short at byte 17")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fails)
    with pytest.raises(DataError, match=f"E-IOP-24 .*{error.__name__}: .*cut short at byte 17"):
        token_ids(tmp_path, "text")
    with pytest.raises(DataError, match="E-IOP-24"):
        _ = FolderText(tmp_path)._tokenizer


def test_an_export_says_why_the_other_side_cannot_use_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sentencepiece_model(tmp_path / "tokenizer.model")
    (tmp_path / "tokenizer_config.json").write_text("{}")

    def fails(folder: Path, text: str) -> list[int]:
        raise DataError("E-IOP-24 cut short")

    (tmp_path / "out").mkdir()
    tokenizer_files.export(path, Tokenizer(path), tmp_path / "out", fails)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("WARNING") and "E-IOP-24 cut short" in line


def test_a_mistake_of_ours_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_side, "library", lambda: SimpleNamespace())
    with pytest.raises(AttributeError):
        token_ids(tmp_path, "text")


@pytest.mark.parametrize("ours", [True, False])
def test_a_name_that_is_missing_in_our_own_adapter_is_no_missing_package(
    ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "coca_train.evaluation.measures.harness" if ours else "lm_eval"
    # The package keeps a module that another test has imported, and would be asked first.
    monkeypatch.delattr(measures, "harness", raising=False)
    monkeypatch.delitem(sys.modules, "coca_train.evaluation.measures.harness", raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError if ours else UserError, match=name if ours else "E-EVAL-30"):
        harness._harness()
