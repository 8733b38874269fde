"""What is surely better than what: ties are told from differences by intervals, in tables and in headlines.

A figure ties with the best one when their 95 % intervals meet; an interval that is not known is the figure alone in a
table, and may be anything in a headline: that names a winner only where no interval meets another's. Of a mean over
seeds it is the interval that counts them in. Two intervals that meet may still hide a difference, which only a paired
comparison could show: what is said here errs towards a tie. Of fewer than LEAST documents or prompts nothing is the
best: a bootstrap over two or three of them draws intervals that are far too narrow.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from coca_train.report.blocks import Value

Direction = Literal["low", "high"]
MANY = 4  # names that a sentence holds
LEAST = 20  # documents or prompts that say something


def tied(figures: Sequence[Value], best: Direction) -> list[int]:
    """Which of these figures are the best, or cannot be told apart from it; none where the best is nothing at all, or
    too few documents or prompts say so."""
    return [] if too_few(figures) else _alike(figures, best)


def too_few(figures: Iterable[Value]) -> int | None:
    """Of how many documents or prompts the figures are, the one of the fewest, where that is fewer than LEAST."""
    fewest = min((value.n for value in figures if value.number is not None and value.n is not None), default=LEAST)
    return fewest if fewest < LEAST else None


def _alike(figures: Sequence[Value], best: Direction) -> list[int]:
    """`tied`, however few they are of.

    The best is the extreme finite number. Shares of which the highest reads as 0 (nobody found anything), or cannot be
    told apart from one that does, have no best.
    """
    known = {i: v for i, v in enumerate(figures) if v.number is not None and math.isfinite(v.number)}
    if not known:
        return []
    first = (min if best == "low" else max)(known.values(), key=lambda value: value.number or 0.0)
    # What reads the same is as good: 5.001 beside 5.00 is no difference that a reader could see.
    equal = [i for i, value in known.items() if value.text == first.text or _meet(_ends(value), _ends(first))]
    return [] if best == "high" and any(_nothing(known[i]) for i in equal) else equal


def _nothing(value: Value) -> bool:
    """Reads as 0 in its own form: 0.00, 0%, 0.0 %."""
    return not any(sign in "123456789" for sign in value.text)


def _ends(value: Value) -> tuple[float, float]:
    number = value.number or 0.0
    return value.doubt or (number, number)


def _meet(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def headline(
    where: str, figures: Mapping[str, Value], best: Direction, does: str, quantity: str, of: str = "documents"
) -> str:
    """A sentence about who is best, by label: a winner where its interval meets no other's, else the tie.

    "In windows of 2,048 tokens coca predicts best: perplexity 50.00 (48.10 to 52.30)." where: its first words. does:
    what a winner does. quantity: of the figures. of: what they are of. "" without any figure.
    """
    known = {label: value for label, value in figures.items() if value.number is not None}
    if not known:
        return ""
    if len(known) == 1:
        ((label, value),) = known.items()
        return f"{where} {label}: {quantity} {_with_range(value)}."
    places = _alike(list(known.values()), best)
    if not places:
        return f"{where} there is no best: {quantity} {_spread(known.values())} for all {len(known)}."
    if n := too_few(known.values()):
        seen, spread = f"{n} {of if n > 1 else of.removesuffix('s')}", _spread(known.values())
        return f"{where} {_named(list(known))} cannot be told apart by {seen}, {LEAST} are needed: {quantity} {spread}."
    leading = [list(known)[place] for place in places]
    unsure = [label for label, value in known.items() if value.doubt is None]
    if len(leading) == 1 and not unsure:
        return f"{where} {leading[0]} {does}: {quantity} {_with_range(known[leading[0]])}."
    if unsure:  # of one document, say
        spread = _spread(known.values())
        return f"{where} {_named(list(known))} cannot be told apart without intervals: {quantity} {spread}."
    of_all = f"the best of {len(known)}, {_named(leading)}," if len(leading) < len(known) else _named(leading)
    return f"{where} {of_all} cannot be told apart: {quantity} {_spread(known[label] for label in leading)}."


def _with_range(value: Value) -> str:
    return f"{value.text} ({value.beside})" if value.beside else value.text


def _spread(values: Iterable[Value]) -> str:
    """From the lowest to the highest as they are written."""
    ordered = sorted(values, key=lambda value: value.number or 0.0)
    first, last = ordered[0].text, ordered[-1].text
    return first if first == last else f"{first} to {last}"


def _named(labels: Sequence[str]) -> str:
    """A, B and C; of more than MANY the first two, and how many others."""
    if len(labels) > MANY:
        labels = [*labels[:2], f"{len(labels) - 2} others"]
    return f"{', '.join(labels[:-1])} and {labels[-1]}" if len(labels) > 1 else labels[0]
