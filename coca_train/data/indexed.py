"""Megatron / GPT-NeoX `.bin/.idx` datasets (MMapIndexedDataset): memory-mapped reader, streaming writer.

`<prefix>.bin` holds token ids back to back. `<prefix>.idx`, all little-endian (GPT-NeoX,
megatron/data/indexed_dataset.py; the same bytes in Megatron-LM and megatron-core):

    9 bytes   magic b"MMIDIDX\\0\\0"
    uint64    version = 1
    uint8     dtype code of the .bin (see DTYPES)
    uint64    n sequences
    uint64    d entries of the document index
    int32[n]  sequence lengths [tokens]
    int64[n]  where each sequence begins in the .bin [bytes]
    int64[d]  document index, in SEQUENCES: document j is sequences doc_idx[j] .. doc_idx[j+1]-1

doc_idx begins with 0 and normally ends with n. GPT-NeoX's merge tool leaves it at [0], other tools
leave out the last entry: every sequence after the last entry then counts as a document of its own
(that is what GPT-NeoX itself does: it trains on sequences and never reads doc_idx).
"""

import bisect
import mmap
import os
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from coca_train.config.errors import DataError
from coca_train.data.files import flush_to_disk, open_locked, storage, sync_folder

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
FLOAT_CODES = (6, 7)
CHUNK = 1 << 18


def best_dtype(vocab_size: int) -> type[np.integer[Any]]:
    """The dtype GPT-NeoX picks: uint16 below 65 500 token ids, int32 from there on."""
    return np.uint16 if vocab_size < 65500 else np.int32


class IndexedDataset:
    """Read-only view of one `.bin/.idx` pair; nothing but the touched pages comes into memory.

    Attributes: n_tokens, n_sequences, n_documents, dtype.
    Raises DataError: E-TOK-01 file missing, 02 not this format, 03 dtype, 04 size of the .bin,
    05 truncated index, 06 impossible entry, 16 file changed under the run.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = str(prefix)
        self.idx_path, self.bin_path = f"{prefix}.idx", f"{prefix}.bin"
        for path, other in ((self.idx_path, self.bin_path), (self.bin_path, self.idx_path)):
            if not os.path.isfile(path):
                state = "exists, so the build was not finished" if os.path.exists(other) else "is missing too"
                raise DataError(
                    f"E-TOK-01 {path}: no such file ({other} {state}); a dataset is a .bin and an .idx with the same "
                    "prefix. Fix: check data.sources.*.path (a prefix, without .bin), or prepare the data again"
                )
        try:
            self._idx_file = open(self.idx_path, "rb")  # noqa: SIM115 (held as long as the mapping)
            self._bin_file = open(self.bin_path, "rb")  # noqa: SIM115
        except OSError as error:
            raise DataError(
                f"E-TOK-01 {error.filename}: {error.strerror}; the file must be readable. Fix: check its owner and mode"
            ) from error
        self._bin: np.ndarray | None = None
        self._read_header()
        self._check_entries()

    def _read_header(self) -> None:
        """Every number of the header is held against the size of the file before it is used."""
        size = os.fstat(self._idx_file.fileno()).st_size
        head = self._idx_file.read(HEADER.size)
        if head[:9] != MAGIC:
            hint = "re-tokenize with --dataset-impl mmap" if head[:6] == b"TNTIDX" else "prepare the data again"
            raise DataError(
                f"E-TOK-02 {self.idx_path}: begins with {head[:9]!r}; needed is {MAGIC!r} "
                f"(a Megatron/GPT-NeoX mmap index). Fix: {hint}"
            )
        if len(head) < HEADER.size:
            raise self._truncated(f"the header is {len(head)} bytes long instead of {HEADER.size}")
        _, version, code, n_sequences, n_entries = HEADER.unpack(head)
        if version != 1:
            what = "big-endian" if version == 1 << 56 else "newer or damaged"
            raise DataError(
                f"E-TOK-02 {self.idx_path}: version {version} ({what}); only version 1, little-endian, is known. "
                "Fix: write the dataset with GPT-NeoX, Megatron or data_prep"
            )
        if code not in DTYPES:
            kind = "a float type" if code in FLOAT_CODES else "unknown"
            raise DataError(
                f"E-TOK-03 {self.idx_path}: dtype code {code} is {kind}; token ids are integers, codes "
                f"{', '.join(f'{c} {t.__name__}' for c, t in DTYPES.items())}. Fix: prepare the data again"
            )
        needed = HEADER.size + 12 * n_sequences + 8 * n_entries
        if needed != size:
            raise self._truncated(
                f"{n_sequences} sequences and {n_entries} document entries need {needed} bytes, the file has {size}"
            )
        self.dtype = np.dtype(DTYPES[code])
        self.n_sequences = n_sequences
        self._idx = mmap.mmap(self._idx_file.fileno(), 0, access=mmap.ACCESS_READ)
        at = HEADER.size
        self._sizes = np.frombuffer(self._idx, "<i4", n_sequences, at)
        self._pointers = np.frombuffer(self._idx, "<i8", n_sequences, at + 4 * n_sequences)
        self._entries = np.frombuffer(self._idx, "<i8", n_entries, at + 12 * n_sequences)

    def _truncated(self, what: str) -> DataError:
        return DataError(
            f"E-TOK-05 {self.idx_path}: truncated or damaged: {what}; both must agree. Fix: copy or prepare it again"
        )

    def _check_entries(self) -> None:
        """Lengths, pointers and document index, in chunks: O(1) memory for any number of documents."""
        item, total = self.dtype.itemsize, 0
        for begin in range(0, self.n_sequences, CHUNK):
            sizes = self._sizes[begin : begin + CHUNK].astype(np.int64)
            starts = total + np.concatenate(([0], np.cumsum(sizes)))
            bad = np.flatnonzero((sizes < 0) | (self._pointers[begin : begin + CHUNK] != starts[:-1] * item))
            if bad.size:
                i = int(bad[0])
                raise DataError(
                    f"E-TOK-06 {self.idx_path} entry {begin + i}: length {sizes[i]}, begins at byte "
                    f"{self._pointers[begin + i]}; the length must be >= 0 and the begin {starts[i] * item} (sequences "
                    "lie back to back; a negative begin is a 32-bit overflow of the tool). Fix: prepare the data again"
                )
            total = int(starts[-1])
        size = os.fstat(self._bin_file.fileno()).st_size
        if size != total * item:
            raise DataError(
                f"E-TOK-04 {self.bin_path}: {size} bytes, but {self.idx_path} describes {total} tokens of {item} bytes "
                f"= {total * item} bytes; both must agree. Fix: copy both files again, or prepare the data again"
            )
        self.n_tokens = total
        last = -1
        for begin in range(0, len(self._entries), CHUNK):
            entries = self._entries[begin : begin + CHUNK]
            bad = np.flatnonzero((np.diff(entries, prepend=max(last, 0)) < 0) | (entries > self.n_sequences))
            if bad.size or (begin == 0 and entries[0] != 0):
                i = int(bad[0]) if bad.size else 0
                raise DataError(
                    f"E-TOK-06 {self.idx_path} document entry {begin + i}: {entries[i]}; the entries begin at 0, never "
                    f"fall, and end at most at {self.n_sequences} (sequences). Fix: prepare the data again"
                )
            last = int(entries[-1])
        if last < 0:
            raise DataError(
                f"E-TOK-06 {self.idx_path}: the document index is empty; it begins with 0. Fix: prepare the data again"
            )
        # entries[:-1] start the documents that are closed; each sequence from `last` on is one more.
        self._n_closed = len(self._entries) - 1
        self._last = last
        self.n_documents = self._n_closed + self.n_sequences - last

    def _first_sequence(self, document: int) -> int:
        if document < self._n_closed:
            return int(self._entries[document])
        return self._last + document - self._n_closed

    def document_start(self, document: int) -> int:
        """Token offset where a document begins; n_tokens for document = n_documents."""
        sequence = self._first_sequence(document)
        return self.n_tokens if sequence == self.n_sequences else int(self._pointers[sequence]) // self.dtype.itemsize

    def document_at(self, token: int) -> int:
        """The document that holds a token offset."""
        return bisect.bisect_right(range(self.n_documents), token, key=self.document_start) - 1

    def starts_within(self, start: int, stop: int) -> list[int]:
        """Token offsets in (start, stop) at which a document begins, rising, each once. O(log n_documents)."""
        found: list[int] = []
        for document in range(self.document_at(start) + 1, self.n_documents):
            offset = self.document_start(document)
            if offset >= stop:
                break
            if offset > start and (not found or found[-1] != offset):
                found.append(offset)
        return found

    def document_bounds(self) -> np.ndarray:
        """int64 (n_documents + 1,): token offsets; document i is tokens bounds[i] .. bounds[i + 1] - 1."""
        starts = np.append(self._pointers // self.dtype.itemsize, self.n_tokens)
        sequences = np.concatenate((self._entries[:-1], np.arange(self._last, self.n_sequences + 1)))
        return starts[sequences].astype(np.int64)

    def document(self, i: int) -> np.ndarray:
        """int64 (tokens,): one document."""
        return self.tokens(self.document_start(i), self.document_start(i + 1))

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """int64 (stop - start,): a stretch of the token stream, document borders or not."""
        assert 0 <= start <= stop <= self.n_tokens, (start, stop, self.n_tokens)
        needed = self.n_tokens * self.dtype.itemsize
        size = os.fstat(self._bin_file.fileno()).st_size
        if size < needed:  # a mapped page beyond the end would kill the process with SIGBUS
            raise DataError(
                f"E-TOK-16 {self.bin_path}: shrank from {needed} to {size} bytes while it was in use; data files must "
                "not change during a run. Fix: restore the file and start the same command again"
            )
        if self._bin is None:
            if needed == 0:
                return np.empty(0, np.int64)
            mapped = mmap.mmap(self._bin_file.fileno(), needed, access=mmap.ACCESS_READ)
            self._bin = np.frombuffer(mapped, self.dtype.newbyteorder("<"))
        return self._bin[start:stop].astype(np.int64)


class IndexedWriter:
    """Write a `.bin/.idx` pair as a stream; both appear under their names only when complete.

    Context manager. Documents go to `<prefix>.bin.tmp` (locked: a second writer is refused, and the lock
    dies with its process). On leaving: fsync, the old .idx is removed, .bin renamed, .idx renamed last,
    folder fsynced. An exception inside removes the temporary files. Memory: 4 bytes a document.
    Raises DataError E-TOK-10 (id that the dtype cannot hold; numpy would wrap 70 000 to 4 464),
    E-TOK-15 (second writer), StorageError (disk).
    """

    def __init__(self, prefix: str | Path, dtype: Any) -> None:
        self.prefix, self.dtype = str(prefix), np.dtype(dtype).newbyteorder("<")
        self._code = next(code for code, known in DTYPES.items() if np.dtype(known) == np.dtype(dtype))
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
                    flush_to_disk(self._file)
                    with open(temporary_idx, "wb") as idx:
                        self._write_index(idx)
                        flush_to_disk(idx)
                    Path(f"{self.prefix}.idx").unlink(missing_ok=True)
                    os.rename(f"{self.prefix}.bin.tmp", f"{self.prefix}.bin")
                    os.rename(temporary_idx, f"{self.prefix}.idx")
                    sync_folder(os.path.dirname(self.prefix) or ".")
        finally:
            Path(temporary_idx).unlink(missing_ok=True)
            Path(f"{self.prefix}.bin.tmp").unlink(missing_ok=True)
            self._file.close()

    def _write_index(self, idx: BinaryIO) -> None:
        idx.write(HEADER.pack(MAGIC, 1, self._code, self.n_documents, self.n_documents + 1))
        sizes = np.frombuffer(self._sizes, np.int32) if self._sizes else np.empty(0, np.int32)
        idx.write(sizes.astype("<i4").tobytes())
        start = 0
        for begin in range(0, len(sizes), CHUNK):
            ends = start + np.cumsum(sizes[begin : begin + CHUNK], dtype=np.int64)
            starts = np.concatenate(([start], ends[:-1]))
            idx.write((starts * self.dtype.itemsize).astype("<i8").tobytes())
            start = int(ends[-1])
        for begin in range(0, self.n_documents + 1, CHUNK):
            idx.write(np.arange(begin, min(begin + CHUNK, self.n_documents + 1), dtype="<i8").tobytes())
