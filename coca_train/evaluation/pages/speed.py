"""What there is to see of the speed: time and memory by length, ratios to plain attention."""

from collections.abc import Callable, Mapping
from typing import Any

from coca_train.evaluation.pages.grid_blocks import curves, document, figures, heading
from coca_train.evaluation.results import OWN, Evaluation, GridRow
from coca_train.report.blocks import Document, Line, Lines, Row, Table, Value

GIB = 2**30
NAMES = {"prefill": "Prefill", "decode": "Decoding one token", "training": "Training, forward and backward"}
ABOUT = (
    "One sequence. Each model takes turns with twins of its own shape: plain causal attention with rope, and with no "
    "positions (nope). A ratio is the median over turns of the model's time to the twin's within the turn, with the "
    "lowest and the highest in its note. Peak memory is above the weights, the cache of a prefill included."
)
THEIRS = Table(
    name="speed-paper",
    title="The CoCA paper on its own implementation",
    label_columns=("model",),
    columns=("time, as a multiple of plain attention's", "inference at 32,768 tokens"),
    rows=(
        Row(
            label=("CoCA, arXiv 2309.08646, appendix C",),  # and figure 7
            values=(Value("1.05 to 1.10"), Value("about 60 GB", 60.0)),
            theirs=True,
        ),
    ),
    note="On their machine and with their contraction of O(T²) memory.",
)


def page(settings: Any, evaluation: Evaluation) -> Document:
    """The document; a length that ran out of memory says so."""
    rows, baselines = evaluation.rows(), settings.baselines

    def drawn(work: str, quantity: str, words: str, y_label: str, number: Callable[..., float | None]) -> Lines | None:
        return curves(
            _with_twins(rows, baselines, number),
            name=f"{quantity}-{work}",
            title=f"{NAMES[work]}: {words} by length",
            alt=f"{words.capitalize()} of {work} against the length, both logarithmic, a curve for each model and its "
            "twins.",
            x_label="length [tokens]",
            y_label=y_label,
            x_log=True,
            y_log=True,
        )

    works = {
        NAMES[work]: [
            drawn(work, "speed", "time", "median time [s]", lambda r, who, work=work: r["seconds"][work][who]),
            drawn(
                work,
                "memory",
                "peak memory",
                "peak memory above the weights [GiB]",
                lambda r, who, work=work: r["peak"][who][work] / GIB if work in r["peak"][who] else None,
            ),
        ]
        for work in settings.works
    }
    devices = dict.fromkeys(cell.result["device"] for cell in evaluation.cells if cell.result)
    return document(
        evaluation,
        "Speed and memory",
        summary=[_sentence(row, settings.works, baselines[0]) for row in rows if baselines and row.results],
        sections={"Beside plain attention": [ABOUT, _ratios(settings, evaluation), THEIRS], **works},
        facts=[("timed on", "; ".join(devices))],
    )


def _sentence(row: GridRow, works: list[str], baseline: str) -> str:
    times = ", ".join(f"{work} {row.last['ratio'][work][baseline]['median']:.2f}" for work in works)
    return (
        f"{row.label} at {max(map(int, row.results)):,} tokens takes this many times as long as plain attention with "
        f"{baseline}: {times}."
    )


def _ratios(settings: Any, evaluation: Evaluation) -> Table:
    def value(result: Mapping[str, Any], work: str, baseline: str) -> Value:
        ratio = result["ratio"][work][baseline]
        return Value(f"{ratio['median']:.2f}", ratio["median"], f"{ratio['low']:.2f} to {ratio['high']:.2f}")

    return Table(
        name="speed-ratios",
        title="Time, as a multiple of plain attention's",
        label_columns=("model", "variant", "work", "against"),
        columns=tuple(map(heading, evaluation.points)),
        rows=tuple(
            Row(
                label=(*row.name, work, baseline),
                values=figures(row, evaluation.points, lambda r, key=(work, baseline): value(r, *key)),
            )
            for row in evaluation.rows()
            for work in settings.works
            for baseline in settings.baselines
        ),
        note="1 is as fast; below 1 is faster.",
    )


def _with_twins(rows: list[GridRow], baselines: list[str], number: Callable[..., float | None]) -> list[Line]:
    """Every model and variant, then each model's twins as measured beside its first variant.

    number(result, competitor): what is drawn; None where it was not measured.
    """

    def line(row: GridRow, label: str, who: str) -> Line:
        return Line.through(label, ((int(point), number(result, who)) for point, result in row.results.items()))

    first = {row.subject.name: row for row in reversed(rows)}  # twins are the same under every variant
    twins = [line(first[name], f"{who}, shape of {name}", who) for name in reversed(first) for who in baselines]
    return [*(line(row, row.label, OWN) for row in rows), *twins]
