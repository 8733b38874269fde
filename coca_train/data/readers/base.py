"""What readers return: inputs, chunks of them, and documents or rejects out of a chunk.

The main process cuts an input into chunks (cheap, no parsing), a worker makes documents of a chunk. A bad document is a
`Reject`, which may be skipped; a damaged file is a DataError raised by `chunks` at once, which may not.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, NoReturn, TypeVar

from coca_train.config.corpus_schema import CorpusSourceConfig, WorkConfig
from coca_train.runtime.errors import DataError, UserError

Data = TypeVar("Data")
Cursor = dict[str, int]  # JSON: where reading goes on; its keys are the reader's
Identity = dict[str, object]  # JSON that identifies an input later
BOM = b"\xef\xbb\xbf"
SHOWN_CHARACTERS = 80
EDGE_BYTES = 1 << 16
FIXES = {
    "E-RAW-04": "mend or remove the line",
    "E-RAW-05": "write one object a line",
    "E-RAW-06": "set text_field, id_field or join_field to a field that every record has, or mend the record",
    "E-RAW-07": "remove one of the two",
    "E-RAW-08": "write null or a number",
    "E-RAW-09": "remove the field that holds it",
    "E-RAW-10": "convert the file to UTF-8",
    "E-RAW-11": "write proper Unicode",
    "E-RAW-12": "remove the NUL characters, or convert the file to UTF-8",
    "E-RAW-13": "split the document, or raise work.max_line_bytes",
}


class Document(NamedTuple):
    """One text. line: line, row or file number from 1; fields: the record it comes from; of a text file, its folder."""

    line: int
    text: str
    id: str | None
    fields: Mapping[str, object]


class Reject(NamedTuple):
    """A document that cannot be used. byte: where its line begins in the decompressed file, if that is known.

    reason: what is wrong, with the value; what is needed. excerpt: of the data, escaped, at most 80 characters.
    path: the file, where it is not the input itself (text folders).
    """

    line: int
    byte: int | None
    code: str
    reason: str
    excerpt: str
    path: str | None = None

    def error(self, input_path: str) -> DataError:
        """Return the error that work.on_error=stop ends with."""
        where = escape(self.path) if self.path else f"{escape(input_path)}:{self.line}"
        excerpt = f": {self.excerpt}" if self.excerpt else ""
        return DataError(f"{self.code} {where}: {self.reason}{excerpt}. Fix: {FIXES[self.code]}; or work.on_error=skip")


@dataclass(frozen=True)
class Input:
    """What is read from its beginning to its end by one process: a file, a folder of texts, or a shard of a data set.

    path: what is opened, and what messages show; size: bytes on disk, 0 = unknown.
    files: the files of a text source; hub: the record that names a shard of a data set.
    """

    source: str
    number: int
    path: str
    size: int
    files: tuple[str, ...] = ()
    hub: tuple[tuple[str, object], ...] = ()

    def identity(self) -> Identity:
        """Return name, size, time of change, and a digest.

        file: SHA-256 of its first and last 64 KiB; text source: of the names, sizes and times of all its files;
        shard: the data set's name, configuration, split, shard and fingerprint. Raises DataError E-RAW-02.
        """
        if self.hub:
            return dict(self.hub)
        sha = hashlib.sha256()
        try:
            if self.files:
                size = newest = 0
                for path in self.files:
                    stat = os.stat(path)
                    sha.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
                    size, newest = size + stat.st_size, max(newest, stat.st_mtime_ns)
                return {
                    "name": self.path,
                    "files": len(self.files),
                    "bytes": size,
                    "mtime_ns": newest,
                    "sha256": sha.hexdigest(),
                }
            with open(self.path, "rb") as file:
                stat = os.fstat(file.fileno())
                sha.update(file.read(EDGE_BYTES))
                file.seek(max(0, stat.st_size - EDGE_BYTES))
                sha.update(file.read(EDGE_BYTES))
        except OSError as error:
            raise_unreadable(path if self.files else self.path, error)
        return {
            "name": os.path.basename(self.path),
            "bytes": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            "sha256": sha.hexdigest(),
        }


@dataclass(frozen=True)
class Chunk(Generic[Data]):
    """Consecutive lines of an input, as they go to a worker.

    first: number of the first line, from 1; n_bytes: raw text bytes; position: bytes of the file on disk read so far;
    data: what the reader's `documents` understands (picklable); after: where the next one begins.
    """

    first: int
    n_bytes: int
    position: int
    data: Data
    after: Cursor


def excerpt(text: str | bytes) -> str:
    """Return the beginning of a text, at most 80 characters, with everything escaped that could move a cursor."""
    if isinstance(text, bytes):
        text = text[: 4 * SHOWN_CHARACTERS].decode("utf-8", "backslashreplace")
    escaped = repr(text[:SHOWN_CHARACTERS])
    return escaped if len(escaped) <= SHOWN_CHARACTERS else escaped[: SHOWN_CHARACTERS - 3] + "..."


def escape(path: str | Path) -> str:
    """Return a path or a foreign message as it is when all of it is printable, else escaped."""
    text = str(path)
    return text if text.isprintable() else repr(text)[1:-1]


def raise_unreadable(path: str | Path, error: OSError) -> NoReturn:
    """Raise DataError E-RAW-02."""
    what = error.strerror or escape(str(error))
    raise DataError(f"E-RAW-02 {escape(path)}: cannot be read: {what}. Fix: check its mode and its disk") from error


def no_documents(path: str, what: str, fix: str = "check the files of the source") -> DataError:
    """Return the error for an input without a document. what: it has instead."""
    return DataError(f"E-RAW-03 {escape(path)}: holds no documents ({what}). Fix: {fix}")


def cursor_beyond(path: str, what: str) -> DataError:
    """Return the error for an input that does not have the place where an earlier run stopped. what: it has instead."""
    return DataError(
        f"E-RAW-26 {escape(path)}: {what}, where the earlier run stopped; the input it read is needed. Fix: bring that "
        "one back, or start again in another corpus.dir"
    )


@contextmanager
def package_needed(name: str, reads: str) -> Iterator[None]:
    """Import a package of the extra `data` in this context. Raises UserError E-RAW-25."""
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"E-RAW-25 {name}: cannot be imported ({error}); it reads {reads}. Fix: pip install 'coca-train[data]'"
        ) from error


def field(record: object, dotted: str) -> object:
    """Return record["meta"]["lang"] for "meta.lang". Raises KeyError with a reason in words."""
    name = ""
    for key in dotted.split("."):
        if not isinstance(record, dict):
            raise KeyError(f"'{name}' is {kind_of(record)}, so it has no field {key!r}")
        name = f"{name}.{key}" if name else key
        if key not in record:
            keys = excerpt(", ".join(map(str, list(record)[:10])) or "none")
            raise KeyError(f"no field '{name}' (its fields: {keys})")
        record = record[key]
    return record


def kind_of(value: object) -> str:
    """Return JSON's word for a value's type."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")


def no_field(line: int, byte: int | None, error: KeyError, name: str) -> Reject:
    """Return the Reject of a record without a field (E-RAW-06). error: as `field` raised it."""
    return Reject(line, byte, "E-RAW-06", f"{error.args[0]}; '{name}' is needed in every record", "")


def document(
    line: int, byte: int | None, record: Mapping[str, object], source: CorpusSourceConfig
) -> Document | Reject:
    """Return text and id of a record, or a Reject: E-RAW-06 (missing, null, not text), 11 (lone surrogate), 12
    (NUL)."""
    values: list[str | None] = []
    for name in (source.text_field, source.id_field):
        if name is None:
            values.append(None)
            continue
        is_id = bool(values)
        try:
            value = field(record, name)
        except KeyError as error:
            return no_field(line, byte, error, name)
        if isinstance(value, bool) or not isinstance(value, str | int if is_id else str):
            wanted = "text or a whole number is needed" if is_id else "text is needed"
            # Of numbers alone: objects and lists may be large and deep.
            shown = excerpt(str(value)) if isinstance(value, int | float) else ""
            return Reject(line, byte, "E-RAW-06", f"'{name}' is {kind_of(value)}; {wanted}", shown)
        if fault := text_fault(line, byte, str(value), f" of '{name}'"):
            return fault
        values.append(str(value))
    text, identity = values
    assert text is not None
    return Document(line, text, identity, record)


def row_document(
    row: int, record: Mapping[str, object], source: CorpusSourceConfig, work: WorkConfig
) -> Document | Reject:
    """Return `document` of a table's row, or Reject E-RAW-13 when its text is longer than work.max_line_bytes."""
    item = document(row, None, record, source)
    if isinstance(item, Document) and 4 * len(item.text) > work.max_line_bytes:
        n_bytes = len(item.text.encode())
        if n_bytes > work.max_line_bytes:
            return too_long(row, None, "a text", n_bytes, work, excerpt(item.text))
    return item


def too_long(line: int, byte: int | None, what: str, n_bytes: int, work: WorkConfig, start: str) -> Reject:
    """Return the Reject of a document that is too long (E-RAW-13)."""
    reason = f"{what} of {n_bytes} bytes; at most work.max_line_bytes={work.max_line_bytes} are read"
    return Reject(line, byte, "E-RAW-13", reason, start)


def text_fault(line: int, byte: int | None, text: str, of: str = "") -> Reject | None:
    """Return what is wrong with a decoded text: NUL characters (E-RAW-12) or lone surrogates (E-RAW-11)."""
    at = text.find("\0")
    if at >= 0:
        reason = f"NUL character at character {at + 1}{of}; text without NUL is needed"
        return Reject(line, byte, "E-RAW-12", reason, excerpt(text[max(0, at - 20) :]))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        reason = f"a lone surrogate at character {error.start + 1}{of}; text that UTF-8 can hold is needed"
        return Reject(line, byte, "E-RAW-11", reason, excerpt(text[max(0, error.start - 20) :]))
    return None
