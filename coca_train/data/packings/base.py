"""What every packing gives: windows of T = seq_len inputs, and where their tokens come from."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

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

    at: where in the window, from 0. start, stop: token offsets in the .bin, stop behind the last.
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


class Packing(Protocol):
    """How a dataset becomes windows.

    n_windows: in an epoch. fill: mean scored targets of a window, relative to the other windows of this packing; 1
    where all windows score as many.
    """

    dataset: IndexedDataset
    n_windows: int
    fill: float

    def row(self, window: int) -> Row:
        """The tokens of a window."""
        ...

    def spans(self, window: int) -> list[Span]:
        """Where they come from, in their order. Ids that the packing adds are in no span."""
        ...


def starts_of(spans: Sequence[Span]) -> list[int]:
    """Where documents begin in a window, but for the first."""
    return [span.at for span in spans[1:]]


def row_of(packing: Packing, window: int, vocab_size: int | None) -> Row:
    """The tokens of a window; DataError E-TOK-09 for an id that the model has no row for (None: it has all)."""
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
    """The error for a dataset that does not fill one window. needs: what one takes, in words."""
    return DataError(
        f"E-TOK-12 {dataset.bin_path} ({name}): {dataset.n_tokens} tokens; {needs}. "
        "Fix: lower train.seq_len, or give the source more text"
    )
