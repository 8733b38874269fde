"""Lines of .jsonl: good ones come back as they were written, bad ones are named by file, line and reason."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from coca_train.data.readers import chunks, inputs
from coca_train.data.readers.base import Document
from coca_train.runtime.errors import DataError
from tests.data_prep.reading import complaint, cut, line, parsed, read, rejects, source_of, texts, work_of

GOOD = line("fine")


def test_the_record_comes_along(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(line("a", meta={"stars": 3}))
    (document,) = read(source_of(tmp_path / "x.jsonl"))
    assert isinstance(document, Document) and document.fields == {"text": "a", "meta": {"stars": 3}}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_utf_16(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "x.jsonl").write_bytes((GOOD * 9).decode().encode(encoding))
    assert complaint(source_of(tmp_path / "x.jsonl")).startswith(f"E-RAW-12 {tmp_path}/x.jsonl:1: UTF-16")


def test_blank_before_the_cursor_and_documents_too(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(GOOD + b"\n" * 300)
    source, work = source_of(tmp_path / "x.jsonl"), work_of(chunk_bytes=20)
    assert texts(read(source, work)) == ["fine"]
    assert read(source, work, cut(source, work)[0].after) == []


def test_the_excerpt_is_of_the_long_line_alone(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(GOOD + line("y" * 30) + GOOD)
    for chunk_bytes in (1, 1000):
        items = read(source_of(tmp_path / "x.jsonl"), work_of(chunk_bytes=chunk_bytes, max_line_bytes=20))
        assert [r.excerpt for r in rejects(items)] == [repr(line("y" * 30)[:-1].decode())]


def test_bytes_are_counted_from_the_beginning_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n" + b"oops\n")
    for chunk_bytes in (1, 1000):
        assert [r.byte for r in rejects(read(source_of(tmp_path / "x.jsonl"), work_of(chunk_bytes=chunk_bytes)))] == [
            22
        ]


def test_a_blank_line_may_not_be_too_long_either(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(GOOD + b" " * 200 + b"\n")
    for chunk_bytes in (1, 17, 210, 1000):
        items = read(source_of(tmp_path / "x.jsonl"), work_of(chunk_bytes=chunk_bytes, max_line_bytes=100))
        assert [item.code for item in rejects(items)] == ["E-RAW-13"] and texts(items) == ["fine"]


def test_a_folder_that_may_not_be_entered_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.jsonl").write_bytes(GOOD)
    source = source_of(tmp_path / "x.jsonl")
    (input,) = inputs("mine", source)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(DataError, match=r"E-RAW-02 \S+x.jsonl: .*Permission denied"):
        next(chunks(input, source, work_of(), None))


def test_the_limit_is_the_length_of_the_line(tmp_path: Path) -> None:
    for chunk_bytes in (1, 50, 1000):
        for length, good in ((100, True), (101, False)):
            for end in (b"\n", b""):
                (tmp_path / "x.jsonl").write_bytes(GOOD + line("x" * (length - 12))[:-1] + end)
                work = work_of(chunk_bytes=chunk_bytes, max_line_bytes=100)
                items = read(source_of(tmp_path / "x.jsonl"), work)
                assert [isinstance(item, Document) for item in items] == [True, good], (chunk_bytes, length, end)
                if not good:
                    assert f"{length} bytes" in rejects(items)[0].reason


def test_a_line_of_200_mb_in_little_memory(tmp_path: Path) -> None:
    """It is passed over: what is held is max_line_bytes and a block, never the line."""
    with open(tmp_path / "x.jsonl", "wb") as file:
        file.write(GOOD + b'{"text": "')
        for _ in range(200):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n' + GOOD)
    source, work = source_of(tmp_path / "x.jsonl"), work_of(max_line_bytes=4 << 20)
    tracemalloc.start()
    try:
        items = read(source, work)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert texts(items) == ["fine", "fine"] and peak < 16 << 20
    (reject,) = rejects(items)
    assert (reject.line, reject.code, reject.byte) == (2, "E-RAW-13", len(GOOD))
    assert "200000012 bytes" in reject.reason and reject.excerpt.startswith('\'{"text": "xxx')
    assert len(reject.excerpt) <= 80


@pytest.mark.slow
def test_a_terabyte_without_a_line_is_no_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with open(path, "wb") as file:
        file.write(GOOD)
        file.truncate(1 << 40)
    with pytest.raises(DataError, match=r"E-RAW-30 \S+:2: .* 1,077,936,128 bytes"):
        read(source_of(path), work_of(max_line_bytes=4 << 20))


def test_a_chunk_is_bytes_and_its_cursor_is_json(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(GOOD * 10)
    source, work = source_of(tmp_path / "x.jsonl"), work_of(chunk_bytes=2 * len(GOOD) + 3)
    pieces = cut(source, work)
    assert [chunk.data for chunk in pieces] == [GOOD * 2] * 5
    assert [chunk.first for chunk in pieces] == [1, 3, 5, 7, 9]
    assert [chunk.position for chunk in pieces] == [34, 68, 102, 136, 170] == [chunk.after["byte"] for chunk in pieces]
    assert json.loads(json.dumps(pieces[1].after)) == {"line": 5, "byte": 68, "found": 1}
    assert len(parsed(pieces[1:2], source, work)) == 2
