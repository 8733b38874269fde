"""The page of suite `perplexity`, of a finished run and of a comparison: verdicts, curves, tables by context window."""

import math
from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from coca_train.evaluation import differences
from coca_train.evaluation.differences import Compared
from coca_train.evaluation.findings import finding
from coca_train.evaluation.grid_blocks import (
    Pick,
    Sections,
    by_point,
    document,
    file_names,
    papers,
    table,
    training_windows,
)
from coca_train.evaluation.measures.reach import HOLDS_WITHIN, ROUNDING, USES_GAIN, Part, holds, untrained, uses
from coca_train.evaluation.perplexity_curves import perplexity_by_window
from coca_train.evaluation.position_curves import loss_by_position
from coca_train.evaluation.results import ALL, Evaluation, GridRow, Point
from coca_train.evaluation.seeds import apart, pooled, several
from coca_train.evaluation.verdict import Asked, answers_table, judged, unknown, verdicts
from coca_train.report import paper
from coca_train.report.blocks import Block, Document, Form, Lines, Spread, Table, Value
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
CONTEXT = "What the context is good for"  # title of the section with the answers


def page(
    settings: Any, evaluation: Evaluation, more: Sections | None = None, compared: bool = False, pool: bool = True
) -> Document:
    """The document, the seeds of a model as one row. more: what else there is to see, before what is missing and the
    definition. compared: whether it says which models differ, as it does of several seeds. pool: false: a row a
    training; models differ as they do over their seeds."""
    models = main_text(pooled(evaluation))  # what is compared, whatever the rows of the page are
    evaluation = evaluation if pool else apart(evaluation)
    whole, parts = pooled(evaluation), asked(evaluation)
    main, results = main_text(whole), dict[str, list[Block | str | None]]()
    found, first = list[Compared](), list[str]()
    if main.source:
        perplexities, judged_by = main.perplexities, models.perplexities
        first = finding(models.rows, judged_by, judged(evaluation, parts))
        found = differences.compared(models.rows, judged_by) if compared or several(models.evaluation) else []
        bits = main.by_window(
            "bits-per-byte",
            _bits,
            title="Bits per byte by context window [tokens]",
            note="Comparable between tokenizers, as perplexity is not.",
        )
        others = [OneText(whole, source) for source in sources_of(whole) if source != main.source]
        results = {
            f"Perplexity, {main.source}": [*_pictures(main, perplexities), perplexities, bits],
            CONTEXT: [answers_table(evaluation, parts)],
            "Differences between models": [differences.table(found)],
            **{f"Perplexity, {other.source}": [other.perplexities] for other in others},
            "Loss by position": loss_by_position(main.rows, main.file, training_windows(whole)),
        }
    return document(
        whole,
        "Perplexity by context window",
        summary=differences.sentences(found),
        finding=first,
        sections={**results, **(more or {})},
        after={**_each_seed(evaluation), "Definition": [DEFINITION]},
        facts=main.facts,
        verdicts=verdicts(evaluation, parts),
    )


def _pictures(main: "OneText", perplexities: Table) -> list[Lines]:
    """Levels by window, and differences to the first row; these first where levels would hide them."""
    levels = [block for block in perplexity_by_window(main.alone, main.file) if block is not None]
    name = main.file("perplexity-differences")
    found = differences.curves(main.rows, perplexities, name, training_windows(main.evaluation))
    if found is None or not levels:
        return levels
    first, *rest = levels
    first = replace(first, view="Levels", other=found.name)
    found = replace(found, other=first.name)
    return [found, first, *rest] if differences.hidden_by_levels(perplexities) else [first, found, *rest]


@plain_dataclass(frozen=True)
class OneText:
    """What was measured on one text of an evaluation."""

    evaluation: Evaluation
    source: str

    @cached_property
    def alone(self) -> Evaluation:
        """Without the other texts."""
        return self.evaluation.reduced(lambda result: result["sources"].get(self.source, {}))

    @cached_property
    def rows(self) -> list[GridRow]:
        return self.alone.rows()

    def file(self, name: str) -> str:
        """Of a block about this text."""
        return f"{name}-{file_names(sources_of(self.evaluation))[self.source]}"

    def by_window(self, name: str, pick: Pick, **fields: Any) -> Table:
        """One row a model and variant, one column a window."""
        columns = by_point(self.evaluation.points, pick, name=partial(_multiple, self.evaluation))
        whole = table(self.rows, columns, name=self.file(name), best="low", of_tokens=True, **fields)
        assert whole is not None  # a source is there because some cell has it
        return whole

    @property
    def perplexities(self) -> Table:
        """Beside the papers' figures, where the text is the one a comparison is about: those of the same text where
        they are published, else those of CoCA's tables."""
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
            theirs=of_text or papers(self.evaluation, theirs) if self == main_text(self.evaluation) else (),
            note=AUTHORS_NOTE if of_text else NOTE,
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


def _each_seed(evaluation: Evaluation) -> Sections:
    """What the rows of the page are means of."""
    text = main_text(evaluation)
    if not several(evaluation) or not text.source:
        return {}
    known = (f"{model}: {', '.join(each.values())}" for model, each in evaluation.seeds.items())
    shown = text.by_window(
        "perplexity-of-seeds",
        _perplexity,
        title="Perplexity of each seed by context window [tokens]",
        note=f"A row a training. Seeds of {'; '.join(known)}.",
    )
    return {"Each seed": [shown]}


def asked(evaluation: Evaluation) -> Asked:
    """What is said of the text a comparison is about; seeds apart."""
    within = evaluation.settings.get("holds_within", HOLDS_WITHIN)
    gain = evaluation.settings.get("uses_gain", USES_GAIN)
    nothing = Part("uses", "documents", (), bound=gain)
    return {
        row.name: _parts(row, within, gain) if row.results else [unknown(nothing, row.cells.values())]
        for row in main_text(evaluation).rows
    }


def _parts(row: GridRow, within: float, gain: float) -> list[Part]:
    """`holds` only where a window beyond the training window says something of it."""
    known = row.results.get(row.subject.training_window, {})
    if why := untrained(known, gain):
        return [Part("uses", "documents", (), bound=gain, untrained=why)]
    trained, results = row.subject.training_window, {int(point): result for point, result in row.results.items()}
    stopped = row.absence_beyond(max(results, default=0))
    held = tuple(holds(n, result["holds"], within) for n, result in results.items() if "holds" in result)
    gains = {int(n): gain for result in results.values() for n, gain in result.get("uses", {}).items()}
    used = tuple(uses(n, gained, gain) for n, gained in sorted(gains.items()))
    asked = [Part("holds", "documents", held, granted=trained, stopped=stopped, bound=within)]
    asked.append(Part("uses", "documents", used, stopped=stopped, bound=gain))
    return [part for part in asked if part.evidence]


def sources_of(evaluation: Evaluation) -> list[str]:
    return list(dict.fromkeys(source for cell in evaluation.cells for source in cell.result.get("sources", {})))


def main_text(evaluation: Evaluation) -> OneText:
    """The text a comparison is about: all sources together, or the only one, or the first that every model has (long
    documents are not the same ones for two tokenizers); source "" without any result."""
    every, models = sources_of(evaluation), dict[str, set[str]]()
    for cell in evaluation.cells:
        models.setdefault(cell.subject, set()).update(cell.result.get("sources", {}))
    known = [sources for sources in models.values() if sources]
    if all(sources == known[0] for sources in known):  # only then is `all` the same texts
        return OneText(evaluation, ALL if ALL in every else next(iter(every), ""))
    common = [source for source in every if source != ALL and all(source in sources for sources in known)]
    return OneText(evaluation, next(iter(common), every[0]))


def perplexity_text(evaluation: Evaluation) -> str:
    """For a terminal: the finding, the answers, the table of the text a comparison is about, and what was not measured;
    the seeds of a model together."""
    main, shown = main_text(pooled(evaluation)), ""
    if main.source:
        parts = asked(evaluation)
        said, answers = " ".join(finding(main.rows, main.perplexities, judged(evaluation, parts))), ""
        if table := answers_table(evaluation, parts):
            answers = f"{terminal_text(table)}\n"
        shown = f"{said}\n\n{answers}{terminal_text(main.perplexities)}\n"
        shown += f"text: {dict(main.facts)['text']} ({main.source})\n"
    return shown + "".join(f"not measured: {line}\n" for line in main.evaluation.absences())


def _perplexity(result: Mapping[str, Any]) -> Value:
    perplexity, ends = result["perplexity"], (result["ci_low"], result["ci_high"])
    low, high = ends if perplexity < math.inf else (None, None)
    spread, n = _spread(result, "perplexity", number), result["n_documents"]
    return Value.of(perplexity, number, low=low, high=high, spread=spread, n=n, sample=losses(result))


def losses(result: Mapping[str, Any]) -> Sample:
    """What a perplexity is made of, by document: NLL and predictions or, where windows count as much as one another,
    their mean losses and windows. result: of one text."""
    key = "windows_by_document" if "windows_by_document" in result else "by_document"
    seeds = result.get("seeds") or {"": result}
    sums_SU2 = np.array([each[key] for each in seeds.values()], dtype=float)
    return Sample(sums_SU2=sums_SU2, units=result["predictions"], seeds=tuple(seeds), rounding=ROUNDING)


def _spread(result: Mapping[str, Any], key: str, form: Form) -> Spread | None:
    """Over the seeds of a pooled result."""
    figures = [each[key] for each in result.get("seeds", {}).values()]
    return Spread.over(figures, form) if len(figures) > 1 else None


def _bits(result: Mapping[str, Any]) -> Value:
    """Per byte; its interval is the perplexity's, as both grow with the loss."""
    bits, form = result["bits_per_byte"], "{:.3f}"
    if bits is None:
        return Value.of(None)
    loss, low, high = math.log(result["perplexity"]), result["ci_low"], result["ci_high"]
    if low is None or high is None or not 0 < loss < math.inf:
        low = high = None
    else:
        low, high = (bits * (math.log(end) if end else -math.inf) / loss for end in (low, high))
    spread, n = _spread(result, "bits_per_byte", form), result["n_documents"]
    return Value.of(bits, form, low=low, high=high, spread=spread, n=n, sample=losses(result))


def _multiple(evaluation: Evaluation, point: Point) -> str:
    """`2,048 (16×)` where all models were trained with one window."""
    windows = {subject.training_window for subject in evaluation.subjects}
    (window,) = windows if len(windows) == 1 else (0,)
    times = f" ({int(point) // window}×)" if window and int(point) % window == 0 else ""
    return f"{int(point):,}{times}"


def number(value: float) -> str:
    """A perplexity people can read."""
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
