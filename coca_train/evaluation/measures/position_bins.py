"""Loss by position: how the NLL of a prediction falls, or rises, with the context before it.

Definition. The position of a prediction is its context: how many tokens of its window precede it, 1 to W.
Only the FIRST window of each document counts. There every context from 1 to W occurs once, and position c
is the c-th prediction of the document, whatever the window and the scheme; so at one position all schemes
are measured on the very same tokens. (Later windows score their last stride only, with contexts above
W - stride, and other tokens at every window length; they are in the perplexity, not here.)

What a curve shows is context and place in the document together: documents begin harder, or easier, than
they go on. That is the same for all schemes, so compare curves with one another at one position.
"""

import math
from collections.abc import Sequence

import numpy as np

BINS_PER_OCTAVE = 4


def bin_ends(window: int) -> np.ndarray:
    """Last position of each bin up to `window`: 1, 2, ... 8, 10, 11, 13, 16, 19 ... (quarter octaves)."""
    exponents = np.arange(BINS_PER_OCTAVE * window.bit_length() + 1) / BINS_PER_OCTAVE
    ends = np.unique(np.rint(2**exponents).astype(int))
    return np.append(ends[ends < window], window)


def binned(by_position: np.ndarray) -> np.ndarray:
    """Sums of bins from sums by position: (window, n) -> (n_bins, n)."""
    starts = np.append(0, bin_ends(len(by_position))[:-1])
    return np.add.reduceat(by_position, starts, axis=0)


def means(sums: np.ndarray) -> np.ndarray:
    """Loss of each bin, from `binned` sums (n_bins, 2) of NLL and predictions; only the last bin may be without a
    prediction (NaN)."""
    nll, count = sums.T
    with np.errstate(invalid="ignore"):
        return nll / count


def middles(ends: Sequence[int]) -> tuple[float, ...]:
    """Geometric middle of each bin, where it is drawn. ends: of the bins, the first of which begins at 1."""
    return tuple(math.sqrt((before + 1) * end) for before, end in zip((0, *ends[:-1]), ends, strict=True))
