"""Which files a source has: found, sorted, and refused before anything is read when they cannot be right."""

import bz2
import gzip
import io
import lzma
import os
import re
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
        assert text.startswith(f"E-RAW-01 {pattern}: ".replace("\n", r"\n")) and str(tmp_path) in text
    assert complaint(source_of(kind=kind)).startswith("E-RAW-01 mine: files ")


@pytest.mark.parametrize("kind", KINDS)
def test_no_regular_file(tmp_path: Path, kind: str) -> None:
    folder, pipe, plug = tmp_path / "x.jsonl", tmp_path / "pipe", tmp_path / "plug"
    folder.mkdir()
    (folder / "inside.jsonl").write_bytes(GOOD)
    os.mkfifo(pipe)
    (tmp_path / "dangling").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(plug))
        places = {folder: "a folder", pipe: "a pipe", "/dev/zero": "device", plug: "socket"}
        for path, what in {**places, tmp_path / "dangling": "No such file"}.items():
            assert re.match(rf"E-RAW-02 {path}: .*{what}", complaint(source_of(path, kind=kind)))


def test_a_folder_among_the_matches(tmp_path: Path) -> None:
    """jsonl: refused, since it may hold what was meant; text: `**` goes into it."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_bytes(b"b")
    (tmp_path / "c.txt").write_bytes(b"c")
    assert complaint(source_of(tmp_path / "*")).startswith(f"E-RAW-02 {tmp_path}/a: ")
    (input,) = inputs("mine", source_of(tmp_path / "**", kind="text"))
    assert input.files == (f"{tmp_path}/a/b.txt", f"{tmp_path}/c.txt") and input.size == 2


ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")


@pytest.mark.parametrize("pretended", [True, pytest.param(False, marks=ROOT)])
@pytest.mark.parametrize("kind", KINDS)
def test_permission_denied(tmp_path: Path, kind: str, pretended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root reads everything: for it the answer of the system is made up."""
    (tmp_path / "x").write_bytes(GOOD)

    def refuse(path: str, *_: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    if pretended:
        monkeypatch.setattr("coca_train.data.readers.files.open", refuse, raising=False)
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        (tmp_path / "x").chmod(0)
    text = complaint(source_of(tmp_path / "x", kind=kind))
    assert re.match(rf"E-RAW-02 {tmp_path}/x: .*Permission denied", text)


def test_read_error_later(tmp_path: Path) -> None:
    """A disk that fails while it is read: /proc/self/mem answers EIO at its first byte."""
    with pytest.raises(DataError, match=r"E-RAW-02 \S+: .*Input/output error"):
        Input("mine", 0, "/proc/self/mem", 0).identity()


def archive(kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("../x.jsonl", GOOD)
    else:
        with tarfile.open(fileobj=buffer, mode="w") as file:
            file.addfile(tarfile.TarInfo("../x.jsonl"), io.BytesIO())
    return buffer.getvalue()


# kind, name, content, code, and what the message says: of archives nothing is opened, so members' names do no harm
WRONG = [
    ("jsonl", "x.jsonl", gzip.compress(GOOD), "E-RAW-15", "holds gzip.* plain text"),
    ("jsonl", "x.jsonl", b"\x28\xb5\x2f\xfd" + GOOD, "E-RAW-15", "holds zstd.* plain text"),
    ("jsonl", "x.jsonl.gz", GOOD, "E-RAW-15", "neither .* read as gzip"),
    ("jsonl", "x.jsonl.zst", GOOD, "E-RAW-15", "neither .* read as zstd"),
    ("jsonl", "x.jsonl.zst", gzip.compress(GOOD), "E-RAW-15", "holds gzip.* read as zstd"),
    ("jsonl", "x.jsonl", b"PAR1" + GOOD, "E-RAW-15", "holds parquet.* plain text"),
    ("jsonl", "x.jsonl", bz2.compress(GOOD), "E-RAW-15", "holds bzip2.* plain text"),
    ("jsonl", "x.jsonl", lzma.compress(GOOD), "E-RAW-15", "holds xz.* plain text"),
    ("jsonl", "x.jsonl.bz2", bz2.compress(GOOD), "E-RAW-15", "bzip2 by its name"),
    ("jsonl", "x.jsonl.XZ", lzma.compress(GOOD), "E-RAW-15", "xz by its name"),
    ("jsonl", "x.jsonl.gz", b"\x1f", "E-RAW-15", "neither"),
    ("parquet", "x.parquet", GOOD, "E-RAW-15", "neither .* read as parquet"),
    ("parquet", "x.parquet.gz", gzip.compress(GOOD), "E-RAW-15", "gzip by its name.* .parquet"),
    ("text", "x.txt.gz", gzip.compress(GOOD), "E-RAW-15", "gzip by its name.* text"),
    ("jsonl", "x.jsonl", archive("zip"), "E-RAW-17", "zip archive"),
    ("jsonl", "y.jsonl", archive("tar"), "E-RAW-17", "tar archive"),
    ("jsonl", "z.jsonl", b"7z\xbc\xaf\x27\x1c", "E-RAW-17", "7z archive"),
    ("jsonl", "x.zip", archive("zip"), "E-RAW-17", "archive by its name"),
    ("jsonl", "x.tar", archive("tar"), "E-RAW-17", "archive by its name"),
    ("jsonl", "x.tar.gz", gzip.compress(archive("tar")), "E-RAW-17", "archive by its name"),
    ("jsonl", "x.TGZ", gzip.compress(archive("tar")), "E-RAW-17", "archive by its name"),
    ("jsonl", "x.7z", GOOD, "E-RAW-17", "archive by its name"),
]


@pytest.mark.parametrize(
    ("kind", "name", "content", "code", "what"), WRONG, ids=lambda value: "" if isinstance(value, bytes) else None
)
def test_not_what_its_name_says(tmp_path: Path, kind: str, name: str, content: bytes, code: str, what: str) -> None:
    (tmp_path / name).write_bytes(content)
    text = complaint(source_of(tmp_path / name, kind=kind))
    assert re.match(rf"{code} {tmp_path}/{name}: .*{what}", text), text


@pytest.mark.parametrize("kind", ["jsonl", "text"])
def test_the_same_file_twice(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    (tmp_path / "b.jsonl").symlink_to("a.jsonl")
    os.link(tmp_path / "a.jsonl", tmp_path / "c.jsonl")
    (tmp_path / "folder").symlink_to(".")
    twice = [("a.jsonl", "a.jsonl"), ("a.jsonl", "b.jsonl"), ("b.jsonl", "c.jsonl"), ("a*.jsonl", "*a.jsonl")]
    for paths in [*twice, ("./a.jsonl", str(tmp_path / "a.jsonl")), ("a.jsonl", "folder/a.jsonl")]:
        text = complaint(source_of(*paths, kind=kind))
        assert text.startswith("E-RAW-20 ") and "corpus.sources.mine.files" in text


def test_sorted_and_numbered(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c[1].jsonl", "deep/d.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(GOOD + name.encode())
    names = ["a.jsonl", "b.jsonl", "c[1].jsonl", "d.jsonl"]
    patterns = (tmp_path / "[ba].jsonl", tmp_path / "c[1].jsonl")
    (texts,) = inputs("mine", source_of(tmp_path / "deep" / "**", *patterns, kind="text"))
    assert [Path(path).name for path in texts.files] == names
    listing = inputs("mine", source_of(tmp_path / "deep" / "*", *patterns))
    assert [(i.source, i.number, Path(i.path).name) for i in listing] == [("mine", n, x) for n, x in enumerate(names)]
    assert [i.size for i in listing] == [len(GOOD) + len(str(Path(i.path).relative_to(tmp_path))) for i in listing]


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
