"""python -m data_prep verify: is a corpus still what was made?

Every byte is compared with the manifest, and what the bytes say with each other. The first finds any change since the
corpus was made; the second also what was wrong when its manifest was written: an index of another .bin, ids of another
vocabulary, documents without an end, texts that are not those that were read.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.dataset import SUM_BYTES, IndexedDataset, block_sum
from coca_train.data.provenance import NpyRows
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import plain
from data_prep.collect import file_digest
from data_prep.concatenate import ENDS, ORIGINS
from data_prep.manifest import Manifest, read, warnings
from data_prep.messages import bar
from data_prep.selection import digest_of

if TYPE_CHECKING:
    from tqdm import tqdm

CHUNK = 1 << 18  # entries of an index checked together
SMALL_TOKENS = 1 << 20  # all documents of a dataset up to this size are decoded
LEAST_DECODED = 100  # documents decoded of a larger one, at least
NAMED = 5  # damaged blocks that are named
HEAD = ("dataset", "state", "documents", "tokens", "texts read", "bytes")
AGAIN = "Fix: copy it again, or make the corpus again"


class DocumentEnds:
    """Check that each document ends with the end token and holds no other, and that every id is in the vocabulary.

    data: its index already checked, a sequence a document; None: nothing is checked.
    fault: called with the first fault of each kind, E-TOK-09 (id) and E-TOK-21 (end), in words.
    """

    def __init__(self, data: IndexedDataset | None, manifest: Manifest, fault: Callable[[str], None]) -> None:
        self._data, self._fault, self._reported = data, fault, set[str]()
        self._eod, self._vocab_size = manifest["end_of_document"], manifest["tokenizer"]["vocab_size"]

    def check(self, block: bytes, offset: int) -> None:
        """Check the ids of a block that begins at byte `offset` of the .bin."""
        if (data := self._data) is None:
            return
        first = offset // data.dtype.itemsize
        ids = np.frombuffer(block, data.dtype.newbyteorder("<"))
        end = first + len(ids)
        beyond = np.flatnonzero((ids >= self._vocab_size) | (ids < 0))
        if beyond.size:
            what = f"id {ids[beyond[0]]}; the tokenizer has {self._vocab_size}. Fix: make the corpus again with it"
            self._report("E-TOK-09", data, first + int(beyond[0]), what)
        ends = data.document_starts(data.document_at(first) + 1, data.document_at(end - 1) + 2) - 1
        ends = ends[(ends >= first) & (ends < end)]
        wrong = np.setxor1d(ends, np.flatnonzero(ids == self._eod) + first, assume_unique=True)
        if wrong.size:
            what = f"a document ends with id {self._eod} and holds it nowhere else. Fix: make the corpus again"
            self._report("E-TOK-21", data, int(wrong[0]), what)

    def _report(self, code: str, data: IndexedDataset, token: int, what: str) -> None:
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


def verify(dir: Path, manifest: Manifest, documents: int, bar: "tqdm") -> Iterator[Checked]:
    """Check everything the manifest lists, dataset by dataset; faults are collected, not raised.

    documents: decoded in each large dataset. bar: has update(bytes).
    """
    tokenizer, checked = _check_tokenizer(dir, manifest)
    yield checked
    for name in sorted(manifest["datasets"]):
        yield _DatasetCheck(dir, manifest, name, bar).check(tokenizer, documents)


def _check_tokenizer(dir: Path, manifest: Manifest) -> tuple[Tokenizer | None, Checked]:
    record, checked = manifest["tokenizer"], Checked("tokenizer")
    try:
        tokenizer = Tokenizer(dir / record["file"])
    except DataError as error:
        checked.faults.append(str(error))
        return None, checked
    checked.n_bytes = Path(tokenizer.path).stat().st_size
    if tokenizer.digest != record["sha256"]:
        checked.faults.append(
            f"E-TOK-11 {tokenizer.path}: SHA-256 {tokenizer.digest[:16]}, the corpus was made with "
            f"{record['sha256'][:16]}; its ids mean nothing to another tokenizer. Fix: bring the old file back"
        )
        return None, checked
    for what, now, then in (
        ("token ids", tokenizer.vocab_size, record["vocab_size"]),
        ("end-of-document id", tokenizer.eod, manifest["end_of_document"]),
    ):
        if now != then:
            text = f"E-TOK-11 {tokenizer.path}: {what} {now}, the manifest says {then}. Fix: make the corpus again"
            checked.faults.append(text)
    return tokenizer, checked


class _DatasetCheck:
    """The check of one dataset."""

    def __init__(self, dir: Path, manifest: Manifest, name: str, bar: "tqdm") -> None:
        self.prefix, self.manifest, self.name, self.bar = dir / name, manifest, name, bar
        self.checked = Checked(name)
        self.fault = self.checked.faults.append

    def path(self, end: str) -> Path:
        return Path(f"{self.prefix}{end}")

    def check(self, tokenizer: Tokenizer | None, documents: int) -> Checked:
        whole = {end: self._check_file(end) for end in ENDS if end != ".bin"}
        try:
            data = IndexedDataset(self.prefix)
            self._check_index(data)
        except DataError as error:
            data = None
            self.fault(str(error))
        self._check_tokens(data, whole[".sums"])
        if data is not None and whole[".origins.npy"]:
            origins = self._open_origins()
            if origins is not None and tokenizer is not None and tokenizer.lossless and not self.checked.faults:
                self._check_texts(data, tokenizer, origins, documents)
        return self.checked

    def _check_file(self, end: str) -> bool:
        """Check size and SHA-256 of a file."""
        size = self._check_size(end)
        if size is None:
            return False
        self.bar.update(size)
        good = file_digest(self.path(end)) == self.manifest["files"][f"{self.name}{end}"]["sha256"]
        if not good:
            self.fault(f"E-TOK-08 {self.path(end)}: is not what was written (SHA-256). {AGAIN}")
        return good

    def _check_size(self, end: str) -> int | None:
        """Return the size of a file [bytes]; None, and a fault, when it is not the manifest's."""
        path = self.path(end)
        record = self.manifest["files"].get(path.name)
        if record is None:
            self.fault(f"E-TOK-27 {path}: is not in the manifest; every file is. Fix: make the corpus again")
        elif not path.is_file():
            self.fault(f"E-TOK-01 {path}: no such file. {AGAIN}")
        else:
            size = path.stat().st_size
            self.checked.n_bytes += size
            if size == record["bytes"]:
                return size
            self.fault(f"E-TOK-04 {path}: {size} bytes, the manifest says {record['bytes']}. {AGAIN}")
        return None

    def _check_index(self, data: IndexedDataset) -> None:
        """Read every entry of the index, which `Index` checks then; each document is one sequence and has tokens."""
        for first in range(0, data.n_documents, CHUNK):
            starts = data.document_starts(first, min(first + CHUNK, data.n_documents) + 1)
            if (empty := np.flatnonzero(np.diff(starts) < 1)).size:
                raise DataError(f"E-TOK-06 {data.idx_path} document {first + empty[0]}: has no token. {AGAIN}")
        if data.n_documents != data.n_sequences:
            raise DataError(
                f"E-TOK-06 {data.idx_path}: {data.n_documents} documents in {data.n_sequences} sequences; each "
                f"document of a corpus is one sequence. {AGAIN}"
            )
        self.checked.n_documents, self.checked.n_tokens = data.n_documents, data.n_tokens
        record = self.manifest["datasets"][self.name]
        for what, now, then in (
            ("documents", data.n_documents, record["documents"]),
            ("tokens", data.n_tokens, record["tokens"]),
            ("dtype", data.dtype.name, self.manifest["dtype"]),
        ):
            if now != then:
                raise DataError(f"E-TOK-25 {self.path('.idx')}: {what} {now}, the manifest says {then}. {AGAIN}")

    def _check_tokens(self, data: IndexedDataset | None, sums_are_whole: bool) -> None:
        """Check the .bin in one pass: SHA-256, block sums, ids within the vocabulary, ends of documents."""
        size, path = self._check_size(".bin"), self.path(".bin")
        if size is None:
            return
        block_bytes = self.manifest["blocks"]["bytes"]
        n_blocks = -(-size // block_bytes)
        sums = self.path(".sums").read_bytes() if sums_are_whole else None
        sha, damaged = hashlib.sha256(), 0
        documents = DocumentEnds(data, self.manifest, self.fault)
        with open(path, "rb") as file:
            for number in range(n_blocks):
                block, begin = file.read(block_bytes), number * block_bytes
                sha.update(block)
                if sums is not None and block_sum(block) != sums[SUM_BYTES * number : SUM_BYTES * (number + 1)]:
                    damaged += 1
                    if damaged <= NAMED:
                        span = f"bytes {begin} to {begin + len(block) - 1}"
                        self.fault(f"E-TOK-08 {path} block {number}, {span}: do not agree with their sum. {AGAIN}")
                else:
                    documents.check(block, begin)
                self.bar.update(len(block))
        if damaged > NAMED:
            self.fault(f"E-TOK-08 {path}: {damaged - NAMED} more blocks are damaged. {AGAIN}")
        if sums is not None and len(sums) > SUM_BYTES * n_blocks:
            self.fault(f"E-TOK-08 {self.path('.sums')}: {len(sums)} bytes, more than {SUM_BYTES} a block. {AGAIN}")
        if sha.hexdigest() != self.manifest["files"][path.name]["sha256"] and not damaged:
            self.fault(f"E-TOK-08 {path}: is not what was written (SHA-256). {AGAIN}")

    def _open_origins(self) -> NpyRows | None:
        """Open the origins; None, and a fault, when there is not a row for each document."""
        path, n = self.path(".origins.npy"), self.checked.n_documents
        try:
            rows = NpyRows(path)
            if rows.dtype == ORIGINS and rows.shape == (n,):
                return rows
            what = f"{rows.dtype} {rows.shape}"
        except (ValueError, EOFError, OSError) as error:
            what = str(error)
        self.fault(f"E-TOK-22 {path}: {what[:80]}; a row for each of {n} documents is needed. {AGAIN}")
        return None

    def _check_texts(self, data: IndexedDataset, tokenizer: Tokenizer, origins: NpyRows, documents: int) -> None:
        """Compare decoded documents with the digests of the texts that were read."""
        n = data.n_documents
        n_decoded = n if data.n_tokens <= SMALL_TOKENS else min(n, max(documents, LEAST_DECODED))
        for i in (k * n // n_decoded for k in range(n_decoded)):
            text = tokenizer.decode(data.document(i)[:-1].tolist())
            self.checked.n_texts += 1
            if digest_of(text) != (row := origins[i])["digest"].tobytes():
                self.fault(
                    f"E-TOK-26 {self.prefix} document {i} (input {row['input']}, line {row['line']}): its text is not "
                    "the one that was read. Fix: make the corpus again"
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
