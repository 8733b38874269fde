"""The report of suite `perplexity`: tables by window, curves with the training window, bits per byte."""

from collections.abc import Callable, Mapping
from typing import Any

from coca_train.evaluation.pages.cells import figure, file_names, not_measured, rows, windows
from coca_train.evaluation.results import ALL, Evaluation, Measured
from coca_train.report import paper
from coca_train.report.blocks import MISSING, Document, Line, Lines, Row, Section, Table, Text, Value

DEFINITION = (
    "A document of N + 1 tokens has N predictions. A window of W tokens slides over it by the stride; each window "
    "scores only predictions that no earlier one made, so every prediction counts once at every W: the first window "
    "all of its own, later ones their last `stride`. Positions start at 0 in each window, dynamic frequencies see W. "
    "Perplexity is exp(mean NLL), the NLL in float32 per token and float64 in sum; bits per byte are the same NLL over "
    "the UTF-8 size of the text. Intervals: 95 %, percentile bootstrap over documents."
)

FEW = 3  # curves whose intervals can be told apart


def perplexity_page(settings: Any, evaluation: Evaluation) -> Document:
    sources = _sources(evaluation)
    main = ALL if ALL in sources else next(iter(sources), "")
    rest = [source for source in sources if source != main]
    sections = []
    if sources:
        sections.append(Section(title=f"Perplexity, {main}", blocks=_blocks(evaluation, main)))
        sections += [Section(title=f"Perplexity, {source}", blocks=[_table(evaluation, source)]) for source in rest]
        sections.append(Section(title="Loss by position", blocks=[_positions(evaluation, main)]))
    sections += not_measured(evaluation)
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


def _file(evaluation: Evaluation, source: str) -> str:
    return file_names(_sources(evaluation))[source]


def _found(
    evaluation: Evaluation, subject: Measured, variant: str, point: Any, source: str
) -> Mapping[str, Any] | None:
    cell = evaluation.find(subject.name, variant, point)
    return None if cell is None else cell.result.get("sources", {}).get(source)


def _table(evaluation: Evaluation, source: str) -> Table:
    def value(found: Mapping[str, Any]) -> Value:
        low, high = found["ci_low"], found["ci_high"]
        note = f"95 % interval {_number(low)} to {_number(high)}" if low is not None else ""
        return Value(_number(found["perplexity"]), found["perplexity"], note)

    return _by_window(
        evaluation,
        source,
        f"perplexity-{_file(evaluation, source)}",
        "Perplexity by context window [tokens]",
        value,
        "Lower is better. All our figures of a column are over the same predictions. The paper's are of its own models "
        "(350M class and LLaMA-7B), text (PG-19) and tokens.",
        _theirs(evaluation),
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
        found = {point: _found(evaluation, subject, variant, point, source) for point in evaluation.points}
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
    return [_curves(evaluation, source), _table(evaluation, source), _bits(evaluation, source)]


def _curves(evaluation: Evaluation, source: str) -> Lines:
    lines, banded = [], len(evaluation.rows()) <= FEW
    for subject, variant in evaluation.rows():
        found = {p: _found(evaluation, subject, variant, p, source) for p in evaluation.points}
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
    return Lines(
        name=f"perplexity-curves-{_file(evaluation, source)}",
        title="Perplexity by context window",
        alt="Perplexity against context window, one curve a model and variant; the table below has the figures.",
        x_label="context window [tokens]",
        y_label="perplexity (lower is better)",
        lines=tuple(lines),
        x_log=True,
        y_log=True,
        marks=windows(evaluation),
    )


def _positions(evaluation: Evaluation, source: str) -> Lines:
    """Loss by position in the longest window of each row."""
    lines = []
    for subject, variant in evaluation.rows():
        measured = [p for p in evaluation.points if _found(evaluation, subject, variant, p, source)]
        if not measured:
            continue
        found = _found(evaluation, subject, variant, measured[-1], source)
        assert found is not None
        ends = found["ends"]
        middles = [((before + 1) * end) ** 0.5 for before, end in zip([0, *ends[:-1]], ends, strict=True)]
        label = evaluation.label(subject, variant)
        lines.append(Line(label=label, x=tuple(middles), y=tuple(found["loss_by_position"])))
    return Lines(
        name=f"loss-by-position-{_file(evaluation, source)}",
        title="Loss by position in the longest window",
        alt="Mean loss against the position of the prediction in its window, one curve a model and variant.",
        x_label="position: tokens before the prediction",
        y_label="loss [nats per token]",
        lines=tuple(lines),
        x_log=True,
        marks=windows(evaluation),
        note="First window of each document only: at one position all models are measured on the same tokens.",
    )


def _summary(evaluation: Evaluation, source: str) -> list[str]:
    """How far each model reaches: what its longest window costs, and who is best there."""
    ends: dict[str, tuple[int, int, float, float]] = {}  # shortest and longest window, perplexity there
    for subject, variant in evaluation.rows():
        known = {int(p): f for p in evaluation.points if (f := _found(evaluation, subject, variant, p, source))}
        if len(known) > 1:
            first, last = min(known), max(known)
            label = evaluation.label(subject, variant)
            ends[label] = first, last, known[first]["perplexity"], known[last]["perplexity"]
    if not ends:
        return []
    if len(ends) == 1:
        ((label, (first, last, begin, end)),) = ends.items()
        return [
            f"{label}: perplexity {_number(begin)} in windows of {first:,} tokens, {_number(end)} in windows of "
            f"{last:,}, {end / begin:.2f} times as much."
        ]
    farthest = max(last for _, last, _, _ in ends.values())
    there = {label: (end, end / begin) for label, (_, last, begin, end) in ends.items() if last == farthest}
    best, kept = (min(there, key=lambda label: there[label][i]) for i in (0, 1))
    return [
        f"In windows of {farthest:,} tokens {best} predicts best: perplexity {_number(there[best][0])}.",
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


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
