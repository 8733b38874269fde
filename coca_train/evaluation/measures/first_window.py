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
from typing import Any

import numpy as np
import torch

from coca_train.evaluation.measures.perplexity import evaluating, summarise
from coca_train.evaluation.measures.windows import bin_ends, binned


@dataclass(frozen=True, kw_only=True)
class FirstWindows:
    """What a set of documents gives at one length. Bin k: contexts ends[k - 1] + 1 ... ends[k].

    perplexity: of the last `block` predictions; ci_low, ci_high: its 95 % interval over documents (perplexity.py).
    """

    n_documents: int
    ends: tuple[int, ...]
    loss: tuple[float, ...]  # mean NLL of each bin [nats per token]
    block: int
    perplexity: float
    ci_low: float | None
    ci_high: float | None


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
    last_block = summarise(np.stack([sums[:, 0], np.full(n_documents, block_size)], 1), None, seed)
    return FirstWindows(
        n_documents=n_documents,
        ends=tuple(ends.tolist()),
        loss=tuple((sums[:, 1:].mean(0) / np.diff(ends, prepend=0)).tolist()),
        block=block_size,
        perplexity=last_block.perplexity,
        ci_low=last_block.ci_low,
        ci_high=last_block.ci_high,
    )


def by_octave(ends: Sequence[int], loss: Sequence[float]) -> dict[tuple[int, int], float]:
    """Mean loss of the contexts 1, 2, 3 to 4, 5 to 8 ...; the last octave ends where the bins do."""
    widths = np.diff(ends, prepend=0)
    octaves = np.array([(end - 1).bit_length() for end in ends])
    means = {}
    for octave in np.unique(octaves):
        members = octaves == octave
        first = int(np.asarray(ends)[members][0] - widths[members][0] + 1)
        mean = float((np.asarray(loss)[members] * widths[members]).sum() / widths[members].sum())
        means[first, int(np.asarray(ends)[members][-1])] = mean
    return means
