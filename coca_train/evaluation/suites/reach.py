"""Suite `reach`: how far a model's context reaches, asked in every way at once (definition: verdict.py).

It measures nothing itself: its parts are the suites that do, with their own settings and their own cells, which other
evaluations find again. Its page has the verdict over all of them, and what each has to show.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.evaluation.pages import BEYOND, build_sections, curves, grid_in_words, training_windows
from coca_train.evaluation.perplexity_page import CONTEXT
from coca_train.evaluation.results import Evaluation, GridRow
from coca_train.evaluation.suite import AnySuite, Suite
from coca_train.evaluation.suites import perplexity, recall, ruler
from coca_train.evaluation.verdict import Name, Part, PartsByRow, answers_table, unmeasured, verdicts
from coca_train.report.blocks import Block, Document, Line, Lines, Section, Text
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.statistics.answers import ANSWERS, LEAST, SURE, WRONG

PARTS: dict[str, type[AnySuite]] = {
    "reads": perplexity.Evaluator, "finds": recall.Evaluator, "works": ruler.Evaluator,
}  # fmt: skip
NOTHING: dict[str, tuple[Name, str]] = {  # by part, what is unknown of a model that could not be asked at any length
    "reads": ("uses", "documents"), "finds": ("finds", "prompts"), "works": ("works with", "prompts"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """How far a model's context reaches: what it holds, uses, finds and works with."""

    suite: Literal["reach"]
    reads: perplexity.Settings | None = Field(description="what it holds and uses of a text; null: not asked")
    finds: recall.Settings | None = Field(description="whether it finds what a prompt hides; null: not asked")
    works: ruler.Settings | None = Field(description="whether it works with the whole of a prompt; null: not asked")

    def __post_init__(self) -> None:
        if not any((self.reads, self.finds, self.works)):
            raise ValueError("reads, finds and works are all null: nothing is asked")


SHOWN: dict[Name, tuple[str, str, str]] = {  # by name: file, y axis, what is dashed
    "holds": ("holds", "loss added [nats]", "at most"),
    "uses": ("uses", "gain [nats]", "more than"),
    "finds": ("finds", "share found", "more than"),
    "works with": ("works", "share done", "more than"),
}
FAR = 10  # times what may be lost: where the picture of what is held ends at the latest
MARGIN = 0.1  # of that, beyond the last curve in it


DEFINITION = (
    f"Each answer is yes or no where the {SURE:.1%} interval, over documents (studentized bootstrap, paired) or "
    f"prompts (exact, binomial), lies on one side of the bound, and open otherwise. At that confidence up to {ANSWERS} "
    f"answers of a page are all right in {1 - WRONG:.0%} of draws. A part is sure up to the last length before the "
    f"first that is not yes. Fewer than {LEAST} documents or prompts are no evidence."
)
FINDING = "It finds, and works with, a prompt when more than {share:.0%} of such prompts are answered as they must be."
READING = (
    "It holds a window when the loss of the same predictions, of those with more than a training window of their "
    "document before them, is no more than {within:g} nats a token above that in windows of the training "
    "length with seven eighths of it to all of it before them. It uses a length when predictions with seven eighths "
    "of it to all of it before them are better, by more than {gain:g} nats a token, than the same ones with their "
    "nearest half of it to five eighths, truncated and with positions from 0."
)


class Evaluator(Suite[Settings, JsonObject]):
    """How far a model's context reaches, asked in every way at once. Its parts measure."""

    def _named(self) -> dict[str, AnySuite]:
        settings = {name: getattr(self.settings, name) for name in PARTS}
        return {name: PARTS[name](part) for name, part in settings.items() if part is not None}

    def parts(self) -> list[AnySuite]:
        return list(self._named().values())

    def _measured(self, evaluation: Evaluation[JsonObject]) -> Iterator[tuple[str, AnySuite, Evaluation[JsonObject]]]:
        """Yield each part, its suite, and its own cells as an evaluation."""
        for name, suite in self._named().items():
            if options := evaluation.settings[name]:
                yield name, suite, evaluation.of_suite(suite.settings.suite, options)

    def reach_parts(self, evaluation: Evaluation[JsonObject]) -> dict[tuple[str, str], list[Part]]:
        """Return all parts together, in their order; those of which a model could be asked nothing too."""
        said: dict[tuple[str, str], list[Part]] = {row.name: [] for row in evaluation.rows()}
        for name, part, of_part in self._measured(evaluation):
            asked = part.reach_parts(of_part)
            for row, parts in said.items():
                cells = [cell for cell in of_part.cells if (cell.subject, cell.variant) == row]
                parts += asked.get(row) or ([unmeasured(Part(*NOTHING[name], ()), cells)] if cells else [])
        # Of a model that has not learnt enough nothing else is said.
        return {row: [part for part in parts if part.untrained] or parts for row, parts in said.items()}

    def page(self, evaluation: Evaluation[JsonObject]) -> Document:
        pages = [part.page(of_part) for _, part, of_part in self._measured(evaluation)]
        said, settings = [DEFINITION], self.settings
        if settings.reads is not None:
            said.append(READING.format(within=settings.reads.holds_within, gain=settings.reads.uses_gain))
        shares = dict.fromkeys(part.found_share for part in (settings.finds, settings.works) if part is not None)
        said += [FINDING.format(share=share) for share in shares]
        together = self.reach_parts(evaluation)
        pictures, answers = _pictures(evaluation, together), answers_table(evaluation, together)
        blocks: dict[tuple[str, bool], list[Block]] = {}
        for section in (section for page in pages for section in page.sections if section.title != CONTEXT):
            blocks.setdefault((section.title, section.folded), []).extend(section.blocks)
        blocks.setdefault(("Definition", True), []).insert(0, Text(text="\n\n".join(said)))  # before each page's own
        return Document(
            title=f"How far the context reaches: {grid_in_words(evaluation)}",
            summary=[sentence for page in pages for sentence in page.summary],
            sections=[
                *build_sections({"Each part, by length": [*pictures, answers]}),
                *(Section(title=title, blocks=merged, folded=folded) for (title, folded), merged in blocks.items()),
            ],
            facts=list(dict.fromkeys(fact for page in pages for fact in page.facts)),
            command=evaluation.command,
            finding=pages[0].finding if settings.reads is not None else (),
            verdicts=verdicts(evaluation, together),
        )


def _pictures(evaluation: Evaluation[JsonObject], said: PartsByRow) -> list[Lines]:
    """Draw what each part has to show at each length, with the bound that it is held to; a model has one look in all of
    them."""
    rows, pictures = [row for row in evaluation.rows() if said.get(row.name)], list[Lines]()
    for name, (file, y_label, must) in SHOWN.items():
        known = [next((each for each in said[row.name] if each.name == name), None) for row in rows]
        drawn = [Line.through(row.label, _points(row, part)) for row, part in zip(rows, known, strict=True)]
        lines = tuple(replace(line, look=index) for index, line in enumerate(drawn) if line.x)
        if not lines:
            continue
        bound = next(part.bound for part in known if part)
        limits = {"holds": _limits(lines, bound), "uses": (None, None)}.get(name, (0.0, 1.0))
        picture = curves(
            lines,
            name=f"reach-{file}",
            title=f"{name[0].upper()}{name[1:]}: {y_label} by length",
            x_label="length [tokens]",
            y_label=y_label,
            x_log=True,
            y_limits=limits,
            marks=training_windows(evaluation),
            levels=((bound, f"yes is {must} this"),),
            interval=f"{SURE:.1%} interval",
            note=BEYOND if name == "holds" and limits != (None, None) else "",
        )
        pictures += [picture] if picture else []
    return pictures


def _limits(lines: Sequence[Line], bound: float) -> tuple[float | None, float | None]:
    """Limit a y axis with the bound and all that is not FAR off, which is shown at an edge; None: where the curves
    end."""
    ys, far = [bound, *(y for line in lines for y in line.y)], FAR * bound
    low, high = max(min(ys), -far), min(max(ys), far)
    return (None, None) if (low, high) == (min(ys), max(ys)) else (low - MARGIN * far, high + MARGIN * far)


def _points(row: GridRow[JsonObject], part: Part | None) -> list[tuple[float | None, ...]]:
    """Return (length, estimate, low, high) of the evidence; the loss added begins with 0 at the training window."""
    if part is None:
        return []
    points: list[tuple[float | None, ...]] = []
    if part.name == "holds":
        points.append((row.subject.training_window, 0.0, None, None))
    for length, answer in part.evidence:
        estimate, low, high, _ = answer.bounds
        if math.isfinite(estimate):
            ends = (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)  # of two documents, say
            points.append((length, estimate, *ends))
    return points
