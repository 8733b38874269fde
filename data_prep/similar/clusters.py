"""Groups of documents that match, directly or through others, and which document of a group stays.

datatrove's own third step keeps every match in memory and one document of a group, whichever; here the groups are a
memory-mapped file of 8 bytes a document, and the document that stays is the first by rank, then by number.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from coca_train.data.storage import storage

STAYS, HELD_OUT, TRAINED_ON = range(3)  # ranks; STAYS is never left out: a document of an evaluation set
CHUNK = 1 << 18


class Clusters:
    """Union-find over document numbers 0 .. len(ranks) - 1. ranks: uint8 (n,), memory-mapped or not."""

    def __init__(self, path: Path, ranks: np.ndarray) -> None:
        self.n, self._ranks = len(ranks), ranks
        with storage(str(path)), open(path, "wb") as file:
            for begin in range(0, self.n, CHUNK):
                file.write(np.arange(begin, min(begin + CHUNK, self.n), dtype=np.int64).tobytes())
        # A plain view: reading single numbers through np.memmap itself is ten times slower.
        self._up = np.asarray(np.memmap(path, np.int64, "r+", shape=(self.n,))) if self.n else np.empty(0, np.int64)

    def _root(self, document: int) -> int:
        up = self._up
        while (above := int(up[document])) != document:
            up[document] = document = int(up[above])  # halve the way for those who come later
        return document

    def join(self, pairs: Iterable[np.ndarray]) -> None:
        """Put documents into one group. pairs: arrays (k, 2). The root of a group is the document that stays."""
        ranks, up = self._ranks, self._up
        for array in pairs:
            for a, b in array.tolist():
                a, b = self._root(a), self._root(b)
                if a != b:
                    first, second = (a, b) if (ranks[a], a) < (ranks[b], b) else (b, a)
                    up[second] = first

    def left_out(self) -> Iterator[np.ndarray]:
        """int64 (k, 2), rising, some at a time: a document that goes, and the one of its group that stays."""
        for begin in range(0, self.n, CHUNK):
            up = self._up[begin : begin + CHUNK]
            own = np.arange(begin, begin + len(up))
            gone = np.flatnonzero((up != own) & (self._ranks[begin : begin + CHUNK] != STAYS))
            roots = up[gone]
            while not np.array_equal(above := self._up[roots], roots):
                roots = above
            yield np.stack((own[gone], roots), axis=1)
