"""Documents out of a .jsonl or .jsonl.gz file (one JSON object a line) into a .bin/.idx pair."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coca_train.config.errors import DataError
from coca_train.data.indexed import IndexedWriter, best_dtype
from coca_train.data.tokenizer import Tokenizer

MAX_LINE_BYTES = 64 << 20
BATCH_DOCUMENTS = 256


def documents(path: Path, field: str) -> Iterator[str]:
    """The text of every line, checked; blank lines are passed over.

    Raises DataError naming file:line: E-RAW-01 missing, 02 unreadable, 03 nothing in it, 04 malformed JSON, 05 not an
    object, 06 no such text field, 10 invalid UTF-8, 11 lone surrogate, 13 line too long, 14 damaged gzip.
    """
    if not path.exists():
        raise DataError(f"E-RAW-01 {path}: no such file; a .jsonl or .jsonl.gz file is needed. Fix: check input=")
    if not path.is_file():
        raise DataError(f"E-RAW-02 {path}: is not a regular file; a .jsonl file is needed. Fix: check input=")
    number = found = 0
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if line.strip(b" \t\r\n\xef\xbb\xbf"):
                    found += 1
                    yield _text(line, field, f"{path}:{number}")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"E-RAW-14 {path}:{number + 1}: damaged gzip after {number} lines ({error}). Fix: copy the file again"
        ) from error
    except OSError as error:
        raise DataError(f"E-RAW-02 {path}: {error.strerror}; it must be readable. Fix: check its mode") from error
    if not found:
        raise DataError(f"E-RAW-03 {path}: holds no documents; at least one is needed. Fix: check input=")


def _text(line: bytes, field: str, where: str) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise DataError(f"E-RAW-13 {where}: longer than {MAX_LINE_BYTES} bytes. Fix: split the document")
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(
            f"E-RAW-10 {where}: invalid UTF-8 at byte {error.start} of the line. Fix: convert the file to UTF-8"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"E-RAW-04 {where}: malformed JSON ({error}): {line[:80]!r}. Fix: mend or remove the line"
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"E-RAW-05 {where}: a {type(record).__name__}; an object is needed. Fix: one object a line")
    text = record.get(field)
    if not isinstance(text, str):
        what = f"'{field}' is a {type(text).__name__}" if field in record else f"no field '{field}'"
        keys = ", ".join(map(repr, list(record)[:10])) or "none"
        raise DataError(f"E-RAW-06 {where}: {what}; its fields are {keys}; text is needed. Fix: set field=")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"E-RAW-11 {where}: a lone surrogate at character {error.start} of '{field}'. Fix: write proper Unicode"
        ) from error
    return text


def convert(
    input: Path, prefix: Path, tokenizer: Tokenizer, field: str = "text", progress: bool = True
) -> dict[str, int]:
    """Tokenize a file; returns {documents, empty, tokens}. Empty texts are left out and counted."""
    from tqdm import tqdm

    empty = 0
    with (
        IndexedWriter(prefix, best_dtype(tokenizer.vocab_size)) as writer,
        tqdm(desc="tokenizing", unit=" documents", disable=None if progress else True) as bar,
    ):
        batch: list[str] = []

        def write() -> None:
            for ids in tokenizer.encode_batch(batch, num_threads=1):
                writer.add_document([*ids, tokenizer.eod])
            bar.update(len(batch))
            batch.clear()

        for text in documents(input, field):
            if not text.strip():
                empty += 1
                continue
            batch.append(text)
            if len(batch) == BATCH_DOCUMENTS:
                write()
        write()
        return {"documents": writer.n_documents, "empty": empty, "tokens": writer.n_tokens}
