"""The packing `segments`: BOS, seq_len - 2 tokens of the stream, EOS; the recipe of YaRN (arXiv 2309.00071, section 4).

The paper cuts PG-19 into segments of 64k "bookended with the BOS and EOS token". Long documents may be seen more often
than short ones (length upsampling, Fu et al., arXiv 2402.10171, section 3).
"""

from bisect import bisect_right

import numpy as np

from coca_train.data.dataset import IndexedDataset
from coca_train.data.packings.base import Edges, Row, Span, Upsampling, starts_of, too_short
from coca_train.runtime.errors import DataError


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
        copies = []
        while start < stop:
            # Every repeat is the long documents once more, so the place in the stream is taken modulo one repeat.
            at = (start - self.dataset.n_tokens) % int(self._ends[-1])
            k = bisect_right(self._ends, at)
            document = int(self._long[k])
            behind = self.dataset.document_start(document + 1)
            first = behind - (int(self._ends[k]) - at)
            last = min(behind, first + stop - start)
            copies.append((document, first, last))
            start += last - first
        return copies


class Segments:
    """Window w holds tokens w*S .. w*S + S - 1 of the stream, S = seq_len - 2, end-of-document tokens included.

    All seq_len tokens are inputs. The targets are the seq_len - 1 after the first; nothing follows the last, so it
    predicts nothing. With a document mask BOS belongs to the first document of the segment and EOS to the last.
    Fewer than S tokens at the end of the stream are never seen.
    Raises DataError E-MIX-04 when the tokenizer has no BOS, E-TOK-12 when the stream is shorter than a segment.
    """

    fill = 1.0

    def __init__(
        self,
        dataset: IndexedDataset,
        name: str,
        seq_len: int,
        with_starts: bool,
        edges: Edges,
        upsampling: Upsampling | None,
    ) -> None:
        if edges.bos is None:
            raise DataError(
                "E-MIX-04 data.packing=segments: each segment begins with a token that begins a text (<s>, BOS), and "
                "data.tokenizer has none. Fix: choose data.packing=windows, or a tokenizer with one"
            )
        self.dataset, self.seq_len, self.with_starts = dataset, seq_len, with_starts
        self.bos, self.eos = edges.bos, edges.eos
        self.stream = UpsampledStream(dataset, upsampling)
        self.n_windows = self.stream.n_tokens // (seq_len - 2)
        if self.n_windows < 1:
            raise too_short(dataset, name, f"one segment takes seq_len - 2 = {seq_len - 2}")

    def row(self, window: int) -> Row:
        start, stop = self._stretch(window)
        ids = np.full(self.seq_len + 1, self.eos, np.int64)
        ids[0] = self.bos
        ids[1 : self.seq_len - 1] = self.stream.tokens(start, stop)
        return Row(ids, self.seq_len - 1, starts_of(self.spans(window)) if self.with_starts else None)

    def spans(self, window: int) -> list[Span]:
        spans, at = [], 1
        for document, start, stop in self.stream.pieces(*self._stretch(window)):
            spans.append(Span(at, document, start, stop))
            at += stop - start
        return spans

    def _stretch(self, window: int) -> tuple[int, int]:
        return window * (self.seq_len - 2), (window + 1) * (self.seq_len - 2)
