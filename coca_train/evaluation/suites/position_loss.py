"""Loss by position, and perplexity at growing context (YaRN B.3; definitions in measures/first_window.py).

A cell reads the first L tokens of every document in one window, L being its length of the grid. All lengths read the
same documents: those with more tokens than the longest length that any document has. `all`: all sources together.
"""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.first_window import first_window_nll, first_windows, reduced
from coca_train.evaluation.pages.position_loss import page as page
from coca_train.evaluation.results import ALL
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites import at_lengths
from coca_train.evaluation.suites._one_window import Prefixes
from coca_train.evaluation.suites._one_window import fingerprint as fingerprint
from coca_train.evaluation.suites._one_window import prepare as prepare
from coca_train.evaluation.suites._one_window import work as work

VERSION = 1
CACHED = True
AXIS = ()
points = at_lengths


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Loss by position, and perplexity at growing context."""

    suite: Literal["position_loss"]
    block: Positive = Field(description="last predictions of each length whose perplexity is shown [tokens]; YaRN: 256")


def impossible(settings: Settings, subject: Subject, point: int, material: Prefixes) -> str:
    return material.problem(subject, point)


def measure(settings: Settings, subject: Subject, point: int, material: Prefixes, setup: Setup) -> dict[str, Any]:
    """This rank's documents: by index, what first_window.reduced keeps of each."""
    kept: dict[str, list[float]] = {}
    for batch in material.share(point, setup):
        nll_BT = first_window_nll(subject.model, [material.texts[i] for i in batch], point)
        kept |= {str(i): reduced(nll_T, settings.block) for i, nll_T in zip(batch, nll_BT, strict=True)}
    return kept


def combine(settings: Settings, point: int, material: Prefixes, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By source, FirstWindows as plain JSON; the last source is the one a comparison is about."""
    documents = {index: sums for part in parts for index, sums in part.items()}
    in_order = iter(documents[str(index)] for index in range(len(documents)))
    by_source = {source: list(islice(in_order, len(texts))) for source, texts in material.documents.items()}
    if len(by_source) > 1:
        by_source[ALL] = [sums for members in by_source.values() for sums in members]
    return {source: asdict(first_windows(members, point, settings.block)) for source, members in by_source.items()}
