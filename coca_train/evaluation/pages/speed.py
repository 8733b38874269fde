"""What there is to see of the speed: time and memory by length, ratios to plain attention."""

from typing import Any

from coca_train.evaluation.pages.cells import Pick, done, figure, line, not_measured
from coca_train.evaluation.results import OWN, Evaluation, Measured
from coca_train.report.blocks import Block, Document, Line, Lines, Row, Section, Table, Text, Value

GIB = 2**30
NAMES = {"prefill": "Prefill", "decode": "Decoding one token", "training": "Training, forward and backward"}
ABOUT = (
    "One sequence. Each model takes turns with twins of its own shape: plain causal attention with rope, and with no "
    "positions (nope). A ratio is the median over turns of the model's time to the twin's within the turn, with the "
    "lowest and the highest in its note. Peak memory is above the weights, the cache of a prefill included."
)


def page(settings: Any, evaluation: Evaluation) -> Document:
    """The document; a length that ran out of memory says so."""
    sections = [
        Section(title="Beside plain attention", blocks=(Text(text=ABOUT), _ratios(settings, evaluation), _theirs()))
    ]
    for work in settings.works:
        blocks: list[Block] = [*_times(evaluation, settings, work), *_memory(evaluation, settings, work)]
        sections.append(Section(title=NAMES[work], blocks=blocks))
    devices = {cell.result["device"]: None for cell in evaluation.cells if cell.status == "done"}
    return Document(
        title=f"Speed and memory: {evaluation.name}",
        summary=_summary(settings, evaluation),
        sections=(*sections, *not_measured(evaluation)),
        facts=(*evaluation.facts, ("timed on", "; ".join(devices))),
        command=evaluation.command,
    )


def _summary(settings: Any, evaluation: Evaluation) -> list[str]:
    """Each row at its longest length, beside the first baseline."""
    found = []
    for subject, variant in evaluation.rows() if settings.baselines else []:
        if cells := done(evaluation, subject, variant):
            point, cell = cells[-1]
            against = settings.baselines[0]
            times = ", ".join(f"{work} {cell.result['ratio'][work][against]['median']:.2f}" for work in settings.works)
            found.append(
                f"{evaluation.label(subject, variant)} at {int(point):,} tokens takes this many times as long as plain "
                f"attention with {against}: {times}."
            )
    return found


def _ratios(settings: Any, evaluation: Evaluation) -> Table:
    def value(subject: Measured, variant: str, point: Any, work: str, against: str) -> Value:
        cell = evaluation.find(subject.name, variant, point)
        shown = figure(cell, lambda result: result["ratio"][work][against]["median"])
        if cell is None or cell.status != "done":
            return shown
        found = cell.result["ratio"][work][against]
        return Value(shown.text, shown.number, note=f"{found['low']:.2f} to {found['high']:.2f}")

    rows = [
        Row(
            label=(subject.name, variant, work, against),
            values=tuple(value(subject, variant, point, work, against) for point in evaluation.points),
        )
        for subject, variant in evaluation.rows()
        for work in settings.works
        for against in settings.baselines
    ]
    return Table(
        name="speed-ratios",
        title="Time, as a multiple of plain attention's",
        label_columns=("model", "variant", "work", "against"),
        columns=tuple(f"{point:,}" for point in evaluation.points),
        rows=tuple(rows),
        note="1 is as fast; below 1 is faster.",
    )


def _theirs() -> Table:
    """What the CoCA paper says of its own implementation (appendix C, figure 7)."""
    said = (Value("1.05 to 1.10"), Value("about 60 GB", 60.0))
    return Table(
        name="speed-paper",
        title="The CoCA paper on its own implementation",
        label_columns=("model",),
        columns=("time, as a multiple of plain attention's", "inference at 32,768 tokens"),
        rows=(Row(label=("CoCA, arXiv 2309.08646, appendix C",), values=said, theirs=True),),
        note="On their machine and with their contraction of O(T²) memory.",
    )


def _curves(evaluation: Evaluation, settings: Any, pick: Any) -> tuple[Line, ...]:
    """Every model and variant, then each model's twins as measured beside its first variant. pick(competitor): Pick."""
    found = [line(evaluation, subject, variant, pick(OWN)) for subject, variant in evaluation.rows()]
    first = {subject.name: (subject, variant) for subject, variant in reversed(evaluation.rows())}
    for subject, variant in reversed(first.values()):
        for against in settings.baselines:
            curve = line(evaluation, subject, variant, pick(against))
            if curve is not None:
                found.append(Line(label=f"{against}, shape of {subject.name}", x=curve.x, y=curve.y))
    return tuple(curve for curve in found if curve is not None)


def _times(evaluation: Evaluation, settings: Any, work: str) -> list[Block]:
    def pick(who: str) -> Pick:
        return lambda result: result["seconds"][work][who]

    lines = _curves(evaluation, settings, pick)
    title = f"{NAMES[work]}: time by length"
    alt = f"Median seconds of {work} against the length, both logarithmic, a curve for each model and its twins."
    return [_lines(f"speed-{work}", title, alt, "median time [s]", lines)] if lines else []


def _memory(evaluation: Evaluation, settings: Any, work: str) -> list[Block]:
    def pick(who: str) -> Pick:
        return lambda result: result["peak"][who][work] / GIB if work in result["peak"][who] else None

    lines = _curves(evaluation, settings, pick)
    title = f"{NAMES[work]}: peak memory by length"
    alt = f"Peak memory of {work} against the length, both logarithmic, a curve for each model and its twins."
    return [_lines(f"memory-{work}", title, alt, "peak memory above the weights [GiB]", lines)] if lines else []


def _lines(name: str, title: str, alt: str, y_label: str, lines: tuple[Line, ...]) -> Lines:
    return Lines(
        name=name, title=title, alt=alt, x_label="length [tokens]", y_label=y_label, lines=lines, x_log=True, y_log=True
    )
