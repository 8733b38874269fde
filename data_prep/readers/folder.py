"""A folder of texts of any kind, folders in it included: each file is read as its ending says.

What cannot be read is passed over and said: other endings, hidden and empty files, packed text. Links are followed,
each file and folder once.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from coca_train.data.provenance import FILE, Origin
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import n_bytes
from data_prep.readers.base import Input, shown, unreadable
from data_prep.readers.endings import ENDINGS, PACKED, OfFile, ending, kind_of_file

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
        read = _counted(Counter(file.ending for file in self.files))
        size = n_bytes(sum(file.size for file in self.files))
        text = f"{len(self.files):,} file{'s' if len(self.files) > 1 else ''}, {size}: {read}"
        left_out = sum(self.skipped.values())
        return text + (f"; skipped {left_out:,}: {_counted(self.skipped)}" if left_out else "")


def text_bytes(path: str, size: int) -> int:
    """About how much text a file of this size holds [bytes]."""
    packed = path.lower().endswith((*PACKED, ".parquet"))
    return UNPACKED * size if packed else size


def _counted(counts: dict[str, int]) -> str:
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    more = sum(count for _, count in rows[MOST_NAMED:])
    return ", ".join(f"{count:,} {shown(name)}" for name, count in rows[:MOST_NAMED]) + (
        f", {more:,} more" if more else ""
    )


def listing(folder: str, option: str) -> Listing:
    """What is in a folder; only names, sizes and times are looked at. option: where the folder was set, for messages.

    Raises DataError E-RAW-01 (not there, empty, nothing in it can be read), E-RAW-02 (no folder, or one that cannot be
    looked into).
    """
    where = f"{option}={shown(folder)}"
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            parent = shown(os.path.dirname(folder) or ".")
            raise DataError(
                f"E-RAW-02 {where}: is a file; the folder that holds the texts is needed. Fix: {option}={parent} reads "
                "everything that lies beside it; else put the file into a folder of its own"
            )
    except FileNotFoundError:
        raise DataError(
            f"E-RAW-01 {where}: there is no such folder (looked from {shown(os.getcwd())}). Fix: check its name"
        ) from None
    except OSError as error:
        unreadable(folder, error)
    skipped: Counter[str] = Counter()
    files = tuple(sorted(_files(folder, skipped)))
    if not files:
        n = sum(skipped.values())
        holds = f"holds no text that can be read ({_counted(skipped)})" if n else "is empty"
        raise DataError(
            f"E-RAW-01 {where}: {holds}; read are {', '.join(ENDINGS)}, and .jsonl as .jsonl.gz and .jsonl.zst. Fix: "
            "convert the texts to one of these, or name another folder"
        )
    return Listing(folder, files, dict(skipped))


def _files(folder: str, skipped: Counter[str]) -> Iterator[File]:
    seen: set[tuple[int, int]] = set()

    def refuse(error: OSError) -> None:
        unreadable(error.filename or folder, error)

    for top, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if not _first_time(os.stat(top), seen):
            folders.clear()  # a link leads back here, or to what was read already
            skipped["linked twice"] += 1
            continue
        skipped["hidden"] += sum(name.startswith(".") for name in (*folders, *names))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                path = os.path.join(top, name)
                why, state = _look(path, seen)
                if state is None:
                    skipped[why] += 1
                else:
                    kind = ENDINGS[ending(name)]
                    yield File(os.path.relpath(path, folder), kind, state.st_size, state.st_mtime_ns)
    for why in [why for why, count in skipped.items() if not count]:
        del skipped[why]


def _look(path: str, seen: set[tuple[int, int]]) -> tuple[str, os.stat_result | None]:
    """Why a file is passed over, and None; or its state."""
    kind = kind_of_file(path)
    suffix = Path(path).suffix.lower()
    packed = suffix in PACKED
    if kind == "auto" or (packed and kind != "jsonl"):
        return (ending(path) + suffix if packed else suffix) or "without ending", None
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return "dead link", None
    except OSError as error:
        unreadable(path, error)
    if not stat.S_ISREG(state.st_mode):
        return "no regular file", None
    if not state.st_size:
        return "empty", None
    return ("", state) if _first_time(state, seen) else ("linked twice", None)


def _first_time(state: os.stat_result, seen: set[tuple[int, int]]) -> bool:
    key = state.st_dev, state.st_ino
    is_new = key not in seen
    seen.add(key)
    return is_new


def inputs(name: str, folders: Sequence[str]) -> list[Input]:
    """For each folder an input for all its texts, and one for each other file. Raises DataError as `listing` does."""
    every: list[Input] = []
    for folder in folders:
        files = listing(folder, f"corpus.sources.{name}.files").files
        texts = [file for file in files if file.kind == "text"]
        others = [file for file in files if file.kind != "text"]
        every += [Input(name, 0, os.path.join(folder, file.path), file.size) for file in others]
        if texts:
            paths = tuple(os.path.join(folder, file.path) for file in texts)
            # Its path ends as no file's does, so that nobody takes it for one of what its folder is named after.
            every.append(Input(name, 0, os.path.join(folder, ""), sum(file.size for file in texts), files=paths))
    return [replace(input, number=number) for number, input in enumerate(every)]


@cache
def _texts(folder: str) -> list[str]:
    return [os.path.join(folder, file.path) for file in listing(folder, "files").files if file.kind == "text"]


def in_words(origin: Origin) -> str:
    """Where a document was read; a file of a folder by its name, where the folder has as many as it had."""
    if origin.unit == FILE and os.path.isdir(origin.input):
        with suppress(DataError):
            if len(names := _texts(origin.input)) == origin.n_files:
                return names[origin.line - 1]
    return str(origin)


def kind_of_input(path: str) -> OfFile:
    """How an input of `inputs` is read."""
    return "text" if path.endswith(os.sep) else ENDINGS[ending(path)]
