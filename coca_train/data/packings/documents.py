"""The packing `documents`: whole documents side by side in a window, hidden from each other by the document mask."""

import numpy as np

from coca_train.data.indexed import IndexedDataset
from coca_train.data.packings.base import Edges, Row, Span, starts_of, too_short
from coca_train.data.packings.best_fit import Rows
from coca_train.data.packings.upsampling import Upsampling


class Documents:
    """Documents of up to seq_len tokens are never cut; longer ones are cut into pieces of seq_len and a rest.

    A piece of a longer document is a window by itself, and its last target is the first token of the next piece. Else
    the last token of a document predicts nothing. What a window has left is end-of-document ids, a document of their
    own, unscored. Every token of the dataset is an input once an epoch, or upsampling.factor times.
    Memory: 8 bytes a piece. Raises DataError E-TOK-12 when the dataset is empty.
    """

    def __init__(
        self, dataset: IndexedDataset, name: str, seq_len: int, edges: Edges, upsampling: Upsampling | None
    ) -> None:
        self.dataset, self.seq_len, self.eos = dataset, seq_len, edges.eos
        bounds = dataset.document_bounds()
        starts, lengths = bounds[:-1], np.diff(bounds)
        if upsampling is not None:
            long = np.flatnonzero(lengths >= upsampling.from_tokens)
            again = np.tile(long, upsampling.factor - 1)
            starts, lengths = np.append(starts, starts[again]), np.append(lengths, lengths[again])
        self._starts, self._lengths = pieces(starts, lengths, seq_len)
        self._rows = Rows(np.bincount(self._lengths, minlength=seq_len + 1), seq_len)
        self.n_windows = self._rows.n_rows
        if self.n_windows < 1:
            raise too_short(dataset, name, "one at least is needed")
        targets = int(lengths.sum() - np.count_nonzero(lengths))  # all of a document but its first token
        self.fill = targets / (self.n_windows * seq_len)

    def row(self, window: int) -> Row:
        spans = self.spans(window)
        ids, used = np.full(self.seq_len + 1, self.eos, np.int64), 0
        for span in spans:
            used = span.at + span.stop - span.start
            ids[span.at : used] = self.dataset.tokens(span.start, span.stop)
        if used > self.seq_len:
            return Row(ids, self.seq_len, [])
        return Row(ids, used - 1, starts_of(spans) + ([used] if used < self.seq_len else []))

    def spans(self, window: int) -> list[Span]:
        """A piece that fills its window comes with the token after it, its last target, unless it ends a document."""
        spans, at = [], 0
        for piece in self._rows.pieces(window):
            start, length = int(self._starts[piece]), int(self._lengths[piece])
            document = self.dataset.document_at(start)
            goes_on = length == self.seq_len and start + length < self.dataset.document_start(document + 1)
            spans.append(Span(at, document, start, start + length + goes_on))
            at += length
        return spans


def pieces(starts: np.ndarray, lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Documents [token offsets, tokens] in pieces of at most `capacity` tokens, longest first: the same of those.

    Of equal length, the first in the dataset first. Returns int64 offsets and int32 lengths; no piece is empty.
    """
    whole = lengths // capacity
    owners = np.repeat(np.arange(len(lengths)), whole)
    numbers = np.arange(len(owners)) - np.repeat(np.cumsum(whole) - whole, whole)
    rests = np.flatnonzero(lengths % capacity)
    offsets = np.concatenate((starts[owners] + numbers * capacity, starts[rests] + whole[rests] * capacity))
    sizes = np.concatenate((np.full(len(owners), capacity), lengths[rests] % capacity)).astype(np.int32)
    order = np.argsort(-sizes, kind="stable")
    return offsets[order], sizes[order]
