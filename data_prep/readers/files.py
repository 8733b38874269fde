"""Files of a source: found, sorted, and refused early when they are not what the reader needs."""

import glob
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from coca_train.runtime.errors import DataError
from data_prep.readers.base import Input, shown, unreadable
from data_prep.readers.folder import kind_of_input
from data_prep.schema import CorpusSourceConfig

ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar", ".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz")
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bzip2", ".xz": "xz", ".lz4": "lz4"}
MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    b"PAR1": "parquet",
    b"PK\x03\x04": "a zip archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a rar archive",
}
HEAD_BYTES = 512
KINDS = {"jsonl": "a .jsonl, .jsonl.gz or .jsonl.zst file", "parquet": "a .parquet file", "text": "a text file"}


class Watched:
    """A file that must not change while it is read."""

    def __init__(self, path: str, size: int) -> None:
        """size: bytes it had when it was listed. Raises DataError E-RAW-19."""
        self.path = path
        self.before = self._state()
        if self.before is None or self.before[0] != size:
            self._changed(f"had {size} bytes when it was listed")

    def check(self) -> None:
        """Raises DataError E-RAW-19 when size, time of change or identity of the file are others than at first."""
        if self._state() != self.before:
            self._changed("was read")

    def _state(self) -> tuple[int, int, int] | None:
        try:
            state = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            unreadable(self.path, error)
        return state.st_size, state.st_mtime_ns, state.st_ino

    def _changed(self, when: str) -> None:
        now = self._state()
        what = "was removed" if now is None else f"changed (now {now[0]} bytes)"
        raise DataError(
            f"E-RAW-19 {shown(self.path)}: {what} after it {when}; a file that stays as it is, is needed. "
            "Fix: wait until it is written, then start anew"
        )


def content(head: bytes) -> str | None:
    """What the first bytes of a file (512 are enough) say it is; None = nothing known, so perhaps text."""
    if head[257:262] == b"ustar":
        return "a tar archive"
    if zstd_skippable(head):
        return "zstd"
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)


def zstd_skippable(head: bytes) -> bool:
    """Whether a zstd frame begins here that holds no data; pzstd and seekable zstd write them (RFC 8878, 3.1.2)."""
    return head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5


def compression(path: str) -> str | None:
    """gzip, zstd, ... by the name of a file; None = not compressed."""
    return COMPRESSED.get(Path(path).suffix.lower())


def inputs(name: str, source: CorpusSourceConfig) -> list[Input]:
    """One input a file, or one for all files of a text source. Raises DataError as `data_prep.readers.inputs` says."""
    paths = sorted(path for pattern in source.files for path in _matching(pattern, source.kind))
    if not paths:
        raise _nothing(name, "files is empty", "at least one path")
    seen: dict[tuple[int, int], str] = {}
    sizes = [_once(name, path, source.kind, seen) for path in paths]
    if source.kind == "text":
        return [Input(name, 0, " ".join(source.files), sum(sizes), files=tuple(paths))]
    return [Input(name, number, path, size) for number, (path, size) in enumerate(zip(paths, sizes, strict=True))]


def checked(name: str, inputs: list[Input]) -> list[Input]:
    """The inputs of folders, each file of them looked at as `inputs` does."""
    seen: dict[tuple[int, int], str] = {}
    for input in inputs:
        for path in input.files or (input.path,):
            _once(name, path, kind_of_input(input.path), seen)
    return inputs


def _once(name: str, path: str, kind: str, seen: dict[tuple[int, int], str]) -> int:
    """Size of a file that is what it should be [bytes]. seen: the files before, to which it is added."""
    state = _checked(path, kind)
    key = state.st_dev, state.st_ino
    if key in seen:
        raise DataError(
            f"E-RAW-20 {shown(path)}: is the same file as {shown(seen[key])}; each file may be read once. "
            f"Fix: remove one from corpus.sources.{name}.files"
        )
    seen[key] = path
    return state.st_size


def _matching(pattern: str, kind: str) -> Iterator[str]:
    if os.path.lexists(pattern):
        yield pattern
        return
    paths = glob.glob(pattern, recursive=True)
    if kind == "text":  # `**` matches folders too
        paths = [path for path in paths if not os.path.isdir(path)]
    if not paths:
        raise _nothing(shown(pattern), f"matches nothing in {shown(os.getcwd())}", KINDS[kind])
    yield from paths


def _nothing(where: str, what: str, needed: str) -> DataError:
    return DataError(f"E-RAW-01 {where}: {what}; {needed} is needed. Fix: check files= of the source")


def _checked(path: str, kind: str) -> os.stat_result:
    try:
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode):
            what = "a folder" if stat.S_ISDIR(state.st_mode) else "a pipe, socket or device"
            inside = (
                f"name the files in it, as in '{shown(path)}/*'" if stat.S_ISDIR(state.st_mode) else "copy it to a file"
            )
            raise DataError(f"E-RAW-02 {shown(path)}: is {what}; a regular file is needed. Fix: {inside}")
        _check_name(path, kind)
        if kind == "text":  # its files may be millions: opened when they are read
            if not os.access(path, os.R_OK):
                raise PermissionError(13, "Permission denied")
            return state
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        unreadable(path, error)
    if head:
        _check_head(path, kind, head)
    return state


def _check_name(path: str, kind: str) -> None:
    if path.lower().endswith(ARCHIVES):
        raise _archive(path, "an archive by its name", kind)
    readable = {"jsonl": ("gzip", "zstd")}.get(kind, ())
    packed = compression(path)
    if packed is not None and packed not in readable:
        raise DataError(f"E-RAW-15 {shown(path)}: {packed} by its name; {KINDS[kind]} is needed. Fix: decompress it")


def _check_head(path: str, kind: str, head: bytes) -> None:
    actual = content(head)
    if actual is not None and actual.endswith("archive"):
        raise _archive(path, actual, kind)
    expected = "parquet" if kind == "parquet" else compression(path)
    if actual != expected:
        raise DataError(
            f"E-RAW-15 {shown(path)}: holds {actual or 'neither gzip nor zstd nor parquet'}, but is read as "
            f"{expected or 'plain text'} (it begins {head[:4].hex(' ')}); name and content must agree. "
            "Fix: rename the file, or copy it again"
        )


def _archive(path: str, what: str, kind: str) -> DataError:
    return DataError(f"E-RAW-17 {shown(path)}: is {what}; {KINDS[kind]} is needed. Fix: unpack it")
