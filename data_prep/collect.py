"""What tokenizing left: the parts of every input, checked, and their documents in the order of the corpus."""

import bisect
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
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
NEAR = np.dtype([("input", "<u4"), ("line", "<u8")])


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
        self.path = path
        self.rows = np.empty(0, NEAR)
        if not path.is_file():
            return
        try:
            self.rows = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise self._not_a_list(str(error)[:80]) from error
        if self.rows.dtype != NEAR or self.rows.ndim != 1:
            raise self._not_a_list(f"{self.rows.dtype} {self.rows.shape}"[:80])
        for begin in range(0, len(self.rows) - 1, BLOCK):
            rows = self.rows[begin : begin + BLOCK + 1]
            same = rows["input"][1:] == rows["input"][:-1]
            if not np.where(same, rows["line"][1:] > rows["line"][:-1], rows["input"][1:] > rows["input"][:-1]).all():
                raise self._not_a_list("not sorted, or with a document twice")

    def _not_a_list(self, what: str) -> DataError:
        return DataError(
            f"E-TOK-20 {self.path}: {what}; a sorted list of (input, line) is needed. Fix: remove it, or make it "
            "again: python -m data_prep near_duplicates"
        )

    @cached_property
    def digest(self) -> str | None:
        """SHA-256 of the file; None without one."""
        return file_digest(self.path) if self.path.is_file() else None

    def holds(self, input: int, lines: np.ndarray) -> np.ndarray:
        """Return whether each of these lines of an input, in rising order, is on the list: bool (n,)."""
        if not len(self.rows) or not len(lines):
            return np.zeros(len(lines), bool)
        # The list is mapped and may be long: two bisections find the rows of these lines without reading the others.
        begin, end = (
            bisect.bisect_left(range(len(self.rows)), (input, line), key=lambda i: tuple(self.rows[i].tolist()))
            for line in (int(lines[0]), int(lines[-1]) + 1)
        )
        return np.isin(lines, self.rows["line"][begin:end])


def check_near(config: PrepareConfig, identities: dict[str, list[dict[str, Any]]]) -> None:
    """Check that lists of near duplicates are finished, and of the inputs and settings as they are now (E-TOK-20)."""
    folder = Path(config.corpus.dir) / "near_duplicates"
    if not any((folder / f"{name}.npy").exists() for name in identities):
        return
    if wrong := _not_now(folder, config, identities):
        raise DataError(
            f"E-TOK-20 {folder}: {wrong}; lists of what is merged now are needed. Fix: remove the folder, or make it "
            "again: python -m data_prep near_duplicates"
        )


def _not_now(folder: Path, config: PrepareConfig, identities: dict[str, list[dict[str, Any]]]) -> str:
    """Return why the lists of a folder are not those of what is merged now; "": they are."""
    try:
        report = untrusted_io.read_object(folder / "report.json")
    except FileNotFoundError:
        return "is not finished (it has no report.json)"
    except (OSError, ValueError) as error:
        return f"has a report.json that cannot be read ({getattr(error, 'strerror', None) or error})"
    inputs = report.get("inputs")
    if not isinstance(inputs, dict):
        return "has a damaged report.json (it names no inputs)"
    if other := [name for name, now in identities.items() if inputs.get(name) != now]:
        return f"was made of other files of {', '.join(other)}"
    if report.get("plan") != plan(config, [identity for name in sorted(identities) for identity in identities[name]]):
        return "was made with other filters, held-out shares or settings of near_duplicates"
    return ""


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

    def of_source(self, source: int) -> list[Part]:
        return [part for part in self.parts if part.source == source]

    def stretches(self, parts: list[Part] | None = None) -> Iterator[Stretch]:
        """Yield every document, or those of some parts, some at a time."""
        for part in self.parts if parts is None else parts:
            first = part.first
            for documents in part.blocks():
                near = self.near[part.source].holds(part.input.number, documents["line"])
                yield Stretch(part.source, first, documents, near)
                first += len(documents)

    def place(self, document: int) -> str:
        """Return file:line of a document by its number in the corpus."""
        part = self.parts[bisect.bisect_right(self.parts, document, key=lambda part: part.first) - 1]
        row = document - part.first
        for documents in part.blocks():
            if row < len(documents):
                return place(part.input, int(documents["line"][row]))
            row -= len(documents)
        raise AssertionError(document)


def place(input: Input, line: int) -> str:
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
                parts.append(Part(source, input, stem, total, _n_documents(stem)))
                total += parts[-1].n_documents
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise DataError(
            f"E-TOK-23 {dir}/parts: {len(missing)} of {sum(map(len, inputs_by_source.values()))} inputs are not "
            f"tokenized to their end: {', '.join(missing[:3])}{more}; all are needed. "
            "Fix: python -m data_prep tokenize with the same settings, which goes on where it ended"
        )
    check_near(config, identities)
    near = [NearDuplicates(dir / "near_duplicates" / f"{name}.npy") for name in names]
    return Collection(names, identities, parts, near)


def _n_documents(stem: Path) -> int:
    path = stem.parent / f"{stem.name}.docs.npy"
    record = read_record(stem)
    assert record is not None, stem
    if file_digest(path) != record["files"][path.name]["sha256"]:
        raise damaged(stem, f"{path.name} is not what was written (SHA-256)")
    return _open_documents(stem).shape[0]


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
