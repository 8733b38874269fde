"""What each document adds to a task's figures, so that two models can be compared document by document.

The harness logs what a metric made of each document: a number (1 where the answer was right, a log-likelihood), or a
sum and what it is divided by (a log-likelihood and the words it is of). Kept is what gives the task's figure by one of
FIGURES; of other metrics (a correlation, F1 over all documents) no document has a share.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coca_train.statistics.pairs import Sample

# What makes a figure of (sign * sum over documents) / (what that is of): shares and scores, perplexities, bits.
FIGURES: tuple[tuple[int, Callable[[float], float]], ...] = (
    (1, lambda mean: mean),
    (-1, lambda mean: float(np.exp(mean))),
    (-1, lambda mean: mean / math.log(2)),
)
SAME = 1e-9  # relative: the harness adds up in another order


def metric_name(metric: str, chosen: str) -> str:
    """chosen: the filter behind it, "none" where the task has one alone."""
    return metric if chosen == "none" else f"{metric} ({chosen})"


def main_of(metrics: Mapping[str, Any]) -> str | None:
    """Which of a task's metrics is its figure in an overview; None where it has none."""
    return "acc" if "acc" in metrics else next(iter(metrics), None)


def by_document(log: Sequence[Mapping[str, Any]], figures: Mapping[str, float]) -> dict[str, Any]:
    """Of one task, plain JSON: `asked`, a digest of its documents and what they want for an answer, and `metrics`, of
    each one that has it a list by document, in the order of the harness's ids: a number, or a sum and its divisor.

    log: the harness's, an entry a document and filter. figures: of the task, by name.
    """
    ordered = sorted(log, key=lambda entry: entry["doc_id"])
    documents = dict.fromkeys((entry["doc_id"], entry["doc_hash"], entry["target_hash"]) for entry in ordered)
    kept = {}
    for name, figure in figures.items():
        found = [
            entry[metric]
            for entry in ordered
            for metric in entry["metrics"]
            if metric_name(metric, entry["filter"]) == name
        ]
        if len(found) == len(documents) and (sums := _adding_up_to(figure, found)) is not None:
            kept[name] = sums
    digest = hashlib.sha256("\n".join(map(str, documents)).encode()).hexdigest()
    return {"asked": digest, "metrics": kept}


def _adding_up_to(figure: float, found: Sequence[Any]) -> list[Any] | None:
    """Of each document what makes this figure, the larger the larger; None: it is not made that way."""
    try:
        sums_U2 = np.array([each if isinstance(each, list | tuple) else (each, 1) for each in found], dtype=float)
    except (TypeError, ValueError):
        return None
    if sums_U2.shape != (len(found), 2) or not sums_U2[:, 1].sum():
        return None
    for sign, of_mean in FIGURES:
        with np.errstate(over="ignore"):
            made = of_mean(sign * sums_U2[:, 0].sum() / sums_U2[:, 1].sum())
        if math.isclose(made, figure, rel_tol=SAME, abs_tol=SAME):
            alone = bool((sums_U2[:, 1] == 1).all())
            return [_short(sign * a) if alone else [_short(sign * a), _short(b)] for a, b in sums_U2.tolist()]
    return None


def _short(number: float) -> float | int:
    """As JSON has it: right and wrong are 1 and 0."""
    return int(number) if number.is_integer() else number


def sample(documents: Mapping[str, Any], name: str, figure: float) -> Sample | None:
    """What a figure of one task, or of several together, is the mean of; None where that is not known.

    documents: by task, what `by_document` gave. Of several tasks the harness's mean is over all their documents, or
    over the tasks.
    """
    kept = [_of(each, name) for each in documents.values()]
    if len(kept) < 2:
        return kept[0] if kept else None
    for whole in (_together(kept), evenly(kept)):
        if whole is not None and math.isclose(_mean(whole), figure, rel_tol=SAME, abs_tol=SAME):
            return whole
    return None


def evenly(samples: Sequence[Sample | None]) -> Sample | None:
    """Of the mean over tasks, each of which counts as much whatever its documents; None where one is not known."""
    return _together([each and replace(each, sums_SU2=each.sums_SU2 / each.sums_SU2[..., 1].sum()) for each in samples])


def _together(samples: Sequence[Sample | None]) -> Sample | None:
    known = [each for each in samples if each is not None]
    if not known or len(known) < len(samples):
        return None
    units = " ".join(each.units for each in known)
    return Sample(sums_SU2=np.concatenate([each.sums_SU2 for each in known], 1), units=units)


def _of(documents: Mapping[str, Any], name: str) -> Sample | None:
    if (found := documents["metrics"].get(name)) is None:
        return None
    sums_U2 = [each if isinstance(each, list) else (each, 1) for each in found]
    return Sample(sums_SU2=np.array(sums_U2, dtype=float)[None], units=f"{name} {documents['asked']}")


def _mean(whole: Sample) -> float:
    sum_, divisor = whole.sums_SU2[0].sum(0)
    return float(sum_ / divisor)
