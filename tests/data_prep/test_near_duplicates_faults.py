"""What near_duplicates says when something is wrong."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coca_train.data.storage import open_locked
from coca_train.runtime import machine
from coca_train.runtime.errors import DataError, StorageError, UserError
from data_prep.verbs import near_duplicates
from tests.data_prep.near_text import corpus, lists, text

pytest.importorskip("datatrove")


def test_a_bad_document_stops_it_with_file_and_line(tmp_path: Path) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]})
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"text": 5}\n')
    with pytest.raises(DataError, match=r"^E-RAW-06 .*a\.jsonl:2: .*Fix:"):
        near_duplicates.run(config)
    assert not (tmp_path / "out" / "near_duplicates" / "a.npy").exists()


def test_bad_documents_are_passed_over_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]}, "work.on_error=skip", "corpus.valid_share=0")
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"text": 5}\n' + json.dumps({"text": text(50, 1)}) + "\n")
    near_duplicates.run(config)
    assert lists(config) == {"a": [(0, 3)]}
    assert "1 bad documents were passed over" in capsys.readouterr().out


@pytest.mark.parametrize(("option", "code"), [("shard=0/2", 28), ("near_duplicates.language=english", 29)])
def test_shards_and_unknown_languages_are_refused(tmp_path: Path, option: str, code: int) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]}, option)
    with pytest.raises(UserError, match=rf"^E-RAW-{code} {option}: .*Fix:"):
        near_duplicates.run(config)


def test_a_missing_library_is_told_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]})
    (tmp_path / "a.jsonl").unlink()
    for name in [name for name in sys.modules if name.split(".")[0] == "datatrove"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "datatrove", None)
    with pytest.raises(UserError, match=r"^E-RAW-25 near_duplicates: datatrove .*\[quality\]"):
        near_duplicates.run(config)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]})
    work = tmp_path / "out" / "near_duplicates" / ".work"
    work.mkdir(parents=True)
    with open_locked(str(work / "lock")), pytest.raises(DataError, match="E-TOK-15"):
        near_duplicates.run(config)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine of one process, and of 1 GiB."""
    machine._lowered.cache_clear()
    monkeypatch.setattr(machine, "cores", lambda: 1)
    monkeypatch.setattr(machine, "PER_CORE", 1)
    monkeypatch.setattr(machine, "ALWAYS", 1)
    monkeypatch.setattr(machine, "memory", lambda: 1 << 30)
    yield
    machine._lowered.cache_clear()


@pytest.mark.usefixtures("small")
def test_too_many_workers_are_lowered_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Signing and matching each start some."""
    near_duplicates.run(corpus(tmp_path, {"a": [text(50, 1)]}, "work.workers=3000"))
    assert capsys.readouterr().err.count("work.workers=3000: ") == 1


@pytest.mark.usefixtures("small")
def test_what_a_worker_takes_is_counted_by_its_own_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "ALWAYS", 2)
    large = [f"work.{option}={1 << 30}" for option in ("chunk_bytes", "part_bytes")]
    near_duplicates.run(corpus(tmp_path, {"a": [text(50, 1)]}, "work.workers=2", *large))
    assert "work.workers" not in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]})
    (tmp_path / "out").write_text("a file")
    with pytest.raises(StorageError, match="E-IO-01"):
        near_duplicates.run(config)


def test_a_merged_corpus_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text("{}")
    near_duplicates.run(config)
    assert "the corpus is merged already" in capsys.readouterr().err
