"""The temperature of attention under other rotary frequencies (YaRN, arXiv 2309.00071, appendix A.2).

1/√t multiplies the rotated queries and the rotated keys, hence the scores by 1/t. It takes the place of the temperature
that the frequencies bring (1 for all but YaRN's); the frequencies stay. YaRN recommends 1/√t = 0.1 ln s + 1 (Eq. 25).

A document of N predictions is read in one window and cut into segments of `block` predictions, the last one as long as
there are left. The change of a segment is (ppl(t) - ppl(1)) / ppl(1) (Eq. 26), ppl the exp of its mean NLL; that of a
whole document is the same of all its predictions. Means are over documents. The best 1/√t of a document's segment is
the one with its lowest NLL, the smallest of those where several are equal.

The rule itself (Eq. 22) was found by a fit: the best 1/√t of whole documents at several s, against ln s. `lowest` is
the vertex of the parabola through the lowest mean change and its two neighbours, `fit` the least-squares line.

Shape legend: N documents, S segments, V values of 1/√t.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import nn

from coca_train.positions.frequencies import Spectrum, stretch, yarn_temperature


class _Scaled(nn.Module):
    """Frequencies with another temperature."""

    def __init__(self, own: nn.Module, scale: float) -> None:
        super().__init__()
        self.own, self.scale = own, scale

    def forward(self, length: int) -> Spectrum:
        return self.own(length)._replace(temperature=self.scale)


@contextmanager
def attention_scale(model: Any, scale: float) -> Iterator[None]:
    """Give a rotary scheme this 1/√t for as long as the context lasts."""
    position = model.position
    own = position.frequencies
    position.frequencies = _Scaled(own, scale)
    try:
        yield
    finally:
        position.frequencies = own


def recommended(frequencies: Any, length: int) -> float:
    """YaRN's 1/√t for these frequencies (their Settings): s is their factor, or l/L of dynamic ones at this length."""
    factor = getattr(frequencies, "factor", None)
    if factor is None and hasattr(frequencies, "original_seq_len"):
        factor = stretch(frequencies.original_seq_len, length)
    return yarn_temperature(factor or 1.0)


def factor(recommendation: float) -> float:
    """The s for which YaRN recommends this 1/√t."""
    return math.exp((recommendation - 1) / 0.1)


def lowest(changes: Mapping[float, float]) -> float | None:
    """1/√t where the change is lowest, between the values that were tried; None where that is the first or the last of
    them, which says only that the best lies beyond."""
    scales = sorted(changes)
    at = min(range(len(scales)), key=lambda index: changes[scales[index]])
    if not 0 < at < len(scales) - 1:
        return None
    around = scales[at - 1 : at + 2]
    curvature, slope, _ = np.polyfit(np.array(around) - scales[at], [changes[scale] for scale in around], 2)
    return scales[at] - float(slope / (2 * curvature)) if curvature > 0 else scales[at]


def fit(best: Mapping[float, float]) -> tuple[float, float]:
    """(a, b) of 1/√t = a ln s + b, by least squares over the best 1/√t by s, two of them at least."""
    slope, intercept = np.polyfit(np.log(list(best)), list(best.values()), 1)
    return float(slope), float(intercept)


def segments(n_predictions: int, block: int) -> list[int]:
    """Predictions in each segment."""
    whole, rest = divmod(n_predictions, block)
    return [block] * whole + [rest] * (rest > 0)


def segment_sums(nll_T: np.ndarray, block: int) -> list[float]:
    """NLL [nats] of each segment of one document."""
    return np.add.reduceat(nll_T, np.arange(0, len(nll_T), block)).tolist()


def changes(nll_NS: np.ndarray, base_NS: np.ndarray, n_S: np.ndarray) -> np.ndarray:
    """Mean relative change of the perplexity of each segment, then of the whole document: (S + 1,)."""

    def with_whole(x: np.ndarray) -> np.ndarray:
        return np.concatenate((x, x.sum(-1, keepdims=True)), -1)

    return np.expm1(with_whole(nll_NS - base_NS) / with_whole(n_S)).mean(0)


def times_best(nll: Mapping[float, np.ndarray]) -> dict[float, list[int]]:
    """By 1/√t, how many documents have their lowest NLL there: in each segment, then on the whole."""
    scales = sorted(nll)
    nll_VNS = np.stack([np.concatenate((nll[v], nll[v].sum(1, keepdims=True)), 1) for v in scales])
    best_NS = nll_VNS.argmin(0)
    return {scale: (best_NS == index).sum(0).tolist() for index, scale in enumerate(scales)}
