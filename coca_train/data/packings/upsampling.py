"""Long documents seen more often than short ones (length upsampling, Fu et al., arXiv 2402.10171, section 3)."""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from coca_train.data.indexed import IndexedDataset


class Upsampling(NamedTuple):
    """Documents of at least from_tokens [tokens] are seen factor times an epoch, the others once."""

    from_tokens: int
    factor: int


class UpsampledStream:
    """A dataset's tokens, all of them once in their order, then the long documents in theirs, factor - 1 times.

    Copies of a document so stand far apart, and never side by side in a window where there are other long ones.
    Memory: 16 bytes a long document; none without upsampling.
    """

    def __init__(self, dataset: IndexedDataset, upsampling: Upsampling | None) -> None:
        self.dataset = dataset
        self.n_tokens = dataset.n_tokens
        self._long, self._ends = np.empty(0, np.int64), np.empty(0, np.int64)
        if upsampling is not None:
            lengths = np.diff(dataset.document_bounds())
            self._long = np.flatnonzero(lengths >= upsampling.from_tokens)
            self._ends = np.cumsum(lengths[self._long])
            if self._long.size:
                self.n_tokens += (upsampling.factor - 1) * int(self._ends[-1])

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """int64 (stop - start,)."""
        own = min(max(self.dataset.n_tokens, start), stop)
        parts = [self.dataset.tokens(start, own)] if start < own else []
        parts += [self.dataset.tokens(first, last) for _, first, last in self._copies(own, stop)]
        return np.concatenate(parts)

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """(document, start, stop) as IndexedDataset.pieces has them: offsets in the dataset, a copy is a piece."""
        own = min(max(self.dataset.n_tokens, start), stop)
        return (self.dataset.pieces(start, own) if start < own else []) + self._copies(own, stop)

    def _copies(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """The part of the stream behind the dataset itself."""
        found = []
        while start < stop:
            at = (start - self.dataset.n_tokens) % int(self._ends[-1])
            k = bisect_right(self._ends, at)
            document = int(self._long[k])
            behind = self.dataset.document_start(document + 1)
            first = behind - (int(self._ends[k]) - at)
            last = min(behind, first + stop - start)
            found.append((document, first, last))
            start += last - first
        return found
