"""Megatron / GPT-NeoX `.bin/.idx` datasets (MMapIndexedDataset): reader, streaming writer, block sums.

The format is described in coca_train.data.index. `<prefix>.sums`, where data_prep wrote it next to the `.bin`, holds
BLAKE2b-64 of each 4 MiB block of it, back to back.
"""

import hashlib
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from coca_train.data.index import DTYPES, HEADER, MAGIC, Index
from coca_train.data.storage import OpenFile, flush_to_disk, open_locked, storage
from coca_train.runtime import untrusted_io
from coca_train.runtime.durable import sync_folder
from coca_train.runtime.errors import DataError
from coca_train.runtime.shortage import lacking

BLOCK_BYTES = 4 << 20
SUM_BYTES = 8
CHUNK = 1 << 18  # entries written at a time


class Writable(Protocol):
    """What bytes are written to."""

    def write(self, data: bytes, /) -> object: ...


def block_sum(block: bytes | bytearray) -> bytes:
    """Return the checksum of one block, as `.sums` holds it."""
    return hashlib.blake2b(block, digest_size=SUM_BYTES).digest()


class BlockSums:
    """Check each block of a .bin once, when something in it is read for the first time.

    Memory: 9 bytes a block, 0.2 MB for 50 billion tokens. Time: some 5 ms a block.
    Raises DataError E-TOK-08 for a block that is not what was written, and for sums that are not of this file.
    """

    def __init__(self, bin_path: str) -> None:
        """Raises FileNotFoundError where there are no sums (data of another tool)."""
        self._bin_path, path = bin_path, sums_path(bin_path)
        n_blocks = -(-os.path.getsize(bin_path) // BLOCK_BYTES)
        try:
            self._sums = untrusted_io.read_bytes(path, SUM_BYTES * n_blocks + untrusted_io.CHUNK)
            what = f"{len(self._sums)} bytes, {SUM_BYTES} a block"
        except FileNotFoundError:
            raise
        except OSError as error:
            if (lack := lacking(error)) is not None:
                raise lack from None
            self._sums, what = b"", f"cannot be read ({error.strerror})"
        if len(self._sums) != SUM_BYTES * n_blocks:
            raise DataError(
                f"E-TOK-08 {path}: {what}, but {bin_path} has {n_blocks} blocks. Fix: copy both again, or remove the "
                "sums: nothing is checked then"
            )
        self._checked = bytearray(n_blocks)

    def check(self, data: OpenFile, n_bytes: int, start: int, stop: int) -> None:
        """Check the blocks that hold bytes start .. stop - 1 and were not checked yet. data: the .bin, of n_bytes."""
        for k in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            if self._checked[k]:  # once a run: a block that is read again is in the page cache, or was good on the disk
                continue
            begin, end = k * BLOCK_BYTES, min((k + 1) * BLOCK_BYTES, n_bytes)
            if block_sum(data.read(begin, end)) != self._sums[SUM_BYTES * k : SUM_BYTES * (k + 1)]:
                raise DataError(
                    f"E-TOK-08 {self._bin_path} block {k}, bytes {begin} to {end - 1}: do not agree with their sum in "
                    f"{sums_path(self._bin_path)}. Fix: copy the file again, or prepare the data again"
                )
            self._checked[k] = 1


def sums_path(bin_path: str) -> str:
    """Return the path of the sums of a .bin."""
    return bin_path.removesuffix(".bin") + ".sums"


def best_dtype(vocab_size: int) -> type[np.uint16] | type[np.int32]:
    """Return the dtype GPT-NeoX picks: uint16 below 65 500 token ids, int32 from there on."""
    return np.uint16 if vocab_size < 65500 else np.int32


class IndexedDataset(Index):
    """Read-only view of one `.bin/.idx` pair; nothing of it stays in memory.

    verify_blocks: check blocks of the .bin against `<prefix>.sums`, where that exists, when they are read first.
    Raises DataError: E-TOK-01 file missing, 02 to 06 as the index, 08 damaged block, 16 file changed under the run.
    """

    def __init__(self, prefix: str | Path, verify_blocks: bool = False) -> None:
        self.prefix = str(prefix)
        self.idx_path, self.bin_path = f"{prefix}.idx", f"{prefix}.bin"
        for path, other in ((self.idx_path, self.bin_path), (self.bin_path, self.idx_path)):
            if not os.path.isfile(path):
                state = "exists, so the build was not finished" if os.path.exists(other) else "is missing too"
                raise DataError(
                    f"E-TOK-01 {path}: no such file ({other} {state}). Fix: check data.sources.*.path (a prefix, "
                    "without .bin), or prepare the data again"
                )
        try:
            self._bin, idx = OpenFile(self.bin_path), OpenFile(self.idx_path)
        except OSError as error:
            raise DataError(f"E-TOK-01 {error.filename}: {error.strerror}. Fix: check its owner and mode") from error
        self._sums = None
        if verify_blocks:  # as blocks are read: reading a terabyte first would delay the first step by an hour
            with suppress(FileNotFoundError):
                self._sums = BlockSums(self.bin_path)
        super().__init__(idx, self.bin_path, self._bin.size())

    def document(self, i: int) -> np.ndarray:
        """Return one document: int64 (tokens,)."""
        return self.tokens(self.document_start(i), self.document_start(i + 1))

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Return a stretch of the token stream across document borders: int64 (stop - start,)."""
        assert 0 <= start <= stop <= self.n_tokens, (start, stop, self.n_tokens)
        item = self.dtype.itemsize
        needed, size = self.n_tokens * item, self._bin.size()
        if size < needed:  # reported with the first batch, not when the lost part is reached
            raise DataError(
                f"E-TOK-16 {self.bin_path}: shrank from {needed} to {size} bytes while it was in use. Fix: restore the "
                "file and start the same command again"
            )
        if self._sums is not None:
            self._sums.check(self._bin, needed, start * item, stop * item)
        ids = np.frombuffer(self._bin.read(start * item, stop * item), self.dtype.newbyteorder("<"))
        return ids.astype(np.int64)


class IndexedWriter:
    """Write a `.bin/.idx` pair as a stream; both appear under their names only when complete.

    Context manager. Documents go to `<prefix>.bin.tmp` (locked against a second writer) and are renamed at the end; an
    exception inside removes the temporary files. Memory: 4 bytes a document.
    Raises DataError E-TOK-10 (id that the dtype cannot hold; numpy would wrap 70 000 to 4 464),
    E-TOK-15 (second writer), StorageError (disk).
    """

    def __init__(self, prefix: str | Path, dtype: type[np.integer] | np.dtype[np.integer]) -> None:
        self.prefix, self.dtype = str(prefix), np.dtype(dtype).newbyteorder("<")
        self._limits = np.iinfo(self.dtype)
        self.n_tokens = self.n_documents = 0
        self._sizes = array("i")

    def __enter__(self) -> "IndexedWriter":
        with storage(self.prefix):
            os.makedirs(os.path.dirname(self.prefix) or ".", exist_ok=True)
            self._file = open_locked(f"{self.prefix}.bin.tmp")
        return self

    def add_document(self, ids: Sequence[int] | np.ndarray) -> None:
        """Append one document (its end-of-document token included); empty ones are kept as such."""
        values = np.asarray(ids, dtype=np.int64)
        bad = np.flatnonzero((values < 0) | (values > self._limits.max))
        if bad.size:
            raise DataError(
                f"E-TOK-10 {self.prefix}.bin document {self.n_documents}: token id {values[bad[0]]} does not fit "
                f"{self.dtype.name} (0 .. {self._limits.max}). Fix: use a wider dtype (int32), or check the tokenizer"
            )
        with storage(self.prefix):
            self._file.write(values.astype(self.dtype).tobytes())
        self._sizes.append(len(values))
        self.n_tokens += len(values)
        self.n_documents += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        temporary_idx = f"{self.prefix}.idx.tmp"
        try:
            with storage(self.prefix):
                if kind is None:
                    # Tokens reach the disk before any name does, and the .idx is renamed last: a reader opens it first,
                    # so a pair it can open is whole. What describes the old .bin goes before the new one appears.
                    flush_to_disk(self._file)
                    with open(temporary_idx, "wb") as idx:
                        write_index(idx, self.dtype, self.n_documents, self._lengths)
                        flush_to_disk(idx)
                    for end in (".idx", ".sums", ".origins.npy"):  # of an earlier dataset of this name
                        Path(f"{self.prefix}{end}").unlink(missing_ok=True)
                    os.rename(f"{self.prefix}.bin.tmp", f"{self.prefix}.bin")
                    os.rename(temporary_idx, f"{self.prefix}.idx")
                    sync_folder(os.path.dirname(self.prefix) or ".")
        finally:
            Path(temporary_idx).unlink(missing_ok=True)
            Path(f"{self.prefix}.bin.tmp").unlink(missing_ok=True)
            self._file.close()

    def _lengths(self) -> Iterator[np.ndarray]:
        lengths = np.frombuffer(self._sizes, np.int32) if self._sizes else np.empty(0, np.int32)
        for begin in range(0, len(lengths), CHUNK):
            yield lengths[begin : begin + CHUNK]


def write_index(idx: Writable, dtype: DTypeLike, n_documents: int, lengths: Callable[[], Iterable[np.ndarray]]) -> None:
    """Write the `.idx` of a `.bin` with one sequence a document, as a stream: O(one chunk) memory.

    dtype: of the `.bin`. lengths: called twice, gives the same chunks of int32
    lengths [tokens] each time, n_documents in all.
    """
    code = next(code for code, known in DTYPES.items() if np.dtype(known) == np.dtype(dtype).newbyteorder("="))
    idx.write(HEADER.pack(MAGIC, 1, code, n_documents, n_documents + 1))
    for sizes in lengths():
        idx.write(sizes.astype("<i4").tobytes())
    start = 0
    for sizes in lengths():
        ends = start + np.cumsum(sizes, dtype=np.int64)
        starts = np.concatenate(([start], ends[:-1]))
        idx.write((starts * np.dtype(dtype).itemsize).astype("<i8").tobytes())
        start = int(ends[-1])
    for begin in range(0, n_documents + 1, CHUNK):
        idx.write(np.arange(begin, min(begin + CHUNK, n_documents + 1), dtype="<i8").tobytes())
