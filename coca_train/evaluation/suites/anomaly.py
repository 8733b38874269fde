"""The rotational anomaly: at which angles queries and keys begin, and which borders they cross (measures/anomaly.py).

A cell reads the first L tokens of every document in one window, the same documents at all lengths. Shares are over
sampled pairs of tokens, all heads and all pairs of features that have an angle.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.anomaly import BINS, BORDERS, Sums, add, anomaly_sums, key_borders, slowed
from coca_train.evaluation.measures.perplexity import intervals
from coca_train.evaluation.pages import Column, Pick, by_point, curves, document, figure, table, training_windows
from coca_train.evaluation.results import Evaluation, GridRow
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._documents import DocumentSuite, Prefixes, in_order
from coca_train.report.blocks import Document, HeatMap, HeatMaps, Line, Lines, Value

FIGURES = 9  # significant digits of what is not counted: world sizes agree to more


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Initial angles between queries and keys."""

    suite: Literal["anomaly"]
    pairs: Positive = Field(description="pairs of tokens drawn from each document, the same for all models")


def fractions(sums: Sums) -> dict[str, np.ndarray]:
    """Return by name what is divided by what, (n, 2): one share or mean, or one a border, a pair of features, a bin."""
    known_NHJ, anomalous_NHJ, weight_2 = sums["known"], sums["anomalous"], sums["weight"].sum((0, 1))
    known = known_NHJ.sum()
    parts: dict[str, tuple[Any, Any]] = {
        "anomalous": (anomalous_NHJ.sum(), known),
        "weighted": (weight_2[0], weight_2[1]),
        "placed": (sums["placed"], known),
        "abnormal": (sums["abnormal"].sum(), known),
        "empty": (sums["drawn"] - known, sums["drawn"]),
        "borders": (sums["borders"].sum(1), known),
        "reach_by_pair": (sums["reach"], anomalous_NHJ.sum((0, 1))),
        "density": (BINS * sums["by_pair"].sum(0), known),
    }
    return {
        name: np.stack(np.broadcast_arrays(np.atleast_1d(part), whole), 1).astype(float)
        for name, (part, whole) in parts.items()
    }


class Evaluator(DocumentSuite[Settings]):
    """Initial angles between queries and keys."""

    VERSION = 2

    def impossible(self, subject: Subject, point: int, material: Prefixes) -> str:
        if len(set(subject.model.layer_types)) > 1:
            return "its layers are of several kinds, whose angles are not those of one scheme"
        attention_pattern = subject.model.attention_pattern.settings.name
        if attention_pattern != "causal":
            return f"borders are counted over all earlier keys; {attention_pattern} hides or moves some of them"
        if point < 2:
            return "a pair needs two tokens"
        if not hasattr(subject.model.position, "rope_scaling"):
            return f"{subject.model.position.settings.scheme} rotates nothing: there is no angle between query and key"
        return material.problem(subject, point)

    def measure(self, subject: Subject, point: int, material: Prefixes, setup: Setup) -> dict[str, Any]:
        """Return this rank's sums over its share of the documents, and what shares are made of by document; and how far
        the frequencies are slowed."""
        texts, documents = list[Sums](), dict[str, Any]()
        for batch in material.share(point, setup):
            read = [material.texts[i][:point] for i in batch]
            of_batch = anomaly_sums(subject.model, read, batch, n_pairs=self.settings.pairs, seed=setup.seed)
            texts += of_batch
            for index, each in zip(batch, of_batch, strict=True):
                documents[str(index)] = {name: pairs.tolist() for name, pairs in fractions(each).items()}
        sums = {name: values.tolist() for name, values in add(texts).items()} if texts else {}
        return {"sums": sums, "documents": documents, "slowed": slowed(subject.model.position, point)}

    def combine(self, point: int, material: Prefixes, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return shares, by layer and head and by pair; low, high: ends of the 95 % interval over documents of those of
        `fractions`. Lists are by layer, then head, then pair or bin."""
        sums = add({name: np.asarray(v) for name, v in part["sums"].items()} for part in parts if part["sums"])
        known_NHJ, anomalous_NHJ, weight_NH2 = sums["known"], sums["anomalous"], sums["weight"]
        documents = in_order([part["documents"] for part in parts])
        whole = fractions(sums)
        ends = {name: intervals(np.array([document[name] for document in documents])) for name in whole}
        return {
            "documents": len(material.texts),
            **_named({name: _share(*pairs.T) for name, pairs in whole.items()}),
            "low": _named({name: _plain(low) for name, (low, _) in ends.items()}),
            "high": _named({name: _plain(high) for name, (_, high) in ends.items()}),
            "by_head": _share(anomalous_NHJ.sum(2), known_NHJ.sum(2)),
            "weighted_by_head": _share(weight_NH2[..., 0], weight_NH2[..., 1]),
            "by_pair": _share(anomalous_NHJ.sum((0, 1)), known_NHJ.sum((0, 1))),
            "abnormal_by_pair": _share(sums["abnormal"], known_NHJ.sum((0, 1))),
            "slowed_by_pair": parts[0]["slowed"],
            "histogram_by_head": sums["by_head"].tolist(),
            "histogram_by_pair": sums["by_pair"].tolist(),
            "anomalous_counts": anomalous_NHJ.tolist(),
            "known_counts": known_NHJ.tolist(),
        }

    def page(self, evaluation: Evaluation) -> Document:
        """Return the document; models without angles appear with the reason."""
        rows, points = evaluation.rows(), evaluation.points

        def at_first(pick: Pick) -> Column:
            return lambda row: figure(row.cells.get(points[0]), pick)

        # Angles are those before rotation: frequencies do not move them, so one variant of each model says it all.
        trained = [row for row in rows if row.variant == row.subject.variants[0] and row.results]
        first = {row.subject.name: next(iter(row.results.items())) for row in trained}
        windows = ", ".join(f"{window:,.0f} ({words})" for window, words in training_windows(evaluation))
        return document(
            evaluation,
            "Rotational anomaly",
            summary=[
                f"{row.subject.name} ({row.subject.scheme}): {_percent(result['anomalous'])} of its pairs begin "
                f"anomalous; {_percent(result['abnormal'])} lie in the abnormal region at {int(point):,} tokens; "
                "{:,} of {:,} possible borders of k.".format(*key_borders(result["anomalous_counts"]))
                for row in trained
                for point, result in [first[row.subject.name]]
            ],
            sections={
                "Initial angles": [
                    ABOUT,
                    table(
                        rows,
                        {words: at_first(partial(_ratio, key=key, form="{:.1%}")) for words, key in SHARES.items()},
                        name="anomaly-shares",
                        title=f"Share in the anomalous sector, at {int(points[0]):,} tokens",
                        note=ABOUT_SHARES,
                    ),
                    _densities((name, result) for name, (_, result) in first.items()),
                ],
                "By layer and head": [_heads(i, name, first[name][1]) for i, name in enumerate(first, 1)],
                "Borders": [
                    table(
                        rows,
                        {words: at_first(partial(_border_count, i)) for i, words in enumerate(BORDER_COUNTS)},
                        name="anomaly-key-borders",
                        title=f"Number of different rotary borders, at {int(points[0]):,} tokens",
                        note="k: one for each pair of features, head and layer in which some sampled pair of tokens "
                        "begins anomalous; next to it how many there can be (the paper's d/2 · h · L, section 2.3). "
                        "The borders -q and q are two for all of them. More pairs of tokens can only find more: a "
                        "count from below has no interval.",
                    ),
                    table(
                        rows,
                        by_point(points, lambda result: _ratio(result, "abnormal", "{:.1%}")),
                        name="anomaly-abnormal",
                        title="Share of pairs in the abnormal region",
                        note="Of all pairs n < m of a window of this length, those with m - n < (2π - Θ)/θ_j and Θ > "
                        "π.",
                    ),
                    table(
                        rows,
                        by_point(points, lambda result, border: _ratio(result, "borders", "{:.2f}", border)),
                        by={"border": BORDERS},
                        name="anomaly-borders",
                        title="Rotary borders crossed, mean over pairs",
                        note="k: where an abnormal region ends, once at most; -q and q: at odd and even multiples of π "
                        "(Eq. 4).",
                    ),
                ],
                "How far the anomaly reaches": [
                    _by_pair(
                        rows,
                        "reach_by_pair",
                        name="anomaly-reach",
                        title="Tokens under the anomaly, mean of (2π - Θ)/θ_j over anomalous pairs",
                        y_label="[tokens]",
                        note=f"Training windows: {windows}.",
                    ),
                    _by_pair(
                        rows,
                        "slowed_by_pair",
                        name="anomaly-slowed",
                        title="How much longer other frequencies make it",
                        y_label="factor",
                        note="At the longest length, exact: a quotient of frequencies, not of a sample. The paper "
                        "(2.3) gives s for position interpolation and λ^(2j/d) for NTK.",
                    ),
                ],
            },
        )


def _named(values: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return `fractions` as a result has them: the borders by name, what is one figure without its list."""
    lists = ("reach_by_pair", "density")
    plain = {name: each if name in lists else each[0] for name, each in values.items()}
    return plain | {"borders": dict(zip(BORDERS, values["borders"], strict=True))}


def _share(part: Any, whole: Any) -> Any:
    """Return part / whole, element by element, in FIGURES digits; None where the whole is 0."""
    # Rounded, as float sums differ in their last bits with the number of ranks, and a kept cell must not.
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.asarray(part, float) / np.asarray(whole, float)
    return _plain(ratio.tolist())


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return float(f"{value:.{FIGURES}g}") if value is not None and np.isfinite(value) else None


BORDER_COUNTS = ("borders of k", "d/2 · h · L")
PILED_UP = 10.0  # a density beyond which the others would be flat lines
SHARES = {"anomalous": "anomalous", "weighted": "weighted", "as placed": "placed", "without": "empty"}
PANELS = {"by_head": "counted", "weighted_by_head": "weighted by |q||k|"}
ABOUT = (
    "Pair j of a head begins at the angle Θ from its key to its query, counter-clockwise, before any rotation. With "
    "Θ > π (anomalous; scenario (d) of the CoCA paper) the score first rises while the distance grows, for as long as "
    "m - n < (2π - Θ)/θ_j: the abnormal region. CoCA's keys are collinear with their queries, so Θ = 0."
)
ABOUT_SHARES = (
    "Shares of sampled pairs of tokens n < m, over all layers, heads and pairs of features that have an angle. "
    "weighted: by |q||k|. as placed: of the angle in the score less (m - n)θ_j, which is not Θ for slack CoCA only "
    "(Eq. 11 without Eq. 12 rotates t, not the key). without: no angle, because a vector is 0 (t = 0)."
)


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"


def _border_count(which: int, result: Any) -> Value:
    """Return one of BORDER_COUNTS."""
    return Value.of(key_borders(result["anomalous_counts"])[which], "{:,}")


def _ratio(result: Any, key: str, form: str, border: str = "") -> Value:
    """Return a share with its interval."""
    number, low, high = (each[key][border] if border else each[key] for each in (result, result["low"], result["high"]))
    return Value.of(number, form, low=low, high=high, missing="nothing to count")


def _with_ends(result: Any, key: str, xs: Iterable[float]) -> list[tuple[float | None, ...]]:
    """Return the points of a curve, with their intervals where known."""
    ys = result[key]
    ends = (each.get(key, [None] * len(ys)) for each in (result["low"], result["high"]))
    return list(zip(xs, ys, *ends, strict=True))


def _by_pair(rows: Iterable[GridRow], key: str, **fields: Any) -> Lines | None:
    """Draw of the last length that was measured, a curve a model and variant over its pairs of features."""
    lines = (Line.through(row.label, _with_ends(row.last, key, range(len(row.last[key])))) for row in rows if row.last)
    return curves(lines, x_label="pair j (0 turns fastest)", y_log=True, **fields)


def _densities(results: Iterable[tuple[str, Any]]) -> Lines | None:
    lines = []
    for name, result in results:
        middles = [360 / BINS * (i + 0.5) for i in range(BINS)]
        lines.append(Line.through(name, _with_ends(result, "density", middles)))
    piled_up = max((max(line.y) for line in lines), default=0) > PILED_UP
    empty = " Logarithmic; empty bins are left out." if piled_up else ""
    return curves(
        lines,
        name="anomaly-angles",
        title="Distribution of the initial angle",
        x_label="initial angle Θ [degrees]",
        y_label="density (1 = uniform)",
        y_log=piled_up,
        marks=((180.0, "anomalous beyond"),),
        note=f"{BINS} bins of ten degrees, all layers, heads and pairs; as trained, at the shortest length.{empty}",
    )


def _heads(number: int, name: str, result: Any) -> HeatMaps:
    panels = tuple(
        HeatMap(
            title=title,
            x_names=tuple(map(str, range(len(result[key][0])))),
            y_names=tuple(map(str, range(len(result[key])))),
            values=tuple(map(tuple, result[key])),
        )
        for key, title in PANELS.items()
    )
    return HeatMaps(
        name=f"anomaly-heads-{number}",
        title=f"Anomalous share of {name}",
        alt=f"Share of pairs that begin beyond 180 degrees, in each layer and head of {name}.",
        x_label="head",
        y_label="layer",
        panels=panels,
        low=0.0,
        high=1.0,
        note="A square is one head's sampled share, without an interval of its own; over all heads the table has one.",
    )
