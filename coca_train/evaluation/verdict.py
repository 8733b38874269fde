"""What can be said of how far a model's context reaches, in a line and in a table (definition: measures/reach.py).

Of a model with several seeds each seed is judged by itself, and the model is sure of what every seed is sure of.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from coca_train.evaluation.measures.reach import Evidence, Name, Part
from coca_train.evaluation.naming import called, with_variant
from coca_train.evaluation.results import Cell, Evaluation, GridRow
from coca_train.evaluation.seeds import model_of
from coca_train.report.blocks import ANSWERED, ANSWERS, Row, State, Table, Value, Verdict
from coca_train.statistics.answers import LEAST, SURE, WRONG

NOTHING = "nothing of it was measured"
Asked = Mapping[tuple[str, str], Sequence[Part]]  # by model and variant, what their cells say


class Judged(NamedTuple):
    """A model under a variant: its seeds' parts, one list a seed."""

    label: str
    row: GridRow
    seeds: list[Sequence[Part]]

    @property
    def window(self) -> int:
        return self.row.subject.training_window

    def parts(self) -> Iterator[tuple[Name, list[Part]]]:
        """Each part with what every seed says of it."""
        names: dict[Name, None] = dict.fromkeys(part.name for parts in self.seeds for part in parts)
        for name in names:
            yield name, [part for parts in self.seeds for part in parts if part.name == name]


def judged(evaluation: Evaluation, asked: Asked) -> list[Judged]:
    """Every model and variant of whom anything was asked, its seeds together."""
    models, rows = model_of(evaluation), dict[tuple[str, str], Judged]()
    names = called({models[subject.name]: subject.scheme for subject in evaluation.subjects})
    for row in evaluation.rows():
        if parts := asked.get(row.name):
            model = models[row.subject.name]
            label = with_variant(names[model], row.variant)
            rows.setdefault((model, row.variant), Judged(label, row, [])).seeds.append(parts)
    return list(rows.values())


def verdicts(evaluation: Evaluation, asked: Asked) -> list[Verdict]:
    """One a model and variant."""
    return [verdict(each) for each in judged(evaluation, asked)]


def verdict(each: Judged) -> Verdict:
    said = tuple((name, words(parts)) for name, parts in each.parts()) if not is_untrained(each) else ()
    return Verdict(label=each.label, line=clauses(each), parts=said, state=_state(each))


def clauses(each: Judged, only: str = "") -> str:
    """What a sentence says of the model. only: of this part alone, "" where it was not asked."""
    return "; ".join(_clause(name, parts, each.window) for name, parts in each.parts() if not only or name == only)


def unknown(part: Part, cells: Iterable[Cell]) -> Part:
    """The same part of a model that could be asked it at no length, with the reason."""
    return part._replace(evidence=(), stopped=next((cell.absence for cell in cells if cell.absence), NOTHING))


def is_untrained(each: Judged) -> bool:
    """Whether some seed has not learnt enough for anything to be said."""
    return any(part.untrained for parts in each.seeds for part in parts)


def _state(each: Judged) -> State:
    """✓ where every part is sure of the training window or beyond, ✗ where one fails at its shortest length."""
    parts = [part for parts in each.seeds for part in parts]
    if any(not part.sure and part.failed and part.failed is part.evidence[0] for part in parts):
        return "none"
    if not all(part.sure for part in parts):
        return "unknown"
    return "reads" if all(part.sure >= each.window for part in parts) else "partly"


def words(parts: Sequence[Part]) -> str:
    """Of one part, the least over its seeds: "128, undecided at 256", "128, not 256", "not even 64"."""
    least = min(parts, key=lambda part: part.sure)
    failed = min((part.failed.length for part in parts if part.failed), default=None)
    opened = [seen for seen in least.unsettled if failed is None or seen.length < failed]
    if not least.sure and failed is not None and not opened:
        return f"not even {failed:,}"
    if not least.sure and not opened:
        return f"undecided: {least.stopped or NOTHING}"
    said = [f"{least.sure:,}" if least.sure else ""]
    said += [f"{_undecided(opened)}{settled_by(opened, least.of)}"] if opened else []
    said += [f"not {failed:,}"] if failed is not None else []
    said += [f"beyond: {least.stopped}"] if failed is None and least.stopped else []
    if len(parts) > 1:
        each = {f"{part.sure:,}" for part in parts}
        said.append(f"every one of {len(parts)} seeds" if len(each) == 1 else f"seeds {' / '.join(sorted(each))}")
    return ", ".join(filter(None, said))


def settled_by(unsettled: Sequence[Evidence], of: str) -> str:
    """How many more documents or prompts the first open length needs."""
    more = unsettled[0].answer.more if unsettled else 0
    if more is None:
        return " (too close to the bound)"
    return f" (about {more:,} more {of} would settle it)" if more else ""


CLAUSES: dict[
    Name, tuple[str, str, str]
] = {  # by part: when it is sure, when it fails at once, what it may or may not do
    "holds": ("perplexity holds to {} tokens", "perplexity does not hold at {} tokens", "keep its perplexity at"),
    "uses": ("demonstrably uses its last {} tokens", "makes no use of {} tokens of context", "use its last"),
    "finds": (
        "finds what is hidden in {} tokens",
        "does not find what is hidden in {} tokens",
        "find what is hidden in",
    ),
    "works with": ("works with {} tokens", "does not work with {} tokens", "work with"),
}  # fmt: skip


def _clause(name: Name, parts: Sequence[Part], window: int) -> str:
    """Of one part, as part of a sentence about the model; of several seeds what every one is sure of."""
    if why := next((part.untrained for part in parts if part.untrained), ""):
        return why
    sure, fails, unclear = CLAUSES[name]
    least = min(parts, key=lambda part: part.sure)
    failed = min((part.failed.length for part in parts if part.failed), default=None)
    opened = [seen for seen in least.unsettled if failed is None or seen.length < failed]
    rest = [f"{_undecided(opened)}{settled_by(opened, least.of)}"] if opened else []
    rest += [f"not {failed:,}"] if failed is not None else []
    rest += [f"beyond: {least.stopped}"] if least.stopped and failed is None else []
    rest += _seeds(parts)
    if name == "holds" and least.sure == window and failed is not None and not opened:
        return ", ".join(["perplexity rises beyond its training window", *_seeds(parts)])
    if least.sure:
        times = f" ({multiple(least.sure, window)})" if name == "holds" and least.sure > window else ""
        return ", ".join([sure.format(f"{least.sure:,}") + times, *rest])
    if failed is not None and not opened:
        return ", ".join([fails.format(f"{failed:,}"), *_seeds(parts)])
    if opened:
        return f"may or may not {unclear} {opened[0].length:,} tokens{settled_by(opened, least.of)}"
    return f"{name}: undecided, {least.stopped or NOTHING}"


def _undecided(opened: Sequence[Evidence]) -> str:
    return f"undecided {'at' if len(opened) == 1 else 'up to'} {opened[-1].length:,}"


def _seeds(parts: Sequence[Part]) -> list[str]:
    """What each seed is sure of, where there are several."""
    if len(parts) < 2:
        return []
    each = [f"{part.sure:,}" for part in parts]
    return [f"each of {len(parts)} seeds" if len(set(each)) == 1 else f"seeds {' / '.join(each)}"]


def multiple(length: int, window: int) -> str:
    """`16×` the training window."""
    times = length / window
    return f"{times:.2g}×" if times < 99.5 else f"{times:,.0f}×"  # .2g would write 99.6 as 1e+02


def lengths(evaluation: Evaluation, asked: Asked) -> dict[str, float]:
    """For trackers, of one model: the length up to which each part is sure under each variant [tokens],
    `uses/<variant>`."""
    return {
        f"{part.name.replace(' ', '_')}/{row.variant}": float(part.sure)
        for row in evaluation.rows()
        for part in asked.get(row.name, ())
        if part.known
    }


MEANT: dict[Name, tuple[str, str]] = {  # by part: in eight words, and the form of a figure
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


def answers_table(evaluation: Evaluation, asked: Asked) -> Table | None:
    """What was asked, by length: a row a model, variant and part, a column a length, a sign in each."""
    every = judged(evaluation, asked)
    at = sorted({seen.length for each in every for parts in each.seeds for part in parts for seen in part.evidence})
    rows, meant = [], dict[Name, str]()
    for each in every:
        for part_name, parts in each.parts():
            meant[part_name] = MEANT[part_name][0].format(bound=parts[0].bound)
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
    """A sign; of several seeds ✓ where it is yes for all of them, ✗ where it is no for one."""
    seen = [each for part in parts for each in part.evidence if each.length == length]
    if not seen:
        granted = all(part.granted >= length for part in parts) and bool(parts[0].granted)
        return Value(ANSWERS["yes"] if granted else "")
    outcomes = [each.answer.outcome for each in seen]
    outcome = "no" if "no" in outcomes else "open" if "open" in outcomes else "yes"
    shown = next(each for each in seen if each.answer.outcome == outcome)
    bounds, form = shown.answer.bounds, MEANT[name][1]
    told = f"{form.format(bounds.estimate)} ({form.format(bounds.low)} to {form.format(bounds.high)}) of {bounds.n}"
    note = f"{outcome}: {told}{settled_by([shown], parts[0].of) if outcome == 'open' else ''}"
    return Value(ANSWERS[outcome], number=bounds.estimate, note=note, low=bounds.low, high=bounds.high)
