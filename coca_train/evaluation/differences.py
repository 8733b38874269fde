"""Which differences between models outlast both documents and seeds (definition: measures/seeds.py).

Two models are compared as they were trained, by the loss of the same predictions in windows of the training length and
in the longest that both were measured in. Seed s of one is paired with seed s of the other, which saw the same batches;
seeds that only one of them has are left out. Up to FEW models every pair is asked, of more each against the first; all
that is asked is judged together.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from coca_train.evaluation.measures.reach import CONFIDENCE, LEAST
from coca_train.evaluation.measures.seeds import Crossed, apart, student, together
from coca_train.evaluation.position_curves import trained
from coca_train.evaluation.results import Evaluation, GridRow
from coca_train.evaluation.seeds import model_of
from coca_train.report.blocks import MISSING, Row, Spread, Table, Value

FEW = 5  # models
FORM = "{:.3f}"
ALONE = "One seed: nothing is known of how seeds differ, so what is said here is of documents alone."
ALONE_HERE = "{}: one seed in common, so what is said of them is of documents alone."
NOTE = (
    "Loss of the first less that of the second, the same predictions, each model as it was trained: below 0 the first "
    "is better. The interval is over {of}, and as wide as {n} comparisons at once ask (Holm): in at most 5 % of draws "
    "any of them leaves 0 out falsely."
)


class Difference(NamedTuple):
    """Of two models in windows of one length [tokens], in nats per token: below 0 `one` is better."""

    one: str
    other: str
    length: int
    found: Crossed

    @property
    def n_seeds(self) -> int:
        return len(self.found.seeds)

    @property
    def outlasts_documents(self) -> bool:
        return apart(*self.found.documents[1:3])


def differences(evaluation: Evaluation) -> list[Difference]:
    """All that is asked and can be. evaluation: of one text, its seeds apart."""
    asked = list(_asked(evaluation))
    judged = together([sums_SD2 for _, sums_SD2 in asked])
    return [Difference(*place, found) for (place, _), found in zip(asked, judged, strict=True)]


def _asked(evaluation: Evaluation) -> Iterator[tuple[tuple[str, str, int], np.ndarray]]:
    """(who and at which length, sums_SD2) of every comparison."""
    models, rows = model_of(evaluation), dict[str, dict[str, GridRow]]()
    for row in trained(evaluation.rows()):
        model = models[row.subject.name]
        rows.setdefault(model, {})[evaluation.seeds.get(model, {}).get(row.subject.name, "")] = row
    pairs = [pair for pair in combinations(rows, 2) if len(rows) <= FEW or pair[0] == next(iter(rows))]
    for one, other in pairs:
        seeds = [(rows[one][seed], rows[other][seed]) for seed in rows[one] if seed in rows[other]]
        if not seeds:
            continue
        common = set.intersection(*(set(row.results) for pair in seeds for row in pair))
        lengths = {int(point) for point in common}
        window = max(row.subject.training_window for pair in seeds for row in pair)
        for length in sorted({window, max(lengths, default=0)} & lengths):
            sums_SPD2 = _sums([[row.results[length] for row in pair] for pair in seeds])
            if sums_SPD2 is not None:
                ours, theirs = sums_SPD2[:, 0], sums_SPD2[:, 1]
                yield (one, other, length), np.stack((ours[..., 0] - theirs[..., 0], ours[..., 1]), -1)


def _sums(pairs: Sequence[Sequence[Mapping[str, Any]]]) -> np.ndarray | None:
    """NLL and predictions of seeds, of the two models and of documents; None where they are not the same predictions:
    two tokenizers make as many of a cut document, of other tokens."""
    if len({each["predictions"] for pair in pairs for each in pair}) > 1:
        return None
    sums_SPD2 = np.array([[each["by_document"] for each in pair] for pair in pairs], dtype=float)
    return sums_SPD2 if np.isfinite(sums_SPD2).all() else None


def sentences(found: Sequence[Difference]) -> list[str]:
    """The longest windows first: who is better, and who cannot be told apart. Nothing where nothing was asked."""
    if not found:
        return []
    if missing := _missing(found):
        return [f"No verdict over models: {missing} of {LEAST} documents missing."]
    said, alone = list[str](), [each for each in found if each.n_seeds == 1]
    if alone:
        pairs = dict.fromkeys(f"{each.one} and {each.other}" for each in alone)
        said.append(ALONE if len(alone) == len(found) else ALONE_HERE.format("; ".join(pairs)))
    for length in sorted({each.length for each in found}, reverse=True):
        here = [each for each in found if each.length == length]
        said += [_told(each) for each in here if each.found.told]
        rest = [each for each in here if not each.found.told]
        said += [_hidden(each) for each in rest if each.outlasts_documents]
        ties = [f"{each.one} and {each.other}" for each in rest if not each.outlasts_documents]
        said += [f"{'; '.join(ties)} cannot be told apart at {length:,} tokens."] if ties else []
    hidden = [each for each in found if not each.found.told]  # judged together, when the others were told (Holm)
    if any(each.n_seeds == 2 for each in hidden):
        times = student(1 - (1 - CONFIDENCE) / len(hidden), 1) / 2
        said.append(
            f"2 seeds tell little: what is not told here would have to be more than {times:.0f} times as large as what "
            "its two seeds differ by, and larger still for what documents differ by."
        )
    return said


def _missing(found: Sequence[Difference]) -> int:
    """How many documents more are needed."""
    return max(0, LEAST - min(each.found.documents.n for each in found))


def _told(each: Difference) -> str:
    better, worse = (each.one, each.other) if each.found.estimate < 0 else (each.other, each.one)
    outlasts = f": outlasts documents and {each.n_seeds} seeds" if each.n_seeds > 1 else " over documents; one seed"
    return f"{better} is better than {worse} at {each.length:,} tokens by {_size(each.found)}{outlasts}."


def _hidden(each: Difference) -> str:
    """What documents alone would have told."""
    better, worse = (each.one, each.other) if each.found.estimate < 0 else (each.other, each.one)
    return (
        f"{better} and {worse} cannot be told apart at {each.length:,} tokens: {_size(each.found)}; it outlasts "
        f"documents, but not {each.n_seeds} seeds."
    )


def _size(found: Crossed) -> str:
    """How much the better one is better by, with the interval."""
    sign = -1 if found.estimate < 0 else 1
    low, high = sorted(sign * end for end in found.interval)
    return f"{FORM.format(sign * found.estimate)} nats a token ({FORM.format(low)} to {FORM.format(high)})"


def table(found: Sequence[Difference]) -> Table | None:
    """A row a pair, a column a length; None of too few documents."""
    if not found or _missing(found):
        return None
    lengths = sorted({each.length for each in found})
    places = {(each.one, each.other, each.length): each for each in found}
    pairs = dict.fromkeys((each.one, each.other) for each in found)
    n_seeds = {each.n_seeds for each in found}
    of = "documents alone" if n_seeds == {1} else "both documents and seeds"
    of += ", of a pair with one seed over documents alone" if 1 in n_seeds and len(n_seeds) > 1 else ""
    return Table(
        name="differences",
        title="Differences between models [nats per token]",
        label_columns=("model", "less"),
        columns=tuple(f"{length:,} tokens" for length in lengths),
        rows=tuple(Row(label=pair, values=tuple(_value(places.get((*pair, n))) for n in lengths)) for pair in pairs),
        interval="interval of all comparisons together",
        note=NOTE.format(of=of, n=len(found)),
    )


def _value(each: Difference | None) -> Value:
    if each is None:
        return MISSING
    low, high = each.found.interval
    spread = Spread.over(each.found.seeds, FORM) if each.n_seeds > 1 else None
    note = f"{each.n_seeds} seed{'s' if each.n_seeds > 1 else ''}, {each.found.documents.n} documents"
    return Value.of(each.found.estimate, FORM, note, low=low, high=high, spread=spread)
