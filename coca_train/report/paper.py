"""What the papers printed, to be shown beside our own figures, always as theirs.

CoCA (Zhu et al., ACL 2024, arXiv 2309.08646): tables 1 to 5 as printed. Tables 1 to 4 have one figure for each length
of `context()` [tokens]: perplexity on 100 documents of PG-19 (stride 512), or the share of 100 passkeys retrieved.
YaRN (Peng et al., arXiv 2309.00071): the numbers of its running text (`table("yarn_text")`), no tables.
A figure is None where the paper ran out of memory, and math.inf where it printed "inf".

Beside our own figures theirs stand at the same multiple of the training window, which was `training_window` for them.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from coca_train.report.blocks import Row, Value

Series = Mapping[str, Sequence[float | None]]  # by method, a figure for each length of `context()`

NAMES = {
    "alibi": "ALiBi",
    "rope": "RoPE",
    "coca": "CoCA",
    "llama7b": "LLaMA-7B",
    "dynamic_ntk": "dynamic NTK (alpha 4)",  # in tables 1 and 2
    "pi": "PI",
}
WINDOW, LLAMA_WINDOW = 512, 2048  # of CoCA's models, and of LLaMA-7B [tokens]


@cache
def _carried() -> Mapping[str, Any]:
    return json.loads(files("coca_train.report").joinpath("paper_tables.json").read_text(encoding="utf-8"))


def context() -> tuple[int, ...]:
    """The lengths of CoCA's tables 1 to 4 [tokens]."""
    return tuple(_carried()["context"])


def table(name: str) -> Mapping[str, Any]:
    """A table as printed, nested as in paper_tables.json: table1_perplexity, table2_passkey, table3_slack_vs_strict,
    table4_pi, table5_opencompass; coca_text and yarn_text for numbers of the running text. Raises KeyError."""
    return _numbers(_carried()[name])


def _numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_numbers(item) for item in value)
    return math.inf if value == "inf" else value


def method(name: str) -> str:
    """A method as readers know it: coca+dynamic_ntk is CoCA + dynamic NTK (alpha 4)."""
    return " + ".join(NAMES.get(part, part) for part in name.split("+"))


def training_window(name: str) -> int:
    """What a method of CoCA's tables was trained with [tokens]."""
    return LLAMA_WINDOW if name.startswith("llama7b") else WINDOW


def rows(
    series: Series,
    lengths: Sequence[int | str],
    label: Callable[[str], tuple[str, ...]] = lambda name: (method(name),),
    window: int | None = None,
) -> tuple[Row, ...]:
    """A row of a table for each method, theirs, with a figure for each of our lengths [tokens].

    label: the row's words from the method's name, one for each label column. window: our training window [tokens]; a
    figure then stands at the same multiple of the method's own, and not at the same length.
    """
    columns: dict[float, int] = {length: index for index, length in enumerate(context())}

    def value(name: str, length: int | str) -> Value:
        there = length * training_window(name) / window if window and isinstance(length, int) else length
        if not isinstance(there, int | float) or there not in columns:
            return Value.of(None, missing="not in the paper")
        return Value.of(series[name][columns[there]], "{:,.2f}", missing="out of memory in the paper")

    return tuple(Row(label=label(name), values=tuple(value(name, n) for n in lengths), theirs=True) for name in series)


def by_alpha(quantity: str) -> Series:
    """Table 3: slack and strict CoCA with dynamic NTK of alpha 2, 4 and 8; strict is printed as a difference.

    quantity: ppl or passkey.
    """
    printed = table("table3_slack_vs_strict")[quantity]
    series: dict[str, Sequence[float]] = {}
    for alpha, slack in printed["slack"].items():
        name, more = f"dynamic NTK (alpha {alpha})", printed["strict_minus_slack"][alpha]
        series[f"coca+{name}+slack"] = slack
        series[f"coca+{name}+strict"] = [round(a + b, 2) for a, b in zip(slack, more, strict=True)]
    return series


def beside(tables: Mapping[str, Series], lengths: Sequence[int | str], window: int | None = None) -> tuple[Row, ...]:
    """The methods of CoCA's tables ("table 1": ...) below our models and variants, those with a figure at our lengths.

    window: see rows.
    """
    return tuple(
        row
        for name, series in tables.items()
        for row in rows(series, lengths, lambda method_, name=name: (method(method_), f"CoCA, {name}"), window)
        if any(value.number is not None for value in row.values)
    )
