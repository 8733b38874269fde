"""The packing `windows`: the token stream in stretches of seq_len, wherever documents begin and end."""

from coca_train.data.dataset import IndexedDataset
from coca_train.data.packings.base import Row, Span, starts_of, too_short


class Windows:
    """Window w is tokens w*T .. w*T + T, T = seq_len; the last one is target only, and the first input of the next.

    Fewer than T + 1 tokens at the end of the dataset are never seen.
    name: of the source, for messages. with_starts: rows say where documents begin.
    Raises DataError E-TOK-12 when the dataset is shorter than one window.
    """

    fill = 1.0

    def __init__(self, dataset: IndexedDataset, name: str, seq_len: int, with_starts: bool) -> None:
        self.dataset, self.seq_len, self.with_starts = dataset, seq_len, with_starts
        self.n_windows = (dataset.n_tokens - 1) // seq_len
        if self.n_windows < 1:
            raise too_short(dataset, name, f"one window takes seq_len + 1 = {seq_len + 1}")

    def row(self, window: int) -> Row:
        start = window * self.seq_len
        ids = self.dataset.tokens(start, start + self.seq_len + 1)
        return Row(ids, self.seq_len, starts_of(self.spans(window)) if self.with_starts else None)

    def spans(self, window: int) -> list[Span]:
        first = window * self.seq_len
        pieces = self.dataset.pieces(first, first + self.seq_len + 1)
        return [Span(start - first, document, start, stop) for document, start, stop in pieces]
