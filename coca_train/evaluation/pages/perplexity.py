"""The report of suite `perplexity`: tables by window, curves with the training window, bits per byte.

Of many models, one picture has all of them as they were trained, and each variant has a picture of its own.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coca_train.evaluation.measures.positions import middles
from coca_train.evaluation.pages.cells import figure, file_names, not_measured, rows, windows
from coca_train.evaluation.results import ALL, Evaluation, Measured
from coca_train.report import paper
from coca_train.report.blocks import MISSING, Document, Line, Lines, Row, Section, Table, Text, Value
from coca_train.report.render.terminal import terminal_text

DEFINITION = (
    "A document of N + 1 tokens has N predictions. A window of W tokens slides over it by the stride; each window "
    "scores only predictions that no earlier one made, so every prediction counts once at every W: the first window "
    "all of its own, later ones their last `stride`. Positions start at 0 in each window, dynamic frequencies see W. "
    "Perplexity is exp(mean NLL), the NLL in float32 per token and float64 in sum; bits per byte are the same NLL over "
    "the UTF-8 size of the text. Intervals: 95 %, percentile bootstrap over documents."
)

BEYOND = "Curves that leave the picture have their figures in the table."
BANDED = 3  # curves whose intervals can be told apart
FEW = 7  # curves of one picture that need no choice: as many as there are colours
FAR_OFF = 1.0  # [nats per token] above the median: where the picture of differences ends at the latest
MARGIN = 1.05  # factor below the lowest point of such a picture
HIGHEST = 2.0  # times the median of the last points: where the y axis of many curves ends at the latest

Rows = Sequence[tuple[Measured, str]]  # models and variants


def perplexity_page(settings: Any, evaluation: Evaluation, more: Sequence[Section] = ()) -> Document:
    """The document. more: what else there is to see, before what is missing and the definition."""
    sources, main = _sources(evaluation), main_source(evaluation)
    rest = [source for source in sources if source != main]
    sections: list[Section] = []
    if sources:
        sections.append(Section(title=f"Perplexity, {main}", blocks=_blocks(evaluation, main)))
        sections += [
            Section(title=f"Perplexity, {source}", blocks=[perplexity_table(evaluation, source)]) for source in rest
        ]
        sections.append(Section(title="Loss by position", blocks=_positions(evaluation, main)))
    sections += [*more, *not_measured(evaluation)]
    sections.append(Section(title="Definition", blocks=[Text(text=DEFINITION)]))
    return Document(
        title=f"Perplexity by context window: {evaluation.name}",
        summary=_summary(evaluation, main),
        sections=sections,
        facts=[*evaluation.facts, *_facts(evaluation, main)],
        command=evaluation.command,
    )


def _sources(evaluation: Evaluation) -> list[str]:
    return list(dict.fromkeys(source for cell in evaluation.cells for source in cell.result.get("sources", {})))


def main_source(evaluation: Evaluation) -> str:
    """The text a comparison is about: all sources together, or the only one; "" without any result."""
    sources = _sources(evaluation)
    return ALL if ALL in sources else next(iter(sources), "")


def perplexity_text(evaluation: Evaluation) -> str:
    """For a terminal: the table of the text a comparison is about, and what was not measured."""
    source, table = main_source(evaluation), ""
    if source:
        text = dict(_facts(evaluation, source))["text"]
        table = f"{terminal_text(perplexity_table(evaluation, source))}\ntext: {text} ({source})\n"
    return table + "".join(f"not measured: {line}\n" for line in evaluation.absences())


def _file(evaluation: Evaluation, source: str) -> str:
    return file_names(_sources(evaluation))[source]


def result_of(
    evaluation: Evaluation, subject: Measured, variant: str, point: Any, source: str
) -> Mapping[str, Any] | None:
    """What a cell has of one text; None where it has nothing."""
    cell = evaluation.find(subject.name, variant, point)
    return None if cell is None else cell.result.get("sources", {}).get(source)


def perplexity_table(evaluation: Evaluation, source: str) -> Table:
    def value(found: Mapping[str, Any]) -> Value:
        low, high = found["ci_low"], found["ci_high"]
        note = f"95 % interval {number(low)} to {number(high)}" if low is not None else ""
        return Value(number(found["perplexity"]), found["perplexity"], note)

    return _by_window(
        evaluation,
        source,
        f"perplexity-{_file(evaluation, source)}",
        "Perplexity by context window [tokens]",
        value,
        "Lower is better. All our figures of a column are over the same predictions. The paper's are of its own models "
        "(350M class and LLaMA-7B), text (PG-19) and tokens.",
        _theirs(evaluation) if source == main_source(evaluation) else (),
    )


def _theirs(evaluation: Evaluation) -> tuple[Row, ...]:
    """CoCA's tables 1 and 4 at our windows; none where no window is among its lengths."""
    lengths = [point for point in evaluation.points if isinstance(point, int)]
    if not set(lengths) & set(paper.context()):
        return ()
    return tuple(
        row
        for name, series in (
            ("table 1", paper.table("table1_perplexity")),
            ("table 4", paper.table("table4_pi")["ppl"]),
        )
        for row in paper.rows(series, lengths, label=lambda method, name=name: (paper.method(method), f"CoCA, {name}"))
    )


def _bits(evaluation: Evaluation, source: str) -> Table:
    def value(found: Mapping[str, Any]) -> Value:
        bits = found["bits_per_byte"]
        return Value(f"{bits:.3f}", bits) if bits is not None else MISSING

    return _by_window(
        evaluation,
        source,
        f"bits-per-byte-{_file(evaluation, source)}",
        "Bits per byte by context window [tokens]",
        value,
        "Comparable between tokenizers, as perplexity is not.",
    )


def _by_window(
    evaluation: Evaluation,
    source: str,
    name: str,
    title: str,
    value: Callable[[Mapping[str, Any]], Value],
    note: str,
    theirs: tuple[Row, ...] = (),
) -> Table:
    def values(subject: Measured, variant: str) -> tuple[Value, ...]:
        found = {point: result_of(evaluation, subject, variant, point, source) for point in evaluation.points}
        return tuple(
            value(result) if result else figure(evaluation.find(subject.name, variant, point), lambda result: None)
            for point, result in found.items()
        )

    return Table(
        name=name,
        title=title,
        label_columns=("model", "variant"),
        columns=tuple(_multiple(evaluation, point) for point in evaluation.points),
        rows=(*rows(evaluation, values), *theirs),
        best="low",
        note=note,
    )


def _multiple(evaluation: Evaluation, point: Any) -> str:
    """`2,048 (16x)` where all models were trained with one window."""
    windows = {subject.training_window for subject in evaluation.subjects}
    (window,) = windows if len(windows) == 1 else (0,)
    return f"{point:,} ({point // window}x)" if window and point % window == 0 else f"{point:,}"


def _blocks(evaluation: Evaluation, source: str) -> list[Any]:
    file = f"perplexity-curves-{_file(evaluation, source)}"
    tables = [perplexity_table(evaluation, source), _bits(evaluation, source)]
    pictures = [
        _curves(evaluation, source, shown, f"{file}{suffix}", words) for suffix, words, shown in _pictures(evaluation)
    ]
    return [*pictures, *tables]


def _pictures(evaluation: Evaluation) -> list[tuple[str, str, Rows]]:
    """Which curves are seen together: (suffix of the file, words of the title, curves)."""
    rows = evaluation.rows()
    if len(rows) <= FEW:
        return [("", "", rows)]
    variants = list(dict.fromkeys(variant for subject, variant in rows if variant != subject.variants[0]))
    files = file_names(variants)
    return [
        ("", "", trained_rows(evaluation)),
        *((f"-{files[name]}", f": {name}", [row for row in rows if row[1] == name]) for name in variants),
    ]


def trained_rows(evaluation: Evaluation) -> Rows:
    """Every model under its first variant: what it was trained with, unless the grid leaves that out."""
    return [(subject, variant) for subject, variant in evaluation.rows() if variant == subject.variants[0]]


def _curves(evaluation: Evaluation, source: str, shown: Rows, name: str, words: str) -> Lines:
    lines, banded = [], len(shown) <= BANDED
    for subject, variant in shown:
        found = {p: result_of(evaluation, subject, variant, p, source) for p in evaluation.points}
        known = {point: result for point, result in found.items() if result}
        lines.append(
            Line(
                label=evaluation.label(subject, variant),
                x=tuple(float(point) for point in known),
                y=tuple(result["perplexity"] for result in known.values()),
                low=tuple(result["ci_low"] for result in known.values()) if banded else None,
                high=tuple(result["ci_high"] for result in known.values()) if banded else None,
            )
        )
    limits = _limits(lines)
    return Lines(
        name=name,
        title=f"Perplexity by context window{words}",
        alt="Perplexity against context window, one curve a model and variant; the table below has the figures.",
        x_label="context window [tokens]",
        y_label="perplexity (lower is better)",
        lines=tuple(lines),
        x_log=True,
        y_log=True,
        y_limits=limits,
        marks=windows(evaluation),
        note=BEYOND if limits[1] else "",
    )


def _limits(lines: Sequence[Line]) -> tuple[float | None, float | None]:
    """Of the y axis, so that most of many curves can be told apart; None: where the curves end."""
    ys, last = [y for line in lines for y in line.y], [line.y[-1] for line in lines if line.y]
    if len(last) <= FEW:
        return None, None
    highest = HIGHEST * statistics.median(last)  # may be infinite: then nothing lies above it
    return (min(ys) / MARGIN, highest) if highest < max(ys) else (None, None)


def _positions(evaluation: Evaluation, source: str) -> list[Lines]:
    """Loss by position in the longest window of each row; of several models, also less their median."""
    rows, trained = evaluation.rows(), trained_rows(evaluation)
    axis: dict[str, Any] = {
        "x_label": "position: tokens before the prediction",
        "x_log": True,
        "marks": windows(evaluation),
    }
    losses = Lines(
        name=f"loss-by-position-{_file(evaluation, source)}",
        title="Loss by position in the longest window",
        alt="Mean loss against the position of the prediction in its window, one curve a model and variant.",
        y_label="loss [nats per token]",
        lines=tuple(_by_position(evaluation, rows if len(rows) <= FEW else trained, source)),
        note="First window of each document only: at one position all models are measured on the same tokens.",
        **axis,
    )
    compared = _less_median(_by_position(evaluation, trained, source))
    if len(compared) < 2:
        return [losses]
    far = any(y > FAR_OFF for line in compared for y in line.y)
    differences = Lines(
        name=f"loss-by-position-compared-{_file(evaluation, source)}",
        title="Loss by position, less the models' median",
        alt="Mean loss less the median of all models at the same position, one curve a model; below 0 is better.",
        y_label="loss less the median [nats per token]",
        lines=tuple(compared),
        y_limits=(None, FAR_OFF if far else None),
        note="The models as they were trained. What all of them share, how hard the documents are, is taken away.",
        **axis,
    )
    return [losses, differences]


def _by_position(evaluation: Evaluation, rows: Rows, source: str) -> list[Line]:
    lines = []
    for subject, variant in rows:
        results = (result_of(evaluation, subject, variant, point, source) for point in evaluation.points)
        known = [result for result in results if result]
        if known:
            ends, losses = known[-1]["ends"], known[-1]["loss_by_position"]
            lines.append(Line(label=evaluation.label(subject, variant), x=middles(ends), y=tuple(losses)))
    return lines


def _less_median(lines: Sequence[Line]) -> list[Line]:
    """At each position the median is over the curves that have it, which are over the very same tokens."""
    by_place: dict[float, list[float]] = {}
    for line in lines:
        for x, y in zip(line.x, line.y, strict=True):
            by_place.setdefault(x, []).append(y)
    median = {x: statistics.median(losses) for x, losses in by_place.items()}
    return [replace(line, y=tuple(y - median[x] for x, y in zip(line.x, line.y, strict=True))) for line in lines]


def _summary(evaluation: Evaluation, source: str) -> list[str]:
    """How far each model reaches: what its longest window costs, and who is best there."""
    ends: dict[str, tuple[int, int, float, float]] = {}  # shortest and longest window, perplexity there
    for subject, variant in evaluation.rows():
        known = {int(p): f for p in evaluation.points if (f := result_of(evaluation, subject, variant, p, source))}
        if len(known) > 1:
            first, last = min(known), max(known)
            label = evaluation.label(subject, variant)
            ends[label] = first, last, known[first]["perplexity"], known[last]["perplexity"]
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
    for cell in evaluation.cells:
        found = cell.result.get("sources", {}).get(source)
        if found:
            size = f", {found['n_bytes']:,} bytes" if found["n_bytes"] else ""
            text = f"{found['n_documents']} documents, {found['n_tokens']:,} predictions{size} at {cell.point}"
            return [("text", text), ("stride", f"{cell.result['stride']:,} tokens")]
    return []


def number(value: float) -> str:
    """A perplexity people can read."""
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
