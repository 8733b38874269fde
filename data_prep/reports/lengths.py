"""How long documents are, exactly and in bounded memory: how many there are of each length that occurs.

Different lengths add up to at most the tokens there are, so n tokens have at most sqrt(2 n) of them: 50 billion tokens,
316 228 lengths. Lengths are in tokens and count the end-of-document token.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from coca_train.data.dataset import IndexedDataset
from data_prep.reports.corpus import Corpus

LONG = (4096, 16384, 32768, 65536)  # documents of at least so many tokens are counted
QUANTILES = (0.1, 0.5, 0.9, 0.99)
CHUNK = 1 << 18  # documents looked at together


@dataclass(frozen=True)
class Lengths:
    """values: int64 (k,), the lengths that occur, rising [tokens]; counts: int64 (k,), documents of each."""

    values: np.ndarray
    counts: np.ndarray

    @property
    def n_documents(self) -> int:
        return int(self.counts.sum())

    @property
    def n_tokens(self) -> int:
        return int((self.values * self.counts).sum())

    @property
    def longest(self) -> int:
        return int(self.values[-1])

    def quantile(self, share: float) -> int:
        """The smallest length that at least this share of the documents does not exceed."""
        up_to = np.cumsum(self.counts)
        return int(self.values[np.searchsorted(up_to, share * up_to[-1])])

    def at_least(self, n: int) -> tuple[int, int]:
        """(documents of at least n tokens, tokens in them)."""
        first = int(np.searchsorted(self.values, n))
        return int(self.counts[first:].sum()), int((self.values * self.counts)[first:].sum())

    def histogram(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64 (len(edges) - 1,) each: documents, and tokens in them, of edges[i] <= length < edges[i + 1]."""
        borders = np.searchsorted(self.values, edges)
        sums = [np.concatenate(([0], np.cumsum(part))) for part in (self.counts, self.values * self.counts)]
        return np.diff(sums[0][borders]), np.diff(sums[1][borders])


def count(chunks: Iterable[np.ndarray]) -> Lengths:
    """Lengths out of chunks of them."""
    values, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for chunk in chunks:
        more, times = np.unique(chunk, return_counts=True)
        merged = np.union1d(values, more)
        total = np.zeros(len(merged), np.int64)
        total[np.searchsorted(merged, values)] += counts
        total[np.searchsorted(merged, more)] += times
        values, counts = merged, total
    return Lengths(values, counts)


def of_corpus(corpus: Corpus) -> dict[tuple[str, str], Lengths]:
    """(source, split) -> the lengths of its documents; what is trained on first."""
    return {
        (name, split): of_dataset(corpus.dataset(name, split))
        for split in ("train", "valid")
        for name in corpus.names(split)
    }


def of_dataset(data: IndexedDataset) -> Lengths:
    """The lengths of all documents of a dataset."""
    return count(_chunks(data))


def _chunks(data: IndexedDataset) -> Iterator[np.ndarray]:
    for first in range(0, data.n_documents, CHUNK):
        yield np.diff(data.document_starts(first, min(first + CHUNK, data.n_documents) + 1))
