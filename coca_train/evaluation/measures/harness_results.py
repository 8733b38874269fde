"""The results of lm-evaluation-harness as plain JSON, without what was not measured."""

from collections.abc import Mapping, Sequence
from typing import Any


def summary(found: Mapping[str, Any], tasks: Sequence[str], name: str) -> dict[str, Any]:
    """What evaluation/suites/harness.py keeps. found: of harness.score. tasks: those with documents of their own; name:
    what was asked for, a task or a group of them."""
    metrics = {
        each: _metrics(values, found["higher_is_better"].get(each, {})) for each, values in found["results"].items()
    }
    counts = {
        each: {
            "version": str(found["versions"][each]),
            "num_fewshot": found["n-shot"][each],
            **found["n-samples"][each],
        }
        for each in tasks
    }
    return {"main": next(iter(metrics.get(name, {}).values()), None), "metrics": metrics, "tasks": counts}


def _metrics(values: Mapping[str, Any], higher_is_better: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of one task: the keys of `values` are `acc,none`, metric and filter, and `acc_stderr,none`."""
    found = {}
    for key, value in values.items():
        metric, _, chosen = key.partition(",")
        if not chosen or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = values.get(f"{metric}_stderr,{chosen}")
        found[metric if chosen == "none" else f"{metric} ({chosen})"] = {
            "metric": metric,
            "value": float(value),
            "stderr": float(error) if isinstance(error, int | float) else None,
            "higher_is_better": higher_is_better.get(metric),
        }
    return found
