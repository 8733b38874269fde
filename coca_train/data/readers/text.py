"""Text files, each one document: its id is its path, its number the place in the sorted list of files.

The main process hands out paths; a worker opens the files. Cursor: {"file": number of the next file}.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from coca_train.config.corpus_schema import CorpusSourceConfig, WorkConfig
from coca_train.data.readers.base import (
    Chunk,
    Document,
    Input,
    Reader,
    Reject,
    escape,
    excerpt,
    raise_unreadable,
    text_fault,
    too_long,
)
from coca_train.data.readers.files import Watched
from coca_train.runtime.errors import DataError

BOM = b"\xef\xbb\xbf"
MAX_FILES_PER_CHUNK = 1000  # empty files fill no chunk


class File(NamedTuple):
    """A file for a worker to read. size [bytes]."""

    number: int
    path: str
    size: int


class TextFiles(Reader):
    """Read one file a document."""

    def chunks(
        self, input: Input, source: CorpusSourceConfig, work: WorkConfig, cursor: dict | None
    ) -> Iterator[Chunk]:
        """Yield files of about work.chunk_bytes together. Raises as `readers.chunks` says."""
        start = cursor["file"] if cursor else 1
        if start > len(input.files) + 1:
            raise DataError(
                f"E-RAW-26 {escape(input.path)}: has {len(input.files)} files, but the earlier run stopped at file "
                f"{start}; those files are needed. Fix: bring them back, or start again in another corpus.dir"
            )
        if not input.size:
            raise DataError(
                f"E-RAW-03 {escape(input.path)}: holds no documents ({len(input.files)} files, all empty); at least "
                "one is needed. Fix: check files= of the source"
            )
        position = sum(_size(path) for path in input.files[: start - 1])
        held: list[File] = []
        n_bytes = 0
        for number, path in enumerate(input.files[start - 1 :], start):
            held.append(File(number, path, _size(path)))
            n_bytes += held[-1].size
            if n_bytes >= work.chunk_bytes or len(held) == MAX_FILES_PER_CHUNK or number == len(input.files):
                position += n_bytes
                yield Chunk(held[0].number, n_bytes, position, held, {"file": number + 1})
                held, n_bytes = [], 0

    def documents(
        self, input_path: str, source: CorpusSourceConfig, work: WorkConfig, chunk: Chunk
    ) -> Iterator[Document | Reject]:
        """The text of every file, in order. Raises DataError E-RAW-02 unreadable, 19 changed since it was
        listed."""
        for file in chunk.data:
            if file.size > work.max_line_bytes:
                yield too_long(file.number, None, "a file", file.size, work, "")._replace(path=file.path)
                continue
            watched = Watched(file.path, file.size)
            try:
                with open(file.path, "rb") as opened:
                    data = opened.read(file.size + 1)
            except OSError as error:
                raise_unreadable(file.path, error)
            watched.check()
            yield _document(file, data.removeprefix(BOM))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise_unreadable(path, error)


def _document(file: File, data: bytes) -> Document | Reject:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        code, what = ("E-RAW-12", "UTF-16 or UTF-32") if wide else ("E-RAW-10", f"invalid UTF-8 at byte {error.start}")
        start = excerpt(data[max(0, error.start - 40) :])
        return Reject(file.number, error.start, code, f"{what}; UTF-8 text is needed", start, file.path)
    fault = text_fault(file.number, None, text)
    return fault._replace(path=file.path) if fault else Document(file.number, text, file.path, {})
