"""The report of a finished run: how far its context reaches, how it was trained, what it writes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coca_train.evaluation.measures.reach import TOLERANCE, Probed, read_probes, sentences
from coca_train.evaluation.pages.cells import file_names
from coca_train.evaluation.pages.perplexity import number, perplexity_page
from coca_train.evaluation.results import Evaluation
from coca_train.report.blocks import Block, Document, Line, Lines, Row, Section, Table, Text, Value

POINTS = 60  # of the training's curve: more hide one another
HOLDS = (
    f"A window holds when its perplexity is at most {TOLERANCE:g} times that of the training window at the same step, "
    "there and at every later probe."
)


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What a run's page is made of. records: metrics.jsonl. evaluation: None where nothing could be measured.

    sample: prompt and what the model goes on with; "" without one. facts, command: as in Evaluation.
    """

    title: str
    records: Sequence[Mapping[str, Any]]
    evaluation: Evaluation | None
    sample: str
    facts: Sequence[tuple[str, str]]
    command: str


def run_page(report: RunReport) -> Document:
    """The document; a section for each thing there is."""
    probes = read_probes(report.records)
    sections = [Section(title="Training", blocks=[loss_curves(report.records)])]
    if probes:
        how = Text(text="\n".join([HOLDS, "", *(f"* {sentence}" for sentence in sentences(probes))]))
        blocks: list[Block] = [how, *reach_curves(probes), _reach_table(probes)]
        sections.append(Section(title="Reach during training", blocks=blocks))
    if report.sample:
        sections.append(Section(title="Sample (greedy)", blocks=[Text(text=report.sample)]))
    if report.evaluation is None:
        known = {"facts": report.facts, "command": report.command}
        return Document(title=report.title, summary=sentences(probes), sections=sections, **known)
    page = perplexity_page(None, report.evaluation, sections)
    return replace(page, title=report.title, summary=[*page.summary, *sentences(probes)])


def loss_curves(records: Sequence[Mapping[str, Any]]) -> Lines:
    """Training loss, in stretches of steps, and validation loss by source, against the step."""
    sources = sorted({key for record in records for key in record if key.startswith("valid/")})
    held_out = [_validation(records, key) for key in sources]
    return Lines(
        name="loss",
        title="Training and validation loss",
        alt="Loss against the optimizer step: the training's, and that of each held-out source.",
        x_label="optimizer step",
        y_label="loss [nats per token]",
        lines=tuple(line for line in (_training(records), *held_out) if line.x),
        note="Of many logged steps a point is the mean of a stretch of them, its band the lowest and the highest.",
    )


def _training(records: Sequence[Mapping[str, Any]]) -> Line:
    logged = [(record["step"], record["loss"]) for record in records if record.get("loss") is not None]
    stretches = [part for part in np.array_split(np.array(logged).reshape(-1, 2), POINTS) if len(part)]
    many = len(logged) > POINTS
    return Line(
        label="training",
        x=tuple(float(part[:, 0].mean()) for part in stretches),
        y=tuple(float(part[:, 1].mean()) for part in stretches),
        low=tuple(float(part[:, 1].min()) for part in stretches) if many else None,
        high=tuple(float(part[:, 1].max()) for part in stretches) if many else None,
    )


def _validation(records: Sequence[Mapping[str, Any]], key: str) -> Line:
    points = [(float(record["step"]), record[key]) for record in records if record.get(key) is not None]
    label = f"held out: {key.removeprefix('valid/')}"
    return Line(label=label, x=tuple(step for step, _ in points), y=tuple(loss for _, loss in points))


def reach_curves(probes: Sequence[Probed]) -> list[Lines]:
    """Perplexity by step, a picture a variant and a curve a window; the first is of the model as it is trained."""
    variants = list(probes[-1].losses)
    files = file_names(variants)
    return [
        Lines(
            name=f"reach-{files[variant]}",
            title=f"Reach during training: {variant}",
            alt="Perplexity of the probe's documents against the optimizer step, a curve for each context window.",
            x_label="optimizer step",
            y_label="perplexity",
            lines=tuple(_window(probes, variant, window) for window in _windows(probes)),
            y_log=True,
        )
        for variant in variants
    ]


def _window(probes: Sequence[Probed], variant: str, window: int) -> Line:
    points = [(float(probe.step), probe.perplexity(variant, window)) for probe in probes]
    known = [(step, perplexity) for step, perplexity in points if not math.isnan(perplexity)]
    label = f"{window:,}{' (training window)' if window == probes[-1].training_window else ''}"
    return Line(label=label, x=tuple(step for step, _ in known), y=tuple(perplexity for _, perplexity in known))


def _windows(probes: Sequence[Probed]) -> list[int]:
    return sorted({window for probe in probes for losses in probe.losses.values() for window in losses})


def _reach_table(probes: Sequence[Probed]) -> Table:
    def value(probe: Probed, variant: str, window: int) -> Value:
        perplexity = probe.perplexity(variant, window)
        return Value("–", note="not scored") if math.isnan(perplexity) else Value(number(perplexity), perplexity)

    return Table(
        name="reach",
        title="Perplexity by training step and context window [tokens]",
        label_columns=("variant", "step"),
        columns=tuple(f"{window:,}" for window in _windows(probes)),
        rows=tuple(
            Row(
                label=(variant, f"{probe.step:,}"),
                values=tuple(value(probe, variant, window) for window in _windows(probes)),
            )
            for variant in probes[-1].losses
            for probe in probes
        ),
        note="On the held-out documents of the probe.",
    )
