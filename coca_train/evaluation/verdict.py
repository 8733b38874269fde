"""How far a model's context reaches: what is asked at each length, and what counts as an answer.

* `holds`: the predictions with more than a training window of text before them lose at most HOLDS_WITHIN nats a token
  when they are read in windows of this length instead of windows of the training length with seven eighths of it to all
  of it before them: a longer window must be as good as the training window at its best. Within its training window a
  model holds by definition.
* `uses`: predictions with seven eighths of this length to all of it before them are better, by more than USES_GAIN nats
  a token, than the same predictions with their nearest half of it to five eighths, truncated, with positions from 0.
  A flat curve of perplexity is no reach: a model may ignore everything far away (ALiBi, arXiv 2108.12409, does), and
  then longer windows gain nothing.
* `finds`: what was hidden in a prompt of this length is found more often than FOUND_SHARE.
* `works with`: tasks that need more of the prompt than one place of it (arXiv 2404.06654) are done more often than
  that.

Each bound is the smallest effect that matters, and an option. At each length the answer is yes, no or open
(statistics/answers.py), by an interval over documents (paired: the same predictions in both windows) or over prompts. A
part is *sure* up to the last length before the first that is not answered yes, and *failed* from the first that is
answered no; what lies between is open. Of a model that is too little trained (`untrained`) nothing is said: it holds
any window, equally badly.

`verdict` and `answers_table` say it in a line and in a table. Of a model with several seeds each seed is judged by
itself, and the model is sure of what every seed is sure of.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coca_train.evaluation.measures.perplexity import OneText
from coca_train.evaluation.results import AnyRow, Cell, Evaluation, Result, model_names, model_of, with_variant
from coca_train.report.blocks import ANSWERED, ANSWERS, Row, State, Table, Value, Verdict
from coca_train.statistics.answers import LEAST, SURE, WRONG, Answer, above, below, share_above
from coca_train.statistics.intervals import Bounds, OverDocuments

HOLDS_WITHIN = 0.01  # [nats per token]
USES_GAIN = 0.005  # [nats per token]
FOUND_SHARE = 0.8
ROUNDING = 1e-4  # [nats per token]: as much can be, since kernels are chosen by length (measures/windows.py)

Name = Literal["holds", "uses", "finds", "works with"]


class Evidence(NamedTuple):
    """What was seen at a length [tokens]."""

    length: int
    answer: Answer


class Part(NamedTuple):
    """One thing that was asked, at ascending lengths. of: what was counted, documents or prompts. granted: the length
    [tokens] up to which it is passed by definition. stopped: why no length beyond was measured although it was asked,
    because the model has no positions for it, say; "": nothing was asked. bound: what is asked. untrained: why nothing
    can be said of a model that has not learnt enough, in words; "": it has."""

    name: Name
    of: str
    evidence: tuple[Evidence, ...]
    granted: int = 0
    stopped: str = ""
    bound: float = 0.0
    untrained: str = ""

    @property
    def sure(self) -> int:
        """The length up to which it is answered yes at every length [tokens]; 0: not at the shortest."""
        passed = [seen.length for seen in takewhile(lambda seen: seen.answer.outcome == "yes", self.evidence)]
        return passed[-1] if passed else self.granted

    @property
    def failed(self) -> Evidence | None:
        """The first length that is answered no."""
        return next((seen for seen in self.evidence if seen.answer.outcome == "no"), None)

    @property
    def unsettled(self) -> tuple[Evidence, ...]:
        """What is open beyond `sure`, up to where it failed."""
        beyond = (seen for seen in self.evidence if seen.length > self.sure)
        return tuple(seen for seen in takewhile(lambda seen: seen is not self.failed, beyond))

    @property
    def known(self) -> bool:
        """Whether anything can be said of it."""
        return bool(self.sure or self.failed)


def holds(length: int, excess_D2: Sequence[Sequence[float]], within: float = HOLDS_WITHIN) -> Evidence:
    """Ask whether a window holds. excess_D2: of each document the NLL [nats] of its predictions in windows of `length`
    less that in windows of the training length, and how many predictions."""
    return Evidence(length, below(_over(excess_D2), within))


def uses(length: int, gain_D2: Sequence[Sequence[float]], gain: float = USES_GAIN) -> Evidence:
    """Ask whether a length is used. gain_D2: of each document the NLL [nats] of its predictions with the less of the
    two contexts less that with the more, and how many predictions."""
    return Evidence(length, above(_over(gain_D2), gain))


def untrained(result: OneText, gain: float = USES_GAIN) -> str:
    """Say why a model is too little trained to judge, in words; "" of one that is not, or may not be.

    It must be better than the frequencies of tokens and of pairs of tokens in its training text, where that is known,
    and with 32 tokens of context than with 8: what is not holds any window, equally badly. result: of one text at the
    training window: `by_document`, NLL [nats] and predictions; `token_frequencies`, NLL of each of the two and
    predictions; `short`, NLL with 5 to 8 tokens of context less that of the same predictions with 29 to 32, and
    predictions.
    """
    if counted := result.get("token_frequencies"):
        sums_D3 = np.asarray(counted, dtype=float)
        kind = int(sums_D3[:, 1].sum() < sums_D3[:, 0].sum())
        own_D2 = np.asarray(result["by_document"], dtype=float)
        better = above(_over(np.stack((sums_D3[:, kind] - own_D2[:, 0], own_D2[:, 1]), 1)), gain)
        if better.outcome == "no":
            model = ("a unigram", "a bigram")[kind]
            return f"is too little trained to judge: it predicts no better than {model} model of its training text"
    if "short" in result:
        gained = above(_over(result["short"]), gain)
        if gained.outcome == "no":
            return "is too little trained to judge: it predicts no better with 32 tokens of context than with 8"
    return ""


def finds(length: int, n_found: int, n_prompts: int, share: float = FOUND_SHARE) -> Evidence:
    """Return the evidence of n_found right answers among n_prompts of this length."""
    return Evidence(length, share_above(n_found, n_prompts, share))


def _over(sums_D2: ArrayLike) -> Bounds:
    return OverDocuments(sums_D2).interval(SURE)


NOTHING = "nothing of it was measured"
PartsByRow = Mapping[tuple[str, str], Sequence[Part]]  # by model and variant, what their cells say


class Judged(NamedTuple):
    """A model under a variant: its seeds' parts, one list a seed."""

    label: str
    row: AnyRow
    seeds: list[Sequence[Part]]

    @property
    def window(self) -> int:
        return self.row.subject.training_window

    def parts(self) -> Iterator[tuple[Name, list[Part]]]:
        """Return each part with what every seed says of it."""
        names: dict[Name, None] = dict.fromkeys(part.name for parts in self.seeds for part in parts)
        for name in names:
            yield name, [part for parts in self.seeds for part in parts if part.name == name]


def judge_rows(evaluation: Evaluation[Result], asked: PartsByRow) -> list[Judged]:
    """Return every model and variant of whom anything was asked, its seeds together."""
    models, rows = model_of(evaluation), dict[tuple[str, str], Judged]()
    names = model_names({models[subject.name]: subject.scheme for subject in evaluation.subjects})
    for row in evaluation.rows():
        if parts := asked.get(row.name):
            model = models[row.subject.name]
            label = with_variant(names[model], row.variant)
            rows.setdefault((model, row.variant), Judged(label, row, [])).seeds.append(parts)
    return list(rows.values())


def verdicts(evaluation: Evaluation[Result], asked: PartsByRow) -> list[Verdict]:
    """Judge each model and variant."""
    return [verdict(each) for each in judge_rows(evaluation, asked)]


def verdict(each: Judged) -> Verdict:
    """Judge one model and variant."""
    parts = () if is_untrained(each) else tuple((name, words(parts)) for name, parts in each.parts())
    return Verdict(label=each.label, line=clauses(each), parts=parts, state=_state(each))


def clauses(each: Judged, only: str = "") -> str:
    """Return what a sentence says of the model. only: of this part alone, "" where it was not asked."""
    return "; ".join(_clause(name, parts, each.window) for name, parts in each.parts() if not only or name == only)


def unmeasured(part: Part, cells: Iterable[Cell[Result]]) -> Part:
    """Return the same part of a model that could be asked it at no length, with the reason."""
    return part._replace(evidence=(), stopped=next((cell.absence for cell in cells if cell.absence), NOTHING))


def is_untrained(each: Judged) -> bool:
    """Return whether some seed has not learnt enough for anything to be said."""
    return any(part.untrained for parts in each.seeds for part in parts)


def _state(each: Judged) -> State:
    """Return ✓ where every part is sure of the training window or beyond, ✗ where one fails at its shortest length."""
    parts = [part for parts in each.seeds for part in parts]
    if any(not part.sure and part.failed and part.failed is part.evidence[0] for part in parts):
        return "none"
    if not all(part.sure for part in parts):
        return "unknown"
    return "reads" if all(part.sure >= each.window for part in parts) else "partly"


class Least(NamedTuple):
    """What a part says over its seeds. part: of the seed that is sure of the least. failed: the first length that some
    seed answers no. opened: what is open before it. rest: all of these, in words."""

    part: Part
    failed: int | None
    opened: list[Evidence]
    rest: list[str]


def _least(parts: Sequence[Part]) -> Least:
    least = min(parts, key=lambda part: part.sure)
    failed = min((part.failed.length for part in parts if part.failed), default=None)
    opened = [seen for seen in least.unsettled if failed is None or seen.length < failed]
    rest = []
    if opened:
        at = "at" if len(opened) == 1 else "up to"
        rest.append(f"undecided {at} {opened[-1].length:,}{settled_by(opened, least.of)}")
    if failed is not None:
        rest.append(f"not {failed:,}")
    elif least.stopped:
        rest.append(f"beyond: {least.stopped}")
    return Least(least, failed, opened, rest)


def words(parts: Sequence[Part]) -> str:
    """Say of one part the least over its seeds: "128, undecided at 256", "128, not 256", "not even 64"."""
    least, failed, opened, rest = _least(parts)
    if not least.sure and not opened:
        return f"undecided: {least.stopped or NOTHING}" if failed is None else f"not even {failed:,}"
    sure = [f"{least.sure:,}"] if least.sure else []
    return ", ".join([*sure, *rest, *_seeds(parts, "every one")])


def settled_by(unsettled: Sequence[Evidence], of: str) -> str:
    """Return how many more documents or prompts the first open length needs."""
    more = unsettled[0].answer.more if unsettled else 0
    if more is None:
        return " (too close to the bound)"
    return f" (about {more:,} more {of} would settle it)" if more else ""


# By part: when it is sure, when it fails at once, what it may or may not do.
CLAUSES: dict[Name, tuple[str, str, str]] = {
    "holds": ("perplexity holds to {} tokens", "perplexity does not hold at {} tokens", "keep its perplexity at"),
    "uses": ("demonstrably uses its last {} tokens", "makes no use of {} tokens of context", "use its last"),
    "finds": (
        "finds what is hidden in {} tokens",
        "does not find what is hidden in {} tokens",
        "find what is hidden in",
    ),
    "works with": ("works with {} tokens", "does not work with {} tokens", "work with"),
}


def _clause(name: Name, parts: Sequence[Part], window: int) -> str:
    """Write one part as part of a sentence about the model; of several seeds what every one is sure of."""
    if why := next((part.untrained for part in parts if part.untrained), ""):
        return why
    sure, fails, unclear = CLAUSES[name]
    least, failed, opened, rest = _least(parts)
    seeds = _seeds(parts, "each")
    if name == "holds" and least.sure == window and failed is not None and not opened:
        return ", ".join(["perplexity rises beyond its training window", *seeds])
    if least.sure:
        times = f" ({multiple(least.sure, window)})" if name == "holds" and least.sure > window else ""
        return ", ".join([sure.format(f"{least.sure:,}") + times, *rest, *seeds])
    if failed is not None and not opened:
        return ", ".join([fails.format(f"{failed:,}"), *seeds])
    if opened:
        return f"may or may not {unclear} {opened[0].length:,} tokens{settled_by(opened, least.of)}"
    return f"{name}: undecided, {least.stopped or NOTHING}"


def _seeds(parts: Sequence[Part], every: str) -> list[str]:
    """Return what each seed is sure of, where there are several."""
    if len(parts) < 2:
        return []
    each = [f"{part.sure:,}" for part in parts]
    return [f"{every} of {len(parts)} seeds" if len(set(each)) == 1 else f"seeds {' / '.join(each)}"]


def multiple(length: int, window: int) -> str:
    """Write `16×` the training window."""
    times = length / window
    return f"{times:.2g}×" if times < 99.5 else f"{times:,.0f}×"  # .2g would write 99.6 as 1e+02


def lengths(evaluation: Evaluation[Result], asked: PartsByRow) -> dict[str, float]:
    """Return for trackers, of one model, the length up to which each part is sure under each variant [tokens],
    `uses/<variant>`."""
    return {
        f"{part.name.replace(' ', '_')}/{row.variant}": float(part.sure)
        for row in evaluation.rows()
        for part in asked.get(row.name, ())
        if part.known
    }


MEANINGS: dict[Name, tuple[str, str]] = {  # by part: in eight words, and the form of a figure
    "holds": ("loss at most {bound:g} nats above the training window's", "{:+.4f}"),
    "uses": ("its farther half lowers the loss by over {bound:g} nats", "{:+.4f}"),
    "finds": ("over {bound:.0%} of hidden items are found", "{:.0%}"),
    "works with": ("over {bound:.0%} of tasks are done", "{:.0%}"),
}
KEY = (
    f"✓ yes, ✗ no, ? undecided: the {SURE:.1%} interval contains the bound, or fewer than {LEAST} documents or prompts "
    f"were read. All answers of a page are right together {1 - WRONG:.0%} of the time. Point at a sign for its "
    "figures, which the CSV has too."
)


def answers_table(evaluation: Evaluation[Result], asked: PartsByRow) -> Table | None:
    """Return what was asked, by length: a row a model, variant and part, a column a length, a sign in each."""
    every = judge_rows(evaluation, asked)
    at = sorted({seen.length for each in every for parts in each.seeds for part in parts for seen in part.evidence})
    rows, meant = [], dict[Name, str]()
    for each in every:
        for part_name, parts in each.parts():
            meant[part_name] = MEANINGS[part_name][0].format(bound=parts[0].bound)
            values = tuple(_figure(parts, length, part_name) for length in at)
            rows.append(Row(label=(each.label, part_name), values=values))
    if not at:
        return None
    return Table(
        name=ANSWERED,
        title="What the context is good for, by length [tokens]",
        label_columns=("model", "part"),
        columns=tuple(f"{length:,}" for length in at),
        rows=tuple(rows),
        interval=f"{SURE:.1%} interval",
        note=" ".join(f"{part[0].upper()}{part[1:]}: {said}." for part, said in meant.items()) + f" {KEY}",
    )


def _figure(parts: Sequence[Part], length: int, name: Name) -> Value:
    """Return a sign; of several seeds ✓ where it is yes for all of them, ✗ where it is no for one."""
    seen = [each for part in parts for each in part.evidence if each.length == length]
    if not seen:
        granted = all(part.granted >= length for part in parts) and bool(parts[0].granted)
        return Value(ANSWERS["yes"] if granted else "")
    outcomes = [each.answer.outcome for each in seen]
    outcome = "no" if "no" in outcomes else "open" if "open" in outcomes else "yes"
    shown = next(each for each in seen if each.answer.outcome == outcome)
    bounds, form = shown.answer.bounds, MEANINGS[name][1]
    figures = f"{form.format(bounds.estimate)} ({form.format(bounds.low)} to {form.format(bounds.high)}) of {bounds.n}"
    note = f"{outcome}: {figures}{settled_by([shown], parts[0].of) if outcome == 'open' else ''}"
    return Value(ANSWERS[outcome], number=bounds.estimate, note=note, low=bounds.low, high=bounds.high)
