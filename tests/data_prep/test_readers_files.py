"""Which files a source has: found, sorted, and refused before anything is read when they cannot be right."""

import bz2
import gzip
import io
import lzma
import os
import socket
import tarfile
import zipfile
from pathlib import Path

import pytest

from coca_train.data.readers import inputs
from coca_train.data.readers.base import Input
from coca_train.runtime.errors import DataError
from tests.data_prep.reading import complaint, line, source_of

GOOD = line("fine")
KINDS = ["jsonl", "parquet", "text"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_there(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for pattern in ("none.jsonl", "*.jsonl", "empty/*", "empty/**/*", "a\nb"):
        text = complaint(source_of(pattern, kind=kind))
        assert (
            text.startswith(f"E-RAW-01 {pattern}: ".replace("\n", r"\n")) and f"matches nothing in {tmp_path}" in text
        )
    assert complaint(source_of(kind=kind)).startswith("E-RAW-01 mine: files is empty")


@pytest.mark.parametrize("kind", KINDS)
def test_no_regular_file(tmp_path: Path, kind: str) -> None:
    folder, pipe, plug = tmp_path / "x.jsonl", tmp_path / "pipe", tmp_path / "plug"
    folder.mkdir()
    (folder / "inside.jsonl").write_bytes(GOOD)
    os.mkfifo(pipe)
    assert complaint(source_of(folder, kind=kind)).startswith(
        f"E-RAW-02 {folder}: is a folder; a regular file is needed"
    )
    assert complaint(source_of(pipe, kind=kind)).startswith(f"E-RAW-02 {pipe}: is a pipe, socket or device")
    assert complaint(source_of("/dev/zero", kind=kind)).startswith("E-RAW-02 /dev/zero: is a pipe, socket or device")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(plug))
        assert complaint(source_of(plug, kind=kind)).startswith(f"E-RAW-02 {plug}: is a pipe, socket or device")
    (tmp_path / "dangling").symlink_to("nowhere")
    text = complaint(source_of(tmp_path / "dangling", kind=kind))
    assert text.startswith(f"E-RAW-02 {tmp_path}/dangling: cannot be read: No such file")


def test_a_folder_among_the_matches(tmp_path: Path) -> None:
    """jsonl: refused, since it may hold what was meant; text: `**` goes into it."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_bytes(b"b")
    (tmp_path / "c.txt").write_bytes(b"c")
    assert complaint(source_of(tmp_path / "*")).startswith(f"E-RAW-02 {tmp_path}/a: is a folder")
    (input,) = inputs("mine", source_of(tmp_path / "**", kind="text"))
    assert input.files == (f"{tmp_path}/a/b.txt", f"{tmp_path}/c.txt") and input.size == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("kind", KINDS)
def test_unreadable(tmp_path: Path, kind: str) -> None:
    (tmp_path / "x").write_bytes(GOOD)
    (tmp_path / "x").chmod(0)
    text = complaint(source_of(tmp_path / "x", kind=kind))
    assert text.startswith(f"E-RAW-02 {tmp_path}/x: cannot be read: Permission denied")


@pytest.mark.parametrize("kind", KINDS)
def test_permission_denied(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for root, with the answer of the system made up."""
    (tmp_path / "x").write_bytes(GOOD)

    def refuse(path: str, *_: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("coca_train.data.readers.files.open", refuse, raising=False)
    monkeypatch.setattr(os, "access", lambda *_: False)
    text = complaint(source_of(tmp_path / "x", kind=kind))
    assert text.startswith(f"E-RAW-02 {tmp_path}/x: cannot be read: Permission denied")


def test_read_error_later(tmp_path: Path) -> None:
    """A disk that fails while it is read: /proc/self/mem answers EIO at its first byte."""
    with pytest.raises(DataError, match=r"E-RAW-02 \S+: cannot be read: Input/output error"):
        Input("mine", 0, "/proc/self/mem", 0).identity()


WRONG = {
    "gzip named plain": ("x.jsonl", gzip.compress(GOOD), "holds gzip, but is read as plain text"),
    "zstd named plain": ("x.jsonl", b"\x28\xb5\x2f\xfd" + GOOD, "holds zstd, but is read as plain text"),
    "plain named gzip": ("x.jsonl.gz", GOOD, "holds neither gzip nor zstd nor parquet, but is read as gzip"),
    "plain named zstd": ("x.jsonl.zst", GOOD, "holds neither gzip nor zstd nor parquet, but is read as zstd"),
    "gzip named zstd": ("x.jsonl.zst", gzip.compress(GOOD), "holds gzip, but is read as zstd"),
    "parquet named jsonl": ("x.jsonl", b"PAR1" + GOOD, "holds parquet, but is read as plain text"),
    "bzip2 by content": ("x.jsonl", bz2.compress(GOOD), "holds bzip2, but is read as plain text"),
    "xz by content": ("x.jsonl", lzma.compress(GOOD), "holds xz, but is read as plain text"),
    "bzip2 by name": ("x.jsonl.bz2", bz2.compress(GOOD), "bzip2 by its name"),
    "xz by name": ("x.jsonl.XZ", lzma.compress(GOOD), "xz by its name"),
    "one byte of gzip": ("x.jsonl.gz", b"\x1f", "holds neither gzip"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_name(tmp_path: Path, case: str) -> None:
    name, content, message = WRONG[case]
    (tmp_path / name).write_bytes(content)
    assert complaint(source_of(tmp_path / name)).startswith(f"E-RAW-15 {tmp_path}/{name}: {message}")


def test_wrong_name_of_parquet_and_text(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(GOOD)
    (tmp_path / "x.parquet.gz").write_bytes(gzip.compress(GOOD))
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(GOOD))
    text = complaint(source_of(tmp_path / "x.parquet", kind="parquet"))
    assert text.startswith(
        f"E-RAW-15 {tmp_path}/x.parquet: holds neither gzip nor zstd nor parquet, but is read as parq"
    )
    text = complaint(source_of(tmp_path / "x.parquet.gz", kind="parquet"))
    assert text.startswith(f"E-RAW-15 {tmp_path}/x.parquet.gz: gzip by its name; a .parquet file is needed")
    text = complaint(source_of(tmp_path / "x.txt.gz", kind="text"))
    assert text.startswith(f"E-RAW-15 {tmp_path}/x.txt.gz: gzip by its name; a text file is needed")


def archive(kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("../x.jsonl", GOOD)
    else:
        with tarfile.open(fileobj=buffer, mode="w") as file:
            file.addfile(tarfile.TarInfo("../x.jsonl"), io.BytesIO())
    return buffer.getvalue()


ARCHIVES = {
    "x.jsonl": (archive("zip"), "is a zip archive"),
    "y.jsonl": (archive("tar"), "is a tar archive"),
    "z.jsonl": (b"7z\xbc\xaf\x27\x1c", "is a 7z archive"),
    "x.zip": (archive("zip"), "is an archive by its name"),
    "x.tar": (archive("tar"), "is an archive by its name"),
    "x.tar.gz": (gzip.compress(archive("tar")), "is an archive by its name"),
    "x.TGZ": (gzip.compress(archive("tar")), "is an archive by its name"),
    "x.7z": (GOOD, "is an archive by its name"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives(tmp_path: Path, name: str) -> None:
    """Never opened: their members' names cannot do harm."""
    content, message = ARCHIVES[name]
    (tmp_path / name).write_bytes(content)
    assert complaint(source_of(tmp_path / name)).startswith(f"E-RAW-17 {tmp_path}/{name}: {message}; a .jsonl")


@pytest.mark.parametrize("kind", ["jsonl", "text"])
def test_the_same_file_twice(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    (tmp_path / "b.jsonl").symlink_to("a.jsonl")
    os.link(tmp_path / "a.jsonl", tmp_path / "c.jsonl")
    (tmp_path / "folder").symlink_to(".")
    twice = [
        ("a.jsonl", "a.jsonl"),
        ("a.jsonl", "b.jsonl"),
        ("b.jsonl", "c.jsonl"),
        ("./a.jsonl", str(tmp_path / "a.jsonl")),
    ]
    for paths in [*twice, ("a*.jsonl", "*a.jsonl"), ("a.jsonl", "folder/a.jsonl")]:
        text = complaint(source_of(*paths, kind=kind))
        assert text.startswith("E-RAW-20 ") and "is the same file as" in text and "corpus.sources.mine.files" in text


def test_sorted_and_numbered(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c[1].jsonl", "deep/d.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(GOOD + name.encode())
    listing = inputs(
        "mine", source_of(tmp_path / "deep" / "**", tmp_path / "[ba].jsonl", tmp_path / "c[1].jsonl", kind="text")
    )
    assert [Path(path).name for path in listing[0].files] == ["a.jsonl", "b.jsonl", "c[1].jsonl", "d.jsonl"]
    listing = inputs("mine", source_of(tmp_path / "deep" / "*", tmp_path / "[ba].jsonl", tmp_path / "c[1].jsonl"))
    assert [(i.source, i.number, Path(i.path).name) for i in listing] == [
        ("mine", 0, "a.jsonl"),
        ("mine", 1, "b.jsonl"),
        ("mine", 2, "c[1].jsonl"),
        ("mine", 3, "d.jsonl"),
    ]
    assert [i.size for i in listing] == [
        len(GOOD) + len(Path(i.path).relative_to(tmp_path).as_posix()) for i in listing
    ]


def test_identity(tmp_path: Path) -> None:
    """Another size, time, first or last 64 KiB is another input; another folder is not."""
    path = tmp_path / "x.jsonl"

    def identity(content: bytes, at: int = 10**9, kind: str = "jsonl") -> dict:
        path.write_bytes(content)
        os.utime(path, ns=(at, at))
        (input,) = inputs("mine", source_of(path, kind=kind))
        return input.identity()

    for kind in ("jsonl", "text"):
        first = identity(GOOD, kind=kind)
        assert first == identity(GOOD, kind=kind) and first["bytes"] == len(GOOD) and len(first["sha256"]) == 64
        assert first != identity(GOOD, 2 * 10**9, kind) and first != identity(GOOD + b"\n", kind=kind)
    large = b"x" * 200_000
    base = identity(large)
    assert base["name"] == "x.jsonl"
    for at, same in ((0, False), (65_535, False), (100_000, True), (199_999, False), (134_464, False)):
        assert (identity(large[:at] + b"y" + large[at + 1 :]) == base) is same, at
    path.unlink()
    with pytest.raises(DataError, match=r"E-RAW-02 .*No such file"):
        Input("mine", 0, str(path), 0).identity()
