"""Which documents of a corpus are left out because they are there already: two rules, one after the other.

The documents of a corpus have an order: source (by name), input, line. Rule by rule:

1. ids: within a source, the first document with an id owns it; a later one with the same id and ANOTHER text is left
   out (DUPLICATE_ID).
2. exact duplicates: of what then remains, one document of each text stays: the first that is held out, or, where none
   is held out, the first. The others are duplicates (DUPLICATE). So a text that is held out anywhere is trained on
   nowhere.

In memory are one byte a document, and the keys of KEYS_AT_A_TIME documents: more documents than that are read several
times, twice for each part of their keys. Keys are hashes, so their remainders share them out evenly.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from coca_train.runtime import machine

KEPT, DUPLICATE_ID, DUPLICATE = range(3)
HELD_OUT = 1
CHUNK = 1 << 18  # records sorted together, at least
TRAINED = np.uint64(1 << 63)  # in a rank: after everything that is held out

# key: what two documents have in common; rank: the lowest is the first; text: digest of it.
RECORD = np.dtype([("key", "S20"), ("rank", "<u8"), ("text", "S16")])
# A sixteenth of the memory, as sorting them takes several copies.
KEYS_AT_A_TIME = max(1 << 22, machine.memory() // 16 // RECORD.itemsize)


@dataclass(frozen=True)
class Stretch:
    """Documents in a row, in the order of the corpus. first: number of the first one in the whole corpus.

    documents: structured, with split, digest and id at least (see parts.DOCS).
    """

    source: int
    first: int
    documents: np.ndarray


@dataclass(frozen=True)
class Clash:
    """Two documents with one id and different texts, by their numbers in the corpus."""

    document: int
    first: int


def judge(
    stretches: Callable[[], Iterable[Stretch]], n_documents: int, named: frozenset[int]
) -> tuple[np.ndarray, Clash | None]:
    """Apply both rules. Returns the verdicts, uint8 (n_documents,), and the first clash of ids if there is one.

    stretches: gives the documents from the beginning each time it is called. named: sources with ids.
    """
    verdicts = np.zeros(n_documents, np.uint8)
    clashes: list[Clash] = []

    def with_id(stretch: Stretch) -> np.ndarray:
        ids = _bytes(stretch.documents["id"])
        return _records(stretch, ids, np.logical_and(ids.any(axis=1), stretch.source in named), stretch.source)

    def with_text(stretch: Stretch) -> np.ndarray:
        kept = verdicts[stretch.first : stretch.first + len(stretch.documents)] == KEPT
        records = _records(stretch, _bytes(stretch.documents["digest"]), kept, 0)
        records["rank"][stretch.documents["split"][kept] != HELD_OUT] |= TRAINED
        return records

    for records, first in _with_first(with_id, stretches, n_documents) if named else ():
        other = np.flatnonzero(records["text"] != first["text"])
        verdicts[records["rank"][other]] = DUPLICATE_ID
        clashes += [Clash(int(records["rank"][i]), int(first["rank"][i])) for i in other[:1]]
    for records, first in _with_first(with_text, stretches, n_documents):
        again = records["rank"] != first["rank"]
        verdicts[records["rank"][again] & ~TRAINED] = DUPLICATE
    return verdicts, min(clashes, key=lambda clash: clash.document, default=None)


def _bytes(digests: np.ndarray) -> np.ndarray:
    """V16 (n,) -> uint8 (n, 16)."""
    return np.ascontiguousarray(digests).view(np.uint8).reshape(-1, 16)


def _records(stretch: Stretch, keys: np.ndarray, chosen: np.ndarray, source: int) -> np.ndarray:
    """Return RECORD (n,) of the chosen documents. keys: uint8 (n, 16); those of two sources are never equal."""
    records = np.empty(int(chosen.sum()), RECORD)
    sources = np.full((len(records), 4), list(source.to_bytes(4, "big")), np.uint8)
    records["key"] = np.concatenate((keys[chosen], sources), axis=1).view("S20").reshape(-1)
    records["rank"] = stretch.first + np.flatnonzero(chosen)
    records["text"] = _bytes(stretch.documents["digest"])[chosen].view("S16").reshape(-1)
    return records


def _with_first(
    records_of: Callable[[Stretch], np.ndarray], stretches: Callable[[], Iterable[Stretch]], n_documents: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the records of the stretches, and for each the record of lowest rank with the same key."""
    n_parts = max(1, -(-n_documents // KEYS_AT_A_TIME))
    for part in range(n_parts):

        def records_of_part(part: int = part) -> Iterator[np.ndarray]:
            for stretch in stretches():
                records = records_of(stretch)
                heads = np.ascontiguousarray(records["key"]).view(np.uint8).reshape(-1, 20)[:, :8].copy().view("<u8")
                yield records[heads[:, 0] % np.uint64(n_parts) == part]

        firsts = _firsts(records_of_part())
        keys = np.ascontiguousarray(firsts["key"])
        # Read again instead of kept: one text in a million copies would not fit into memory.
        for records in records_of_part():
            yield records, firsts[np.searchsorted(keys, records["key"])]


def _firsts(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return the record of lowest rank for each key, sorted by key."""
    firsts, held, n_held = np.empty(0, RECORD), list[np.ndarray](), 0
    for part in parts:
        held.append(part)
        n_held += len(part)
        if n_held > max(CHUNK, len(firsts)):  # seldom, as all are sorted again
            firsts, held, n_held = _lowest(np.concatenate((firsts, *held))), [], 0
    return _lowest(np.concatenate((firsts, *held)))


def _lowest(records: np.ndarray) -> np.ndarray:
    records = records[np.lexsort((records["rank"], records["key"]))]
    new = np.ones(len(records), bool)
    new[1:] = records["key"][1:] != records["key"][:-1]
    return records[new]
