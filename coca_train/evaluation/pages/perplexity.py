"""The report of suite `perplexity`: tables by window, curves with the training window, bits per byte.

Of many models, one picture has all of them as they were trained, and each variant has a picture of its own.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coca_train.evaluation.measures.position_bins import middles
from coca_train.evaluation.pages.grid_blocks import (
    Pick,
    Sections,
    curves,
    document,
    figure,
    file_names,
    table,
    training_windows,
)
from coca_train.evaluation.results import ALL, Evaluation, GridRow, Point
from coca_train.report import paper
from coca_train.report.blocks import MISSING, Block, Document, Line, Lines, Table, Value
from coca_train.report.render.terminal import terminal_text

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
BANDED = 3  # curves whose intervals can be told apart
FEW = 7  # curves of one picture that need no choice: as many as there are colours
FAR_OFF = 1.0  # [nats per token] above the median: where the picture of differences ends at the latest
MARGIN = 1.05  # factor below the lowest point of such a picture
HIGHEST = 2.0  # times the median of the last points: where the y axis of many curves ends at the latest


def page(settings: Any, evaluation: Evaluation, more: Sections | None = None) -> Document:
    """The document. more: what else there is to see, before what is missing and the definition."""
    main = main_source(evaluation)
    return document(
        evaluation,
        "Perplexity by context window",
        summary=_summary(of_source(evaluation, main).rows()),
        sections={**(_results(evaluation, main) if main else {}), **(more or {})},
        after={"Definition": [DEFINITION]},
        facts=_facts(evaluation, main),
    )


def _results(evaluation: Evaluation, main: str) -> Sections:
    bits = _by_window(
        evaluation,
        main,
        "bits-per-byte",
        _bits,
        title="Bits per byte by context window [tokens]",
        note="Comparable between tokenizers, as perplexity is not.",
    )
    return {
        f"Perplexity, {main}": [*_curves(evaluation, main), perplexity_table(evaluation, main), bits],
        **{
            f"Perplexity, {source}": [perplexity_table(evaluation, source)]
            for source in _sources(evaluation)
            if source != main
        },
        "Loss by position": _by_position(evaluation, main),
    }


def _sources(evaluation: Evaluation) -> list[str]:
    return list(dict.fromkeys(source for cell in evaluation.cells for source in cell.result.get("sources", {})))


def main_source(evaluation: Evaluation) -> str:
    """The text a comparison is about: all sources together, or the only one; "" without any result."""
    sources = _sources(evaluation)
    return ALL if ALL in sources else next(iter(sources), "")


def of_source(evaluation: Evaluation, source: str) -> Evaluation:
    """With what was measured on one text as the results."""
    return evaluation.reduced(lambda result: result["sources"].get(source, {}))


def perplexity_text(evaluation: Evaluation) -> str:
    """For a terminal: the table of the text a comparison is about, and what was not measured."""
    source, shown = main_source(evaluation), ""
    if source:
        text = dict(_facts(evaluation, source))["text"]
        shown = f"{terminal_text(perplexity_table(evaluation, source))}\ntext: {text} ({source})\n"
    return shown + "".join(f"not measured: {line}\n" for line in evaluation.absences())


def _file(evaluation: Evaluation, name: str, source: str) -> str:
    return f"{name}-{file_names(_sources(evaluation))[source]}"


def perplexity_table(evaluation: Evaluation, source: str) -> Table:
    theirs = {"table 1": paper.table("table1_perplexity"), "table 4": paper.table("table4_pi")["ppl"]}
    return _by_window(
        evaluation,
        source,
        "perplexity",
        _perplexity,
        title="Perplexity by context window [tokens]",
        theirs=paper.beside(theirs, evaluation.points) if source == main_source(evaluation) else (),
        note=NOTE,
    )


def _by_window(evaluation: Evaluation, source: str, name: str, pick: Pick, **fields: Any) -> Table:
    columns = {
        _multiple(evaluation, point): lambda row, point=point: figure(row.cells.get(point), pick)
        for point in evaluation.points
    }
    rows = of_source(evaluation, source).rows()
    whole = table(rows, columns, name=_file(evaluation, name, source), best="low", **fields)
    assert whole is not None  # a source is there because some cell has it
    return whole


def _perplexity(result: Mapping[str, Any]) -> Value:
    low, high = result["ci_low"], result["ci_high"]
    note = f"95 % interval {number(low)} to {number(high)}" if low is not None else ""
    return Value(number(result["perplexity"]), result["perplexity"], note)


def _bits(result: Mapping[str, Any]) -> Value:
    bits = result["bits_per_byte"]
    return Value(f"{bits:.3f}", bits) if bits is not None else MISSING


def _multiple(evaluation: Evaluation, point: Point) -> str:
    """`2,048 (16x)` where all models were trained with one window."""
    windows = {subject.training_window for subject in evaluation.subjects}
    (window,) = windows if len(windows) == 1 else (0,)
    times = f" ({int(point) // window}x)" if window and int(point) % window == 0 else ""
    return f"{int(point):,}{times}"


def _curves(evaluation: Evaluation, source: str) -> list[Lines | None]:
    """Perplexity by window: all rows in one picture where they are few, else one a variant."""
    rows = of_source(evaluation, source).rows()
    pictures = {"": rows}
    if len(rows) > FEW:
        pictures = {"": _trained(rows)}
        for row in rows:
            if row.variant != row.subject.variants[0]:
                pictures.setdefault(row.variant, []).append(row)
    files = {"": "", **{name: f"-{file}" for name, file in file_names([name for name in pictures if name]).items()}}
    name = _file(evaluation, "perplexity-curves", source)
    return [
        _picture(evaluation, shown, f"{name}{files[variant]}", f": {variant}" if variant else "")
        for variant, shown in pictures.items()
    ]


def _trained(rows: Sequence[GridRow]) -> list[GridRow]:
    """Every model under its first variant: what it was trained with, unless the grid leaves that out."""
    return [row for row in rows if row.variant == row.subject.variants[0]]


def _picture(evaluation: Evaluation, rows: Sequence[GridRow], name: str, words: str) -> Lines | None:
    keys = ("perplexity", "ci_low", "ci_high")[: 3 if len(rows) <= BANDED else 1]
    lines = [
        Line.through(row.label, ((int(point), *(result[key] for key in keys)) for point, result in row.results.items()))
        for row in rows
    ]
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


def _by_position(evaluation: Evaluation, source: str) -> list[Block | str | None]:
    """Loss by position in the longest window of each row; of several models, also less their median."""
    rows = of_source(evaluation, source).rows()
    axis: dict[str, Any] = {
        "x_label": "position: tokens before the prediction",
        "x_log": True,
        "marks": training_windows(evaluation),
    }
    compared = _less_median(_losses(_trained(rows)))
    far = any(y > FAR_OFF for line in compared for y in line.y)
    return [
        curves(
            _losses(rows if len(rows) <= FEW else _trained(rows)),
            name=_file(evaluation, "loss-by-position", source),
            title="Loss by position in the longest window",
            alt="Mean loss against the position of the prediction in its window, one curve a model and variant.",
            y_label="loss [nats per token]",
            note="First window of each document only: at one position all models are measured on the same tokens.",
            **axis,
        ),
        curves(
            compared if len(compared) > 1 else (),
            name=_file(evaluation, "loss-by-position-compared", source),
            title="Loss by position, less the models' median",
            alt="Mean loss less the median of all models at the same position, one curve a model; below 0 is better.",
            y_label="loss less the median [nats per token]",
            y_limits=(None, FAR_OFF if far else None),
            note="The models as they were trained. What all of them share, how hard the documents are, is taken away.",
            **axis,
        ),
    ]


def _losses(rows: Sequence[GridRow]) -> list[Line]:
    return [
        Line.through(row.label, zip(middles(row.last["ends"]), row.last["loss_by_position"], strict=True))
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
    return [replace(line, y=tuple(y - median[x] for x, y in zip(line.x, line.y, strict=True))) for line in lines]


def _summary(rows: Sequence[GridRow]) -> list[str]:
    """How far each model reaches: what its longest window costs, and who is best there."""
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
    there = {label: (end, end / begin) for label, (_, last, begin, end) in ends.items() if last == farthest}
    best, kept = (min(there, key=lambda label: there[label][i]) for i in (0, 1))
    return [
        f"In windows of {farthest:,} tokens {best} predicts best: perplexity {number(there[best][0])}.",
        f"From the shortest window to {farthest:,} tokens {kept} loses least: "
        f"{there[kept][1]:.2f} times its perplexity.",
    ]


def _facts(evaluation: Evaluation, source: str) -> list[tuple[str, str]]:
    """Of the text, at the first window that was measured on it."""
    for cell in evaluation.cells:
        if scored := cell.result.get("sources", {}).get(source):
            size = f", {scored['n_bytes']:,} bytes" if scored["n_bytes"] else ""
            text = f"{scored['n_documents']} documents, {scored['n_tokens']:,} predictions{size} at {cell.point}"
            return [("text", text), ("stride", f"{cell.result['stride']:,} tokens")]
    return []


def number(value: float) -> str:
    """A perplexity people can read."""
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
