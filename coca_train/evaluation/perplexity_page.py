"""The page of suite `perplexity`, of a finished run and of a comparison: verdicts, curves, tables by context window."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from coca_train.evaluation.findings import (
    Compared,
    compare_models,
    difference_sentences,
    difference_table,
    finding,
)
from coca_train.evaluation.measures.perplexity import ByText, OneText
from coca_train.evaluation.measures.windows import bin_middles
from coca_train.evaluation.pages import (
    BEYOND,
    Pick,
    Sections,
    by_length,
    by_point,
    curves,
    document,
    file_names,
    paper_rows,
    table,
    training_windows,
)
from coca_train.evaluation.results import ALL, Evaluation, GridRow, Point, as_trained, most_seeds, pool_seeds
from coca_train.evaluation.verdict import (
    HOLDS_WITHIN,
    ROUNDING,
    USES_GAIN,
    Part,
    PartsByRow,
    answers_table,
    holds,
    judge_rows,
    unmeasured,
    untrained,
    uses,
    verdicts,
)
from coca_train.report import paper
from coca_train.report.blocks import Block, Document, Form, Line, Lines, Spread, Table, Value
from coca_train.report.render.plain import terminal_text
from coca_train.statistics.pairs import Sample

DEFINITION = (
    "A document of N + 1 tokens has N predictions. A window of W tokens slides over it by the stride; each window "
    "scores only predictions that no earlier one made, so every prediction counts once at every W: the first window "
    "all of its own, later ones their last `stride`. Positions start at 0 in each window, dynamic frequencies see W. "
    "Perplexity is exp(mean NLL), the NLL in float32 per token and float64 in sum; bits per byte are the same NLL over "
    "the UTF-8 size of the text. Intervals: 95 %, percentile bootstrap over documents."
)
NOTE = (
    "Lower is better. Our figures of a column are over the same predictions, where tokenizers are the same. The "
    "paper's are of its own models (350M class and LLaMA-7B), text (PG-19) and tokens."
)
AUTHORS_NOTE = (
    "Lower is better. Our figures of a column are over the same predictions, where tokenizers are the same. The "
    "authors' were published with YaRN's code: their models, the same text, their choice of documents, stride 256."
)
MARGIN = 1.05  # factor below the lowest point of a picture of perplexities
HIGHEST = 2.0  # times the median of the last points: where the y axis of many curves ends at the latest
FEW = 7  # curves of one picture that need no choice: as many as there are colours
FAR_OFF = 1.0  # [nats per token] above the median: where the picture of differences ends at the latest
CONTEXT = "What the context is good for"  # title of the section with the answers


def page(evaluation: Evaluation[ByText], more: Sections | None = None, compared: bool = False) -> Document:
    """Return the document, the seeds of a model as one row. more: what else there is to see, before what is missing and
    the definition. compared: whether it says which models differ, as it does of several seeds."""
    whole, parts = pool_seeds(evaluation), reach_parts(evaluation)
    main, results = main_text(whole), dict[str, list[Block | str | None]]()
    found, first = list[Compared](), list[str]()
    if main.source:
        perplexities = main.perplexities
        first = finding(main.rows, perplexities, judge_rows(evaluation, parts))
        found = compare_models(main.rows, perplexities) if compared or most_seeds(evaluation) else []
        bits = main.by_window(
            "bits-per-byte",
            _bits,
            title="Bits per byte by context window [tokens]",
            note="Comparable between tokenizers, as perplexity is not.",
        )
        known = any(value.number is not None for row in bits.rows for value in row.values)
        others = [MainText(whole, source) for source in sources_of(whole) if source != main.source]
        results = {
            f"Perplexity, {main.source}": [*perplexity_by_window(main), perplexities, bits if known else None],
            CONTEXT: [answers_table(evaluation, parts)],
            "Differences between models": [difference_table(found)],
            **{f"Perplexity, {other.source}": [other.perplexities] for other in others},
            "Loss by position": loss_by_position(main.rows, main.file, training_windows(whole)),
        }
    return document(
        whole,
        "Perplexity by context window",
        summary=difference_sentences(found),
        finding=first,
        sections={**results, **(more or {})},
        after={**_each_seed(evaluation), "Definition": [DEFINITION]},
        facts=main.facts,
        verdicts=verdicts(evaluation, parts),
    )


@plain_dataclass(frozen=True)
class MainText:
    """What was measured on one text of an evaluation."""

    evaluation: Evaluation[ByText]
    source: str

    @cached_property
    def rows(self) -> list[GridRow[OneText]]:
        return self.evaluation.reduced(lambda result: result["sources"].get(self.source)).rows()

    def file(self, name: str) -> str:
        """Name the file of a block about this text."""
        return f"{name}-{file_names(sources_of(self.evaluation))[self.source]}"

    def by_window(self, name: str, pick: Pick, **fields: Any) -> Table:
        """Make one row a model and variant, one column a window."""
        columns = by_point(self.evaluation.points, pick, name=partial(_multiple, self.evaluation))
        whole = table(self.rows, columns, name=self.file(name), best="low", of_tokens=True, **fields)
        assert whole is not None  # a source is there because some cell has it
        return whole

    @property
    def perplexities(self) -> Table:
        """With the papers' figures, where the text is the one a comparison is about: those of the same text where they
        are published, else those of CoCA's tables."""
        of_text = paper.yarn_perplexity_rows(self.source, self.evaluation.points)
        theirs = {
            "table 1": paper.table("table1_perplexity"),
            "table 3": paper.by_alpha("ppl"),
            "table 4": paper.table("table4_pi")["ppl"],
        }
        return self.by_window(
            "perplexity",
            _perplexity,
            title="Perplexity by context window [tokens]",
            theirs=of_text or paper_rows(self.evaluation, theirs) if self == main_text(self.evaluation) else (),
            note=AUTHORS_NOTE if of_text else NOTE,
        )

    @property
    def facts(self) -> list[tuple[str, str]]:
        """At the first window that was measured."""
        for cell in self.evaluation.cells:
            if cell.result and (scored := cell.result["sources"].get(self.source)):
                size = f", {scored['n_bytes']:,} bytes" if scored["n_bytes"] else ""
                text = f"{scored['n_documents']} documents, {scored['n_tokens']:,} predictions{size} at {cell.point}"
                return [("text", text), ("stride", f"{cell.result['stride']:,} tokens")]
        return []


def _each_seed(evaluation: Evaluation[ByText]) -> Sections:
    """Return what the rows of the page are means of."""
    text = main_text(evaluation)
    if not most_seeds(evaluation) or not text.source:
        return {}
    known = (f"{model}: {', '.join(each.values())}" for model, each in evaluation.seeds.items())
    shown = text.by_window(
        "perplexity-of-seeds",
        _perplexity,
        title="Perplexity of each seed by context window [tokens]",
        note=f"A row a training. Seeds of {'; '.join(known)}.",
    )
    return {"Each seed": [shown]}


def reach_parts(evaluation: Evaluation[ByText]) -> PartsByRow:
    """Return what is said of the text a comparison is about; seeds apart."""
    within = evaluation.settings.get("holds_within", HOLDS_WITHIN)
    gain = evaluation.settings.get("uses_gain", USES_GAIN)
    nothing = Part("uses", "documents", (), bound=gain)
    return {
        row.name: _parts(row, within, gain) if row.results else [unmeasured(nothing, row.cells.values())]
        for row in main_text(evaluation).rows
    }


def _parts(row: GridRow[OneText], within: float, gain: float) -> list[Part]:
    """Return the parts of a row: `holds` only where a window beyond the training window says something of it."""
    trained, results = row.subject.training_window, {int(point): result for point, result in row.results.items()}
    if trained in results and (why := untrained(results[trained], gain)):
        return [Part("uses", "documents", (), bound=gain, untrained=why)]
    stopped = row.absence_beyond(max(results, default=0))
    held = tuple(holds(n, result["holds"], within) for n, result in results.items() if "holds" in result)
    gains = {int(n): gained for result in results.values() for n, gained in result.get("uses", {}).items()}
    used = tuple(uses(n, gained, gain) for n, gained in sorted(gains.items()))
    asked = [Part("holds", "documents", held, granted=trained, stopped=stopped, bound=within)]
    asked.append(Part("uses", "documents", used, stopped=stopped, bound=gain))
    return [part for part in asked if part.evidence]


def sources_of(evaluation: Evaluation[ByText]) -> list[str]:
    return list(dict.fromkeys(source for cell in evaluation.cells if cell.result for source in cell.result["sources"]))


def main_text(evaluation: Evaluation[ByText]) -> MainText:
    """Return the text a comparison is about: all sources together, or the only one, or the first that every model has
    (long documents are not the same ones for two tokenizers); source "" without any result."""
    every, models = sources_of(evaluation), dict[str, set[str]]()
    for cell in evaluation.cells:
        models.setdefault(cell.subject, set()).update(cell.result["sources"] if cell.result else ())
    known = [sources for sources in models.values() if sources]
    if all(sources == known[0] for sources in known):  # only then is `all` the same texts
        return MainText(evaluation, ALL if ALL in every else next(iter(every), ""))
    common = [source for source in every if source != ALL and all(source in sources for sources in known)]
    return MainText(evaluation, next(iter(common), every[0]))


def perplexity_text(evaluation: Evaluation[ByText]) -> str:
    """Write for a terminal: the finding, the answers, the table of the text a comparison is about, and what was not
    measured; the seeds of a model together."""
    main, shown = main_text(pool_seeds(evaluation)), ""
    if main.source:
        parts = reach_parts(evaluation)
        said, answers = " ".join(finding(main.rows, main.perplexities, judge_rows(evaluation, parts))), ""
        if table := answers_table(evaluation, parts):
            answers = f"{terminal_text(table)}\n"
        shown = f"{said}\n\n{answers}{terminal_text(main.perplexities)}\n"
        shown += f"text: {dict(main.facts)['text']} ({main.source})\n"
    return shown + "".join(f"not measured: {line}\n" for line in main.evaluation.absences())


def _perplexity(result: OneText) -> Value:
    perplexity, low, high = result["perplexity"], result["ci_low"], result["ci_high"]
    if perplexity == math.inf:
        low = high = None
    return _value(result, perplexity, number, low, high, [each["perplexity"] for each in _seeds(result)])


def _bits(result: OneText) -> Value:
    """Return the bits per byte; their interval is the perplexity's, as both grow with the loss."""
    bits, low, high = result["bits_per_byte"], result["ci_low"], result["ci_high"]
    if bits is None:
        return Value.of(None)
    loss = math.log(result["perplexity"])
    if low is None or high is None or not 0 < loss < math.inf:
        low = high = None
    else:
        low, high = (bits * (math.log(end) if end else -math.inf) / loss for end in (low, high))
    return _value(result, bits, "{:.3f}", low, high, [each["bits_per_byte"] or 0.0 for each in _seeds(result)])


def _value(
    result: OneText, figure: float, form: Form, low: float | None, high: float | None, seeds: Sequence[float]
) -> Value:
    spread = Spread.over(seeds, form) if len(seeds) > 1 else None
    return Value.of(figure, form, low=low, high=high, spread=spread, n=result["n_documents"], sample=losses(result))


def _seeds(result: OneText) -> list[OneText]:
    """Return what a pooled result is of."""
    return list(result.get("seeds", {}).values())


def losses(result: OneText) -> Sample:
    """Return what a perplexity is made of, by document: NLL and predictions or, where windows count as much as one
    another, their mean losses and windows."""
    seeds = result.get("seeds") or {"": result}
    sums_SU2 = np.array([each.get("windows_by_document", each["by_document"]) for each in seeds.values()], dtype=float)
    return Sample(sums_SU2=sums_SU2, units=result["predictions"], seeds=tuple(seeds), rounding=ROUNDING)


def _multiple(evaluation: Evaluation[ByText], point: Point) -> str:
    """Write `2,048 (16×)` where all models were trained with one window."""
    windows = {subject.training_window for subject in evaluation.subjects}
    (window,) = windows if len(windows) == 1 else (0,)
    times = f" ({int(point) // window}×)" if window and int(point) % window == 0 else ""
    return f"{int(point):,}{times}"


def number(value: float) -> str:
    """Write a perplexity as people can read it."""
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def perplexity_by_window(main: MainText) -> list[Lines]:
    """Draw all rows in one picture where they are few, else one a variant."""
    rows = main.rows
    pictures = {"": rows}
    if len(rows) > FEW:
        pictures = {"": as_trained(rows)}
        for row in rows:
            if row.variant != row.subject.variants[0]:
                pictures.setdefault(row.variant, []).append(row)
    files, pictures_of = file_names([name for name in pictures if name]), []
    for variant, shown in pictures.items():
        lines = by_length(shown, _perplexity)
        limits = _y_limits(lines)
        pictures_of.append(
            curves(
                lines,
                name=main.file("perplexity-curves") + (f"-{files[variant]}" if variant else ""),
                title="Perplexity by context window" + (f": {variant}" if variant else ""),
                x_label="context window [tokens]",
                y_label="perplexity (lower is better)",
                x_log=True,
                y_log=True,
                y_limits=limits,
                marks=training_windows(main.evaluation),
                note=BEYOND if limits[1] else "",
            )
        )
    return [picture for picture in pictures_of if picture]


def _y_limits(lines: Sequence[Line]) -> tuple[float | None, float | None]:
    """Limit the y axis, so that most of many curves can be told apart; None: where the curves end."""
    ys, last = [y for line in lines for y in line.y], [line.y[-1] for line in lines if line.y]
    if len(last) <= FEW:
        return None, None
    highest = HIGHEST * statistics.median(last)  # may be infinite: then nothing lies above it
    return (min(ys) / MARGIN, highest) if highest < max(ys) else (None, None)


def loss_by_position(
    rows: Sequence[GridRow[OneText]], file: Callable[[str], str], marks: Sequence[tuple[float, str]]
) -> list[Block | str | None]:
    """Draw the loss by position in the longest window of each row; of several models, also minus their median. file:
    the name of a block. marks: of the axis."""
    axis: dict[str, Any] = {"x_label": "position: tokens before the prediction", "x_log": True, "marks": marks}
    levels = _losses(rows if len(rows) <= FEW else as_trained(rows))
    looks = {line.label: index for index, line in enumerate(levels)}  # of a model, the same in both pictures
    compared = [replace(line, look=looks[line.label]) for line in _less_median(_losses(as_trained(rows)))]
    far = any(y > FAR_OFF for line in compared for y in line.y)
    return [
        curves(
            levels,
            name=file("loss-by-position"),
            title="Loss by position in the longest window",
            y_label="loss [nats per token]",
            note="First window of each document only: at one position all models are measured on the same tokens.",
            **axis,
        ),
        curves(
            compared if len(compared) > 1 else (),
            name=file("loss-by-position-compared"),
            title="Loss by position, minus the models' median",
            y_label="loss minus the median [nats per token]",
            y_limits=(None, FAR_OFF if far else None),
            note="The models as they were trained. What all of them share, how hard the documents are, is taken away. "
            "It is most of the intervals above, which say nothing of these differences."
            + (f" {BEYOND}" if far else ""),
            **axis,
        ),
    ]


def _losses(rows: Sequence[GridRow[OneText]]) -> list[Line]:
    """Draw losses with their intervals; of rows that have several seeds, the lowest and the highest of them instead."""
    lines = []
    for row in rows:
        if last := row.last:
            none = [None] * len(last["ends"])
            columns = [bin_middles(last["ends"]), last["loss_by_position"]]
            if len(seeds := [each["loss_by_position"] for each in _seeds(last)]) > 1:
                columns += [none, none, *([end(losses) for losses in zip(*seeds, strict=True)] for end in (min, max))]
            else:
                columns += [last.get("loss_low", none), last.get("loss_high", none)]
            lines.append(Line.through(row.label, zip(*columns, strict=True)))
    return lines


def _less_median(lines: Sequence[Line]) -> list[Line]:
    """Subtract the median at each position: it is over the curves that have it, which are over the very same tokens."""
    by_position: dict[float, list[float]] = {}
    for line in lines:
        for x, y in zip(line.x, line.y, strict=True):
            by_position.setdefault(x, []).append(y)
    median = {x: statistics.median(losses) for x, losses in by_position.items()}
    less = [tuple(y - median[x] for x, y in zip(line.x, line.y, strict=True)) for line in lines]
    alone = {"low": None, "high": None, "least": None, "most": None}
    return [replace(line, y=y, **alone) for line, y in zip(lines, less, strict=True)]
