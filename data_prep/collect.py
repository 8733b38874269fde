"""Collect what tokenizing wrote: the parts of every input, checked, and their documents in the order of the corpus."""

import bisect
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.provenance import NpyRows
from coca_train.data.readers import inputs
from coca_train.data.readers.base import Input, escape
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import DataError
from data_prep.duplicates import Stretch
from data_prep.minhash import plan
from data_prep.parts import DOCS, damaged, finished, input_folder, read_record, settings

BLOCK = 1 << 16  # documents read at a time
NEAR = np.dtype([("input", "<u4"), ("line", "<u8")])  # of a list of near duplicates


@dataclass(frozen=True)
class Part:
    """One part of an input. first: number of its first document in the whole corpus."""

    source: int
    input: Input
    stem: Path
    first: int
    n_documents: int

    @property
    def record(self) -> dict[str, Any]:
        """Read the part's .json again each time: the list of rejects may be long."""
        record = read_record(self.stem)
        assert record is not None, self.stem
        return record

    def file(self, end: str) -> Path:
        return Path(f"{self.stem}.{end}")

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield DOCS (n,), some at a time. Raises DataError E-TOK-08 for impossible values."""
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
            yield documents


class NearDuplicates:
    """The sorted list of one source's documents to leave out; no file: an empty list.

    Raises DataError E-TOK-20 when the file is not such a list.
    """

    def __init__(self, path: Path) -> None:
        self.rows, self.digest, wrong = np.empty(0, NEAR), None, ""
        self._inputs, self._lines = self.rows["input"], self.rows["line"]
        if not path.is_file():
            return
        try:
            rows = np.load(path, allow_pickle=False)
            if rows.dtype != NEAR or rows.ndim != 1:
                wrong = f"{rows.dtype} {rows.shape}"[:80]
            else:
                same = rows["input"][1:] == rows["input"][:-1]
                rising = np.where(same, rows["line"][1:] > rows["line"][:-1], rows["input"][1:] > rows["input"][:-1])
                wrong = "" if rising.all() else "not sorted, or with a document twice"
        except (ValueError, EOFError, OSError, MemoryError) as error:  # the last: a damaged shape
            wrong = str(error)[:80]
        if wrong:
            raise DataError(
                f"E-TOK-20 {path}: {wrong}; a sorted list of (input, line) is needed. Fix: remove it, or make it "
                "again: python -m data_prep near_duplicates"
            )
        self.rows, self.digest = rows, file_digest(path)
        self._inputs, self._lines = np.ascontiguousarray(rows["input"]), np.ascontiguousarray(rows["line"])

    def contains(self, input: int, lines: np.ndarray) -> np.ndarray:
        """Return whether each of these lines of an input is on the list: bool (n,)."""
        # Columns of their own, and bounds of their type: numpy would otherwise copy a whole column for each call.
        begin, end = np.searchsorted(self._inputs, np.array([input, input + 1], self._inputs.dtype))
        listed = self._lines[begin:end]
        at = np.searchsorted(listed, lines)
        return np.append(listed, np.zeros(1, listed.dtype))[at] == lines  # lines count from 1


def check_near(config: PrepareConfig, identities: dict[str, list[dict[str, Any]]]) -> None:
    """Check that lists of near duplicates are finished, and of the inputs and settings as they are now (E-TOK-20)."""
    folder, wrong = Path(config.corpus.dir) / "near_duplicates", ""
    if not any((folder / f"{name}.npy").exists() for name in identities):
        return
    planned = plan(config, [one for name in sorted(identities) for one in identities[name]])
    try:
        report = untrusted_io.read_object(folder / "report.json")
        inputs = report.get("inputs")
        if not isinstance(inputs, dict):
            wrong = "has a damaged report.json (it names no inputs)"
        elif other := [name for name, now in identities.items() if inputs.get(name) != now]:
            wrong = f"was made of other files of {', '.join(other)}"
        elif report.get("plan") != planned:
            wrong = "was made with other filters, held-out shares or settings of near_duplicates"
    except FileNotFoundError:
        wrong = "is not finished (it has no report.json)"
    except (OSError, ValueError) as error:
        wrong = f"has a report.json that cannot be read ({getattr(error, 'strerror', None) or error})"
    if wrong:
        raise DataError(
            f"E-TOK-20 {folder}: {wrong}; lists of what is merged now are needed. Fix: remove the folder, or make it "
            "again: python -m data_prep near_duplicates"
        )


@dataclass(frozen=True)
class Collection:
    """All parts of a corpus, in its order: source by name, input, part. identities: of the inputs of each source."""

    names: list[str]
    identities: dict[str, list[dict[str, Any]]]
    parts: list[Part]
    near: list[NearDuplicates]

    @property
    def n_documents(self) -> int:
        return self.parts[-1].first + self.parts[-1].n_documents if self.parts else 0

    def stretches(self, source: int | None = None, part: Part | None = None) -> Iterator[Stretch]:
        """Yield every document, or those of a source or a part, some at a time."""
        for each in self.parts if part is None else [part]:
            first = each.first
            for documents in each.blocks() if source in (None, each.source) else ():
                near = self.near[each.source].contains(each.input.number, documents["line"])
                yield Stretch(each.source, first, documents, near)
                first += len(documents)

    def format_place(self, document: int) -> str:
        """Return file:line of a document by its number in the corpus."""
        part = self.parts[bisect.bisect_right(self.parts, document, key=lambda part: part.first) - 1]
        row = document - part.first
        for documents in part.blocks():
            if row < len(documents):
                return format_place(part.input, int(documents["line"][row]))
            row -= len(documents)
        raise AssertionError(document)


def format_place(input: Input, line: int) -> str:
    """Return file:line for messages; the file alone where each file is a document."""
    return escape(input.files[line - 1]) if input.files else f"{escape(input.path)}:{line}"


def gather_parts(config: PrepareConfig, tokenizer: Tokenizer) -> Collection:
    """Collect the parts of every input, checked: made with these settings, of these inputs, to their end, whole.

    Raises DataError E-TOK-23 (parts missing), 11, 18 (made with other settings), 08 (damaged), 20 (list of near
    duplicates), E-RAW-19 (input changed), and of rejects under work.on_error=stop what they were rejected for.
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
                stem = folder / f"{number:05d}"
                rows, path, record = _open_documents(stem), Path(f"{stem}.docs.npy"), read_record(stem)
                assert record is not None, stem
                if file_digest(path) != record["files"][path.name]["sha256"]:
                    raise damaged(stem, f"{path.name} is not what was written (SHA-256)")
                parts.append(Part(source, input, stem, total, rows.shape[0]))
                total += rows.shape[0]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise DataError(
            f"E-TOK-23 {dir}/parts: {len(missing)} of {sum(map(len, inputs_by_source.values()))} inputs are not "
            f"tokenized to their end: {', '.join(missing[:3])}{more}; all are needed. "
            "Fix: python -m data_prep tokenize with the same settings, which continues where it ended"
        )
    check_near(config, identities)
    near = [NearDuplicates(dir / "near_duplicates" / f"{name}.npy") for name in names]
    return Collection(names, identities, parts, near)


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
