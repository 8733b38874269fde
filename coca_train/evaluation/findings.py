"""What a page of perplexities found: sentences with numbers and how sure they are, and the differences between models.

Models are compared as they were trained, by the loss of the same predictions: what the table of perplexities is judged
by (statistics/pairs.py), so that bold, sentences and this table say the same. Seed s of one model is paired with seed s
of the other, which saw the same batches; seeds that only one of them has are left out. Up to MOST_MODELS models every
pair is shown, of more each against the first.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from coca_train.evaluation.pages import OTHER_TOKENS, in_words
from coca_train.evaluation.results import GridRow, Result, as_trained, same_tokens, with_variant
from coca_train.evaluation.verdict import Judged, clauses, is_untrained, multiple
from coca_train.report.blocks import MISSING, Row, Spread, Table, Value
from coca_train.report.headlines import NATS, headline, size
from coca_train.statistics.answers import LEAST
from coca_train.statistics.intervals import student
from coca_train.statistics.pairs import Difference, standings

MOST_MODELS = 5  # of which every pair is compared
FORM = "{:.3f}"
ALONE = "One seed: nothing is known of how seeds differ, so what is said here is of documents alone."
ALONE_HERE = "{}: one seed in common, so what is said of them is of documents alone."
NOTE = (
    "Loss of the first minus that of the second, the same predictions, each model as it was trained: below 0 the first "
    "is better. The interval is over {of}, and as wide as all comparisons of the table of perplexities ask together "
    "(Holm): in at most 5 % of draws any of them leaves 0 out falsely."
)


def finding(rows: Sequence[GridRow[Result]], perplexities: Table, judged: Sequence[Judged]) -> list[str]:
    """Return sentences, the most important one first; none without a result. rows: those of the table, in its order."""
    if not any(row.results for row in rows):
        return []
    if len({row.subject.name for row in rows}) == 1:
        if judged and is_untrained(judged[0]):
            return _describe_use(judged[0])
        return [*_describe_one_model(rows, perplexities), *(_describe_use(judged[0]) if judged else [])]
    if not same_tokens(row.subject for row in rows if row.results):
        return [OTHER_TOKENS]
    at, names = f"At {in_words(perplexities.columns[-1])}", [row.label for row in rows]
    said = headline(perplexities, -1, names, at, "predicts best", "perplexity")
    return [*([said] if said else []), *_name_untrained(judged)]


def _name_untrained(judged: Sequence[Judged]) -> list[str]:
    """Name the models that are too little trained, those of one reason together."""
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


def _describe_one_model(rows: Sequence[GridRow[Result]], perplexities: Table) -> list[str]:
    """Say what becomes of the perplexity beyond the training window, and which variant helps."""
    values = {int(point): value for point, value in zip(rows[0].cells, perplexities.rows[0].values, strict=False)}
    known = {n: value for n, value in values.items() if value.number is not None}
    if not known:
        return []
    window = rows[0].subject.training_window
    first, last = window if window in known else min(known), max(known)
    times = f"{last:,} tokens ({multiple(last, window)} the training window)"
    if first == last:
        return [f"Perplexity is {three_digits(known[last])} in windows of {times}."]
    said = [_describe_change(known[first], known[last], f"{first:,}", times)]
    return [*said, *_describe_best_variant(rows, perplexities, list(values).index(last))]


def _describe_change(before: Value, after: Value, first: str, times: str) -> str:
    """Say how perplexity changes from one window to another: of the same predictions, so of the same documents one by
    one."""
    (standing,) = standings([[before, after]], "low")
    found = standing.difference(0, 1)
    ends = f"from {three_digits(before)} at {first} tokens to {three_digits(after)} at {times}"
    if found is None or not found.paired:
        return f"Perplexity is {three_digits(before)} at {first} tokens and {three_digits(after)} at {times}."
    if standing.few is not None:
        return f"Perplexity goes {ends}; inconclusive, {standing.few} of the {LEAST} documents needed."
    if not found.significant:
        return f"Perplexity does not change measurably, {ends}."
    return f"Perplexity {'rises' if found.bounds.estimate < 0 else 'falls'} {ends}."


def _describe_best_variant(rows: Sequence[GridRow[Result]], perplexities: Table, column: int) -> list[str]:
    """Name the variant that is surely better than the model as it was trained, in the longest windows; or that none
    is."""
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
    return [f"{name[0].upper()}{name[1:]} keeps it to {three_digits(perplexities.rows[best].values[column])}{counted}."]


def _variant(row: GridRow[Result]) -> str:
    """Return a variant's words without the model's name."""
    return with_variant("", row.variant).removeprefix(" + ") or row.label


def _describe_use(judged: Judged) -> list[str]:
    """Say what the model as it was trained uses of its context."""
    said = clauses(judged, only="uses")
    return [f"The model {said}."] if said else []


def three_digits(value: Value) -> str:
    """Write three digits of a perplexity, for a sentence."""
    number = value.number or 0.0
    return f"{number:.3g}" if number < 1000 else value.text


class Compared(NamedTuple):
    """Two models in windows of one length, as the table heads its column: below 0 `one` is better."""

    one: str
    other: str
    length: str
    found: Difference

    @property
    def n_seeds(self) -> int:
        return len(self.found.seeds)


def compare_models(rows: Sequence[GridRow[Result]], perplexities: Table) -> list[Compared]:
    """Return all pairs of models that can be. rows: those of the table, in its order; a seed of a model is part of its
    row."""
    ours = [i for i, row in enumerate(rows) if row in as_trained(rows)]
    pairs = [pair for pair in combinations(ours, 2) if len(ours) <= MOST_MODELS or pair[0] == ours[0]]
    judged = perplexities.standings(theirs=False)
    found = []
    for column, standing in zip(perplexities.columns, judged, strict=True):
        for i, j in pairs:
            difference = standing.difference(i, j)
            if difference is not None and difference.paired:
                found.append(Compared(rows[i].label, rows[j].label, column, difference))
    return found


def difference_sentences(found: Sequence[Compared]) -> list[str]:
    """Say who is better, the longest windows first, and who cannot be told apart. Nothing where nothing was
    asked."""
    if not found:
        return []
    n = min(each.found.bounds.n for each in found)
    if n < LEAST:
        return [f"Which model is better is inconclusive: {n} of the {LEAST} documents needed."]
    said, alone = list[str](), [each for each in found if each.n_seeds == 1]
    if alone:
        pairs = dict.fromkeys(f"{each.one} and {each.other}" for each in alone)
        said.append(ALONE if len(alone) == len(found) else ALONE_HERE.format("; ".join(pairs)))
    lengths = list(dict.fromkeys(each.length for each in found))
    for length in dict.fromkeys((lengths[-1], lengths[0])):
        here = [each for each in found if each.length == length]
        said += [_describe_difference(each) for each in here if each.found.significant]
        rest = [each for each in here if not each.found.significant]
        said += [_describe_documents_alone(each) for each in rest if each.found.documents]
        ties = [f"{each.one} and {each.other}" for each in rest if not each.found.documents]
        said += [f"{'; '.join(ties)} cannot be told apart at {in_words(length)}."] if ties else []
    if any(each.n_seeds == 2 and not each.found.significant for each in found):
        times = student(0.95, 1) / 2
        said.append(
            f"Two seeds settle little: only a difference more than {times:.0f} times as large as that between its two "
            "seeds is significant; a third seed settles far more."
        )
    return said


def _describe_difference(each: Compared) -> str:
    better, worse = (each.one, each.other) if each.found.bounds.estimate < 0 else (each.other, each.one)
    over = f": significant over documents and {each.n_seeds} seeds" if each.n_seeds > 1 else _counted(each.found)
    return f"{better} is better than {worse} at {in_words(each.length)} by {_size(each.found)}{over}."


def _counted(found: Difference) -> str:
    n_better = found.n_below if found.bounds.estimate < 0 else found.n_above
    return f", in {n_better} of {found.bounds.n} documents; one seed"


def _describe_documents_alone(each: Compared) -> str:
    """Describe a difference that is significant over documents and not over seeds."""
    better, worse = (each.one, each.other) if each.found.bounds.estimate < 0 else (each.other, each.one)
    return (
        f"{better} and {worse} cannot be told apart at {in_words(each.length)}: {better} is lower by "
        f"{_size(each.found)}, significant over documents, not over {each.n_seeds} seeds."
    )


def _size(found: Difference) -> str:
    """Return how much the better one is better by, with the interval."""
    bounds = (found.negated() if found.bounds.estimate < 0 else found).bounds
    return f"{size(bounds.estimate, NATS)} ({size(bounds.low, '')} to {size(bounds.high, '')})"


def difference_table(found: Sequence[Compared]) -> Table | None:
    """Show a row a pair, a column a length; None of too few documents."""
    if not found or min(each.found.bounds.n for each in found) < LEAST:
        return None
    lengths = list(dict.fromkeys(each.length for each in found))
    places = {(each.one, each.other, each.length): each for each in found}
    pairs = dict.fromkeys((each.one, each.other) for each in found)
    n_seeds = {each.n_seeds for each in found}
    of = "documents alone" if n_seeds == {1} else "both documents and seeds"
    of += ", of a pair with one seed over documents alone" if 1 in n_seeds and len(n_seeds) > 1 else ""
    return Table(
        name="differences",
        title="Differences between models [nats per token]",
        label_columns=("model", "minus"),
        columns=tuple(map(in_words, lengths)),
        rows=tuple(Row(label=pair, values=tuple(_value(places.get((*pair, n))) for n in lengths)) for pair in pairs),
        interval="interval of all comparisons together",
        note=NOTE.format(of=of),
    )


def _value(each: Compared | None) -> Value:
    if each is None:
        return MISSING
    estimate, low, high, n = each.found.bounds
    spread = Spread.over(each.found.seeds, FORM) if each.n_seeds > 1 else None
    note = f"better in {each.found.n_below} of {n} documents" if each.n_seeds == 1 else ""
    return Value.of(estimate, FORM, note=note, low=low, high=high, spread=spread)
