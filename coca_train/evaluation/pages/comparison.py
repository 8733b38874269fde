"""The page of a comparison of trainings: perplexity, cost of a step, what was held fixed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coca_train.evaluation.pages.perplexity import perplexity_page
from coca_train.evaluation.results import Evaluation
from coca_train.report.blocks import Document, Row, Section, Table, Text, Value

Facts = Mapping[str, Mapping[str, Any]]  # by run, what comparison.facts_of gives


def comparison_page(evaluation: Evaluation, facts: Facts, checks: Sequence[str]) -> Document:
    """checks: what was verified to be the same for all runs, in words."""
    page = perplexity_page(
        None,
        evaluation,
        [
            Section(title="Training", blocks=[training_table(facts)]),
            Section(title="What was held fixed", blocks=[Text(text="\n".join(f"* {line}" for line in checks))]),
        ],
    )
    return replace(page, title=f"Comparison of {evaluation.name}")


def training_table(facts: Facts) -> Table:
    """Size, losses, time of a step and memory; the last two also relative to the first run's."""
    texts = list(dict.fromkeys(key for fact in facts.values() for key in fact if key.startswith("valid/")))
    first = next(iter(facts.values()))

    def values(fact: Mapping[str, Any]) -> tuple[Value, ...]:
        return (
            Value(f"{fact['parameters']:,}", fact["parameters"]),
            *(_figure(fact.get(key), "{:.3f}") for key in ("loss", *texts)),
            *(_relative(fact.get(key), first.get(key)) for key in ("ms_per_step", "peak_memory_mib")),
        )

    return Table(
        name="training",
        title="What the trainings took and reached",
        label_columns=("model",),
        columns=("parameters", "train loss", *texts, "ms a step", "peak memory [MiB]"),
        rows=tuple(Row(label=(name,), values=values(fact)) for name, fact in facts.items()),
        note="Losses in nats per token: the mean over the last tenth of the logged training steps, and the last "
        "validation. Time: median over the logged steps. Memory: the most that was held (on a CPU by the whole "
        "process, Python included). In brackets: relative to the first.",
    )


def _figure(number: float | None, form: str = "{:,.0f}") -> Value:
    return Value("–", note="not recorded") if number is None else Value(form.format(number), number)


def _relative(number: float | None, first: float | None) -> Value:
    """A number and its ratio to the first one."""
    value = _figure(number)
    return replace(value, text=f"{value.text} ({number / first:.2f}x)") if number is not None and first else value
