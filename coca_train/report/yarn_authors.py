"""The figures that YaRN's authors published with their code, to be shown beside our own, always as theirs.

Perplexity of their models and of those that they compared, by context window, on two texts; and shares of tasks of
lm-evaluation-harness. Source: yarn_authors.json names it. Their figures stand at the same length as ours, since all
of these models are 7B and larger and read up to 128k tokens.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from coca_train.report.blocks import Row, Value

WHO = "YaRN's authors"


@cache
def _published() -> Mapping[str, Any]:
    return json.loads(files("coca_train.report").joinpath("yarn_authors.json").read_text(encoding="utf-8"))


def perplexity_rows(text: str, lengths: Sequence[int | str]) -> tuple[Row, ...]:
    """Return a row for each model that has a figure at one of our lengths [tokens]; none for another text.

    text: name of the source, proof_pile or gov_report.
    """
    rows = []
    for group in _published().get(text, ()):
        for model, figures in group["models"].items():
            by_length = dict(zip(group["lengths"], figures, strict=False))  # some were not read to the end
            if any(by_length.get(length) is not None for length in lengths):
                values = (Value.of(by_length.get(length), "{:,.2f}", missing="not published") for length in lengths)
                rows.append(Row(label=(model, WHO), values=tuple(values), theirs=True))
    return tuple(rows)


def task_rows(tasks: Sequence[str], n_columns: int) -> tuple[Row, ...]:
    """Return a row for each model, with its shares of these tasks of lm-evaluation-harness [per cent]; none where fewer
    than two tasks are among theirs. n_columns: of the table, whose first are the tasks."""
    rows = []
    for model, shares in _published()["harness"].items():
        if len(shares.keys() & set(tasks)) > 1:
            found = [shares.get(task) for task in tasks] + [None] * (n_columns - len(tasks))
            rows.append(Row(label=(model, WHO), values=tuple(map(_share, found)), theirs=True))
    return tuple(rows)


def _share(published: Mapping[str, Any] | None) -> Value:
    if published is None:
        return Value.of(None, missing="not published")
    return Value.of(100 * published["share"], "{:.1f}", published["metric"])
