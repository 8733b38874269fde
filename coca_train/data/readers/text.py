"""Text files, each one document: its id is its path, its number the place in the sorted list of files.

The main process distributes paths; a worker opens the files. Cursor: {"file": number of the next file}.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from coca_train.config.corpus_schema import CorpusSourceConfig, WorkConfig
from coca_train.data.readers import base
from coca_train.data.readers.base import BOM, Chunk, Cursor, Document, Input, Reject, excerpt
from coca_train.data.readers.files import Watched

MAX_FILES_PER_CHUNK = 1000  # empty files fill no chunk
FOLDER = "folder"  # the one field of a text file: the folder that it lies in


class File(NamedTuple):
    """A file for a worker to read. size [bytes]."""

    number: int
    path: str
    size: int


def chunks(
    input: Input, source: CorpusSourceConfig, work: WorkConfig, cursor: Cursor | None
) -> Iterator[Chunk[list[File]]]:
    """Yield files of about work.chunk_bytes together. Raises as `readers.chunks` says."""
    start, n_files = cursor["file"] if cursor else 1, len(input.files)
    if start > n_files + 1:
        raise base.cursor_beyond(input.path, f"has {n_files} files, and the cursor is file {start}")
    if not input.size:
        raise base.no_documents(input.path, f"{n_files} files, all empty")
    position = sum(map(_size, input.files[: start - 1]))
    held: list[File] = []
    n_bytes = 0
    for number, path in enumerate(input.files[start - 1 :], start):
        held.append(File(number, path, _size(path)))
        n_bytes += held[-1].size
        if n_bytes >= work.chunk_bytes or len(held) == MAX_FILES_PER_CHUNK or number == n_files:
            position += n_bytes
            yield Chunk(held[0].number, n_bytes, position, held, {"file": number + 1})
            held, n_bytes = [], 0


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        base.raise_unreadable(path, error)


def documents(
    path: str, source: CorpusSourceConfig, work: WorkConfig, chunk: Chunk[list[File]]
) -> Iterator[Document | Reject]:
    """Yield the text of every file, in order. Raises DataError E-RAW-02 unreadable, 19 changed since it was listed."""
    for file in chunk.data:
        if file.size > work.max_line_bytes:
            yield base.too_long(file.number, None, "a file", file.size, work, "")._replace(path=file.path)
            continue
        watched = Watched(file.path, file.size)
        try:
            with open(file.path, "rb") as opened:
                data = opened.read(file.size + 1).removeprefix(BOM)
        except OSError as error:
            base.raise_unreadable(file.path, error)
        watched.check()
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            code, what = "E-RAW-10", f"invalid UTF-8 at byte {error.start}"
            if data.startswith((b"\xff\xfe", b"\xfe\xff")):
                code, what = "E-RAW-12", "UTF-16 or UTF-32"
            start = excerpt(data[max(0, error.start - 40) :])
            yield Reject(file.number, error.start, code, f"{what}; UTF-8 text is needed", start, file.path)
        else:
            fault = base.text_fault(file.number, None, text)
            fields = {FOLDER: os.path.dirname(file.path)}
            yield fault._replace(path=file.path) if fault else Document(file.number, text, file.path, fields)
