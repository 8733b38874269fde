"""What the papers printed, to be shown next to our own figures, always as theirs.

CoCA (Zhu et al., ACL 2024, arXiv 2309.08646): tables 1 to 5 as printed. Tables 1 to 4 have one figure for each length
of `context()` [tokens]: perplexity on 100 documents of PG-19 (stride 512), or the share of 100 passkeys retrieved.
YaRN (Peng et al., arXiv 2309.00071): the numbers of its running text (`table("yarn_text")`), no tables.
A figure is None where the paper ran out of memory, and math.inf where it printed "inf". CoCA's figures are shown at the
same multiple of the training window as ours; theirs was `training_window`.

YaRN's authors published more figures with their code (yarn_authors.json names the source): perplexity of their models
and of those that they compared, by context window, on two texts; and shares of tasks of lm-evaluation-harness. These
are shown at the same length as ours, since all of these models are 7B and larger and read up to 128k tokens.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from coca_train.report.blocks import Row, Value
from coca_train.runtime.untrusted_io import JsonObject

Series = Mapping[str, Sequence[float | None]]  # by method, a figure for each length of `context()`

NAMES = {
    "alibi": "ALiBi",
    "rope": "RoPE",
    "coca": "CoCA",
    "llama7b": "LLaMA-7B",
    "dynamic_ntk": "dynamic NTK (alpha 4)",  # in tables 1 and 2
    "pi": "PI",
}
YARN_AUTHORS = "YaRN's authors"
# CoCA's table 5, measured with OpenCompass: the tasks that lm-evaluation-harness has, and what the paper calls them.
OPENCOMPASS = {
    "copa": "COPA", "sglue_rte": "RTE", "boolq": "BoolQ", "wic": "WiC", "wsc": "WSC", "mmlu": "MMLU", "cmmlu": "CMMLU",
    "ceval-valid": "C-Eval",
}  # fmt: skip
WINDOW, LLAMA_WINDOW = 512, 2048  # of CoCA's models, and of LLaMA-7B [tokens]


@cache
def _read(name: str) -> JsonObject:
    return json.loads(files("coca_train.report").joinpath(f"{name}.json").read_text(encoding="utf-8"))


def context() -> tuple[int, ...]:
    """Return the lengths of CoCA's tables 1 to 4 [tokens]."""
    return tuple(_read("paper_tables")["context"])


def table(name: str) -> JsonObject:
    """Return a table as printed, nested as in paper_tables.json.

    name: table1_perplexity, table2_passkey, table3_slack_vs_strict, table4_pi, table5_opencompass; coca_text and
    yarn_text for numbers of the running text. Raises KeyError.
    """
    return _numbers(_read("paper_tables")[name])


def _numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_numbers(item) for item in value)
    return math.inf if value == "inf" else value


def method(name: str) -> str:
    """Return a method as readers know it: coca+dynamic_ntk is CoCA + dynamic NTK (alpha 4)."""
    return " + ".join(NAMES.get(part, part) for part in name.split("+"))


def training_window(name: str) -> int:
    """Return the training window of a method of CoCA's tables [tokens]."""
    return LLAMA_WINDOW if name.startswith("llama7b") else WINDOW


def rows(
    series: Series,
    lengths: Sequence[int | str],
    label: Callable[[str], tuple[str, ...]] = lambda name: (method(name),),
    window: int | None = None,
) -> tuple[Row, ...]:
    """Return a row of a table for each method, theirs, with a figure for each of our lengths [tokens].

    label: the row's words from the method's name, one for each label column. window: our training window [tokens]; a
    figure is then shown at the same multiple of the method's own, and not at the same length.
    """
    columns: dict[float, int] = {length: index for index, length in enumerate(context())}

    def value(name: str, length: int | str) -> Value:
        there = length * training_window(name) / window if window and isinstance(length, int) else length
        if not isinstance(there, int | float) or there not in columns:
            return Value.of(None, missing="not in the paper")
        return Value.of(series[name][columns[there]], "{:,.2f}", missing="out of memory in the paper")

    return tuple(Row(label=label(name), values=tuple(value(name, n) for n in lengths), theirs=True) for name in series)


def by_alpha(quantity: str) -> Series:
    """Return table 3: slack and strict CoCA with dynamic NTK of alpha 2, 4 and 8; strict is printed as a difference.

    quantity: ppl or passkey.
    """
    printed = table("table3_slack_vs_strict")[quantity]
    series: dict[str, Sequence[float]] = {}
    for alpha, slack in printed["slack"].items():
        name, more = f"dynamic NTK (alpha {alpha})", printed["strict_minus_slack"][alpha]
        series[f"coca+{name}+slack"] = slack
        series[f"coca+{name}+strict"] = [round(a + b, 2) for a, b in zip(slack, more, strict=True)]
    return series


def rows_of_tables(
    tables: Mapping[str, Series], lengths: Sequence[int | str], window: int | None = None
) -> tuple[Row, ...]:
    """Return the rows of CoCA's tables ("table 1": ...) that have a figure at our lengths. window: see `rows`."""
    return tuple(
        row
        for name, series in tables.items()
        for row in rows(series, lengths, lambda method_, name=name: (method(method_), f"CoCA, {name}"), window)
        if any(value.number is not None for value in row.values)
    )


def yarn_perplexity_rows(text: str, lengths: Sequence[int | str]) -> tuple[Row, ...]:
    """Return a row for each model that has a figure at one of our lengths [tokens]; none for another text.

    text: name of the source, proof_pile or gov_report.
    """
    rows = []
    for group in _read("yarn_authors").get(text, ()):
        for model, figures in group["models"].items():
            by_length = dict(zip(group["lengths"], figures, strict=False))  # some were not read to the end
            if any(by_length.get(length) is not None for length in lengths):
                values = (Value.of(by_length.get(length), "{:,.2f}", missing="not published") for length in lengths)
                rows.append(Row(label=(model, YARN_AUTHORS), values=tuple(values), theirs=True))
    return tuple(rows)


def task_rows(tasks: Sequence[str]) -> tuple[Row, ...]:
    """Return a row for each model with a share of these tasks of lm-evaluation-harness [per cent]: of CoCA's table 5,
    and of YaRN's authors where two or more are among theirs."""
    printed, rows = table("table5_opencompass"), []
    for index, name in enumerate(printed["columns"] if OPENCOMPASS.keys() & set(tasks) else ()):
        shares = {task: printed[theirs][index] for task, theirs in OPENCOMPASS.items()}
        values = tuple(Value.of(shares.get(task), "{:.1f}", missing="not in the paper") for task in tasks)
        rows.append(Row(label=(method(name), "CoCA, table 5"), values=values, theirs=True))
    for model, published in _read("yarn_authors")["harness"].items():
        if len(published.keys() & set(tasks)) > 1:
            values = (
                Value.of(100 * published[task]["share"], "{:.1f}", published[task]["metric"])
                if task in published
                else Value.of(None, missing="not published")
                for task in tasks
            )
            rows.append(Row(label=(model, YARN_AUTHORS), values=tuple(values), theirs=True))
    return tuple(rows)
