"""Suite `perplexity`: how well long documents are predicted, by context window (definition: measures/windows.py).

document_tokens says which predictions a window is measured on:
* longest: every document is cut to the longest window of the grid, so all windows score the very same predictions
  (CoCA paper 4.2, tables 1 and 4: documents cut to 32 768, stride 512);
* window: every document is cut to the window itself, one window a document (YaRN, tables 1 and 2: "truncated at");
* whole: nothing is cut, and a document counts when it is at least min_document_tokens long (YaRN, table 4).
A document cut to n has n + 1 tokens where it has that many, so that it has n predictions. Where nothing depends on
the window's length, the longest window's cell measures the others on the way, and theirs take no time.

At each point: perplexity and its 95 % interval (bootstrap over documents), bits per token and per byte, predictions,
and the loss by position of each document's first window (measures/windows.py). And by document, what the verdict is
made of (measures/reach.py):
* `uses`: the last eighth of each window, side by side over a document, once with the whole window before it and once
  with five eighths of it, so that a prediction has 7/8 to all of the window or 1/2 to 5/8 of it: NLL with less context
  less NLL with more;
* `holds`: of predictions with more than a training window before them, NLL in these windows less NLL in windows of the
  training length. Not where every window scores texts of its own.
"""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from dataclasses import dataclass as plain_dataclass
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.grid_blocks import (
    Pick,
    Sections,
    by_length,
    by_point,
    curves,
    document,
    file_names,
    table,
    training_windows,
)
from coca_train.evaluation.measures.perplexity import Scores, score_share, summarise
from coca_train.evaluation.measures.reach import HOLDS_WITHIN, Part, holds, uses
from coca_train.evaluation.measures.windows import (
    Windowing,
    bin_ends,
    means,
    middles,
    missing_positions,
    passes,
    same_at,
)
from coca_train.evaluation.results import ALL, Evaluation, GridRow, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.texts import Library, Texts, digest
from coca_train.evaluation.verdict import Asked, verdicts
from coca_train.report import paper
from coca_train.report.blocks import Block, Document, Line, Lines, Table, Value
from coca_train.report.render.plain import terminal_text

VERSION = 2
SHARES = True
AXIS = ("holds_within",)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Perplexity of long documents by context window."""

    suite: Literal["perplexity"]
    stride: Positive | None = Field(
        description="tokens between the beginnings of two windows; CoCA paper 512, YaRN 256; null: the training "
        "window. A window that is shorter takes its own length"
    )
    document_tokens: Literal["longest", "window", "whole"] = Field(
        description="what is scored: documents cut to the longest window of the grid, to each window, or whole"
    )
    min_document_tokens: Positive | None = Field(
        description="shorter documents are left out [tokens]; null: the longest window of the grid "
        "that any document fills"
    )
    bootstrap_resamples: Positive = Field(description="draws of the 95 % interval over documents")
    holds_within: Annotated[float, Field(gt=0, le=1)] = Field(
        description="a window holds when the loss of the same predictions is surely at most this much above that in "
        "windows of the training length [nats per token]"
    )


Sums = dict[str, list[Any]]  # by source: `Scores` as plain lists


@plain_dataclass(frozen=True)
class Material:
    """What one model reads: documents of at least the longest window, windows of the grid and stride [tokens].

    shared: by variant and row, this rank's sums of what was measured for another cell too. fresh: those of
    the present cell; they are shared only when all ranks have succeeded (`combine`). A rank without them would measure
    the window anew, and shares of different passes do not add up to the whole. sizes: by cut, see n_bytes.
    """

    settings: Settings
    texts: Texts
    windows: tuple[int, ...]
    training_window: int
    stride: int
    seed: int
    shared: dict[tuple[Any, Windowing], Sums] = field(default_factory=dict)
    fresh: dict[tuple[Any, Windowing], Sums] = field(default_factory=dict)
    sizes: dict[int | None, dict[str, int]] = field(default_factory=dict)

    def row(self, window: int) -> Windowing:
        """How documents are read in this window."""
        cut = {"longest": self.windows[-1], "window": window, "whole": None}[self.settings.document_tokens]
        return Windowing(window, min(self.stride, window), cut)

    def read_for(self, window: int) -> dict[str, Windowing]:
        """What its cell reads: the windows themselves (own); what they are compared with (training), where the same
        predictions are scored; and the ends of windows with more and with less before them."""
        own, eighth = self.row(window), window // 8
        rows = {"own": own}
        if self.settings.document_tokens != "window" and window > self.training_window:
            rows["training"] = self.row(self.training_window)
        if eighth:
            rows["more"] = Windowing(window, window, own.cut, eighth)
            rows["less"] = Windowing(window // 2 + eighth, window, own.cut, eighth, window - window // 2 - eighth)
        return rows

    def read_up_to(self, window: int) -> list[Windowing]:
        """What cells up to this window read, the longest windows first."""
        rows = {row for each in self.windows if each <= window for row in self.read_for(each).values()}
        return sorted(rows, key=lambda row: (-row.window, row.ends or 0))

    def documents(self, window: int) -> dict[str, list[np.ndarray]]:
        """What is scored in this window, by source."""
        cut = self.row(window).cut
        end = None if cut is None else cut + 1
        return {source: [d[:end] for d in documents] for source, documents in self.texts.documents.items()}

    def n_bytes(self, window: int) -> dict[str, int]:
        """Size in UTF-8 of what is scored in this window, by source [bytes]; windows with one cut share it."""
        cut = self.row(window).cut
        if cut not in self.sizes:
            texts = self.documents(window).items()
            self.sizes[cut] = {source: sum(self.texts.n_bytes(d[1:]) for d in documents) for source, documents in texts}
        return self.sizes[cut]


def prepare(settings: Settings, subject: Subject, setup: Setup) -> Material:
    windows = sorted(point for point in setup.points if isinstance(point, int))
    library = Library(subject, setup)
    if settings.min_document_tokens is None:
        windows = [window for window in windows if window <= library.longest] or windows[:1]
        texts = library.choose(windows[-1])
    else:
        texts = library.choose(settings.min_document_tokens, "eval.min_document_tokens")
    trained = subject.training_window
    return Material(settings, texts, tuple(windows), trained, settings.stride or trained, setup.seed)


def work(settings: Settings, subject: Subject, points: Sequence[int], material: Material) -> list[float]:
    """[tokens] that are read for each window and, on the way, for shorter ones."""
    costs, known = [], set[Windowing]()
    for point in points:
        rounds = _rounds(subject, point, material, known)
        costs.append(float(sum(_tokens_read(material, rows) for rows in rounds)))
        known.update(*rounds)
    return costs


def fingerprint(material: Material, point: int) -> str:
    return f"{digest(material.documents(point))} stride {material.row(point).stride}"


def impossible(settings: Settings, subject: Subject, point: int, material: Material) -> str:
    if point > material.windows[-1]:
        return f"no document has {point:,} tokens"
    problem = missing_positions(subject.model, point)
    return f"{problem}, and these windows need more" if problem else ""


def measure(settings: Settings, subject: Subject, point: int, material: Material, setup: Setup) -> dict[str, Sums]:
    """By what is read for it, see Material.read_for."""
    model = subject.model
    variant = (model.position.settings, model.visibility.settings, model.config.logit_scale)
    material.fresh.clear()  # of the cell before: if some rank ran out of memory in it, nothing of it may be shared
    known = {row: sums for (of, row), sums in material.shared.items() if of == variant}
    rounds, done = _rounds(subject, point, material, known), 0
    total = sum(_tokens_read(material, rows) for rows in rounds)

    def read(n_tokens: int) -> None:
        nonlocal done
        done += n_tokens
        setup.progress(done / total)

    for rows in rounds:
        sums: dict[Windowing, Sums] = {row: {} for row in rows}
        for source, documents in material.texts.documents.items():
            edges = (material.training_window,)
            scored = score_share(model, documents, rows, setup.micro_batch_tokens, read, edges)
            for row, scores in zip(rows, scored, strict=True):
                sums[row][source] = [part.tolist() for part in scores]
        known |= sums
        material.fresh.update({(variant, row): each for row, each in sums.items()})
    return {name: known[row] for name, row in material.read_for(point).items()}


def _rounds(subject: Subject, point: int, material: Material, known: Collection[Windowing]) -> list[list[Windowing]]:
    """What is read for a cell when this is known: rows that share passes together, the cell's and those of others."""
    rounds, seen, every = list[list[Windowing]](), set(known), material.read_up_to(point)
    for wanted in sorted(material.read_for(point).values(), key=every.index):
        if wanted not in seen:
            shorter = [row for row in every if row.window <= wanted.window and row not in seen]
            rounds.append([row for row in shorter if same_at(subject.model, wanted.window, row.window)])
            seen.update(rounds[-1])
    return rounds


def _tokens_read(material: Material, rows: Sequence[Windowing]) -> int:
    return sum(
        each.length
        for documents in material.texts.documents.values()
        for each in passes([len(document) - 1 for document in documents], rows)
    )


def combine(
    settings: Settings, point: int, material: Material, parts: Sequence[Mapping[str, Mapping[str, Any]]]
) -> dict[str, Any]:
    """By source, and all together: the fields of `Perplexity`, the loss by position, and by document what the verdict
    is made of; and the stride."""
    material.shared.update(material.fresh)  # no rank ran out of memory, so all have their share
    size = dict(material.n_bytes(point))
    read = {name: _whole([part[name] for part in parts], size) for name in material.read_for(point)}
    if ALL in read["own"]:
        size[ALL] = sum(size.values())
    sources = {}
    for source, scores in read["own"].items():
        summary = summarise(scores.documents, size[source], material.seed, settings.bootstrap_resamples)
        curve = {"ends": bin_ends(point).tolist(), "loss_by_position": means(scores.positions).tolist()}
        sources[source] = asdict(summary) | curve
        if "more" in read:
            less, more = (read[name][source].documents for name in ("less", "more"))
            sources[source]["uses"] = _excess(less, more)
        if "training" in read:
            here, there = (each[source].bands[:, 1] for each in (read["own"], read["training"]))
            sources[source]["holds"] = _excess(here, there)
    return {"stride": material.row(point).stride, "sources": sources}


def _excess(one_D2: np.ndarray, other_D2: np.ndarray) -> list[list[float]]:
    """NLL [nats] of one less that of the other, and predictions, of each document that has some."""
    sums_D2 = np.stack((one_D2[:, 0] - other_D2[:, 0], one_D2[:, 1]), 1)
    return sums_D2[sums_D2[:, 1] > 0].tolist()


def _whole(parts: Sequence[Mapping[str, Any]], sources: Iterable[str]) -> dict[str, Scores]:
    """All ranks' shares of one window, by source; and of several all together."""
    whole = {
        source: Scores(*(np.sum([part[source][i] for part in parts], axis=0) for i in (0, 1))) for source in sources
    }
    if len(whole) > 1:
        bands, positions = zip(*whole.values(), strict=True)
        whole[ALL] = Scores(np.concatenate(bands), np.sum(positions, axis=0))
    return whole


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


def page(settings: Settings | None, evaluation: Evaluation, more: Sections | None = None) -> Document:
    """The document. more: what else there is to see, before what is missing and the definition."""
    main = main_text(evaluation)
    results: Sections = {}
    if main.source:
        bits = main.by_window(
            "bits-per-byte",
            lambda result: Value.of(result["bits_per_byte"], "{:.3f}"),
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
            theirs=paper.beside(theirs, self.evaluation.points) if self == main_text(self.evaluation) else (),
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
    used = tuple(uses(n, result["uses"]) for n, result in results.items() if "uses" in result)
    asked = [Part("holds", "documents", held, granted=trained), Part("uses", "documents", used)]
    return [part for part in asked if part.evidence]


def sources_of(evaluation: Evaluation) -> list[str]:
    return list(dict.fromkeys(source for cell in evaluation.cells for source in cell.result.get("sources", {})))


def main_text(evaluation: Evaluation) -> OneText:
    """The text a comparison is about: all sources together, or the only one; source "" without any result."""
    every = sources_of(evaluation)
    return OneText(evaluation, ALL if ALL in every else next(iter(every), ""))


def perplexity_text(evaluation: Evaluation) -> str:
    """For a terminal: the table of the text a comparison is about, and what was not measured."""
    main, shown = main_text(evaluation), ""
    if main.source:
        shown = f"{terminal_text(main.perplexities)}\ntext: {dict(main.facts)['text']} ({main.source})\n"
    return shown + "".join(f"not measured: {line}\n" for line in evaluation.absences())


def _perplexity(result: Mapping[str, Any]) -> Value:
    low, high = result["ci_low"], result["ci_high"]
    note = f"95 % interval {number(low)} to {number(high)}" if low is not None else ""
    return Value(number(result["perplexity"]), result["perplexity"], note)


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
    keys = ("perplexity", "ci_low", "ci_high")[: 3 if len(rows) <= BANDED else 1]
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


def number(value: float) -> str:
    """A perplexity people can read."""
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
