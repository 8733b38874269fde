"""What every reader says of an input without documents, a cursor that does not fit, a file that changes, and a package
that is missing."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coca_train.config.corpus_schema import CorpusSourceConfig
from coca_train.data.readers import chunks, hub, inputs
from coca_train.runtime.errors import DataError
from tests.data_prep.reading import complaint, cut, line, read, source_of, work_of

N = 40
GOOD = line("fine")


def write(folder: Path, kind: str, n: int = N) -> CorpusSourceConfig:
    """A source of n documents, of which four or so fill a chunk."""
    path = folder / f"x.{kind}"
    if kind == "text":
        path.mkdir(exist_ok=True)
        for number in range(n):
            (path / f"{number:03d}.txt").write_text("fine")
        return source_of(path / "**", kind="text")
    if kind == "parquet":
        parquet, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        parquet.write_table(pa.table({"text": pa.array(["fine"] * n, pa.string())}), path, row_group_size=10)
    elif kind == "hub":
        pytest.importorskip("datasets")
        path.mkdir(exist_ok=True)
        (path / "train.jsonl").write_bytes(GOOD * n if n else b"")
        hub._load.cache_clear()
        return source_of(kind="hub", hub=str(path))
    else:
        path.write_bytes(GOOD * n)
    return source_of(path, kind=kind)


@pytest.mark.parametrize(
    "content", [b"", b"\n \r\n\t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n", b"\n" * 300_000, None], ids=repr
)
def test_no_documents(tmp_path: Path, content: bytes | None) -> None:
    if content is None:
        source = write(tmp_path, "parquet", 0)
    else:
        (tmp_path / "x.jsonl").write_bytes(content)
        source = source_of(tmp_path / "x.jsonl")
    assert complaint(source).startswith(f"E-RAW-03 {source.files[0]}: ")
    if content and len(content) > 1 << 16:  # also when a run went on in the middle of it
        (input,) = inputs("mine", source)
        first = next(chunks(input, source, work_of(), None))
        assert complaint(source, work_of(), first.after).startswith("E-RAW-03")


def test_only_empty_files(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.parquet"):
        (tmp_path / name).touch()
    assert complaint(source_of(tmp_path / "*.txt", kind="text")).startswith(f"E-RAW-03 {tmp_path}/*.txt: ")
    assert complaint(source_of(tmp_path / "c.parquet", kind="parquet")).startswith(f"E-RAW-03 {tmp_path}/c.parquet: ")


# kind: cursors that do not fit, each with a value the message names
BEYOND: dict[str, list[tuple[dict[str, int], str]]] = {
    "jsonl": [
        ({"line": 2, "byte": byte, "found": 1}, str(byte)) for byte in (1, len(GOOD) - 1, N * len(GOOD) + 1, 1 << 40)
    ],
    "parquet": [({"row": 91, "group": group, "offset": at}, "row 91") for group, at in ((5, 0), (4, 1), (3, 31))],
    "text": [({"file": N + 2}, str(N + 2))],
    "hub": [({"row": N + 2}, str(N + 1))],
}


@pytest.mark.parametrize("kind", BEYOND)
def test_cursors(tmp_path: Path, kind: str) -> None:
    source = write(tmp_path, kind)
    end = cut(source)[-1].after
    assert read(source, work_of(), end) == []
    for cursor, value in BEYOND[kind]:
        text = complaint(source, work_of(), cursor)
        assert text.startswith("E-RAW-26 ") and value in text, text


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + GOOD)


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    """Another file of the same size and time."""
    state, other = path.stat(), path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b"fine", b"FINE"))
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [grow, touch, replace, Path.unlink])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("when", ["before", "between", "at the end"])
def test_changed_while_read(tmp_path: Path, kind: str, when: str, change: Callable[[Path], Any]) -> None:
    """What grew after the last chunk is not lost in silence, either."""
    source = write(tmp_path, kind)
    work = work_of(chunk_bytes=1 << 20 if when == "at the end" else 60)
    (input,) = inputs("mine", source)
    going = chunks(input, source, work, None)
    if when != "before":
        next(going)
    elif change in (touch, replace):
        return  # sizes alone were listed
    change(Path(source.files[0]))
    with pytest.raises(DataError, match=rf"E-RAW-19 \S+x.{kind}: (changed|was removed)"):
        list(going)


@pytest.mark.parametrize(("kind", "package"), [("parquet", "pyarrow"), ("hub", "datasets"), ("jsonl", "zstandard")])
def test_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str) -> None:
    source = write(tmp_path, kind)
    if kind == "jsonl":
        (tmp_path / "x.jsonl.zst").write_bytes(pytest.importorskip("zstandard").compress(GOOD))
        source = source_of(tmp_path / "x.jsonl.zst")
    monkeypatch.setitem(sys.modules, package, None)
    text = complaint(source)
    assert text.startswith(f"E-RAW-25 {package}") and "coca-train[data]" in text
