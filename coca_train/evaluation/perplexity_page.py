"""The page of suite `perplexity`, of a finished run and of a comparison: verdicts, curves, tables by context window."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from coca_train.evaluation.grid_blocks import (
    Pick,
    Sections,
    by_length,
    by_point,
    curves,
    document,
    file_names,
    papers,
    table,
    training_windows,
)
from coca_train.evaluation.measures.reach import HOLDS_WITHIN, Part, holds, uses
from coca_train.evaluation.measures.windows import (
    middles,
)
from coca_train.evaluation.results import ALL, Evaluation, GridRow, Point
from coca_train.evaluation.verdict import Asked, verdicts
from coca_train.report import paper
from coca_train.report.blocks import Block, Document, Line, Lines, Table, Value
from coca_train.report.render.plain import terminal_text, verdict_text
from coca_train.report.ties import headline

DEFINITION = (
    "A document of N + 1 tokens has N predictions. A window of W tokens slides over it by the stride; each window "
    "scores only predictions that no earlier one made, so every prediction counts once at every W: the first window "
    "all of its own, later ones their last `stride`. Positions start at 0 in each window, dynamic frequencies see W. "
    "Perplexity is exp(mean NLL), the NLL in float32 per token and float64 in sum; bits per byte are the same NLL over "
    "the UTF-8 size of the text. Intervals: 95 %, percentile bootstrap over documents."
)
NOTE = (
    "Lower is better. All our figures of a column are over the same predictions. The paper's are of its own models "
    "(350M class and LLaMA-7B), text (PG-19) and tokens."
)
BEYOND = "Curves that leave the picture have their figures in the table."
FEW = 7  # curves of one picture that need no choice: as many as there are colours
FAR_OFF = 1.0  # [nats per token] above the median: where the picture of differences ends at the latest
MARGIN = 1.05  # factor below the lowest point of such a picture
HIGHEST = 2.0  # times the median of the last points: where the y axis of many curves ends at the latest


def page(settings: Any, evaluation: Evaluation, more: Sections | None = None) -> Document:
    """The document. more: what else there is to see, before what is missing and the definition."""
    main = main_text(evaluation)
    results: Sections = {}
    if main.source:
        bits = main.by_window(
            "bits-per-byte",
            _bits,
            title="Bits per byte by context window [tokens]",
            note="Comparable between tokenizers, as perplexity is not.",
        )
        others = [OneText(evaluation, source) for source in sources_of(evaluation) if source != main.source]
        results = {
            f"Perplexity, {main.source}": [*_curves(main), main.perplexities, bits],
            **{f"Perplexity, {other.source}": [other.perplexities] for other in others},
            "Loss by position": _by_position(main),
        }
    return document(
        evaluation,
        "Perplexity by context window",
        summary=_summary(main.rows),
        sections={**results, **(more or {})},
        after={"Definition": [DEFINITION]},
        facts=main.facts,
        verdicts=verdicts(evaluation, asked(evaluation)),
    )


@plain_dataclass(frozen=True)
class OneText:
    """What was measured on one text of an evaluation."""

    evaluation: Evaluation
    source: str

    @cached_property
    def rows(self) -> list[GridRow]:
        return self.evaluation.reduced(lambda result: result["sources"].get(self.source, {})).rows()

    def file(self, name: str) -> str:
        """Of a block about this text."""
        return f"{name}-{file_names(sources_of(self.evaluation))[self.source]}"

    def by_window(self, name: str, pick: Pick, **fields: Any) -> Table:
        """One row a model and variant, one column a window."""
        columns = by_point(self.evaluation.points, pick, name=partial(_multiple, self.evaluation))
        whole = table(self.rows, columns, name=self.file(name), best="low", **fields)
        assert whole is not None  # a source is there because some cell has it
        return whole

    @property
    def perplexities(self) -> Table:
        """Beside the papers' figures, where the text is the one a comparison is about."""
        theirs = {
            "table 1": paper.table("table1_perplexity"),
            "table 3": paper.by_alpha("ppl"),
            "table 4": paper.table("table4_pi")["ppl"],
        }
        return self.by_window(
            "perplexity",
            _perplexity,
            title="Perplexity by context window [tokens]",
            theirs=papers(self.evaluation, theirs) if self == main_text(self.evaluation) else (),
            note=NOTE,
        )

    @property
    def facts(self) -> list[tuple[str, str]]:
        """At the first window that was measured."""
        for cell in self.evaluation.cells:
            if scored := cell.result.get("sources", {}).get(self.source):
                size = f", {scored['n_bytes']:,} bytes" if scored["n_bytes"] else ""
                text = f"{scored['n_documents']} documents, {scored['n_tokens']:,} predictions{size} at {cell.point}"
                return [("text", text), ("stride", f"{cell.result['stride']:,} tokens")]
        return []


def asked(evaluation: Evaluation) -> Asked:
    """What is said of the text a comparison is about."""
    within = evaluation.settings.get("holds_within", HOLDS_WITHIN)
    return {row.name: _parts(row, within) for row in main_text(evaluation).rows}


def _parts(row: GridRow, within: float) -> list[Part]:
    """`holds` only where a window beyond the training window says something of it."""
    trained, results = row.subject.training_window, {int(point): result for point, result in row.results.items()}
    held = tuple(holds(n, result["holds"], within) for n, result in results.items() if "holds" in result)
    gains = {int(n): gain for result in results.values() for n, gain in result.get("uses", {}).items()}
    used = tuple(uses(n, gain) for n, gain in sorted(gains.items()))
    asked = [Part("holds", "documents", held, granted=trained), Part("uses", "documents", used)]
    return [part for part in asked if part.evidence]


def sources_of(evaluation: Evaluation) -> list[str]:
    return list(dict.fromkeys(source for cell in evaluation.cells for source in cell.result.get("sources", {})))


def main_text(evaluation: Evaluation) -> OneText:
    """The text a comparison is about: all sources together, or the only one; source "" without any result."""
    every = sources_of(evaluation)
    return OneText(evaluation, ALL if ALL in every else next(iter(every), ""))


def perplexity_text(evaluation: Evaluation) -> str:
    """For a terminal: the verdicts, the table of the text a comparison is about, and what was not measured."""
    main, shown = main_text(evaluation), ""
    if main.source:
        said = verdict_text(verdicts(evaluation, asked(evaluation)))
        shown = f"{said}\n{terminal_text(main.perplexities)}\ntext: {dict(main.facts)['text']} ({main.source})\n"
    return shown + "".join(f"not measured: {line}\n" for line in evaluation.absences())


def _perplexity(result: Mapping[str, Any]) -> Value:
    perplexity, ends = result["perplexity"], (result["ci_low"], result["ci_high"])
    low, high = ends if perplexity < math.inf else (None, None)
    return Value.of(perplexity, number, low=low, high=high)


def _bits(result: Mapping[str, Any]) -> Value:
    """Per byte; its interval is the perplexity's, as both grow with the loss."""
    bits, loss = result["bits_per_byte"], math.log(result["perplexity"])
    if bits is None or result["ci_low"] is None or not 0 < loss < math.inf:
        return Value.of(bits, "{:.3f}")
    low, high = (bits * math.log(result[end]) / loss for end in ("ci_low", "ci_high"))
    return Value.of(bits, "{:.3f}", low=low, high=high)


def _multiple(evaluation: Evaluation, point: Point) -> str:
    """`2,048 (16x)` where all models were trained with one window."""
    windows = {subject.training_window for subject in evaluation.subjects}
    (window,) = windows if len(windows) == 1 else (0,)
    times = f" ({int(point) // window}x)" if window and int(point) % window == 0 else ""
    return f"{int(point):,}{times}"


def _curves(text: OneText) -> list[Lines | None]:
    """Perplexity by window: all rows in one picture where they are few, else one a variant."""
    pictures = {"": text.rows}
    if len(text.rows) > FEW:
        pictures = {"": _trained(text.rows)}
        for row in text.rows:
            if row.variant != row.subject.variants[0]:
                pictures.setdefault(row.variant, []).append(row)
    files = {"": "", **{name: f"-{file}" for name, file in file_names([name for name in pictures if name]).items()}}
    name = text.file("perplexity-curves")
    return [
        _picture(text.evaluation, shown, f"{name}{files[variant]}", f": {variant}" if variant else "")
        for variant, shown in pictures.items()
    ]


def _trained(rows: Sequence[GridRow]) -> list[GridRow]:
    """Every model under its first variant: what it was trained with, unless the grid leaves that out."""
    return [row for row in rows if row.variant == row.subject.variants[0]]


def _picture(evaluation: Evaluation, rows: Sequence[GridRow], name: str, words: str) -> Lines | None:
    keys = ("perplexity", "ci_low", "ci_high")
    lines = [by_length(row, lambda result: [result[key] for key in keys]) for row in rows]
    limits = _limits(lines)
    return curves(
        lines,
        name=name,
        title=f"Perplexity by context window{words}",
        alt="Perplexity against context window, one curve a model and variant; the table below has the figures.",
        x_label="context window [tokens]",
        y_label="perplexity (lower is better)",
        x_log=True,
        y_log=True,
        y_limits=limits,
        marks=training_windows(evaluation),
        note=BEYOND if limits[1] else "",
    )


def _limits(lines: Sequence[Line]) -> tuple[float | None, float | None]:
    """Of the y axis, so that most of many curves can be told apart; None: where the curves end."""
    ys, last = [y for line in lines for y in line.y], [line.y[-1] for line in lines if line.y]
    if len(last) <= FEW:
        return None, None
    highest = HIGHEST * statistics.median(last)  # may be infinite: then nothing lies above it
    return (min(ys) / MARGIN, highest) if highest < max(ys) else (None, None)


def _by_position(text: OneText) -> list[Block | str | None]:
    """Loss by position in the longest window of each row; of several models, also less their median."""
    rows = text.rows
    axis: dict[str, Any] = {
        "x_label": "position: tokens before the prediction",
        "x_log": True,
        "marks": training_windows(text.evaluation),
    }
    compared = _less_median(_losses(_trained(rows)))
    far = any(y > FAR_OFF for line in compared for y in line.y)
    return [
        curves(
            _losses(rows if len(rows) <= FEW else _trained(rows)),
            name=text.file("loss-by-position"),
            title="Loss by position in the longest window",
            alt="Mean loss against the position of the prediction in its window, one curve a model and variant.",
            y_label="loss [nats per token]",
            note="First window of each document only: at one position all models are measured on the same tokens.",
            **axis,
        ),
        curves(
            compared if len(compared) > 1 else (),
            name=text.file("loss-by-position-compared"),
            title="Loss by position, less the models' median",
            alt="Mean loss less the median of all models at the same position, one curve a model; below 0 is better.",
            y_label="loss less the median [nats per token]",
            y_limits=(None, FAR_OFF if far else None),
            note="The models as they were trained. What all of them share, how hard the documents are, is taken away. "
            "It is most of the intervals above, which say nothing of these differences.",
            **axis,
        ),
    ]


def _losses(rows: Sequence[GridRow]) -> list[Line]:
    return [
        Line.through(
            row.label,
            zip(
                middles(row.last["ends"]),
                *(row.last[key] for key in ("loss_by_position", "loss_low", "loss_high")),
                strict=True,
            ),
        )
        for row in rows
        if row.last
    ]


def _less_median(lines: Sequence[Line]) -> list[Line]:
    """At each position the median is over the curves that have it, which are over the very same tokens."""
    by_position: dict[float, list[float]] = {}
    for line in lines:
        for x, y in zip(line.x, line.y, strict=True):
            by_position.setdefault(x, []).append(y)
    median = {x: statistics.median(losses) for x, losses in by_position.items()}
    less = [tuple(y - median[x] for x, y in zip(line.x, line.y, strict=True)) for line in lines]
    return [replace(line, y=y, low=None, high=None) for line, y in zip(lines, less, strict=True)]


def _summary(rows: Sequence[GridRow]) -> list[str]:
    """What the longest window costs a model; of several, who is best there, if anybody surely is."""
    ends: dict[str, tuple[int, int, float, float]] = {}  # shortest and longest window, perplexity there
    for row in rows:
        by_window = {int(point): result["perplexity"] for point, result in row.results.items()}
        if len(by_window) > 1:
            first, last = min(by_window), max(by_window)
            ends[row.label] = first, last, by_window[first], by_window[last]
    if not ends:
        return []
    if len(ends) == 1:
        ((label, (first, last, begin, end)),) = ends.items()
        return [
            f"{label}: perplexity {number(begin)} in windows of {first:,} tokens, {number(end)} in windows of "
            f"{last:,}, {end / begin:.2f} times as much."
        ]
    farthest = max(last for _, last, _, _ in ends.values())
    there = {row.label: _perplexity(row.last) for row in rows if row.label in ends and ends[row.label][1] == farthest}
    return [headline(f"In windows of {farthest:,} tokens", there, "low", "predicts best", "perplexity")]


def number(value: float) -> str:
    """A perplexity people can read."""
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
