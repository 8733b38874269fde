"""The packing `documents`: whole documents side by side in a window, hidden from each other by the document mask.

Which documents share a window: best-fit decreasing, on the histogram of their lengths. Longest first, each piece goes
to the row with the least room that still takes it; a new row when there is none (Johnson, "Fast algorithms for bin
packing", 1974; on histograms: Krell et al., arXiv 2107.02027, LPFHP). Pieces of one length are placed together and rows
that were filled alike stay one group, so the time depends on the number of lengths and groups, hardly on the number of
pieces.
"""

from array import array
from bisect import bisect_left, bisect_right, insort

import numpy as np

from coca_train.data.dataset import IndexedDataset
from coca_train.data.packings.base import Edges, Row, Span, Upsampling, starts_of, too_short

FRESH = -1


class Rows:
    """Which pieces lie in which row. Pieces are numbered from the longest on: 0 .. counts.sum() - 1.

    counts: int (capacity + 1,), pieces of each length [tokens]; counts[0] = 0. n_rows: how many rows they fill.
    Memory: some 50 bytes a group.

    A node is a stretch of rows that all got `copies` pieces of one length; their other pieces are those of `parent`,
    whose rows shift, shift + 1, ... they are. A group is the rows of one node from its `shift`-th on.
    """

    def __init__(self, counts: np.ndarray, capacity: int) -> None:
        self._parents, self._shifts, self._firsts, self._copies = array("q"), array("q"), array("q"), array("q")
        self._groups: dict[int, list[tuple[int, int, int]]] = {}  # room -> (node, shift, rows)
        self._rooms: list[int] = []  # those in _groups, rising
        number = 0
        for length in np.flatnonzero(counts)[::-1].tolist():
            left = int(counts[length])
            while left:
                placed = self._place(length, left, number, capacity)
                number, left = number + placed, left - placed
        final = [group for room in sorted(self._groups) for group in self._groups[room]]
        del self._groups, self._rooms
        self._nodes = array("q", (node for node, _, _ in final))
        self._node_shifts = array("q", (shift for _, shift, _ in final))
        self._ends = array("q", np.cumsum([n for _, _, n in final], dtype=np.int64).tolist())
        self.n_rows = self._ends[-1] if self._ends else 0

    def _place(self, length: int, left: int, number: int, capacity: int) -> int:
        """Put some of `left` pieces, the first of them `number`, into the group that fits best. Returns how many."""
        k = bisect_left(self._rooms, length)
        if k < len(self._rooms):
            room = self._rooms[k]
            node, shift, n_rows = self._groups[room].pop()
            if not self._groups[room]:
                del self._groups[room], self._rooms[k]
        else:
            room, node, shift, n_rows = capacity, FRESH, 0, left
        # As many rows of the group as can be filled alike stay one group: all of them get `fits` copies, or one row
        # takes what is left. So the number of groups grows with the lengths that occur, not with the pieces.
        fits = room // length
        rows, copies = (min(n_rows, left // fits), fits) if left >= fits else (1, left)
        if node != FRESH and rows < n_rows:
            self._add(room, node, shift + rows, n_rows - rows)
        for values, value in zip(
            (self._parents, self._shifts, self._firsts, self._copies), (node, shift, number, copies), strict=True
        ):
            values.append(value)
        self._add(room - copies * length, len(self._parents) - 1, 0, rows)
        return rows * copies

    def _add(self, room: int, node: int, shift: int, n_rows: int) -> None:
        if room not in self._groups:
            self._groups[room] = []
            insort(self._rooms, room)
        self._groups[room].append((node, shift, n_rows))

    def pieces(self, row: int) -> list[int]:
        """The pieces of a row, the longest first."""
        group = bisect_right(self._ends, row)
        row -= self._ends[group - 1] if group else 0
        node, row = self._nodes[group], row + self._node_shifts[group]
        numbers: list[int] = []
        while node != FRESH:
            first = self._firsts[node] + row * self._copies[node]
            numbers += reversed(range(first, first + self._copies[node]))
            node, row = self._parents[node], row + self._shifts[node]
        return numbers[::-1]


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
