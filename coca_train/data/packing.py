"""How a dataset becomes windows of T = seq_len inputs (data.packing), and where their tokens come from."""

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coca_train.config.schema import DataConfig
from coca_train.data.dataset import IndexedDataset
from coca_train.runtime.errors import DataError


class Edges(NamedTuple):
    """Token ids that packings add: what begins a text (None: the tokenizer knows no such), and what ends it."""

    bos: int | None
    eos: int


class Upsampling(NamedTuple):
    """Documents of at least from_tokens [tokens] are seen factor times an epoch, the others once."""

    from_tokens: int
    factor: int


class Span(NamedTuple):
    """Consecutive tokens of one document in a window.

    at: where in the window, from 0. start, stop: token offsets in the .bin, stop after the last.
    """

    at: int
    document: int
    start: int
    stop: int


class Row(NamedTuple):
    """One sequence. ids: int64 (T + 1,), inputs and the last target. scored: so many targets count, from the first on.

    starts: where documents begin, rising, each in 1 .. T; None where nobody asks.
    """

    ids: np.ndarray
    scored: int
    starts: Sequence[int] | None


class Packing(ABC):
    """How a dataset becomes windows.

    n_windows: in an epoch. fill: mean scored targets of a window, relative to the other windows of this packing; 1
    where all windows score as many.
    """

    dataset: IndexedDataset
    n_windows: int
    fill: float = 1.0

    @abstractmethod
    def row(self, window: int) -> Row:
        """Return the tokens of a window."""

    @abstractmethod
    def spans(self, window: int) -> list[Span]:
        """Return where the tokens of a window come from, in their order. Ids that the packing adds are in no span."""


def inner_starts(spans: Sequence[Span]) -> list[int]:
    """Return where documents begin in a window, except the first."""
    return [span.at for span in spans[1:]]


def checked_row(packing: Packing, window: int, vocab_size: int | None) -> Row:
    """Return a window's tokens. Raises DataError E-TOK-09 for an id beyond vocab_size (None: no check)."""
    row = packing.row(window)
    if vocab_size is None or not (bad := np.flatnonzero((row.ids < 0) | (row.ids >= vocab_size))).size:
        return row
    at = int(bad[0])
    span = [span for span in packing.spans(window) if span.at <= at][-1]
    raise DataError(
        f"E-TOK-09 {packing.dataset.bin_path} document {span.document}, token {span.start + at - span.at}: id "
        f"{row.ids[at]}, but the model has {vocab_size} ids (0 .. {vocab_size - 1}). Fix: set data.tokenizer to the "
        "tokenizer this data was made with, or model.vocab_size to at least its size"
    )


def too_short(dataset: IndexedDataset, name: str, needs: str) -> DataError:
    """Return the error for a dataset that does not fill one window. needs: what a window takes, in words."""
    return DataError(
        f"E-TOK-12 {dataset.bin_path} ({name}): {dataset.n_tokens} tokens; {needs}. "
        "Fix: lower train.seq_len, or give the source more text"
    )


class Windows(Packing):
    """The token stream in stretches of seq_len, wherever documents begin and end (data.packing=windows).

    Window w is tokens w*T .. w*T + T, T = seq_len; the last one is target only, and the first input of the next. Fewer
    than T + 1 tokens at the end of the dataset are never seen.
    name: of the source, for messages. with_starts: rows say where documents begin. at_documents: a window begins with
    the next document, where a whole one still follows.
    Raises DataError E-TOK-12 when the dataset is shorter than one window.
    """

    def __init__(
        self, dataset: IndexedDataset, name: str, seq_len: int, with_starts: bool, at_documents: bool = False
    ) -> None:
        self.dataset, self.seq_len, self.with_starts = dataset, seq_len, with_starts
        self._bounds = dataset.document_bounds() if at_documents else None
        self.n_windows = (dataset.n_tokens - 1) // seq_len
        if self.n_windows < 1:
            raise too_short(dataset, name, f"one window takes seq_len + 1 = {seq_len + 1}")

    def _start(self, window: int) -> int:
        start = window * self.seq_len
        if self._bounds is None:
            return start
        document = int(self._bounds[np.searchsorted(self._bounds, start)])
        return document if document + self.seq_len + 1 <= self.dataset.n_tokens else start

    def row(self, window: int) -> Row:
        start = self._start(window)
        ids = self.dataset.tokens(start, start + self.seq_len + 1)
        return Row(ids, self.seq_len, inner_starts(self.spans(window)) if self.with_starts else None)

    def spans(self, window: int) -> list[Span]:
        first = self._start(window)
        pieces = self.dataset.pieces(first, first + self.seq_len + 1)
        return [Span(start - first, document, start, stop) for document, start, stop in pieces]


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
        """Return tokens start .. stop - 1 of the stream: int64 (stop - start,)."""
        own = min(max(self.dataset.n_tokens, start), stop)
        parts = [self.dataset.tokens(start, own)] if start < own else []
        parts += [self.dataset.tokens(first, last) for _, first, last in self._copies(own, stop)]
        return np.concatenate(parts)

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return (document, start, stop) as `Index.pieces` does; offsets in the dataset, a copy is a piece."""
        own = min(max(self.dataset.n_tokens, start), stop)
        return (self.dataset.pieces(start, own) if start < own else []) + self._copies(own, stop)

    def _copies(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return the pieces of the stream after the dataset itself."""
        copies = []
        while start < stop:
            # Every repeat is the long documents once more, so the place in the stream is taken modulo one repeat.
            at = (start - self.dataset.n_tokens) % int(self._ends[-1])
            k = bisect_right(self._ends, at)
            document = int(self._long[k])
            end = self.dataset.document_start(document + 1)
            first = end - (int(self._ends[k]) - at)
            last = min(end, first + stop - start)
            copies.append((document, first, last))
            start += last - first
        return copies


class Segments(Packing):
    """BOS, seq_len - 2 tokens of the stream, EOS (data.packing=segments); long documents may be seen more often.

    Source: YaRN (arXiv 2309.00071, section 4) cuts PG-19 into segments of 64k "bookended with the BOS and EOS token";
    length upsampling: Fu et al., arXiv 2402.10171, section 3.

    Window w holds tokens w*S .. w*S + S - 1 of the stream, S = seq_len - 2, end-of-document tokens included. All
    seq_len tokens are inputs; nothing follows the last, so it predicts nothing. With a document mask BOS belongs to the
    first document of the segment and EOS to the last. Fewer than S tokens at the end of the stream are never seen.
    Raises DataError E-MIX-04 when the tokenizer has no BOS, E-TOK-12 when the stream is shorter than a segment.
    """

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
        return Row(ids, self.seq_len - 1, inner_starts(self.spans(window)) if self.with_starts else None)

    def spans(self, window: int) -> list[Span]:
        spans, at = [], 1
        for document, start, stop in self.stream.pieces(*self._stretch(window)):
            spans.append(Span(at, document, start, stop))
            at += stop - start
        return spans

    def _stretch(self, window: int) -> tuple[int, int]:
        return window * (self.seq_len - 2), (window + 1) * (self.seq_len - 2)


FRESH = -1


class Rows:
    """Which pieces share a row, by best-fit decreasing on the histogram of their lengths.

    Longest first, each piece goes to the row with the least room that still takes it, or to a new row (Johnson, "Fast
    algorithms for bin packing", 1974; on histograms: Krell et al., arXiv 2107.02027, LPFHP). Pieces of one length are
    placed together and rows that were filled alike stay one group, so the time depends on the number of lengths and
    groups, hardly on the number of pieces.

    Pieces are numbered from the longest on: 0 .. counts.sum() - 1.

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
        """Put some of `left` pieces, the first of them `number`, into the group that fits best; return how many."""
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
        self._parents.append(node)
        self._shifts.append(shift)
        self._firsts.append(number)
        self._copies.append(copies)
        self._add(room - copies * length, len(self._parents) - 1, 0, rows)
        return rows * copies

    def _add(self, room: int, node: int, shift: int, n_rows: int) -> None:
        if room not in self._groups:
            self._groups[room] = []
            insort(self._rooms, room)
        self._groups[room].append((node, shift, n_rows))

    def pieces(self, row: int) -> list[int]:
        """Return the pieces of a row, the longest first."""
        group = bisect_right(self._ends, row)
        row -= self._ends[group - 1] if group else 0
        node, row = self._nodes[group], row + self._node_shifts[group]
        numbers: list[int] = []
        while node != FRESH:
            first = self._firsts[node] + row * self._copies[node]
            numbers += reversed(range(first, first + self._copies[node]))
            node, row = self._parents[node], row + self._shifts[node]
        return numbers[::-1]


class Documents(Packing):
    """Whole documents side by side, hidden from each other by the document mask (data.packing=documents).

    Documents of up to seq_len tokens are never cut; longer ones are cut into pieces of seq_len and a rest. A piece of
    a longer document is a window by itself, and its last target is the first token of the next piece. Else the last
    token of a document predicts nothing. What a window has left is end-of-document ids, a document of their own,
    unscored. Every token of the dataset is an input once an epoch, or upsampling.factor times.
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
        return Row(ids, used - 1, inner_starts(spans) + ([used] if used < self.seq_len else []))

    def spans(self, window: int) -> list[Span]:
        """Return the pieces of a window; one that fills it comes with the token after it, unless it ends a document."""
        spans, at = [], 0
        for piece in self._rows.pieces(window):
            start, length = int(self._starts[piece]), int(self._lengths[piece])
            document = self.dataset.document_at(start)
            goes_on = length == self.seq_len and start + length < self.dataset.document_start(document + 1)
            spans.append(Span(at, document, start, start + length + goes_on))
            at += length
        return spans


def pieces(starts: np.ndarray, lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut documents [token offsets, tokens] into pieces of at most `capacity` tokens, longest first.

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


def pack(data: DataConfig, name: str, dataset: IndexedDataset, seq_len: int, edges: Edges | None) -> Packing:
    """Pack the source `name` into windows. edges: needed unless data.packing=windows.

    Raises DataError E-TOK-12 when there is not one window, E-MIX-04 when the tokenizer lacks a token.
    """
    upsampling = None
    if data.upsample_from_tokens is not None:
        upsampling = Upsampling(data.upsample_from_tokens, data.upsample_factor)
    if data.packing == "windows":
        return Windows(dataset, name, seq_len, with_starts=data.document_mask)
    assert edges is not None, data.packing
    if data.packing == "segments":
        return Segments(dataset, name, seq_len, data.document_mask, edges, upsampling)
    return Documents(dataset, name, seq_len, edges, upsampling)
