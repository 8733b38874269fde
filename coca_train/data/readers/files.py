"""Files of a source: found, sorted, and refused early when they are not what their reader needs.

A folder is listed with the folders in it, and each file is read as its ending says. Files that cannot be read (other
endings, hidden or empty files, compressed text) are skipped and counted. Links are followed, each file and folder once.
"""

import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from coca_train.config.corpus_schema import CorpusSourceConfig
from coca_train.data.provenance import FILE, Origin
from coca_train.data.readers.base import Input, escape, raise_unreadable
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import n_bytes

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
        """Raise DataError E-RAW-19 when size, time of change or identity of the file are others than at first."""
        if self._state() != self.before:
            self._changed("was read")

    def _state(self) -> tuple[int, int, int] | None:
        try:
            state = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise_unreadable(self.path, error)
        return state.st_size, state.st_mtime_ns, state.st_ino

    def _changed(self, when: str) -> None:
        now = self._state()
        what = "was removed" if now is None else f"changed (now {now[0]} bytes)"
        raise DataError(
            f"E-RAW-19 {escape(self.path)}: {what} after it {when}. Fix: wait until it is written, then start again"
        )


def content(head: bytes) -> str | None:
    """Return what the first bytes of a file (512 are enough) say it is; None: unknown, so perhaps text."""
    if head[257:262] == b"ustar":
        return "a tar archive"
    if zstd_skippable(head):
        return "zstd"
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)


def zstd_skippable(head: bytes) -> bool:
    """Return whether a zstd frame without data begins here; pzstd and seekable zstd write them (RFC 8878, 3.1.2)."""
    return head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5


def compression(path: str) -> str | None:
    """Return the compression that a file's name says: gzip, zstd, ...; None: not compressed."""
    return COMPRESSED.get(Path(path).suffix.lower())


def inputs(name: str, source: CorpusSourceConfig) -> list[Input]:
    """Return an input for each file, or one for all files of a text source. Raises DataError as `readers.inputs`."""
    paths = sorted(path for pattern in source.files for path in _matching(pattern, source.kind))
    if not paths:
        raise _nothing(name, "files is empty", "at least one path")
    seen: dict[tuple[int, int], str] = {}
    sizes = [_check_once(name, path, source.kind, seen) for path in paths]
    if source.kind == "text":
        return [Input(name, 0, " ".join(source.files), sum(sizes), files=tuple(paths))]
    return [Input(name, number, path, size) for number, (path, size) in enumerate(zip(paths, sizes, strict=True))]


def _check_once(name: str, path: str, kind: str, seen: dict[tuple[int, int], str]) -> int:
    """Check a file and return its size [bytes]. seen: the files before, to which it is added."""
    state = _check(path, kind)
    key = state.st_dev, state.st_ino
    if key in seen:
        raise DataError(
            f"E-RAW-20 {escape(path)}: is the same file as {escape(seen[key])}; each file may be read once. "
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
        raise _nothing(escape(pattern), f"matches nothing in {escape(os.getcwd())}", KINDS[kind])
    yield from paths


def _nothing(where: str, what: str, needed: str) -> DataError:
    return DataError(f"E-RAW-01 {where}: {what}; {needed} is needed. Fix: check files= of the source")


def _check(path: str, kind: str) -> os.stat_result:
    """Check that a file is a regular one, and what its name and first bytes say."""
    where = escape(path)
    try:
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode):
            what, fix = "a pipe, socket or device", "copy it to a file"
            if stat.S_ISDIR(state.st_mode):
                what, fix = "a folder", f"name the files in it, as in '{where}/*'"
            raise DataError(f"E-RAW-02 {where}: is {what}; a regular file is needed. Fix: {fix}")
        if path.lower().endswith(ARCHIVES):
            raise _archive(where, "an archive by its name", kind)
        packed = compression(path)
        if packed is not None and not (kind == "jsonl" and packed in ("gzip", "zstd")):
            raise DataError(f"E-RAW-15 {where}: {packed} by its name; {KINDS[kind]} is needed. Fix: decompress it")
        if kind == "text":  # its files may be millions: opened when they are read
            if not os.access(path, os.R_OK):
                raise PermissionError(13, "Permission denied")
            return state
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise_unreadable(path, error)
    actual, expected = content(head), "parquet" if kind == "parquet" else packed
    if actual is not None and actual.endswith("archive"):
        raise _archive(where, actual, kind)
    if head and actual != expected:
        raise DataError(
            f"E-RAW-15 {where}: holds {actual or 'neither gzip nor zstd nor parquet'}, but is read as "
            f"{expected or 'plain text'} (it begins {head[:4].hex(' ')}). Fix: rename the file, or copy it again"
        )
    return state


def _archive(where: str, what: str, kind: str) -> DataError:
    return DataError(f"E-RAW-17 {where}: is {what}; {KINDS[kind]} is needed. Fix: unpack it")


Kind = Literal["auto", "jsonl", "parquet", "text", "folder", "hub"]
OfFile = Literal["jsonl", "parquet", "text"]
ENDINGS: dict[str, OfFile] = {".jsonl": "jsonl", ".parquet": "parquet", ".txt": "text", ".md": "text"}
PACKED = (".gz", ".zst")


def ending(path: str) -> str:
    """Return the ending without compression: .jsonl of raw/*.jsonl.gz."""
    name = Path(path)
    return Path(name.stem if name.suffix.lower() in PACKED else name.name).suffix.lower()


def kind_of_file(path: str) -> OfFile | Literal["auto"]:
    """Return how a path or pattern is read by its ending; auto: the ending does not say."""
    return ENDINGS.get(ending(path), "auto")


# Bytes of text in one on the disk, roughly: what is decided by the size of a text is decided before it is read.
UNPACKED = 3
MOST_NAMED = 6


class File(NamedTuple):
    """A file that can be read. path: from the folder on; size [bytes]."""

    path: str
    kind: OfFile
    size: int
    mtime_ns: int

    @property
    def ending(self) -> str:
        """.jsonl.gz"""
        packed = Path(self.path).suffix.lower()
        return ending(self.path) + (packed if packed in PACKED else "")


class Listing(NamedTuple):
    """What a folder holds. skipped: how many files by ending, or by why."""

    folder: str
    files: tuple[File, ...]
    skipped: dict[str, int]

    @property
    def text_bytes(self) -> int:
        """Size of the text [bytes], by the sizes of the files."""
        return sum(text_bytes(file.path, file.size) for file in self.files)

    def describe(self) -> str:
        """12 files, 5.2 MB: 5 .txt, 4 .jsonl.gz, 3 .parquet; skipped 2: 2 .png"""
        counts, size = Counter(file.ending for file in self.files), n_bytes(sum(file.size for file in self.files))
        text = f"{len(self.files):,} file{'s' if len(self.files) > 1 else ''}, {size}: {_join(counts)}"
        left_out = sum(self.skipped.values())
        return text + (f"; skipped {left_out:,}: {_join(self.skipped)}" if left_out else "")


def text_bytes(path: str, size: int) -> int:
    """Estimate how much text a file of this size holds [bytes]."""
    packed = path.lower().endswith((*PACKED, ".parquet"))
    return UNPACKED * size if packed else size


def _join(counts: dict[str, int]) -> str:
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    more = sum(count for _, count in rows[MOST_NAMED:])
    named = ", ".join(f"{count:,} {escape(name)}" for name, count in rows[:MOST_NAMED])
    return named + (f", {more:,} more" if more else "")


def listing(folder: str, option: str) -> Listing:
    """List a folder by names, sizes and times. option: where the folder was set, for messages.

    Raises DataError E-RAW-01 (not there, empty, nothing in it can be read), E-RAW-02 (no folder, or one that cannot be
    opened).
    """
    where = f"{option}={escape(folder)}"
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            parent = escape(os.path.dirname(folder) or ".")
            raise DataError(
                f"E-RAW-02 {where}: is a file; the folder that holds the texts is needed. Fix: {option}={parent} reads "
                "every text in that folder; else put the file into a folder of its own"
            )
    except FileNotFoundError:
        what = f"there is no such folder (looked from {escape(os.getcwd())})"
        raise DataError(f"E-RAW-01 {where}: {what}. Fix: check its name") from None
    except OSError as error:
        raise_unreadable(folder, error)
    skipped: Counter[str] = Counter()
    files = tuple(sorted(_files(folder, skipped)))
    if not files:
        holds = f"holds no text that can be read ({_join(skipped)})" if skipped else "is empty"
        raise DataError(
            f"E-RAW-01 {where}: {holds}; read are {', '.join(ENDINGS)}, and .jsonl as .jsonl.gz and .jsonl.zst. Fix: "
            "convert the texts to one of these, or name another folder"
        )
    return Listing(folder, files, dict(skipped))


def _files(folder: str, skipped: Counter[str]) -> Iterator[File]:
    """Yield the files that can be read; count the others in `skipped`, by why."""
    seen: set[tuple[int, int]] = set()

    def refuse(error: OSError) -> None:
        raise_unreadable(error.filename or folder, error)

    def is_new(state: os.stat_result) -> bool:
        key, n_seen = (state.st_dev, state.st_ino), len(seen)
        seen.add(key)
        return len(seen) > n_seen

    for top, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if not is_new(os.stat(top)):
            folders.clear()  # a link leads back, or to what was read already
            skipped["linked twice"] += 1
            continue
        if hidden := sum(name.startswith(".") for name in (*folders, *names)):
            skipped["hidden"] += hidden
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path, suffix, kind = os.path.join(top, name), Path(name).suffix.lower(), kind_of_file(name)
            packed = suffix in PACKED
            if kind == "auto" or (packed and kind != "jsonl"):
                skipped[(ending(name) + suffix if packed else suffix) or "without ending"] += 1
                continue
            try:
                state = os.stat(path)
            except FileNotFoundError:
                skipped["dead link"] += 1
                continue
            except OSError as error:
                raise_unreadable(path, error)
            if not stat.S_ISREG(state.st_mode):
                skipped["no regular file"] += 1
            elif not state.st_size:
                skipped["empty"] += 1
            elif not is_new(state):
                skipped["linked twice"] += 1
            else:
                yield File(os.path.relpath(path, folder), kind, state.st_size, state.st_mtime_ns)


def folder_inputs(name: str, folders: Sequence[str]) -> list[Input]:
    """Return one input for all text files of each folder, and one for each other file; each file is checked.

    Raises DataError as `listing` and `inputs` do.
    """
    every: list[Input] = []
    for folder in folders:
        files = listing(folder, f"corpus.sources.{name}.files").files
        every += [Input(name, 0, os.path.join(folder, f.path), f.size) for f in files if f.kind != "text"]
        if texts := [file for file in files if file.kind == "text"]:
            paths = tuple(os.path.join(folder, file.path) for file in texts)
            # Its path ends as no file's does, so that nobody takes it for one of what its folder is named after.
            every.append(Input(name, 0, os.path.join(folder, ""), sum(file.size for file in texts), files=paths))
    seen: dict[tuple[int, int], str] = {}
    for input in every:
        for path in input.files or (input.path,):
            _check_once(name, path, kind_of_input(input.path), seen)
    return [replace(input, number=number) for number, input in enumerate(every)]


@cache
def _texts(folder: str) -> list[str]:
    return [os.path.join(folder, file.path) for file in listing(folder, "files").files if file.kind == "text"]


def describe_origin(origin: Origin) -> str:
    """Say where a document was read; a file of a folder by its name, where the folder holds as many files as then."""
    if origin.unit == FILE and os.path.isdir(origin.input):
        with suppress(DataError):
            if len(names := _texts(origin.input)) == origin.n_files:
                return names[origin.line - 1]
    return str(origin)


def kind_of_input(path: str) -> OfFile:
    """Return how an input of a folder is read."""
    return "text" if path.endswith(os.sep) else ENDINGS[ending(path)]
