"""Which documents of a corpus are left out because they are there already: three rules, one after the other.

The documents of a corpus have an order: source (by name), input, line. Rule by rule:

1. ids: within a source, the first document with an id owns it; a later one with the same id and ANOTHER text is left
   out (DUPLICATE_ID).
2. near duplicates: of the others, those on the source's list of near duplicates are left out (NEAR_DUPLICATE).
3. exact duplicates: of what then remains, one document of each text stays: the first that is held out, or, where none
   is held out, the first. The others are duplicates (DUPLICATE). So a text that is held out anywhere is trained on
   nowhere, and a text whose copies are on a list of near duplicates does not vanish as long as one copy is not.

Memory does not depend on the number of documents: keys go to files by their leading bits (they are hashes, so the
files come out even), and each file is gone through alone. On disk: up to 64 bytes a document, for a while.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

KEPT, DUPLICATE_ID, NEAR_DUPLICATE, DUPLICATE = range(4)
HELD_OUT = 1
CHUNK = 1 << 18  # records looked at together
KEYS_PER_BUCKET = 1 << 18
BUFFER_BYTES = 8 << 20
RANGE = 1 << 20  # documents whose verdicts are in memory together
TRAINED = np.uint64(1 << 63)  # in a rank: after everything that is held out

TEXT = np.dtype([("a", "<u8"), ("b", "<u8"), ("rank", "<u8")])
NAMED = np.dtype([("a", "<u8"), ("b", "<u8"), ("rank", "<u8"), ("c", "<u8"), ("d", "<u8")])
VERDICT = np.dtype([("document", "<u8"), ("verdict", "u1")])


@dataclass(frozen=True)
class Stretch:
    """Documents in a row, in the order of the corpus. first: number of the first one in the whole corpus.

    documents: structured, with split, digest and id at least (see tokenizing.parts.DOCS); near: bool (n,), whether each
    is on the list of near duplicates.
    """

    source: int
    first: int
    documents: np.ndarray
    near: np.ndarray


class Buckets:
    """Records in files by bucket number; BUFFER_BYTES of memory for any number of them."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        folder.mkdir(parents=True)
        self.folder, self.dtype = folder, dtype
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._bytes = 0

    def add(self, buckets: np.ndarray, records: np.ndarray) -> None:
        """Append record i to bucket buckets[i]."""
        if not len(records):
            return
        self._waiting.append((buckets, records))
        self._bytes += records.nbytes + buckets.nbytes
        if self._bytes >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write everything to the files; needed once before chunks()."""
        if not self._waiting:
            return
        buckets, records = (np.concatenate(arrays) for arrays in zip(*self._waiting, strict=True))
        self._waiting, self._bytes = [], 0
        # Stable, so that a bucket keeps the order of the corpus: the first clash of ids is the first one read.
        order = np.argsort(buckets, kind="stable")
        numbers, begins = np.unique(buckets[order], return_index=True)
        for number, rows in zip(numbers, np.split(order, begins[1:]), strict=True):
            with open(f"{self.folder}/{number}", "ab") as file:
                file.write(records[rows].tobytes())

    def chunks(self, bucket: int) -> Iterator[np.ndarray]:
        """Yield the records of a bucket as they were added, some at a time."""
        path = f"{self.folder}/{bucket}"
        if not os.path.exists(path):
            return
        with open(path, "rb") as file:
            while len(records := np.frombuffer(file.read(CHUNK * self.dtype.itemsize), self.dtype)):
                yield records


class Verdicts:
    """What becomes of each document; asked in rising order."""

    def __init__(self, folder: Path) -> None:
        self._buckets = Buckets(folder, VERDICT)
        self._range = -1
        self._verdicts = np.empty(0, np.uint8)

    def add(self, documents: np.ndarray, verdict: int) -> None:
        records = np.empty(len(documents), VERDICT)
        records["document"], records["verdict"] = documents, verdict
        self._buckets.add(documents // RANGE, records)

    def flush(self) -> None:
        self._buckets.flush()

    def of(self, first: int, n: int) -> np.ndarray:
        """Return the verdicts of documents first .. first + n - 1: uint8 (n,)."""
        verdicts = np.empty(n, np.uint8)
        done = 0
        while done < n:
            number, offset = divmod(first + done, RANGE)
            if number != self._range:
                self._load(number)
            step = min(n - done, RANGE - offset)
            verdicts[done : done + step] = self._verdicts[offset : offset + step]
            done += step
        return verdicts

    def _load(self, number: int) -> None:
        self._range = number
        self._verdicts = np.zeros(RANGE, np.uint8)
        for records in self._buckets.chunks(number):
            self._verdicts[(records["document"] - np.uint64(number * RANGE)).astype(np.int64)] = records["verdict"]


@dataclass(frozen=True)
class Clash:
    """Two documents with one id and different texts, by their numbers in the corpus."""

    document: int
    first: int


def judge(
    stretches: Callable[[], Iterable[Stretch]], n_documents: int, named: frozenset[int], folder: Path
) -> tuple[Verdicts, Clash | None]:
    """Apply the three rules. Returns the verdicts, and the first clash of ids if there is one.

    stretches: gives the documents from the beginning each time it is called. named: sources with ids.
    folder: for files on the way; must not be there yet.
    """
    ids = Verdicts(folder / "named")
    clash = _judge_ids(stretches, n_documents, named, folder, ids) if named else None
    ids.flush()
    verdicts = Verdicts(folder / "verdicts")
    texts = Buckets(folder / "texts", TEXT)
    bits = _bits(n_documents)
    for stretch in stretches():
        verdict = ids.of(stretch.first, len(stretch.documents)) if named else np.zeros(len(stretch.documents), np.uint8)
        verdict[stretch.near & (verdict == KEPT)] = NEAR_DUPLICATE
        numbers = np.arange(stretch.first, stretch.first + len(verdict), dtype=np.uint64)
        for reason in (DUPLICATE_ID, NEAR_DUPLICATE):
            verdicts.add(numbers[verdict == reason], reason)
        rest = verdict == KEPT
        records = np.empty(int(rest.sum()), TEXT)
        records["a"], records["b"] = _halves(stretch.documents["digest"][rest])
        held_out = stretch.documents["split"][rest] == HELD_OUT
        records["rank"] = numbers[rest] | np.where(held_out, np.uint64(0), TRAINED)
        texts.add(_bucket(records["a"], bits), records)
    texts.flush()
    for bucket in range(1 << bits):
        first = _firsts(texts.chunks(bucket), TEXT)
        # A bucket is read twice instead of kept: one text in a million copies would not fit into memory.
        for records in texts.chunks(bucket):
            again = records["rank"] != first["rank"][_same_key(first, records)]
            verdicts.add(records["rank"][again] & ~TRAINED, DUPLICATE)
    verdicts.flush()
    return verdicts, clash


def _judge_ids(
    stretches: Callable[[], Iterable[Stretch]], n_documents: int, named: frozenset[int], folder: Path, ids: Verdicts
) -> Clash | None:
    bits = _bits(n_documents)
    names = Buckets(folder / "ids", NAMED)
    for stretch in stretches():
        if stretch.source not in named:
            continue
        a, b = _halves(stretch.documents["id"])
        has_id = (a | b) != 0
        records = np.empty(int(has_id.sum()), NAMED)
        records["a"], records["b"] = a[has_id], b[has_id]
        records["c"], records["d"] = _halves(stretch.documents["digest"][has_id])
        records["rank"] = stretch.first + np.flatnonzero(has_id)
        # The source above the leading bits: ids of different sources never meet in a bucket.
        names.add(_bucket(records["a"], bits) + np.uint64(stretch.source << bits), records)
    names.flush()
    clash = None
    for source in sorted(named):
        for bucket in range(source << bits, (source + 1) << bits):
            first = _firsts(names.chunks(bucket), NAMED)
            for records in names.chunks(bucket):
                owner = first[_same_key(first, records)]
                other = (records["c"] != owner["c"]) | (records["d"] != owner["d"])
                ids.add(records["rank"][other], DUPLICATE_ID)
                for i in np.flatnonzero(other)[:1]:  # they are in rising order
                    if clash is None or records["rank"][i] < clash.document:
                        clash = Clash(int(records["rank"][i]), int(owner["rank"][i]))
    return clash


def _bits(n_documents: int) -> int:
    """Return how many leading bits choose a bucket, so that about KEYS_PER_BUCKET keys come into each."""
    return max(0, (n_documents - 1) // KEYS_PER_BUCKET).bit_length()


def _bucket(leading: np.ndarray, bits: int) -> np.ndarray:
    return (leading >> np.uint64(64 - bits)).astype(np.uint64) if bits else np.zeros(len(leading), np.uint64)


def _halves(digests: np.ndarray) -> np.ndarray:
    """V16 (n,) -> uint64 (2, n)."""
    return np.ascontiguousarray(digests).view("<u8").reshape(-1, 2).T


def _firsts(chunks: Iterable[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Return the record of lowest rank for each key, sorted by key."""
    firsts = np.empty(0, dtype)
    for chunk in chunks:
        records = np.concatenate((firsts, chunk))
        records = records[np.lexsort((records["rank"], records["b"], records["a"]))]
        firsts = records[_new_key(records)]
    return firsts


def _new_key(records: np.ndarray) -> np.ndarray:
    new = np.ones(len(records), bool)
    new[1:] = (records["a"][1:] != records["a"][:-1]) | (records["b"][1:] != records["b"][:-1])
    return new


def _same_key(first: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Return the row of `first` with the same key, which is there once: int64 (len(records),)."""
    # One sort instead of a search: keys are pairs of 64-bit halves, which searchsorted does not compare.
    both = np.concatenate((first[["a", "b"]], records[["a", "b"]]))
    order = np.lexsort((both["b"], both["a"]))  # stable: the row of `first` comes before its like
    leader = np.maximum.accumulate(np.where(_new_key(both[order]), np.arange(len(both)), 0))
    rows = np.empty(len(both), np.int64)
    rows[order] = order[leader]
    return rows[len(first) :]
