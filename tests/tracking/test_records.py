"""metrics.jsonl over a resume: as the checkpoint left it, or a line that says what is missing."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coca_train.runtime.errors import DataError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.tracking.records import read_jsonl
from tests.tracking.support import metrics_writer


@pytest.fixture
def written(tmp_path: Path) -> JsonObject:
    """What a checkpoint at step 4 says of the file, which has two more records."""
    writer = metrics_writer(tmp_path)
    for step in range(1, 7):
        writer.log(step, {"loss": 1.0 / step})
        if step == 4:
            writer.log(4, {"valid/text": 2.0})
            saved = writer.written()
    writer.close()
    assert saved is not None and saved["records"] == 5
    return saved


def test_a_resumed_run_has_the_bytes_that_its_checkpoint_names(tmp_path: Path, written: JsonObject) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    writer = metrics_writer(tmp_path, 4, written)
    assert path.read_bytes() == whole[: written["bytes"]] and writer.written() == written
    for step in (5, 6):
        writer.log(step, {"loss": 1.0 / step})
    said = writer.written()
    writer.close()
    assert path.read_bytes() == whole
    assert said is not None and (said["records"], said["bytes"]) == (7, len(whole))


DAMAGE: dict[str, tuple[Callable[[bytes], bytes | None], list[int]]] = {
    "missing": (lambda content: None, []),
    "empty": (lambda content: b"", []),
    "a hole of zeros": (lambda content: content[:40] + bytes(30) + content[70:], [1, 4, 4]),
    "lines cut in the middle": (lambda content: content[:30] + content[50:], [1, 4, 4]),
    "lost at the end": (lambda content: content[:60], [1, 2]),
    "another number": (lambda content: content.replace(b"0.5", b"0.6"), [1, 2, 3, 4, 4]),
    "garbage": (lambda content: b"\x80\xff\n" * 9, []),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_missing_records_are_counted_and_the_others_stay(
    tmp_path: Path, written: JsonObject, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    change, left = DAMAGE[damage]
    path = tmp_path / "metrics.jsonl"
    content = change(path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)
    writer = metrics_writer(tmp_path, 4, written)
    writer.close()
    assert [record["step"] for record in read_jsonl(path)] == left
    line = capsys.readouterr().err
    assert line.startswith("RECOVERY: ") and f"{len(left)} of 5 records" in line
    for record in map(json.loads, path.read_text().splitlines()):
        assert record["step"] in left


@pytest.mark.parametrize("content", [b"garbage\n", b'{"step": 1}\n\0\0\0\n{"step": 2}\n'])
def test_what_is_no_record_is_named(tmp_path: Path, content: bytes) -> None:
    """Only the last line may be cut: a crash does that."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"E-RUN-31 .*metrics\.jsonl:{content.count(b'step') or 1}.* verify run="):
        read_jsonl(path)
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    assert read_jsonl(path) == [{"step": 1}]


def test_a_sync_that_fails_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = metrics_writer(tmp_path)
    writer.log(1, {"loss": 1.0})

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    writer.sync()
    writer.sync()
    writer.close()
    writer.sync()  # nothing is open
    assert capsys.readouterr().err.count("WARNING: metrics.jsonl may lose records: ") == 1
