"""What a page of perplexities found, in a few sentences with numbers and their doubt: what its title says first."""

from collections.abc import Sequence

from coca_train.evaluation.grid_blocks import OTHER_TOKENS, in_words
from coca_train.evaluation.naming import with_variant
from coca_train.evaluation.results import GridRow, same_tokens
from coca_train.evaluation.verdict import Judged, clauses, is_untrained, multiple
from coca_train.report.blocks import Table, Value
from coca_train.report.headlines import headline
from coca_train.statistics.answers import LEAST
from coca_train.statistics.pairs import standings


def finding(rows: Sequence[GridRow], perplexities: Table, judged: Sequence[Judged]) -> list[str]:
    """Sentences, the most important one first; none without a result. rows: those of the table, in its order."""
    if not any(row.results for row in rows):
        return []
    if len({row.subject.name for row in rows}) == 1:
        if judged and is_untrained(judged[0]):
            return _used(judged[0])
        return [*_of_one(rows, perplexities), *(_used(judged[0]) if judged else [])]
    if not same_tokens(row.subject for row in rows if row.results):
        return [OTHER_TOKENS]
    at, names = f"At {in_words(perplexities.columns[-1])}", [row.label for row in rows]
    said = headline(perplexities, -1, names, at, "predicts best", "perplexity")
    return [*([said] if said else []), *_young(judged)]


def _young(judged: Sequence[Judged]) -> list[str]:
    """Models that are too little trained, those of one reason together."""
    # As they were trained: its variants are the same weights.
    first = {each.row.subject.name: each for each in reversed(judged) if is_untrained(each)}
    by_reason: dict[str, list[str]] = {}
    for each in reversed(first.values()):
        by_reason.setdefault(clauses(each), []).append(each.label)
    said = []
    for reason, names in by_reason.items():
        if len(names) > 1:
            all_but, last = ", ".join(names[:-1]), names[-1]
            reason = f"are {reason.removeprefix('is ').replace(': it ', ': each ')}"
            said.append(f"{all_but} and {last} {reason}.")
        else:
            said.append(f"{names[0]} {reason}.")
    return said


def _of_one(rows: Sequence[GridRow], perplexities: Table) -> list[str]:
    """What becomes of the perplexity beyond the training window, and which variant helps."""
    values = {int(point): value for point, value in zip(rows[0].cells, perplexities.rows[0].values, strict=False)}
    known = {n: value for n, value in values.items() if value.number is not None}
    if not known:
        return []
    window = rows[0].subject.training_window
    first, last = window if window in known else min(known), max(known)
    times = f"{last:,} tokens ({multiple(last, window)} the training window)"
    if first == last:
        return [f"Perplexity is {rounded(known[last])} in windows of {times}."]
    said = [_change(known[first], known[last], f"{first:,}", times)]
    return [*said, *_helped(rows, perplexities, list(values).index(last))]


def _change(before: Value, after: Value, first: str, times: str) -> str:
    """From one window to another: of the same predictions, so of the same documents one by one."""
    (standing,) = standings([[before, after]], "low")
    found = standing.difference(0, 1)
    ends = f"from {rounded(before)} at {first} tokens to {rounded(after)} at {times}"
    if found is None or not found.paired:
        return f"Perplexity is {rounded(before)} at {first} tokens and {rounded(after)} at {times}."
    if standing.few is not None:
        return f"Perplexity goes {ends}; inconclusive, {standing.few} of the {LEAST} documents needed."
    if not found.significant:
        return f"Perplexity does not change measurably, {ends}."
    return f"Perplexity {'rises' if found.bounds.estimate < 0 else 'falls'} {ends}."


def _helped(rows: Sequence[GridRow], perplexities: Table, column: int) -> list[str]:
    """The variant that is surely better than the model as it was trained, in the longest windows; or that none is."""
    standing = perplexities.standings(theirs=False)[column]
    tried = [i for i in range(1, len(rows)) if perplexities.rows[i].values[column].number is not None]
    if not tried or standing.few is not None:
        return []
    better = [i for i in tried if standing.better(i, 0, "low")]
    if not better:
        who = _variant(rows[tried[0]]) if len(tried) == 1 else f"any of the {len(tried)} variants tried"
        return [f"It is not certain that {who} is better there."]
    best = min(better, key=lambda i: perplexities.rows[i].values[column].number or 0.0)
    found = standing.difference(best, 0)
    counted = f" (better in {found.n_below} of {found.bounds.n} documents)" if found and found.paired else ""
    name = _variant(rows[best])
    return [f"{name[0].upper()}{name[1:]} keeps it to {rounded(perplexities.rows[best].values[column])}{counted}."]


def _variant(row: GridRow) -> str:
    """Its words without the model's name."""
    return with_variant("", row.variant).removeprefix(" + ") or row.label


def _used(judged: Judged) -> list[str]:
    """What the model as it was trained uses of its context."""
    said = clauses(judged, only="uses")
    return [f"The model {said}."] if said else []


def rounded(value: Value) -> str:
    """Three digits of a perplexity, for a sentence."""
    number = value.number or 0.0
    return f"{number:.3g}" if number < 1000 else value.text
