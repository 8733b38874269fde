"""Text files: one document each."""

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from coca_train.data.readers import inputs
from coca_train.data.readers.base import Document
from coca_train.runtime.errors import DataError
from tests.data_prep.reading import complaint, cut, parsed, read, rejects, source_of, texts, work_of


def folder(tmp_path: Path, contents: dict[str, bytes]):
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return source_of(tmp_path / "**", kind="text")


@pytest.mark.parametrize("chunk_bytes", [1, 8, 1 << 20])
def test_round_trip(tmp_path: Path, chunk_bytes: int) -> None:
    """Text comes as it is, except for a BOM; its id is its path."""
    contents = {"b.txt": b"b\r\nb\n", "a.txt": "\ufeffé😀".encode(), "deep/c.md": b"", "deep/er/d": b" x\0"[:2]}
    source, work = folder(tmp_path, contents), work_of(chunk_bytes=chunk_bytes)
    pieces = cut(source, work)
    items = parsed(pieces, source, work)
    assert texts(items) == ["é😀", "b\r\nb\n", "", " x"]
    assert items[1] == Document(2, "b\r\nb\n", f"{tmp_path}/b.txt", {"folder": str(tmp_path)})
    assert [item.line for item in items] == [1, 2, 3, 4]
    assert sum(chunk.n_bytes for chunk in pieces) == pieces[-1].position == sum(map(len, contents.values()))
    for i, chunk in enumerate(pieces):
        assert cut(source, work, chunk.after) == pieces[i + 1 :]


BAD = {
    "binary": (b"\x7fELF\x02\x01\x01\0\xff", "E-RAW-10", "invalid UTF-8 at byte 8"),
    "latin-1": ("né".encode("latin-1"), "E-RAW-10", "invalid UTF-8 at byte 1;"),
    "NUL": (b"a\0b", "E-RAW-12", "NUL character at character 2"),
    "UTF-16": ("text".encode("utf-16"), "E-RAW-12", "UTF-16 or UTF-32;"),
    "UTF-16 without BOM": ("text".encode("utf-16-le"), "E-RAW-12", "NUL character at character 2;"),
    "long": (b"x" * 5000, "E-RAW-13", "a file of 5000 bytes"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_file(tmp_path: Path, case: str) -> None:
    bad, code, reason = BAD[case]
    source = folder(tmp_path, {"a.txt": b"fine", "b.txt": bad, "c.txt": b"fine"})
    items = read(source, work_of(max_line_bytes=4999))
    assert texts(items) == ["fine", "fine"]
    (reject,) = rejects(items)
    assert (reject.line, reject.code, reject.path) == (2, code, f"{tmp_path}/b.txt") and reject.reason.startswith(
        reason
    )
    assert complaint(source, work_of(max_line_bytes=4999)).startswith(f"{code} {tmp_path}/b.txt: {reason}")


def test_many_empty_files_still_make_chunks(tmp_path: Path) -> None:
    source = folder(tmp_path, {f"{i:05d}": b"" for i in range(2500)} | {"last": b"x"})
    assert [len(chunk.data) for chunk in cut(source)] == [1000, 1000, 501]


def test_changed_or_removed(tmp_path: Path) -> None:
    source = folder(tmp_path, {"a.txt": b"fine"})
    pieces = cut(source)
    (tmp_path / "a.txt").write_bytes(b"longer")
    with pytest.raises(DataError, match=r"E-RAW-19 \S+/a.txt: changed"):
        parsed(pieces, source)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match=r"E-RAW-19 \S+/a.txt: was removed"):
        parsed(pieces, source)


def test_changed_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path, {"a.txt": b"fine"})
    pieces = cut(source)

    def open_late(path: str, _: str) -> BinaryIO:
        (tmp_path / "a.txt").write_bytes(b"mine, and longer")
        return open(path, "rb")

    monkeypatch.setattr("coca_train.data.readers.text.open", open_late, raising=False)
    with pytest.raises(DataError, match=r"E-RAW-19 \S+/a.txt: changed"):
        parsed(pieces, source)


def test_removed_before_the_chunk(tmp_path: Path) -> None:
    from coca_train.data.readers import chunks

    source = folder(tmp_path, {"a.txt": b"fine"})
    (input,) = inputs("mine", source)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match=r"E-RAW-02 \S+/a.txt: .*No such file"):
        list(chunks(input, source, work_of(), None))


def test_fails_when_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path, {"a.txt": b"fine"})
    pieces = cut(source)

    def refuse(path: str, *_: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("coca_train.data.readers.text.open", refuse, raising=False)
    with pytest.raises(DataError, match=r"E-RAW-02 \S+/a.txt: .*Permission denied"):
        parsed(pieces, source)


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.txt"
    Path(os.fsdecode(name)).write_bytes(b"a\0")
    source = source_of(tmp_path / "*", kind="text")
    assert complaint(source).startswith(f"E-RAW-12 {tmp_path}/\\udcff.txt: NUL")
    (input,) = inputs("mine", source)
    assert len(input.identity()["sha256"]) == 64
