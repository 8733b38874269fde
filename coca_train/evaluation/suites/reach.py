"""Suite `reach`: how far a model reads, asked in every way at once (definition: measures/reach.py).

It measures nothing itself: its parts are the suites that do, with their own settings and their own cells, which other
evaluations find again. Its page has the verdict over all of them, and what each has to show.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.evaluation.grid_blocks import asked as described
from coca_train.evaluation.measures.reach import FOUND_SHARE, GAINS, LEAST
from coca_train.evaluation.results import Evaluation
from coca_train.evaluation.suites import perplexity, recall, ruler
from coca_train.evaluation.verdict import verdicts
from coca_train.report.blocks import Block, Document, Section, Text

VERSION = 1
SUITES = {"reads": perplexity, "finds": recall, "works": ruler}


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


def points(settings: Settings, lengths: Sequence[int]) -> tuple[int, ...]:
    return tuple(lengths)


def asked(evaluation: Evaluation) -> dict[tuple[str, str], list[Any]]:
    """All parts together, in their order."""
    said: dict[tuple[str, str], list[Any]] = {}
    for name, part in _evaluations(evaluation).items():
        for row, each in SUITES[name].asked(part).items():
            said[row] = [*said.get(row, []), *each]
    return said


def _evaluations(evaluation: Evaluation) -> dict[str, Evaluation]:
    """By part, its own cells."""
    own = {}
    for name in SUITES:
        if options := evaluation.settings[name]:
            points = dict.fromkeys(cell.point for cell in evaluation.cells if cell.suite == options["suite"])
            own[name] = evaluation.of_suite(options, list(points))
    return own


DEFINITION = (
    "A model reads to a length when it passes there, and at every shorter one that was tested, in all that was asked. "
    f"It finds, and works with, a prompt when surely more than {FOUND_SHARE:.0%} of such prompts are answered as they "
    "must be. Surely: the 95 % interval, over documents (studentized bootstrap, paired) or prompts (exact, binomial), "
    f"lies on that side. Each part ends at its first failure. Fewer than {LEAST} documents or prompts are no evidence."
)
READING = (
    "It holds a window when the loss of the same predictions, of those with more than a training window of their "
    "document before them, is surely no more than {within:g} nats a token above that in windows of the training "
    "length. It uses a length when predictions with seven eighths of it to all of it before them are surely better, by "
    f"more than {GAINS:g} nats, than the same ones with their nearest half of it to five eighths, truncated and with "
    "positions begun anew."
)


def page(settings: Settings, evaluation: Evaluation) -> Document:
    pages = {name: SUITES[name].page(getattr(settings, name), part) for name, part in _evaluations(evaluation).items()}
    said = [DEFINITION]
    if settings.reads is not None:
        said.append(READING.format(within=settings.reads.holds_within))
    blocks: dict[tuple[str, bool], list[Block]] = {}
    for section in (section for each in pages.values() for section in each.sections):
        blocks.setdefault((section.title, section.folded), []).extend(section.blocks)
    blocks.setdefault(("Definition", True), []).insert(0, Text(text="\n\n".join(said)))  # where every page has its own
    return Document(
        title=f"How far it reads: {described(evaluation)}",
        summary=[sentence for each in pages.values() for sentence in each.summary],
        sections=[Section(title=title, blocks=merged, folded=folded) for (title, folded), merged in blocks.items()],
        facts=list(dict.fromkeys(fact for each in pages.values() for fact in each.facts)),
        command=evaluation.command,
        verdicts=verdicts(evaluation, asked(evaluation)),
    )
