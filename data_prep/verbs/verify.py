"""python -m data_prep verify: is a corpus still what was made?

Every byte is held against the manifest, and what the bytes say against each other. The first finds any change since the
corpus was made; the second also what was wrong when its manifest was written: an index of another .bin, ids of another
vocabulary, documents without an end, texts that are not those that were read.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.dataset import SUM_BYTES, IndexedDataset, block_sum
from coca_train.data.provenance import NpyRows
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import plain
from data_prep.collect import file_digest
from data_prep.concatenate import ENDS, ORIGINS
from data_prep.manifest import read, warnings
from data_prep.messages import bar
from data_prep.selection import digest_of

CHUNK = 1 << 18  # entries of an index looked at together
SMALL_TOKENS = 1 << 20  # all documents of a dataset up to this size are decoded
LOOKED_AT = 100  # documents decoded of a larger one, at least
NAMED = 5  # damaged blocks that are named
HEAD = ("dataset", "state", "documents", "tokens", "texts read", "bytes")


class Documents:
    """Each document ends with the end token and holds no other, and every id is below the size of the vocabulary.

    data: its index already checked, a sequence a document; None where there is none to go by: nothing is checked.
    fault: called with the first fault of each kind, E-TOK-09 (id) and E-TOK-21 (end), in words.
    """

    def __init__(self, data: IndexedDataset | None, manifest: dict[str, Any], fault: Callable[[str], None]) -> None:
        self._data, self._fault = data, fault
        self._eod = manifest["end_of_document"]
        self._vocab_size = manifest["tokenizer"]["vocab_size"]
        self._reported: set[str] = set()

    def look(self, block: bytes, offset: int) -> None:
        """Check the ids of a block that begins at byte `offset` of the .bin."""
        if self._data is None:
            return
        first = offset // self._data.dtype.itemsize
        ids = np.frombuffer(block, self._data.dtype.newbyteorder("<"))
        beyond = np.flatnonzero((ids >= self._vocab_size) | (ids < 0))
        if beyond.size:
            what = f"id {ids[beyond[0]]}; the tokenizer has {self._vocab_size}. Fix: make the corpus again with it"
            self._tell("E-TOK-09", self._data, first + int(beyond[0]), what)
        ends = self._ends(self._data, first, first + len(ids))
        wrong = np.setxor1d(ends, np.flatnonzero(ids == self._eod) + first, assume_unique=True)
        if wrong.size:
            what = f"a document ends with id {self._eod} and holds it nowhere else. Fix: make the corpus again"
            self._tell("E-TOK-21", self._data, int(wrong[0]), what)

    def _ends(self, data: IndexedDataset, begin: int, end: int) -> np.ndarray:
        """Return the last token of each document that ends in begin .. end - 1: int64."""
        ends = data.document_starts(data.document_at(begin) + 1, data.document_at(end - 1) + 2) - 1
        return ends[(ends >= begin) & (ends < end)]

    def _tell(self, code: str, data: IndexedDataset, token: int, what: str) -> None:
        if code not in self._reported:
            self._reported.add(code)
            self._fault(f"{code} {data.bin_path} document {data.document_at(token)}, token {token} of the file: {what}")


@dataclass
class Checked:
    """What was found out about one dataset, or about the tokenizer. n_texts: documents decoded and compared."""

    name: str
    n_bytes: int = 0
    n_documents: int = 0
    n_tokens: int = 0
    n_texts: int = 0
    faults: list[str] = field(default_factory=list)


def verify(dir: Path, manifest: dict[str, Any], documents: int, bar: Any) -> Iterator[Checked]:
    """Check everything the manifest lists, dataset by dataset; faults are collected, not raised.

    documents: looked at as text in each large dataset. bar: has update(bytes).
    """
    tokenizer, checked = _tokenizer(dir, manifest)
    yield checked
    for name in sorted(manifest["datasets"]):
        yield _Dataset(dir, manifest, name, bar).check(tokenizer, documents)


def _tokenizer(dir: Path, manifest: dict[str, Any]) -> tuple[Tokenizer | None, Checked]:
    record = manifest["tokenizer"]
    checked = Checked("tokenizer")
    try:
        tokenizer = Tokenizer(dir / record["file"])
    except DataError as error:
        checked.faults.append(str(error))
        return None, checked
    checked.n_bytes = Path(tokenizer.path).stat().st_size
    if tokenizer.digest != record["sha256"]:
        checked.faults.append(
            f"E-TOK-11 {tokenizer.path}: SHA-256 {tokenizer.digest[:16]}, the corpus was made with "
            f"{record['sha256'][:16]}; its ids mean nothing to another tokenizer. Fix: give the old file back"
        )
        return None, checked
    for what, now, then in (
        ("token ids", tokenizer.vocab_size, record["vocab_size"]),
        ("end-of-document id", tokenizer.eod, manifest["end_of_document"]),
    ):
        if now != then:
            checked.faults.append(
                f"E-TOK-11 {tokenizer.path}: {what} {now}, the manifest says {then}. Fix: make the corpus again"
            )
    return tokenizer, checked


class _Dataset:
    """One dataset under examination."""

    def __init__(self, dir: Path, manifest: dict[str, Any], name: str, bar: Any) -> None:
        self.dir, self.manifest, self.name, self.bar = dir, manifest, name, bar
        self.prefix = dir / name
        self.record = manifest["datasets"][name]
        self.checked = Checked(name)
        self.data: IndexedDataset | None = None

    def path(self, end: str) -> Path:
        return self.dir / f"{self.name}{end}"

    def fault(self, text: str) -> None:
        self.checked.faults.append(text)

    def check(self, tokenizer: Tokenizer | None, documents: int) -> Checked:
        whole = {end: self._bytes(end) for end in ENDS if end != ".bin"}
        try:
            self.data = IndexedDataset(self.prefix)
            self._index(self.data)
            self._counts(self.data)
        except DataError as error:
            self.data = None
            self.fault(str(error))
        self._tokens(whole[".sums"])
        if self.data is not None and whole[".origins.npy"]:
            origins = self._origins()
            if origins is not None and tokenizer is not None and tokenizer.lossless and not self.checked.faults:
                self._texts(tokenizer, origins, documents)
        return self.checked

    def _bytes(self, end: str) -> bool:
        """Check size and SHA-256 of a file."""
        size = self._size(end)
        if size is None:
            return False
        self.bar.update(size)
        if file_digest(self.path(end)) == self.manifest["files"][f"{self.name}{end}"]["sha256"]:
            return True
        self.fault(
            f"E-TOK-08 {self.path(end)}: is not what was written (SHA-256). Fix: copy it again, or make the corpus "
            "again"
        )
        return False

    def _size(self, end: str) -> int | None:
        """Return the size of a file [bytes]; None, and a fault, when it is not the manifest's."""
        path = self.path(end)
        record = self.manifest["files"].get(path.name)
        if record is None:
            self.fault(f"E-TOK-27 {path}: is not in the manifest; every file is. Fix: make the corpus again")
            return None
        if not path.is_file():
            self.fault(f"E-TOK-01 {path}: no such file. Fix: copy it again, or make the corpus again")
            return None
        size = path.stat().st_size
        self.checked.n_bytes += size
        if size != record["bytes"]:
            self.fault(
                f"E-TOK-04 {path}: {size} bytes, the manifest says {record['bytes']}. Fix: copy it again, or make the "
                "corpus again"
            )
            return None
        return size

    def _index(self, data: IndexedDataset) -> None:
        """Read every entry of the index, which `Index` checks then: each document is one sequence and has tokens."""
        for first in range(0, data.n_documents, CHUNK):
            starts = data.document_starts(first, min(first + CHUNK, data.n_documents) + 1)
            if (empty := np.flatnonzero(np.diff(starts) < 1)).size:
                raise DataError(
                    f"E-TOK-06 {data.idx_path} document {first + empty[0]}: has no token; each document of a corpus "
                    "has some. Fix: copy it again"
                )
        if data.n_documents != data.n_sequences:
            raise DataError(
                f"E-TOK-06 {data.idx_path}: {data.n_documents} documents in {data.n_sequences} sequences; each "
                "document of a corpus is one sequence. Fix: copy it again"
            )

    def _counts(self, data: IndexedDataset) -> None:
        """Check the counts of the index against the manifest."""
        self.checked.n_documents, self.checked.n_tokens = data.n_documents, data.n_tokens
        for what, now, then in (
            ("documents", data.n_documents, self.record["documents"]),
            ("tokens", data.n_tokens, self.record["tokens"]),
            ("dtype", data.dtype.name, self.manifest["dtype"]),
        ):
            if now != then:
                raise DataError(
                    f"E-TOK-25 {self.path('.idx')}: {what} {now}, the manifest says {then}; they must agree. "
                    "Fix: copy both again, or make the corpus again"
                )

    def _tokens(self, sums_are_whole: bool) -> None:
        """Check the .bin in one pass: SHA-256, block sums, ids within the vocabulary, ends of documents."""
        size = self._size(".bin")
        if size is None:
            return
        block_bytes = self.manifest["blocks"]["bytes"]
        sums = self.path(".sums").read_bytes() if sums_are_whole else None
        sha, damaged = hashlib.sha256(), []
        documents = Documents(self.data, self.manifest, self.fault)
        with open(self.path(".bin"), "rb") as file:
            for number in range(-(-size // block_bytes)):
                block = file.read(block_bytes)
                sha.update(block)
                if sums is not None and block_sum(block) != sums[SUM_BYTES * number : SUM_BYTES * (number + 1)]:
                    damaged.append(number)
                else:
                    documents.look(block, number * block_bytes)
                self.bar.update(len(block))
        self._say_damaged(damaged, block_bytes, size)
        if sums is not None and len(sums) > SUM_BYTES * -(-size // block_bytes):
            self.fault(
                f"E-TOK-08 {self.path('.sums')}: {len(sums)} bytes, more than {SUM_BYTES} a block. Fix: copy it again"
            )
        if sha.hexdigest() != self.manifest["files"][f"{self.name}.bin"]["sha256"] and not damaged:
            self.fault(
                f"E-TOK-08 {self.path('.bin')}: is not what was written (SHA-256). Fix: copy it again, or make the "
                "corpus again"
            )

    def _say_damaged(self, blocks: list[int], block_bytes: int, size: int) -> None:
        for number in blocks[:NAMED]:
            begin, end = number * block_bytes, min(size, (number + 1) * block_bytes)
            self.fault(
                f"E-TOK-08 {self.path('.bin')} block {number}, bytes {begin} to {end - 1}: do not agree with their "
                "sum. Fix: copy the file again, or make the corpus again"
            )
        if len(blocks) > NAMED:
            self.fault(f"E-TOK-08 {self.path('.bin')}: {len(blocks) - NAMED} more blocks are damaged. Fix: as above")

    def _origins(self) -> NpyRows | None:
        """Open the origins; a fault when there is not a row for each document."""
        path = self.path(".origins.npy")
        try:
            rows = NpyRows(path)
            if rows.dtype == ORIGINS and rows.shape == (self.checked.n_documents,):
                return rows
            what = f"{str(rows.dtype)[:80]} {rows.shape}"
        except (ValueError, EOFError, OSError) as error:
            what = str(error)[:80]
        self.fault(
            f"E-TOK-22 {path}: {what}; a row for each of {self.checked.n_documents} documents is needed. "
            "Fix: copy it again, or make the corpus again"
        )
        return None

    def _texts(self, tokenizer: Tokenizer, origins: NpyRows, documents: int) -> None:
        """Check decoded documents against the digests of the texts that were read."""
        assert self.data is not None
        n = self.data.n_documents
        looked_at = n if self.data.n_tokens <= SMALL_TOKENS else min(n, max(documents, LOOKED_AT))
        for i in (k * n // looked_at for k in range(looked_at)):
            text = tokenizer.decode(self.data.document(i)[:-1].tolist())
            self.checked.n_texts += 1
            if digest_of(text) != (row := origins[i])["digest"].tobytes():
                self.fault(
                    f"E-TOK-26 {self.prefix} document {i} (input {row['input']}, line {row['line']}): "
                    "its text is not the one that was read. Fix: make the corpus again"
                )
                return


def run(config: PrepareConfig) -> int:
    """Verify the corpus: return 0 when nothing is wrong, else 3, with the faults on stdout."""
    dir = Path(config.corpus.dir)
    manifest = read(dir)
    rows: list[tuple[str, ...]] = []
    faults, n_bytes = [], 0
    total = sum(file["bytes"] for file in manifest["files"].values())
    with bar("verifying", total, config.work.progress_bar) as progress:
        for checked in verify(dir, manifest, config.look.documents, progress):
            numbers = (checked.n_documents, checked.n_tokens, checked.n_texts, checked.n_bytes)
            state = f"{len(checked.faults)} faults" if checked.faults else "good"
            rows.append((checked.name, state, *(f"{n:,}" if n else "" for n in numbers)))
            faults += checked.faults
            n_bytes += checked.n_bytes
    print(plain(HEAD, rows, n_left=2))
    if faults:
        print("\n".join(faults))
        return DataError.exit_code
    print(f"{dir}: verified, {len(manifest['files'])} files, {n_bytes:,} bytes", *warnings(manifest), sep="\n")
    return 0
