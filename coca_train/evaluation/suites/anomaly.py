"""The rotational anomaly: at which angles queries and keys begin, and which borders they cross (measures/angles.py).

A cell reads the first L tokens of every document, with L the length of the grid, in one window. All lengths read the
same documents: those with more tokens than the longest length that any document has. Shares are over sampled pairs of
tokens, all heads and all pairs of features that have an angle.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.angles import BORDERS, add
from coca_train.evaluation.measures.anomaly import anomaly_sums, problem, slowed_pairs
from coca_train.evaluation.pages.anomaly import page as page
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
FIGURES = 9  # significant digits of what is not counted: world sizes agree to more


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Initial angles between queries and keys."""

    suite: Literal["anomaly"]
    pairs: Positive = Field(description="pairs of tokens drawn from each document, the same for all models")


def impossible(settings: Settings, subject: Subject, point: int, material: Prefixes) -> str:
    if len(set(subject.model.kinds)) > 1:
        return "its layers are of several kinds, whose angles are not those of one scheme"
    visibility = subject.model.visibility.settings.name
    if visibility != "causal":
        return f"borders are counted over all earlier keys; {visibility} hides some of them, or places them elsewhere"
    return problem(subject.model.position) or material.problem(subject, point)


def measure(settings: Settings, subject: Subject, point: int, material: Prefixes, setup: Setup) -> dict[str, Any]:
    """This rank's sums over its share of the documents. The first rank adds how far the frequencies are slowed."""
    parts = [
        anomaly_sums(
            subject.model,
            [material.texts[i][:point] for i in batch],
            batch,
            n_pairs=settings.pairs,
            seed=setup.seed,
        )
        for batch in material.share(point, setup)
    ]
    sums = {name: values.tolist() for name, values in add(parts).items()} if parts else {}
    return {"sums": sums, "slowed": slowed_pairs(subject.model.position, point)}


def combine(settings: Settings, point: int, material: Prefixes, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares, by layer and head and by pair. Lists are by layer, then head, then pair or bin."""
    sums = add({name: np.asarray(v) for name, v in part["sums"].items()} for part in parts if part["sums"])
    known_NHJ, anomalous_NHJ, weight_NH2 = sums["known"], sums["anomalous"], sums["weight"]
    known_J, known = known_NHJ.sum((0, 1)), known_NHJ.sum()
    return {
        "documents": len(material.texts),
        "anomalous": _share(anomalous_NHJ.sum(), known),
        "weighted": _share(weight_NH2[..., 0].sum(), weight_NH2[..., 1].sum()),
        "placed": _share(sums["placed"], known),
        "abnormal": _share(sums["abnormal"].sum(), known),
        "empty": _share(sums["drawn"] - known, sums["drawn"]),
        "borders": {name: _share(row.sum(), known) for name, row in zip(BORDERS, sums["borders"], strict=True)},
        "by_head": _share(anomalous_NHJ.sum(2), known_NHJ.sum(2)),
        "weighted_by_head": _share(weight_NH2[..., 0], weight_NH2[..., 1]),
        "by_pair": _share(anomalous_NHJ.sum((0, 1)), known_J),
        "abnormal_by_pair": _share(sums["abnormal"], known_J),
        "reach_by_pair": _share(sums["reach"], anomalous_NHJ.sum((0, 1))),
        "slowed_by_pair": parts[0]["slowed"],
        "histogram_by_head": sums["by_head"].tolist(),
        "histogram_by_pair": sums["by_pair"].tolist(),
        "anomalous_counts": anomalous_NHJ.tolist(),
        "known_counts": known_NHJ.tolist(),
    }


def _share(part: Any, whole: Any) -> Any:
    """part / whole, element by element, in FIGURES digits; None where the whole is 0."""
    # Rounded, as float sums differ in their last bits with the number of ranks, and a kept cell must not.
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.asarray(part, float) / np.asarray(whole, float)
    return _plain(ratio.tolist())


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return float(f"{value:.{FIGURES}g}") if np.isfinite(value) else None
