"""Which tokens a window reads and which predictions it scores; and the passes through a model that several share.

Definition (Press et al., arXiv 2108.12409 appendix B and 2012.15832; CoCA paper 4.2). A document of tokens x_0 ... x_N
has the predictions x_1 ... x_N. A window of length W that begins at a reads x_a ... x_{a+W-1} and predicts
x_{a+1} ... x_{a+W}. Windows begin at 0, s, 2s ... (stride s <= W), the last one ends with the document, and each scores
only predictions that no earlier one made. So every prediction counts once, whatever W and s. Positions start at 0 in
each window, no state crosses windows, and dynamic frequencies see l = W in every window, also in a shorter last one.

Windows that begin at the same token are prefixes of the longest of them: one pass over it gives all their predictions,
with the same contexts, unless dynamic frequencies make something else of W (same_at). Equal to measuring each window
but for rounding, since kernels are chosen by the length: up to 1e-4 nats in bfloat16 on a CPU. So what is measured
with something else is always measured with it.

Loss by position: the position of a prediction is its context, 1 to W tokens. Only the first window of each document
counts: there position c is the c-th prediction of the document, so at one position all schemes are measured on the very
same tokens. A curve shows context and place in the document together; compare curves with one another at one position.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from coca_train.models.transformer import Transformer

PROBED = 8  # positions whose tables are compared [tokens]


class Window(NamedTuple):
    """Reads tokens [start, stop) and scores the predictions of tokens [scored + 1, stop + 1)."""

    start: int
    stop: int
    scored: int


class Windowing(NamedTuple):
    """How documents are read: their first `cut` predictions (None: all) in windows of one length [tokens].

    ends: None: every prediction counts once, as the module defines it. Else the last `ends` predictions of each window
    count, of windows that a document fills, the first of which begins at `begin`. unread: tokens that belong to a
    window in addition to those that are read; dynamic frequencies see them.
    """

    window: int
    stride: int
    cut: int | None = None
    ends: int | None = None
    begin: int = 0
    unread: int = 0

    @property
    def length(self) -> int:
        """What dynamic frequencies see [tokens]."""
        return self.window + self.unread

    def over(self, n_predictions: int) -> Iterator[Window]:
        """Yield the windows over one document. Raises ValueError as `sliding_windows`."""
        n = n_predictions if self.cut is None else min(n_predictions, self.cut)
        if self.ends is None:
            yield from sliding_windows(n, self.window, self.stride)
            return
        for start in range(self.begin, n - self.window + 1, self.stride):
            yield Window(start, start + self.window, start + self.window - self.ends)


class Scored(NamedTuple):
    """Predictions [begin, end) of a pass that the row of this index scores."""

    row: int
    begin: int
    end: int


class Pass(NamedTuple):
    """Tokens [start, stop) of one document, read together."""

    document: int
    start: int
    stop: int
    parts: tuple[Scored, ...]

    @property
    def length(self) -> int:
        return self.stop - self.start


def sliding_windows(n_predictions: int, window: int, stride: int) -> Iterator[Window]:
    """Yield the windows over one document, see the module's definition.

    Raises ValueError unless 1 <= stride <= window and there is something to predict.
    """
    if not 1 <= stride <= window:
        raise ValueError(f"stride {stride} must lie between 1 and the window {window}: otherwise tokens are left out")
    if n_predictions < 1:
        raise ValueError("a document of fewer than 2 tokens has nothing to predict")
    scored = start = 0
    while scored < n_predictions:
        stop = min(start + window, n_predictions)
        yield Window(start, stop, scored)
        scored = stop
        start += stride


def plan_passes(lengths: Sequence[int], rows: Sequence[Windowing]) -> list[Pass]:
    """Return what is read so that every row is scored: one pass for all windows that begin at the same token.

    lengths: predictions in each document.
    """
    begun: dict[tuple[int, int], list[tuple[int, Window]]] = {}
    for index, row in enumerate(rows):
        for document, length in enumerate(lengths):
            for window in row.over(length):
                begun.setdefault((document, window.start), []).append((index, window))
    return [
        Pass(
            document,
            start,
            max(w.stop for _, w in windows),
            tuple(Scored(row, w.scored - start, w.stop - start) for row, w in windows),
        )
        for (document, start), windows in begun.items()
    ]


def batches(work: Sequence[Pass], micro_batch_tokens: int) -> list[list[Pass]]:
    """Return passes grouped by length and parts, then cut to the micro-batch (at least one); longest first, and first
    those that score from their beginning."""
    groups: dict[tuple[int, tuple[Scored, ...]], list[Pass]] = {}
    for each in work:
        groups.setdefault((each.length, each.parts), []).append(each)
    micro_batches = []
    # The order must not hang on the order of documents: every rank deals out the same list.
    for (length, _), members in sorted(groups.items(), key=lambda group: (-group[0][0], group[0][1])):
        size = max(1, micro_batch_tokens // length)
        micro_batches += [members[i : i + size] for i in range(0, len(members), size)]
    return micro_batches


def merge_scored(parts: Sequence[Scored]) -> list[tuple[int, int]]:
    """Return [begin, end) of everything that some part scores: in order, and apart from each other."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted((part.begin, part.end) for part in parts):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def positions_needed(model: Transformer, window: int) -> int:
    """Return how many positions the scheme is asked for in a window of this length, as the attention pattern places
    them."""
    pos_1T = torch.arange(window)[None]
    layouts = [layout for each in model.attention_patterns.values() for layout in each.layouts(pos_1T, pos_1T)]
    return 1 + max(int(pos.max()) for layout in layouts for pos in (layout.pos_BT, layout.pos_BS))


def missing_positions(model: Transformer, window: int) -> str:
    """Say why a scheme with an end has too few positions for such a window, in words; "" when it has enough."""
    limit = model.max_positions
    if limit is None or positions_needed(model, window) <= limit:
        return ""
    return f"{model.position.settings.scheme} has {limit:,} positions"


@torch.no_grad()
def same_at(model: Transformer, one: int, other: int) -> bool:
    """Return whether the model treats equal positions equally in windows of both lengths [tokens]."""
    pos_1T = torch.arange(PROBED, device=next(model.parameters()).device)[None]
    for kind in dict.fromkeys(model.layer_types):
        position, attention_pattern = model.position_of(kind), model.attention_patterns[kind]
        # Asked of the tables, not of the names: yarn is fixed, dynamic_yarn is not, and plugins are not known here.
        tables = [position(pos_1T, pos_1T, attention_pattern.length(length)) for length in (one, other)]
        if not equal(*tables):
            return False
    return True


@torch.no_grad()
def tables_at(model: Transformer, length: int) -> tuple[object, ...]:
    """Return how the model treats windows of a length [tokens], to be compared with `equal`.

    Two variants of the same weights that are equal in this compute the same: a dynamic frequency is the plain one up to
    the training window.
    """
    # The last positions too: what differs by little at the first ones differs by more there.
    positions = sorted({*range(min(PROBED, length)), *range(max(0, length - PROBED), length)})
    pos_1T = torch.tensor(positions, device=next(model.parameters()).device)[None]
    kinds = [(model.position_of(kind), model.attention_patterns[kind]) for kind in dict.fromkeys(model.layer_types)]
    tables = ((each(pos_1T, pos_1T, seen.length(length)), seen.settings) for each, seen in kinds)
    return (model.config.logit_scale, *tables)


def equal(one: object, other: object) -> bool:
    """Compare tables: tensors, plain values, and tuples of them."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and bool(one == other)


BINS_PER_OCTAVE = 4


def bin_ends(window: int) -> np.ndarray:
    """Return the last position of each bin up to `window`: 1, 2, ... 8, 10, 11, 13, 16, 19 ... (quarter octaves)."""
    exponents = np.arange(BINS_PER_OCTAVE * window.bit_length() + 1) / BINS_PER_OCTAVE
    ends = np.unique(np.rint(2**exponents).astype(int))
    return np.append(ends[ends < window], window)


def sum_bins(by_position: np.ndarray) -> np.ndarray:
    """Return the sums of bins from sums by position: (window, n) -> (n_bins, n)."""
    starts = np.append(0, bin_ends(len(by_position))[:-1])
    return np.add.reduceat(by_position, starts, axis=0)


def means(sums: np.ndarray) -> np.ndarray:
    """Return the loss of each bin, from `binned` sums (n_bins, 2) of NLL and predictions; only the last bin may be
    without a prediction (NaN)."""
    nll, count = sums.T
    with np.errstate(invalid="ignore"):
        return nll / count


def bin_middles(ends: Sequence[int]) -> tuple[float, ...]:
    """Return the geometric middle of each bin, where it is drawn. ends: of the bins, the first of which begins at 1."""
    return tuple(math.sqrt((before + 1) * end) for before, end in zip((0, *ends[:-1]), ends, strict=True))
