"""Attention temperature under a variant's frequencies (YaRN A.2; definitions in measures/temperature.py).

The points are values of 1/√t, and 1 is always among them: changes are relative to it. Every document is cut to
document_tokens predictions and read in one window, to which dynamic frequencies adapt.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.first_window import first_window_nll
from coca_train.evaluation.measures.temperature import attention_scale, recommended, segment_sums, segments
from coca_train.evaluation.pages.temperature import page as page
from coca_train.evaluation.results import Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._one_window import Prefixes, read_longest

VERSION = 1
CACHED = True
AXIS = ("scales",)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Perplexity by attention temperature."""

    suite: Literal["temperature"]
    scales: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2)] = Field(
        description="values of 1/√t that are tried; 1.0 must be one of them"
    )
    document_tokens: Positive = Field(description="predictions of each document, in one window; YaRN: 16384 [tokens]")
    block: Positive = Field(description="length of a segment; YaRN: 2048 [tokens]")

    def __post_init__(self) -> None:
        if 1.0 not in self.scales or len(set(self.scales)) < len(self.scales):
            raise ValueError(f"scales ({self.scales}) must hold 1.0, which changes are relative to, and no value twice")


def points(settings: Settings, lengths: Sequence[int]) -> tuple[Point, ...]:
    return tuple(f"{scale:g}" for scale in sorted(settings.scales))


def prepare(settings: Settings, subject: Subject, setup: Setup) -> Prefixes:
    return read_longest(subject, setup, [settings.document_tokens], lengths_from="eval.document_tokens")


def work(settings: Settings, subject: Subject, points: Sequence[str], material: Prefixes) -> list[float]:
    return [float(settings.document_tokens * len(material.texts))] * len(points)


def fingerprint(material: Prefixes, point: str) -> str:
    return material.digest(material.longest)


def impossible(settings: Settings, subject: Subject, point: str, material: Prefixes) -> str:
    if len(set(subject.model.kinds)) > 1:
        return "its layers are of several kinds, and one temperature would not be that of all rotations"
    if not hasattr(subject.model.position, "frequencies"):
        return f"{subject.model.position.settings.scheme} rotates nothing, and the temperature is in the rotation"
    return material.problem(subject, settings.document_tokens)


def measure(settings: Settings, subject: Subject, point: str, material: Prefixes, setup: Setup) -> dict[str, Any]:
    """This rank's documents: by index, the NLL of each segment."""
    model, length, texts = subject.model, settings.document_tokens, material.texts
    nll: dict[str, list[float]] = {}
    with attention_scale(model, float(point)):
        for batch in material.share(length, setup):
            nll_BT = first_window_nll(model, [texts[i] for i in batch], length)
            nll |= {str(i): segment_sums(nll_T, settings.block) for i, nll_T in zip(batch, nll_BT, strict=True)}
    return {"nll": nll, "recommended": recommended(model.position.settings.frequencies, length)}


def combine(settings: Settings, point: str, material: Prefixes, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """nll: [nats] by document and segment. tokens: predictions of each segment. recommended: YaRN's 1/√t."""
    documents = {index: sums for part in parts for index, sums in part["nll"].items()}
    return {
        "nll": [documents[str(index)] for index in range(len(documents))],
        "tokens": segments(settings.document_tokens, settings.block),
        "recommended": parts[0]["recommended"],
    }
