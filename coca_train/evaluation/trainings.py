"""Pages about trainings: the report of a finished one, several compared, and the trainings of a sweep.

A report and a comparison begin with their perplexities. A training of a sweep has one loss on its held-out text and no
interval of it, so that page says whose is the lowest and no more; which difference is more than luck is for `compare`
to say, by the documents of the runs' own reports.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from coca_train.evaluation.measures.perplexity import perplexity_of
from coca_train.evaluation.pages import FEW_NAMES, Sections, build_sections, curves, file_names, grid_in_words, tokens
from coca_train.evaluation.perplexity_page import page as perplexity_page
from coca_train.evaluation.results import Evaluation, most_seeds, pool_seeds
from coca_train.report.blocks import MISSING, Document, Line, Lines, Row, Spread, Table, Value
from coca_train.runtime.untrusted_io import JsonObject

POINTS = 60  # of the training's curve: more hide one another
PROBES = (
    "Of few documents and without an interval, to watch a training by; how far the context reaches is answered above."
)
LOSS_NOTE = "Of many logged steps a point is the mean of a stretch of them, its band the lowest and the highest."
TRAINING_NOTE = (
    "Losses in nats per token: the mean over the last tenth of the logged training steps, and the last validation. "
    "Time: median over the logged steps. Memory: the most that was held (on a CPU by the whole process, Python "
    "included). In brackets: relative to the first."
)

Record = JsonObject  # of metrics.jsonl
Facts = Mapping[str, JsonObject]  # by run, what comparison.training_facts returns


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What a run's page is made of. records: metrics.jsonl. evaluation: None where nothing could be measured.

    sample: prompt and what the model goes on with; "" without one. facts, command: as in Evaluation.
    """

    title: str
    records: Sequence[Record]
    evaluation: Evaluation | None
    sample: str
    facts: Sequence[tuple[str, str]]
    command: str


def run_page(report: RunReport) -> Document:
    """Return the document; a section for each thing there is."""
    probes = read_probes(report.records)
    sections: Sections = {
        "Training": [loss_curves(report.records)],
        "Reach during training": [PROBES, *reach_curves(probes)] if probes else [],
        "Sample (greedy)": [report.sample],
    }
    if report.evaluation is None:
        known = {"facts": report.facts, "command": report.command}
        return Document(title=report.title, summary=(), sections=build_sections(sections), **known)
    page = perplexity_page(report.evaluation, sections)
    lengths = [int(point) for point in report.evaluation.points]
    return replace(page, title=f"{report.title}: windows of {tokens(lengths)}")


def comparison_page(evaluation: Evaluation, facts: Facts, checks: Sequence[str]) -> Document:
    """Compare runs on a page. facts: by run. checks: what was verified to be the same for all runs, in words."""
    held_fixed = "\n".join(f"* {line}" for line in checks)
    sections: Sections = {"Training": [training_table(facts, evaluation.seeds)], "What was held fixed": [held_fixed]}
    page = perplexity_page(evaluation, sections, compared=True)
    seeds = f", {n_seeds} seeds" if (n_seeds := most_seeds(evaluation)) else ""
    return replace(page, title=f"Comparison: {grid_in_words(pool_seeds(evaluation))}{seeds}")


def loss_curves(records: Sequence[Record]) -> Lines:
    """Draw the training loss, in stretches of steps, and validation loss by source, against the step."""
    logged = np.array([(r["step"], r["loss"]) for r in records if r.get("loss") is not None]).reshape(-1, 2)
    # The band is of each stretch; where a point is one step, it has none.
    columns = ("mean", "min", "max") if len(logged) > POINTS else ("mean",)
    stretches = [part for part in np.array_split(logged, POINTS) if len(part)]
    training = ((p[:, 0].mean(), *(float(getattr(p[:, 1], name)()) for name in columns)) for p in stretches)
    sources = sorted({key for record in records for key in record if key.startswith("valid/")})
    lines = [
        Line.through("training", training),
        *(Line.through(f"held out: {key.removeprefix('valid/')}", _by_step(records, key)) for key in sources),
    ]
    return Lines(
        name="loss",
        title="Training and validation loss",
        alt="Loss against the optimizer step: the training's, and that of each held-out source.",
        x_label="optimizer step",
        y_label="loss [nats per token]",
        lines=tuple(line for line in lines if line.x),
        interval="lowest and highest of a stretch of steps",
        note=LOSS_NOTE,
    )


def _by_step(records: Sequence[Record], key: str) -> list[tuple[float, float | None]]:
    return [(record["step"], record[key]) for record in records if key in record]


class Probed(NamedTuple):
    """One probe. losses: by variant and window [tokens], mean NLL [nats per token]."""

    step: int
    training_window: int
    losses: Mapping[str, Mapping[int, float]]

    def perplexity(self, variant: str, window: int) -> float | None:
        """Return the perplexity; None where the window was not scored."""
        loss = self.losses.get(variant, {}).get(window)
        return None if loss is None else perplexity_of(loss)


def read_probes(records: Sequence[Record]) -> list[Probed]:
    """Return the probes among the records of a metrics.jsonl, in their order."""
    probes = []
    for record in records:
        if (own := record.get("probe/training_window")) is None:
            continue
        losses: dict[str, dict[int, float]] = {}
        for key, loss in record.items():
            match key.split("/"):
                case "probe", variant, window:
                    losses.setdefault(variant, {})[int(window)] = math.inf if loss is None else loss
        probes.append(Probed(record["step"], int(own), losses))
    return probes


def _windows(probes: Sequence[Probed]) -> list[int]:
    return sorted({window for probe in probes for losses in probe.losses.values() for window in losses})


def reach_curves(probes: Sequence[Probed]) -> list[Lines]:
    """Return perplexity by step, a picture a variant and a curve a window; the first is of the model as it is
    trained."""
    variants, own = list(probes[-1].losses), probes[-1].training_window
    files = file_names(variants)

    def line(variant: str, window: int) -> Line:
        points = ((probe.step, probe.perplexity(variant, window)) for probe in probes)
        return Line.through(f"{window:,}{' (training window)' if window == own else ''}", points)

    return [
        Lines(
            name=f"reach-{files[variant]}",
            title=f"Reach during training: {variant}",
            alt="Perplexity of the probe's documents against the optimizer step, a curve for each context window.",
            x_label="optimizer step",
            y_label="perplexity",
            lines=tuple(line(variant, window) for window in _windows(probes)),
            y_log=True,
        )
        for variant in variants
    ]


def training_table(facts: Facts, seeds: Mapping[str, Iterable[str]]) -> Table:
    """Show size, losses, time of a step and memory, means over the seeds of a model; the last two also relative to the
    first model's. facts: by run. seeds: by model, its runs; a run that is in none is a model."""
    texts = list(dict.fromkeys(key for fact in facts.values() for key in fact if key.startswith("valid/")))
    known = {run for runs in seeds.values() for run in runs}
    models = {model: list(runs) for model, runs in seeds.items()} | {run: [run] for run in facts if run not in known}
    first = next(iter(models.values()))

    def amounts(runs: Sequence[str], key: str) -> list[float]:
        """Return what each run recorded; nothing where one of them recorded nothing."""
        recorded = [facts[run].get(key) for run in runs]
        return [] if None in recorded else [amount for amount in recorded if amount is not None]

    def value(runs: Sequence[str], key: str, form: str, relative: bool = False) -> Value:
        each, base = amounts(runs, key), amounts(first, key)
        mean = statistics.fmean(each) if each else None
        times = f" ({mean / statistics.fmean(base):.2f}x)" if relative and mean is not None and any(base) else ""
        spread = Spread.over(each, form) if len(set(each)) > 1 else None
        return Value.of(mean, form + times, missing="not recorded", spread=spread)

    return Table(
        name="training",
        title="What the trainings took and reached",
        label_columns=("model",),
        columns=("parameters", "train loss", *texts, "ms a step", "peak memory [MiB]"),
        rows=tuple(
            Row(
                label=(name,),
                values=(
                    value(runs, "parameters", "{:,.0f}"),
                    *(value(runs, key, "{:.3f}") for key in ("loss", *texts)),
                    *(value(runs, key, "{:,.0f}", relative=True) for key in ("ms_per_step", "peak_memory_mib")),
                ),
            )
            for name, runs in models.items()
        ),
        note=TRAINING_NOTE,
    )


VALID = "valid/"
LOSS = "{:.4f}"
NOTE = (
    "Losses in nats per token: the last that was logged of the training, and the last validation. A dash: not measured."
)
DOUBT = "Each is one figure of one training: `compare` says which differences outlast documents, and seeds."


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One training. point: what it sets differently from the others, option -> value. records: of its metrics.jsonl.
    ended: how; "" where that is not known."""

    name: str
    point: Mapping[str, str]
    records: Sequence[Record]
    ended: str = ""

    @cached_property
    def last(self) -> Record:
        """The last of everything."""
        return {key: value for record in self.records for key, value in record.items()}

    @property
    def label(self) -> str:
        """ "rope", or "position=rope, optim.lr=1e-3"."""
        pairs = list(self.point.items())
        return pairs[0][1] if len(pairs) == 1 else ", ".join(f"{key}={value}" for key, value in pairs) or self.name


def sweep_page(runs: Sequence[SweepRun], command: str, comparing: str) -> Document:
    """Show a sweep. command: of the sweep. comparing: that of a comparison of its finished runs; "" without two of
    them."""
    options, texts = _options(runs), _texts(runs)
    files = file_names(texts)
    named = ": " + ", ".join(run.label for run in runs) if len(options) == 1 and len(runs) <= FEW_NAMES else ""
    sections: Sections = {
        "Held-out loss": [
            curves(
                (Line.through(run.label, _by_step(run.records, VALID + text)) for run in runs),
                name=f"held-out-{files[text]}",
                title=f"Held-out loss: {text}",
                x_label="optimizer step",
                y_label="loss [nats per token]",
            )
            for text in texts
        ],
        "Results": [results(runs)],
        "Compare them": [f"{DOUBT}\n\n`{comparing}`" if comparing else ""],
    }
    return Document(
        title=f"Sweep of {', '.join(options)}{named or f': {len(runs)} runs'}",
        finding=_finding(runs, texts),
        summary=(),
        sections=build_sections(sections),
        facts=[("trainings", str(len(runs))), ("swept", ", ".join(options))],
        command=command,
    )


def results(runs: Sequence[SweepRun]) -> Table:
    """Return a row for each training: its point of the sweep, its last step, losses, and the perplexities of
    validations."""
    options = _options(runs)
    columns = list(dict.fromkeys(column for run in runs for column in _measured(run)))
    ended = any(run.ended for run in runs)
    return Table(
        name="results",
        title="What each training came to",
        label_columns=(*options, "run"),
        columns=(*columns, *(["ended"] if ended else [])),
        rows=tuple(
            Row(
                label=(*(run.point.get(option, MISSING.text) for option in options), run.name),
                values=(
                    *(_measured(run).get(column, MISSING) for column in columns),
                    *([Value(run.ended)] if ended else []),
                ),
            )
            for run in runs
        ),
        note=NOTE,
    )


def _options(runs: Sequence[SweepRun]) -> list[str]:
    return list(dict.fromkeys(option for run in runs for option in run.point))


def _texts(runs: Sequence[SweepRun]) -> list[str]:
    """Return the held-out texts that anything was validated on."""
    return sorted({key.removeprefix(VALID) for run in runs for key in run.last if key.startswith(VALID)})


def _measured(run: SweepRun) -> dict[str, Value]:
    """Return by column; nothing of a training that has not begun."""
    if not run.last:
        return {}
    cells = {"step": Value.of(run.last["step"], "{:,}"), "loss": Value.of(run.last.get("loss"), LOSS)}
    losses = {text: run.last[VALID + text] for text in _texts([run])}
    perplexities = {text: None if loss is None else math.exp(loss) for text, loss in losses.items()}
    cells |= {f"validation {text}": Value.of(loss, LOSS) for text, loss in losses.items()}
    return cells | {f"perplexity {text}": Value.of(each, "{:.4g}") for text, each in perplexities.items()}


def _finding(runs: Sequence[SweepRun], texts: Sequence[str]) -> list[str]:
    """Say whose held-out losses are the lowest; nothing of fewer than two."""
    lowest: dict[str, list[str]] = {}
    for text in texts:
        known = [(run.last[VALID + text], run) for run in runs if run.last.get(VALID + text) is not None]
        if len(known) > 1:
            loss, best = min(known, key=lambda each: each[0])
            lowest.setdefault(best.label, []).append(f"{loss:.3f} on {text}")
    if not lowest:
        return []
    said = "; ".join(f"{label}, {' and '.join(losses)}" for label, losses in lowest.items())
    return [f"Lowest held-out loss: {said} (nats a token, {len(runs)} runs)."]
