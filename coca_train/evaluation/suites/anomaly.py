"""The rotational anomaly: at which angles queries and keys begin, and which borders they cross (measures/anomaly.py).

A cell reads the first L tokens of every document in one window, the same documents at all lengths. Shares are over
sampled pairs of tokens, all heads and all pairs of features that have an angle.
"""

from collections.abc import Mapping
from typing import Literal, TypedDict

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.attention.pattern import BIDIRECTIONAL, CAUSAL, View
from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.anomaly import BORDERS, Sums, add, anomaly_sums, key_borders, slowed
from coca_train.evaluation.measures.perplexity import Bound, intervals
from coca_train.evaluation.pages import by_point, curves, document, table, training_windows
from coca_train.evaluation.results import Evaluation, Point, as_trained
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._documents import DocumentSuite, Prefixes, in_order
from coca_train.positions.rotary import Rotary
from coca_train.report.blocks import Document, HeatMap, HeatMaps, Line, Value

SHARES = {  # of pairs with an angle: name in results -> words, form
    "anomalous": ("anomalous", "{:.1%}"), "abnormal": ("in the abnormal region", "{:.1%}"),
    **{border: (f"border {border} crossed, times a pair", "{:.2f}") for border in BORDERS},
}  # fmt: skip
BY_WORDS = {words: (name, form) for name, (words, form) in SHARES.items()}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Initial angles between queries and keys."""

    suite: Literal["anomaly"]
    pairs: Positive = Field(description="pairs of tokens drawn from each document, the same for all models")


class Part(TypedDict):
    """Of one document. counts: of `tally`, known and anomalous with the layers in front."""

    counts: dict[str, object]
    slowed: list[float]


class Result(TypedDict):
    """shares: of SHARES, each with its 95 % interval over documents: (share, low, high). by_head: the anomalous share,
    by layer. key_borders: different borders of k that were found, and how many there can be. slowed: by how much each
    pair's abnormal region is longer than with unscaled frequencies."""

    documents: int
    shares: dict[str, tuple[Bound, Bound, Bound]]
    by_head: list[list[float | None]]
    key_borders: tuple[int, int]
    slowed: list[float]


def fractions(sums: Sums) -> np.ndarray:
    """Return what is divided by what, for each of SHARES: (5, 2)."""
    counts = [sums["anomalous"].sum(), sums["abnormal"], *sums["borders"]]
    return np.stack((np.array(counts, float), np.full(len(counts), float(sums["known"].sum()))), 1)


class Evaluator(DocumentSuite[Settings, Part, Result]):
    """Initial angles between queries and keys."""

    VERSION, BIDIRECTIONAL = 3, True

    def impossible(self, subject: Subject, point: Point, material: Prefixes) -> str:
        if len(set(subject.model.layer_types)) > 1:
            return "its layers are of several kinds, whose angles are not those of one scheme"
        attention_pattern = subject.model.attention_pattern.settings.name
        if subject.model.attention_pattern.views() not in ((View(CAUSAL),), (View(BIDIRECTIONAL),)):
            return f"borders are counted over all keys; {attention_pattern} hides or moves some of them"
        if int(point) < 2:
            return "a pair needs two tokens"
        if not isinstance(subject.model.position, Rotary):
            return f"{subject.model.position.settings.scheme} rotates nothing: there is no angle between query and key"
        return super().impossible(subject, point, material)

    def measure(self, subject: Subject, point: Point, material: Prefixes, setup: Setup) -> dict[str, Part]:
        parts, length, position = dict[str, Part](), int(point), subject.model.position
        assert isinstance(position, Rotary)
        for batch in material.share(length, setup):
            read = [material.texts[i][:length] for i in batch]
            each = anomaly_sums(subject.model, read, batch, n_pairs=self.settings.pairs, seed=setup.seed)
            longer = slowed(position, length)
            for index, sums in zip(batch, each, strict=True):
                counts: dict[str, object] = {name: values.tolist() for name, values in sums.items()}
                parts[str(index)] = {"counts": counts, "slowed": longer}
        return parts

    def combine(self, point: Point, material: Prefixes, parts: Mapping[str, Part]) -> Result:
        documents = [{name: np.asarray(v) for name, v in part["counts"].items()} for part in in_order(parts)]
        whole = add(documents)
        known_NH, anomalous_NH = whole["known"].sum(2), whole["anomalous"].sum(2)
        ends = zip(*intervals(np.stack([fractions(each) for each in documents])), strict=True)
        shares = [_share(part, of) for part, of in fractions(whole)]
        return {
            "documents": len(documents),
            "shares": {name: (share, *bounds) for name, share, bounds in zip(SHARES, shares, ends, strict=True)},
            "by_head": [list(map(_share, *each)) for each in zip(anomalous_NH, known_NH, strict=True)],
            "key_borders": key_borders(whole["anomalous"]),
            "slowed": parts["0"]["slowed"],
        }

    def page(self, evaluation: Evaluation[Result]) -> Document:
        """Return the document; models without angles appear with the reason."""
        rows, points = evaluation.rows(), evaluation.points
        # Angles are those before rotation: frequencies do not move them, so one variant of each model says it all.
        first = {row.label: next(iter(row.results.items())) for row in as_trained(rows) if row.results}
        windows = ", ".join(f"{window:,.0f} ({words})" for window, words in training_windows(evaluation))
        slowed = [Line.through(row.label, enumerate(row.last["slowed"])) for row in rows if row.last]
        return document(
            evaluation,
            "Rotational anomaly",
            summary=[
                f"{label}: {_of(result, 'anomalous').text} of its pairs begin anomalous; "
                f"{_of(result, 'abnormal').text} lie in the abnormal region at {int(point):,} tokens; "
                "{:,} of {:,} possible borders of k.".format(*result["key_borders"])
                for label, (point, result) in first.items()
            ],
            sections={
                "Initial angles": [
                    ABOUT,
                    table(
                        rows,
                        by_point(points, lambda result, words: _of(result, BY_WORDS[words][0])),
                        by={"of all pairs": tuple(BY_WORDS)},
                        name="anomaly-shares",
                        title="Initial angles and borders crossed by length [tokens]",
                        note=ABOUT_SHARES,
                    ),
                    table(
                        rows,
                        by_point(points, lambda result: Value.of(result["key_borders"][0], "{:,}", _possible(result))),
                        name="anomaly-key-borders",
                        title="Number of different rotary borders of k by length [tokens]",
                        note="One for each pair of features, head and layer in which some sampled pair of tokens "
                        "begins anomalous, of the paper's d/2 · h · L (section 2.3). The borders -q and q are two for "
                        "all of them. More pairs of tokens can only find more: a count from below has no interval.",
                    ),
                ],
                "By layer and head": [_heads(number, *each) for number, each in enumerate(first.items(), 1)],
                "How far the anomaly reaches": [
                    curves(
                        slowed,
                        name="anomaly-slowed",
                        title="How much longer other frequencies make the abnormal region",
                        x_label="pair j (0 turns fastest)",
                        y_label="factor",
                        y_log=True,
                        note="At the longest length, exact: a quotient of frequencies, not of a sample. The paper "
                        f"(2.3) gives s for position interpolation and λ^(2j/d) for NTK. Training windows: {windows}.",
                    ),
                ],
            },
        )


ABOUT = (
    "Pair j of a head begins at the angle Θ from its key to its query, counter-clockwise, before any rotation. With "
    "Θ > π (anomalous; scenario (d) of the CoCA paper) the score first rises while the distance grows, for as long as "
    "m - n < (2π - Θ)/θ_j: the abnormal region. CoCA's keys are collinear with their queries, so Θ = 0. Where a model "
    "reads in both directions, a key that comes later counts as its mirror image: anomalous with 0 < Θ < π (scenario "
    "(a))."
)
ABOUT_SHARES = (
    "Of sampled pairs of two tokens, n < m where texts go one way, over all layers, heads and pairs of features that "
    "have an angle. Borders are "
    "means over pairs: k, where an abnormal region ends, once at most; -q and q, at odd and even multiples of π (Eq. "
    "4)."
)


def _of(result: Result, name: str) -> Value:
    number, low, high = result["shares"][name]
    return Value.of(number, SHARES[name][1], low=low, high=high, missing="nothing to count")


def _possible(result: Result) -> str:
    return f"of {result['key_borders'][1]:,}"


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def _heads(number: int, label: str, first: tuple[Point, Result]) -> HeatMaps:
    by_head = first[1]["by_head"]
    panel = HeatMap(
        title="counted",
        x_names=tuple(map(str, range(len(by_head[0])))),
        y_names=tuple(map(str, range(len(by_head)))),
        values=tuple(map(tuple, by_head)),
    )
    return HeatMaps(
        name=f"anomaly-heads-{number}",
        title=f"Anomalous share of {label}",
        alt=f"Share of pairs that begin beyond 180 degrees, in each layer and head of {label}.",
        x_label="head",
        y_label="layer",
        panels=(panel,),
        low=0.0,
        high=1.0,
        note="A square is one head's sampled share, without an interval of its own; over all heads the table has one.",
    )
