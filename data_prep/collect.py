"""Collect what tokenizing wrote: the parts of every input, checked, and their documents in the order of the corpus."""

import bisect
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.provenance import NpyRows
from coca_train.data.readers import inputs
from coca_train.data.readers.base import Identity, Input, escape
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import DataError
from data_prep.duplicates import Stretch
from data_prep.parts import DOCS, PartRecord, damaged, finished, input_folder, read_record, settings

BLOCK = 1 << 16  # documents read at a time


@dataclass(frozen=True)
class Part:
    """One part of an input. first: number of its first document in the whole corpus."""

    source: int
    input: Input
    stem: Path
    first: int
    n_documents: int

    @property
    def record(self) -> PartRecord:
        """Read the part's .json again each time: the list of rejects may be long."""
        record = read_record(self.stem)
        assert record is not None, self.stem
        return record

    @property
    def n_bytes(self) -> int:
        """Return the size of its files on disk."""
        return sum(file["bytes"] for file in self.record["files"].values())

    def stretches(self) -> Iterator[Stretch]:
        """Yield its documents (DOCS), some at a time. Raises DataError E-TOK-08 for impossible values."""
        last = 0
        rows = _open_documents(self.stem)
        for begin in range(0, self.n_documents, BLOCK):
            documents = rows.part(begin, min(begin + BLOCK, self.n_documents))
            rising = np.diff(documents["line"].astype(np.int64), prepend=last) >= 0  # pieces of a text share a line
            tokens = documents["tokens"]
            good = rising & (tokens > 0) & (tokens < 1 << 31) & (documents["split"] < 2)
            if not good.all():
                raise damaged(self.stem, f"document {int(np.argmin(good))} of docs.npy is impossible")
            last = int(documents["line"][-1])
            yield Stretch(self.source, self.first + begin, documents)


@dataclass(frozen=True)
class Collection:
    """All parts of a corpus, in its order: source by name, input, part. identities: of the inputs of each source."""

    names: list[str]
    identities: dict[str, list[Identity]]
    parts: list[Part]

    @property
    def n_documents(self) -> int:
        return self.parts[-1].first + self.parts[-1].n_documents if self.parts else 0

    def stretches(self) -> Iterator[Stretch]:
        """Yield every document, some at a time."""
        for part in self.parts:
            yield from part.stretches()

    def format_place(self, document: int) -> str:
        """Return file:line of a document by its number in the corpus."""
        part = self.parts[bisect.bisect_right(self.parts, document, key=lambda part: part.first) - 1]
        stretch = next(one for one in part.stretches() if document < one.first + len(one.documents))
        return format_place(part.input, int(stretch.documents["line"][document - stretch.first]))


def format_place(input: Input, line: int) -> str:
    """Return file:line for messages; the file alone where each file is a document."""
    return escape(input.files[line - 1]) if input.files else f"{escape(input.path)}:{line}"


def gather_parts(config: PrepareConfig, tokenizer: Tokenizer) -> Collection:
    """Collect the parts of every input, checked: made with these settings, of these inputs, to their end, whole.

    Raises DataError E-TOK-23 (parts missing), 11, 18 (made with other settings), 08 (damaged), E-RAW-19 (input
    changed), and of rejects under work.on_error=stop what they were rejected for.
    """
    dir = Path(config.corpus.dir)
    names = sorted(config.corpus.sources)
    inputs_by_source = {name: inputs(name, config.corpus.sources[name]) for name in names}
    identities = {name: [input.identity() for input in every] for name, every in inputs_by_source.items()}
    parts: list[Part] = []
    missing: list[str] = []
    total = 0
    for source, name in enumerate(names):
        now = settings(config, name, tokenizer)
        for input, identity in zip(inputs_by_source[name], identities[name], strict=True):
            folder = input_folder(dir, input)
            finished_parts = finished(folder, input, identity, now, config.work.on_error)
            if not finished_parts.last:
                missing.append(f"{name} {escape(input.path)} from part {finished_parts.parts} on")
            for number in range(finished_parts.parts):
                part = Part(source, input, folder / f"{number:05d}", total, 0)
                rows, path = _open_documents(part.stem), Path(f"{part.stem}.docs.npy")
                if file_digest(path) != part.record["files"][path.name]["sha256"]:
                    raise damaged(part.stem, f"{path.name} is not what was written (SHA-256)")
                parts.append(replace(part, n_documents=rows.shape[0]))
                total += rows.shape[0]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise DataError(
            f"E-TOK-23 {dir}/parts: {len(missing)} of {sum(map(len, inputs_by_source.values()))} inputs are not "
            f"tokenized to their end: {', '.join(missing[:3])}{more}; all are needed. "
            "Fix: python -m data_prep tokenize with the same settings, which continues where it ended"
        )
    return Collection(names, identities, parts)


def _open_documents(stem: Path) -> NpyRows:
    """Open a part's .docs.npy. Raises DataError E-TOK-08."""
    try:
        rows = NpyRows(Path(f"{stem}.docs.npy"))
    except (ValueError, EOFError, OSError) as error:
        raise damaged(stem, f"docs.npy is not a .npy file ({str(error)[:80]})") from error
    if rows.dtype != DOCS or len(rows.shape) != 1:
        raise damaged(stem, f"docs.npy holds {str(rows.dtype)[:80]} {rows.shape}")
    return rows


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a whole file, hexadecimal."""
    with os.fdopen(untrusted_io.open_file(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
