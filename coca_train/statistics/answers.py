"""Yes, no or open: what an interval says of a bound, and how many more documents or prompts would settle it.

An answer is *yes* where the whole interval lies on the good side of the bound, *no* where it lies on the bad side, and
*open* otherwise. A true value lies on one side, so an answer can be wrong in one direction only, with the chance of one
tail: WRONG / ANSWERS. So of a page with up to ANSWERS answers, over all its lengths, models and variants together, any
is wrong in at most WRONG of draws (Bonferroni), and more text turns *open* into yes or no, but a yes into a no no more
often than that. The confidence is the same for every page of up to that many answers, whatever else is on it: the same
cells of the same model get the same answers everywhere.

Of fewer than LEAST documents or prompts no answer is given: a bootstrap over two or three of them draws intervals that
are far too narrow.
"""

import math
from typing import Literal, NamedTuple

from coca_train.statistics.intervals import Bounds
from coca_train.statistics.shares import share_bounds

LEAST = 20  # documents or prompts that say something
WRONG = 0.05  # of draws, in which any answer of a page is
ANSWERS = 100  # of a page
SURE = 1 - 2 * WRONG / ANSWERS  # confidence of an interval that an answer is given by
FAR = 100_000  # documents or prompts: nobody reads more of them to settle a question

Outcome = Literal["yes", "no", "open"]


class Answer(NamedTuple):
    """bounds: the interval it is given by. more: how many more documents or prompts would settle it if they are like
    those seen; 0 where it is settled, None where it is too close to the bound for any number of them."""

    outcome: Outcome
    bounds: Bounds
    more: int | None = 0


def below(bounds: Bounds, bound: float) -> Answer:
    """Answer whether the value is at most bound. bounds: at the confidence SURE."""
    return _answer(bounds, bound, bounds.high <= bound, bounds.low > bound)


def above(bounds: Bounds, bound: float) -> Answer:
    """Answer whether the value is more than bound. bounds: at the confidence SURE."""
    return _answer(bounds, bound, bounds.low > bound, bounds.high <= bound)


def share_above(n_found: int, n_prompts: int, bound: float) -> Answer:
    """Answer whether a share is more than bound."""
    answer = above(share_bounds(n_found, n_prompts, SURE), bound)
    if answer.outcome != "open" or n_prompts < LEAST:
        return answer

    def settled(n: int) -> bool:
        return above(share_bounds(round(n_found * n / n_prompts), n, SURE), bound).outcome != "open"

    # The same share of more prompts: doubled until it is settled, then halved to where it begins to be.
    enough = 2 * n_prompts
    while enough <= FAR and not settled(enough):
        enough *= 2
    if enough > FAR:
        return answer._replace(more=None)
    known = enough // 2
    while enough - known > 1:
        middle = (known + enough) // 2
        known, enough = (known, middle) if settled(middle) else (middle, enough)
    return answer._replace(more=_rounded(enough - n_prompts))


def _answer(bounds: Bounds, bound: float, good: bool, bad: bool) -> Answer:
    if bounds.n < LEAST:
        return Answer("open", bounds, LEAST - bounds.n)
    if good or bad or not math.isfinite(bounds.estimate):  # an infinite loss was measured, and is worse than any bound
        return Answer("yes" if good else "no", bounds)
    # An interval shrinks with the root of the number: its end must come from where it is to the bound.
    end = bounds.low if bounds.estimate > bound else bounds.high
    distance = abs(bounds.estimate - bound)
    needed = bounds.n * ((bounds.estimate - end) / distance) ** 2 if distance else math.inf
    return Answer("open", bounds, _rounded(math.ceil(needed) - bounds.n) if needed < FAR else None)


def _rounded(n: int) -> int:
    """Round up to two digits: it is a guess."""
    step = 10 ** max(0, len(str(n)) - 2)
    return max(1, -(-n // step) * step)
