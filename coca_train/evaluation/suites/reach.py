"""Suite `reach`: how far a model reads, asked in every way at once (definition: measures/reach.py).

It measures nothing itself: its parts are the suites that do, with their own settings and their own cells, which other
evaluations find again. Its page has the verdict over all of them, and what each has to show.
"""

import math
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.evaluation.grid_blocks import asked as described
from coca_train.evaluation.grid_blocks import training_windows, written
from coca_train.evaluation.measures.reach import FOUND_SHARE, GAINS, HOLDS_WITHIN, LEAST, Evidence, Name, Part
from coca_train.evaluation.perplexity_curves import BEYOND
from coca_train.evaluation.results import Evaluation, GridRow
from coca_train.evaluation.suites import perplexity, recall, ruler
from coca_train.evaluation.verdict import Asked, unknown, verdicts
from coca_train.report.blocks import Block, Document, Line, Lines, Panels, Row, Section, Table, Text, Value

VERSION = 1
SUITES = {"reads": perplexity, "finds": recall, "works": ruler}
NOTHING: dict[str, tuple[Name, str]] = {  # by part, what is unknown of a model that could not be asked at any length
    "reads": ("uses", "documents"), "finds": ("finds", "prompts"), "works": ("works with", "prompts"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """How far a model reads: the least of what it holds, uses, finds and works with."""

    suite: Literal["reach"]
    reads: perplexity.Settings | None = Field(description="what it holds and uses of a text; null: not asked")
    finds: recall.Settings | None = Field(description="whether it finds what a prompt hides; null: not asked")
    works: ruler.Settings | None = Field(description="whether it works with the whole of a prompt; null: not asked")

    def __post_init__(self) -> None:
        if not parts(self):
            raise ValueError("reads, finds and works are all null: nothing is asked")


def parts(settings: Settings) -> list[Any]:
    return [part for part in (settings.reads, settings.finds, settings.works) if part is not None]


def asked(evaluation: Evaluation) -> dict[tuple[str, str], list[Any]]:
    """All parts together, in their order; those of which a model could be asked nothing too."""
    said: dict[tuple[str, str], list[Any]] = {row.name: [] for row in evaluation.rows()}
    for name, part in _evaluations(evaluation).items():
        each = SUITES[name].asked(part)
        for row, parts in said.items():
            cells = [cell for cell in part.cells if (cell.subject, cell.variant) == row]
            parts += each.get(row) or ([unknown(Part(*NOTHING[name], ()), cells)] if cells else [])
    return said


def _evaluations(evaluation: Evaluation) -> dict[str, Evaluation]:
    """By part, its own cells."""
    own = {}
    for name in SUITES:
        if options := evaluation.settings[name]:
            points = dict.fromkeys(cell.point for cell in evaluation.cells if cell.suite == options["suite"])
            own[name] = evaluation.of_suite(options, list(points))
    return own


PARTS: dict[str, tuple[str, str, str, str]] = {  # by name: file, y axis, what is dashed, form of a figure
    "holds": ("holds", "loss added [nats]", "at most", "{:+.3f}"),
    "uses": ("uses", "gain [nats]", "more than", "{:+.4f}"),
    "finds": ("finds", "share found", "more than", "{:.2f}"),
    "works with": ("works", "share done", "more than", "{:.2f}"),
}
MEANT = {
    "holds": "holds: the loss above that in windows of the training length [nats a token]",
    "uses": "uses: what the farther half of the length gains [nats a token]",
    "finds": "finds: the share of prompts answered",
    "works with": "works with: the share of tasks done",
}
FAR = 10  # times what may be lost: where the picture of what is held ends at the latest


def _asked_of(evaluation: Evaluation, said: Asked) -> list[Block | str | None]:
    """What all parts have to show at each length: a panel a part, and a table with what passes."""
    rows = [row for row in evaluation.rows() if said.get(row.name)]
    names = [name for name in PARTS if any(part.name == name for row in rows for part in said[row.name])]
    if not names:
        return []
    within = (evaluation.settings["reads"] or {}).get("holds_within", HOLDS_WITHIN)
    lengths = sorted({each.length for row in rows for asked in said[row.name] for each in asked.evidence})
    levels = {"holds": within, "uses": GAINS, "finds": FOUND_SHARE, "works with": FOUND_SHARE}

    def part(row: GridRow, name: str) -> Part | None:
        return next((each for each in said[row.name] if each.name == name), None)

    def panel(name: str) -> Lines:
        file, y_label, must, _ = PARTS[name]
        lines = tuple(Line.through(row.label, _points(part(row, name))) for row in rows)
        ys, far = [y for line in lines for y in line.y], FAR * within
        clipped = (-far if min(ys, default=0.0) < -far else None, far if max(ys, default=0.0) > far else None)
        limits = {"holds": clipped, "uses": (None, None)}
        return Lines(
            name=file,
            title=name,
            alt=f"{name}: {y_label} against the length, one curve a model and variant; the table has the figures.",
            x_label="length [tokens]",
            y_label=y_label,
            lines=lines,
            x_log=True,
            x_shown=tuple(map(float, lengths)),
            y_limits=limits.get(name, (0.0, 1.0)),
            marks=training_windows(evaluation),
            levels=((levels[name], f"what passes is {must} this"),),
        )

    panels = tuple(map(panel, names))

    def figure(row: GridRow, name: str, length: int) -> Value:
        asked = part(row, name)
        seen = None if asked is None else next((each for each in asked.evidence if each.length == length), None)
        return _figure(seen, PARTS[name][3])

    return [
        Panels(
            name="reach-parts",
            title="What was asked, by length",
            alt="A panel a part, one curve a model and variant in each, with its interval and what it must pass.",
            panels=panels,
            note=BEYOND if any(panel.name == "holds" and panel.y_limits != (None, None) for panel in panels) else "",
        ),
        Table(
            name="reach-evidence",
            title="What was seen at each length [tokens]",
            label_columns=("model", "variant", "part"),
            columns=tuple(f"{length:,}" for length in lengths),
            rows=tuple(
                Row(label=(*row.name, name), values=tuple(figure(row, name, length) for length in lengths))
                for row in rows
                for name in names
                if part(row, name) is not None
            ),
            note="; ".join(MEANT[name] for name in names)
            + ". ✓ passes, ✗ does not, ? too little was seen; a part ends at its first ✗.",
        ),
    ]


def _points(part: Part | None) -> list[tuple[float | None, ...]]:
    """(length, estimate, low, high) of what was seen."""
    seen = [] if part is None else [each for each in part.evidence if math.isfinite(each.bounds.estimate)]
    return [(each.length, each.bounds.estimate, *_ends(each)) for each in seen]


def _ends(seen: Evidence) -> tuple[float | None, float | None]:
    """None where nothing is known: of two documents, say."""
    known = math.isfinite(seen.bounds.low) and math.isfinite(seen.bounds.high)
    return (seen.bounds.low, seen.bounds.high) if known else (None, None)


def _figure(seen: Evidence | None, form: str) -> Value:
    """With its interval, and a sign for whether it passes."""
    if seen is None or not seen.bounds.n:
        return Value.of(None, missing="not asked, or nothing to ask it of")
    low, high = _ends(seen)
    sign = "?" if seen.bounds.n < LEAST else "✓" if seen.passed else "✗"
    if not math.isfinite(seen.bounds.estimate):  # a loss that flew off was seen, and fails
        return Value(f"{seen.bounds.estimate} {sign}")
    value = Value.of(seen.bounds.estimate, form, low=low, high=high, note=f"of {seen.bounds.n}")
    return replace(value, text=f"{value.text} {sign}")


DEFINITION = (
    "A model reads to a length when it passes there, and at every shorter one that was tested, in all that was asked. "
    f"It finds, and works with, a prompt when surely more than {FOUND_SHARE:.0%} of such prompts are answered as they "
    "must be. Surely: the 95 % interval, over documents (studentized bootstrap, paired) or prompts (exact, binomial), "
    f"lies on that side. Each part ends at its first failure. Fewer than {LEAST} documents or prompts are no evidence."
)
READING = (
    "It holds a window when the loss of the same predictions, of those with more than a training window of their "
    "document before them, is surely no more than {within:g} nats a token above that in windows of the training "
    "length with seven eighths of it to all of it before them. It uses a length when predictions with seven eighths "
    f"of it to all of it before them are surely better, by more than {GAINS:g} nats, than the same ones with their "
    "nearest half of it to five eighths, truncated and with positions begun anew."
)


def page(settings: Settings, evaluation: Evaluation) -> Document:
    pages = {name: SUITES[name].page(getattr(settings, name), part) for name, part in _evaluations(evaluation).items()}
    said = [DEFINITION]
    if settings.reads is not None:
        said.append(READING.format(within=settings.reads.holds_within))
    together = asked(evaluation)
    first = written({"Each part, by length": _asked_of(evaluation, together)})
    blocks: dict[tuple[str, bool], list[Block]] = {}
    for section in (section for each in pages.values() for section in each.sections):
        blocks.setdefault((section.title, section.folded), []).extend(section.blocks)
    blocks.setdefault(("Definition", True), []).insert(0, Text(text="\n\n".join(said)))  # where every page has its own
    return Document(
        title=f"How far it reads: {described(evaluation)}",
        summary=[sentence for each in pages.values() for sentence in each.summary],
        sections=[
            *first,
            *(Section(title=title, blocks=merged, folded=folded) for (title, folded), merged in blocks.items()),
        ],
        facts=list(dict.fromkeys(fact for each in pages.values() for fact in each.facts)),
        command=evaluation.command,
        verdicts=verdicts(evaluation, together),
    )
