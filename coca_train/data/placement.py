"""Where the tokens of a training row are said to stand, so that a short row shows the distances of a long one.

What is drawn follows from the seed of the data and from which row it is, so a run that resumes draws the same.
Causality, documents and the loss are those of the text; the scheme alone sees these positions, and frequencies that
follow the length take the target for it.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist

import numpy as np

from coca_train.config.schema import PlacementConfig

ENDS = (".", "?", "!", "\n", "。", "？", "！")
SIGMA = 3.0  # of the normal distribution of CREAM's middle


def pose(n_tokens: int, target: int, draw: random.Random) -> np.ndarray:
    """PoSE (Zhu et al., arXiv 2309.10400, section 3.2): two pieces, the second moved on by a gap.

    The first has 1 to ⌊(T+1)/2⌋ tokens, the gap 0 to target - T positions, uniformly, both ends included. The text of
    the pieces stays consecutive, one of the paper's variants (its v_i = 0).
    """
    cut, gap = draw.randint(1, (n_tokens + 1) // 2), draw.randint(0, target - n_tokens)
    places = np.arange(n_tokens)
    places[cut:] += gap
    return places


def scattered(n_tokens: int, target: int, draw: random.Random) -> np.ndarray:
    """Randomized positions (Ruoss et al., arXiv 2305.16843): T of the positions below the target, sorted."""
    return np.array(sorted(draw.sample(range(target), n_tokens)))


def cream(n_tokens: int, target: int, draw: random.Random) -> np.ndarray:
    """CREAM (Wu et al., arXiv 2406.07138, section 3): a head at the beginning, a tail at the end, and a middle in
    between, most often in the middle of the target.

    Head and tail have T/3 tokens each, or with probability 1/2 four for each time that the target is longer.
    """
    factor = target / n_tokens
    edge = n_tokens // 3
    if draw.random() < 0.5:
        edge = min(edge, math.ceil(4 * factor))
    middle = n_tokens - 2 * edge
    alpha = stretch_of_middle(factor, draw.random())
    # Of its last token: not before it would be without a gap, nor within the tail.
    most = max(edge + middle - 1, min(target - edge - 1, alpha * n_tokens // 2 - edge - 1))
    end = draw.randint(min(most, edge + middle * alpha // 2), most)
    return np.concatenate((np.arange(edge), np.arange(end + 1 - middle, end + 1), np.arange(target - edge, target)))


def stretch_of_middle(factor: float, uniform: float) -> int:
    """Return α, the whole part of a normal number around 1 + s between 2 and 2s that a uniform one is mapped to."""
    normal = NormalDist(1 + factor, SIGMA)
    low, high = normal.cdf(2), normal.cdf(max(2.0, 2 * factor))
    inside = low + uniform * (high - low)
    return int(min(max(2.0, normal.inv_cdf(inside) if 0 < inside < 1 else 2.0), max(2.0, 2 * factor)))


def long_recipe(spans: Sequence[int], target: int, draw: random.Random) -> np.ndarray:
    """LongRecipe (Hu et al., arXiv 2409.00509, section 3.1; the draw is its code's): sentences stay in one piece, and
    the target - T positions that are left out lie between them.

    spans: tokens of each sentence. Where they begin among the positions left out is a sorted sample; the first begins
    at 0.
    """
    slots = sorted(draw.sample(range(target - sum(spans) + len(spans)), len(spans)))
    left_out = [0, *(slot - number for number, slot in enumerate(slots[1:], 1))]
    return np.arange(sum(spans)) + np.repeat(left_out, spans)


def ends_of_sentences(texts: Iterable[str]) -> np.ndarray:
    """Return which tokens end a sentence, by their texts: a full stop, a question or exclamation mark, a new line."""
    return np.array([text.rstrip(" ").endswith(ENDS) for text in texts], dtype=bool)


WAYS: dict[str, Callable[[int, int, random.Random], np.ndarray]] = {"pose": pose, "random": scattered, "cream": cream}


def place(
    config: PlacementConfig, pos_T: np.ndarray, draw: random.Random, ends_T: np.ndarray | None = None
) -> np.ndarray:
    """Return the positions of a row whose documents begin where `pos_T` is 0. One as long as the target stays.

    ends_T: which tokens end a sentence, for longrecipe.
    """
    assert config.target is not None, "config/check.py"
    begins = np.flatnonzero(pos_T == 0)
    placed = pos_T.copy()
    for begin, end in zip(begins, [*begins[1:], len(pos_T)], strict=True):
        if end - begin >= config.target:
            continue
        if ends_T is not None:
            borders = [0, *(np.flatnonzero(ends_T[begin : end - 1]) + 1), end - begin]
            placed[begin:end] = long_recipe(np.diff(borders).tolist(), config.target, draw)
        else:
            placed[begin:end] = WAYS[config.name](int(end - begin), config.target, draw)
    return placed
