"""One window from the beginning of a document: its loss by position, and the perplexity of its last tokens.

A window of L reads x_0 ... x_{L-1} of a document, positions from 0, dynamic frequencies at l = L, and predicts
x_1 ... x_L: every context from 1 to L tokens occurs once.

* Loss by position: the mean NLL of the predictions with context c, over documents, in the bins of windows.py.
* Growing context (YaRN, arXiv 2309.00071, appendix B.3): the perplexity at context L is exp of the mean NLL of the last
  `block` predictions, x_{L-block+1} ... x_L, whose contexts are L - block + 1 ... L (all L when L < block). With
  L = block, 2 block, 3 block ... these are consecutive blocks of the document, each read with all that precedes it, by
  frequencies that know no more than it. Every document weighs as much as any other: all have the same predictions.

Shape legend: B documents, T = L predictions, K bins of positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from coca_train.evaluation.measures.perplexity import Bound, evaluating, intervals, summarise
from coca_train.evaluation.measures.windows import bin_ends, binned


class Octave(NamedTuple):
    """Mean NLL [nats per token] of the contexts first ... last, and its 95 % interval."""

    first: int
    last: int
    loss: float
    low: Bound
    high: Bound


@dataclass(frozen=True, kw_only=True)
class FirstWindows:
    """What a set of documents gives at one length. Bin k: contexts ends[k - 1] + 1 ... ends[k].

    octaves: contexts 1, 2, 3 to 4, 5 to 8 ..., the last one up to the length. perplexity: of the last `block`
    predictions; low, high, ci_low, ci_high: 95 % intervals over documents (perplexity.py), None of one alone.
    """

    n_documents: int
    ends: tuple[int, ...]
    loss: tuple[float, ...]  # mean NLL of each bin [nats per token]
    low: tuple[Bound, ...]
    high: tuple[Bound, ...]
    octaves: tuple[Octave, ...]
    block: int
    perplexity: float
    ci_low: float | None
    ci_high: float | None
    last_by_document: tuple[float, ...]  # NLL of the last `block` predictions [nats]
    octaves_by_document: tuple[tuple[float, ...], ...]  # NLL of each octave [nats]


def first_window_nll(model: Any, documents: Sequence[np.ndarray], length: int) -> np.ndarray:
    """NLL [nats] of the first `length` predictions of documents with more tokens than that, nll_BT in float64."""
    device = next(model.parameters()).device
    window_BT = torch.from_numpy(np.stack([d[: length + 1] for d in documents]).astype(np.int64)).to(device)
    with evaluating(model):
        pos_1T = torch.arange(length, device=device)[None]
        return model.losses(window_BT[:, :-1], window_BT[:, 1:], pos_BT=pos_1T, length=length).double().cpu().numpy()


def reduced(nll_T: np.ndarray, block: int) -> list[float]:
    """What is kept of one document: the NLL of its last `block` predictions, then that of each bin of positions."""
    return [float(nll_T[-block:].sum()), *binned(nll_T[:, None])[:, 0].tolist()]


def first_windows(documents: Sequence[Sequence[float]], length: int, block: int, seed: int = 0) -> FirstWindows:
    """From `reduced` documents that were read at this length."""
    # In float64 and by document, never as running means: ranks bring documents in any order, and sums must not tell.
    sums = np.asarray(documents, dtype=np.float64)
    n_documents, block_size = len(sums), min(block, length)
    ends = bin_ends(length)
    bins_DK2 = np.stack(np.broadcast_arrays(sums[:, 1:], np.diff(ends, prepend=0)), 2)
    low, high = intervals(bins_DK2, seed)
    octaves, octaves_DO2 = by_octave(ends, bins_DK2, seed)
    last_block = summarise(np.stack([sums[:, 0], np.full(n_documents, block_size)], 1), None, seed)
    return FirstWindows(
        n_documents=n_documents,
        ends=tuple(ends.tolist()),
        loss=tuple((sums[:, 1:].mean(0) / np.diff(ends, prepend=0)).tolist()),
        low=tuple(low),
        high=tuple(high),
        octaves=octaves,
        block=block_size,
        perplexity=last_block.perplexity,
        ci_low=last_block.ci_low,
        ci_high=last_block.ci_high,
        last_by_document=tuple(sums[:, 0].tolist()),
        octaves_by_document=tuple(map(tuple, octaves_DO2[..., 0].tolist())),
    )


def by_octave(ends: np.ndarray, bins_DK2: np.ndarray, seed: int = 0) -> tuple[tuple[Octave, ...], np.ndarray]:
    """(octaves, octaves_DO2), the latter of each document. ends: of K bins. bins_DK2: of each document NLL and
    predictions of each."""
    # Quarter octaves end where octaves do (windows.py): each bin lies in one.
    last = [int(ends[ends <= 2**power].max()) for power in range(int(ends[-1] - 1).bit_length() + 1)]
    starts = np.searchsorted(ends, [0, *(end + 1 for end in last[:-1])])
    octaves_DO2 = np.add.reduceat(bins_DK2, starts, axis=1)
    nll_O, count_O = octaves_DO2.sum(0).T
    firsts = (1, *(end + 1 for end in last[:-1]))
    columns = zip(firsts, last, (nll_O / count_O).tolist(), *intervals(octaves_DO2, seed), strict=True)
    return tuple(Octave(*each) for each in columns), octaves_DO2
