"""Sentences about who is best, in one column of a table: what is bold there, in words, with how much and how sure."""

from collections.abc import Iterable, Sequence

from coca_train.report.blocks import Table, Value
from coca_train.statistics.answers import LEAST
from coca_train.statistics.pairs import Difference

MANY = 4  # names that a sentence holds
NATS, POINTS = "nats a token", "percentage points"  # units of differences


def headline(
    table: Table,
    column: int,
    names: Sequence[str],
    where: str,
    does: str,
    quantity: str,
    unit: str = NATS,
    of: str = "documents",
) -> str:
    """Say who is best in this column of our rows: a winner, or who cannot be told apart; "" without any figure.

    "At 2,048 tokens CoCA predicts best: perplexity 50.00, 0.129 nats a token better than RoPE (0.102 to 0.156; in 24 of
    24 documents)."

    names: of our rows. where: the first words. does: what a winner does. quantity: of the figures. unit: of their
    differences. of: what was drawn.
    """
    values = [row.values[column] for row in table.rows if not row.theirs]
    known = {i: value for i, value in enumerate(values) if value.number is not None}
    if not known:
        return ""
    everybody, spread = _named([names[i] for i in known]), _spread(known.values())
    if len(known) == 1:
        ((i, value),) = known.items()
        within = f" ({value.uncertainty})" if value.uncertainty else ""
        return f"{where} {names[i]}: {quantity} {value.text}{within}."
    standing = table.standings(theirs=False)[column]
    if standing.few is not None:
        return f"{where} {everybody}: inconclusive, {standing.few} of the {LEAST} {of} needed; {quantity} {spread}."
    if not standing.best:
        return f"{where} there is no best: {quantity} {spread} for all {len(known)}."
    if standing.unsure:
        return f"{where} {everybody} cannot be told apart without intervals: {quantity} {spread}."
    tied = _named([names[i] for i in standing.best])
    first, *others = standing.best
    if others:
        of_all = f"the best of {len(known)}, {tied}," if len(standing.best) < len(known) else tied
        return f"{where} {of_all} cannot be told apart: {quantity} {_spread(known[i] for i in standing.best)}."
    number = known[first].number or 0.0
    second = min((i for i in known if i != first), key=lambda i: abs((known[i].number or 0.0) - number))
    found = standing.difference(first, second)
    by = f", {margin(found, names[second], unit, of)}" if found else ""
    return f"{where} {tied} {does}: {quantity} {known[first].text}{by}."


def margin(found: Difference, other: str, unit: str = NATS, of: str = "documents") -> str:
    """Say by how much the first of two is better: "0.129 nats a token better than RoPE (0.102 to 0.156; in 24 of 24
    documents)". found: the better one minus the other."""
    estimate, low, high, n = found.bounds
    low, high = sorted((abs(low), abs(high))) if low * high > 0 else (low, high)
    n_better = found.n_below if estimate < 0 else found.n_above
    counted = f"; in {n_better} of {n} {of}" if found.paired else ""
    return f"{size(abs(estimate), unit)} better than {other} ({size(low, unit, '')} to {size(high, unit, '')}{counted})"


def size(number: float, unit: str, words: str | None = None) -> str:
    """Write a difference. words: in place of the unit's own."""
    text = f"{100 * number:.0f}" if unit == POINTS else f"{number:.3f}"
    return f"{text} {unit if words is None else words}".rstrip()


def _spread(values: Iterable[Value]) -> str:
    """Write the lowest and the highest value."""
    ordered = sorted(values, key=lambda value: value.number or 0.0)
    first, last = ordered[0].text, ordered[-1].text
    return first if first == last else f"{first} to {last}"


def _named(labels: Sequence[str]) -> str:
    """Write A, B and C; of more than MANY the first two, and how many others."""
    if len(labels) > MANY:
        labels = [*labels[:2], f"{len(labels) - 2} others"]
    return f"{', '.join(labels[:-1])} and {labels[-1]}" if len(labels) > 1 else labels[0]
