"""The `.idx` of a Megatron / GPT-NeoX dataset: lengths, places and documents of its sequences, checked before use.

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
import struct

import numpy as np

from coca_train.data.storage import OpenFile
from coca_train.runtime.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
FLOAT_CODES = (6, 7)
CHUNK = 1 << 14  # entries checked at a time
EAGER_ENTRIES = 1 << 20  # an index of up to so many is checked whole when it is opened (some 20 ms)


class Column:
    """Integers of one width, back to back in an open file from byte `begin` on; read on demand."""

    def __init__(self, file: OpenFile, dtype: str, begin: int, n: int) -> None:
        self._file, self._dtype, self._begin, self._n = file, np.dtype(dtype), begin, n

    def __len__(self) -> int:
        return self._n

    def at(self, i: int) -> int:
        """Return one integer."""
        at, width = self._begin + i * self._dtype.itemsize, self._dtype.itemsize
        return int.from_bytes(self._file.read(at, at + width), "little", signed=True)

    def part(self, begin: int, end: int) -> np.ndarray:
        """Return integers begin .. end - 1, or as many of them as there are: int64 (n,)."""
        end, width = min(end, self._n), self._dtype.itemsize
        data = self._file.read(self._begin + begin * width, self._begin + max(begin, end) * width)
        return np.frombuffer(data, self._dtype).astype(np.int64)


class Index:
    """Read-only view of one .idx; nothing of it stays in memory.

    Header, sizes, totals and both ends are checked when it is opened; every entry too, unless there are more than
    EAGER_ENTRIES: then a chunk of them is checked when one of it is used for the first time.
    Attributes: n_tokens, n_sequences, n_documents, dtype.
    Raises DataError: E-TOK-02 not this format, 03 dtype, 04 size of the .bin, 05 truncated index, 06 impossible entry.
    """

    def __init__(self, idx: OpenFile, bin_path: str, bin_bytes: int) -> None:
        self.idx_path = idx.path
        self._read_header(idx)
        self._checked_sequences = bytearray(-(-self.n_sequences // CHUNK))
        self._checked_entries = bytearray(-(-len(self._entries) // CHUNK))
        self._checks = (
            (self._checked_sequences, self._check_sequence),
            (self._checked_entries, self._check_entry),
        )
        self._check_ends(bin_path, bin_bytes)

    def _read_header(self, idx: OpenFile) -> None:
        """Read the header; every number in it is checked against the size of the file before it is used."""
        size = idx.size()
        head = bytes(idx.read(0, min(HEADER.size, size)))
        if head[:9] != MAGIC:
            hint = "re-tokenize with --dataset-impl mmap" if head[:6] == b"TNTIDX" else "prepare the data again"
            raise DataError(f"E-TOK-02 {self.idx_path}: begins with {head[:9]!r}; {MAGIC!r} is needed. Fix: {hint}")
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
        self._sizes = Column(idx, "<i4", HEADER.size, n_sequences)
        self._pointers = Column(idx, "<i8", HEADER.size + 4 * n_sequences, n_sequences)
        self._entries = Column(idx, "<i8", HEADER.size + 12 * n_sequences, n_entries)

    def _truncated(self, what: str) -> DataError:
        return DataError(
            f"E-TOK-05 {self.idx_path}: truncated or damaged: {what}; both must agree. Fix: copy or prepare it again"
        )

    def _check_ends(self, bin_path: str, bin_bytes: int) -> None:
        """Check the totals and both ends; every entry too in a small index, else when it is used."""
        item, n, n_entries = self.dtype.itemsize, self.n_sequences, len(self._entries)
        if not n_entries:
            raise DataError(f"E-TOK-06 {self.idx_path}: the document index is empty. Fix: prepare the data again")
        # Only after the size of the .bin agrees is an entry known to lie inside it: the limit comes last.
        end = self._pointers.at(n - 1) + self._sizes.at(n - 1) * item if n else 0
        self._limit = 2**63 - 1  # until the size of the .bin is known to be right
        if n + n_entries <= EAGER_ENTRIES:
            for chunks, check in self._checks:
                for chunk in range(len(chunks)):
                    check(chunk * CHUNK)
        if bin_bytes != end:
            raise DataError(
                f"E-TOK-04 {bin_path}: {bin_bytes} bytes, but {self.idx_path} describes {end // item} tokens of {item} "
                f"bytes = {end} bytes. Fix: copy both files again, or prepare the data again"
            )
        self._limit, self.n_tokens = end, end // item
        for chunks, check in self._checks:
            if chunks:
                check(0)
                check((len(chunks) - 1) * CHUNK)
        # entries[:-1] start the documents that are closed; each sequence from `last` on is one more.
        self._n_closed = n_entries - 1
        self._last = self._entries.at(n_entries - 1)
        self.n_documents = self._n_closed + n - self._last

    def _check_sequence(self, i: int) -> None:
        """Check lengths and pointers of the chunk that holds sequence i, each against the one before it."""
        if self._checked_sequences[i // CHUNK]:
            return
        begin = i // CHUNK * CHUNK
        before = max(begin - 1, 0), begin + CHUNK  # and the last one of the chunk before
        sizes, pointers = self._sizes.part(*before), self._pointers.part(*before)
        # In int64: a 32-bit sum would hide the very overflow that damaged the file.
        ends = pointers + sizes * self.dtype.itemsize
        starts = ends[:-1] if begin else np.concatenate(([0], ends[:-1]))
        sizes, pointers = sizes[-len(starts) :], pointers[-len(starts) :]
        bad = np.flatnonzero((sizes < 0) | (pointers != starts) | (pointers < 0) | (pointers > self._limit))
        if bad.size:
            k = int(bad[0])
            raise DataError(
                f"E-TOK-06 {self.idx_path} entry {begin + k}: length {sizes[k]}, begins at byte {pointers[k]}; the "
                f"length must be >= 0 and the begin {starts[k]} (a negative begin is a 32-bit overflow of the tool). "
                "Fix: prepare the data again"
            )
        self._checked_sequences[i // CHUNK] = 1

    def _check_entry(self, i: int) -> None:
        """Check the chunk of the document index that holds entry i, each entry against the one before it."""
        if self._checked_entries[i // CHUNK]:
            return
        begin = i // CHUNK * CHUNK
        entries = self._entries.part(begin, begin + CHUNK)
        last = self._entries.at(begin - 1) if begin else 0
        bad = np.flatnonzero((np.diff(entries, prepend=last) < 0) | (entries < 0) | (entries > self.n_sequences))
        if bad.size or (begin == 0 and entries[0] != 0):
            k = int(bad[0]) if bad.size else 0
            raise DataError(
                f"E-TOK-06 {self.idx_path} document entry {begin + k}: {entries[k]}; the entries begin at 0, never "
                f"fall, and end at most at {self.n_sequences}. Fix: prepare the data again"
            )
        self._checked_entries[i // CHUNK] = 1

    def _first_sequence(self, document: int) -> int:
        if document < self._n_closed:
            self._check_entry(document)
            return self._entries.at(document)
        return self._last + document - self._n_closed

    def document_start(self, document: int) -> int:
        """Return the token offset where a document begins; n_tokens for document = n_documents."""
        sequence = self._first_sequence(document)
        if sequence == self.n_sequences:
            return self.n_tokens
        self._check_sequence(sequence)
        return self._pointers.at(sequence) // self.dtype.itemsize

    def document_at(self, token: int) -> int:
        """Return the document that holds a token offset."""
        return bisect.bisect_right(range(self.n_documents), token, key=self.document_start) - 1

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return the documents of a stretch of tokens, each with its tokens in it: (document, first, last + 1).

        Rising; documents without a token in it are left out. O(log n_documents).
        """
        pieces: list[tuple[int, int, int]] = []
        document = self.document_at(start)
        while start < stop:
            end = min(self.document_start(document + 1), stop)
            if end > start:
                pieces.append((document, start, end))
            document, start = document + 1, max(start, end)
        return pieces

    def document_starts(self, first: int, stop: int) -> np.ndarray:
        """Return `document_start` of documents first .. stop - 1, n_documents included: int64 (stop - first,)."""
        closed = self._entries.part(first, min(stop, self._n_closed))
        for chunk in range(first // CHUNK, -(-(first + len(closed)) // CHUNK)):
            self._check_entry(chunk * CHUNK)
        more = np.arange(max(first, self._n_closed), stop) - self._n_closed + self._last
        sequences = np.concatenate((closed, more))
        starts = np.full(len(sequences), self.n_tokens)
        inside = np.searchsorted(sequences, self.n_sequences)  # they never fall; those after all sequences are empty
        if inside:
            low, high = int(sequences[0]), int(sequences[inside - 1])
            for chunk in range(low // CHUNK, high // CHUNK + 1):
                self._check_sequence(chunk * CHUNK)
            starts[:inside] = self._pointers.part(low, high + 1)[sequences[:inside] - low] // self.dtype.itemsize
        return starts

    def document_bounds(self) -> np.ndarray:
        """Return token offsets, int64 (n_documents + 1,); document i is tokens bounds[i] .. bounds[i + 1] - 1."""
        return self.document_starts(0, self.n_documents + 1)
