"""Suite `perplexity`: how well long documents are predicted, by context window (definition: measures/windows.py).

document_tokens says which predictions a window is measured on:
* longest: every document is cut to the longest window of the grid, so all windows score the very same predictions
  (CoCA paper 4.2, tables 1 and 4: documents cut to 32 768, stride 512);
* window: every document is cut to the window itself, one window a document (YaRN, tables 1 and 2: "truncated at");
* whole: nothing is cut, and a document counts when it is at least min_document_tokens long (YaRN, table 4).
A document cut to n has n + 1 tokens where it has that many, so that it has n predictions.

What papers do otherwise: weighting=windows takes the mean of each window's mean loss, so that a first window of W
predictions counts as much as a later one of `stride`; window_counts=tokens says that a window of W tokens predicts the
W - 1 after its first; begin_windows=true has the token that begins a text in front of every window, in place of the
token that is there (YaRN's eval/perplexity.py does all three).

last=256 scores the last 256 predictions of one window a document, cut to the window itself (YaRN, appendix B.3): at W =
256, 512 ... consecutive blocks of the document, each read with all that precedes it, by frequencies that know no more.

At each point: perplexity and its 95 % interval (bootstrap over documents), bits per token and per byte, predictions,
and the loss by position of each document's first window (measures/windows.py). `by_document`, its NLL and predictions,
is what models are compared by (findings.py) where `predictions`, a digest of the tokens scored, is the same. And by
document, what the verdict is made of (verdict.py):
* `uses`, by length: the last eighth of each window, side by side over a document, once with the whole window before it
  and once with five eighths of it, so that a prediction has 7/8 to all of the length before it or 1/2 to 5/8 of it: NLL
  with less context less NLL with more. The training window's cell asks it of a quarter and half of that length too;
* `holds`: of predictions with more than a training window before them, NLL in these windows less NLL in windows of the
  training length that slide by an eighth of it. Side by side they would show a prediction half a window on average,
  and longer windows would be forgiven what that costs. Not where every window scores texts of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation import perplexity_page
from coca_train.evaluation.measures.perplexity import (
    ByText,
    OneText,
    Scores,
    intervals,
    score_share,
    summarise,
    weigh_windows,
)
from coca_train.evaluation.measures.windows import (
    Windowing,
    bin_ends,
    equal,
    means,
    missing_positions,
    plan_passes,
    tables_at,
)
from coca_train.evaluation.results import ALL, Evaluation, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suite import CellSuite
from coca_train.evaluation.texts import Library, Texts, TokenFrequencies, count_frequencies, digest
from coca_train.evaluation.verdict import PartsByRow
from coca_train.report.blocks import Document
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError
from coca_train.statistics.answers import LEAST

SHORT = (8, 32)  # tokens of context, between which a model that is trained at all gains
EIGHTHS = 8  # of a window, the last is what is predicted with more and with less of it before, and when it holds
DIGITS = 16  # of the digest of what is predicted


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
        description="shorter documents are left out [tokens]; null: the longest window of the grid that a document "
        "fills, of multiples (1x, 2x, …) the longest that 20 documents fill"
    )
    weighting: Literal["tokens", "windows"] = Field(
        description="what counts as much as another in the mean loss that perplexity is made of: each prediction, or "
        "each window, however few it predicts (YaRN's table 4)"
    )
    window_counts: Literal["predictions", "tokens"] = Field(
        description="a window of W reads W tokens and predicts as many, or has W tokens, of which the first is not "
        "predicted and the last not read (YaRN)"
    )
    begin_windows: bool = Field(
        description="the token of text.begin in place of the first one of every window, not of the document only (YaRN)"
    )
    last: Positive | None = Field(
        description="only so many predictions count, the last ones of one window a document; YaRN's B.3: 256; null: "
        "all of them. It needs document_tokens=window [tokens]"
    )
    bootstrap_resamples: Positive = Field(description="draws of the 95 % interval over documents")
    holds_within: Annotated[float, Field(gt=0, le=1)] = Field(
        description="a window holds when the loss of the same predictions is surely at most this much above that in "
        "windows of the training length [nats per token]"
    )
    uses_gain: Annotated[float, Field(gt=0, le=1)] = Field(
        description="a length is used when its farther half lowers the loss of the same predictions surely by more "
        "than this [nats per token]"
    )

    def __post_init__(self) -> None:
        if self.last is not None and self.document_tokens != "window":
            raise ValueError(f"last={self.last} needs document_tokens=window, one window a document")


Sums = dict[str, list[object]]  # by source: `Scores` as plain lists
Rows = tuple[Windowing, ...]
Treatment = tuple[object, ...]  # see measures/windows.py


@plain_dataclass(frozen=True)
class Material:
    """What one model reads: documents of at least the longest window, windows of the grid and stride [tokens].

    longest: of all documents, those that are not read too [tokens]. begin: the token that every window begins with,
    None: its own. frequencies: of the training text, where known.
    shared: by rows that are read together and how the model treats them, this rank's sums of what was measured for
    another cell too, of this variant or of one that is the same in such windows. fresh: those of the present cell; they
    are shared only when all ranks have succeeded (`combine`), as shares of different passes do not add up to the whole.
    expected: what will be shared by then, for `work`. sizes: by cut, see n_bytes.
    """

    settings: Settings
    texts: Texts
    windows: tuple[int, ...]
    training_window: int
    stride: int
    seed: int
    longest: int = 0
    begin: int | None = None
    token_frequencies: TokenFrequencies | None = None
    shared: list[tuple[Rows, Treatment, list[Sums]]] = field(default_factory=list)
    fresh: list[tuple[Rows, Treatment, list[Sums]]] = field(default_factory=list)
    expected: list[tuple[Rows, Treatment]] = field(default_factory=list)
    sizes: dict[int | None, dict[str, int]] = field(default_factory=dict)

    def row(self, window: int) -> Windowing:
        """Return how documents are read in this window."""
        unread = 1 if self.settings.window_counts == "tokens" else 0
        n = window - unread
        cut = {"longest": self.windows[-1], "window": n, "whole": None}[self.settings.document_tokens]
        if self.settings.last is not None:
            return Windowing(n, n, n, ends=min(self.settings.last, n), unread=unread)
        return Windowing(n, min(self.stride, n), cut, unread=unread)

    def lengths(self, window: int) -> list[int]:
        """Return the lengths of which its cell asks whether they are used: itself, and two that the training window
        begins with."""
        shorter = [window // 4, window // 2] if window == self.training_window else []
        return [length for length in (*shorter, window) if length >= EIGHTHS]

    def read_for(self, window: int) -> dict[str | tuple[str, int], Windowing]:
        """Return what its cell reads: the windows themselves (own), and all of them for the loss by position (curve)
        where not all is scored; what they are compared with (training), where the same predictions are scored; and the
        ends of windows of some lengths with more and with less before them."""
        own = self.row(window)
        rows: dict[str | tuple[str, int], Windowing] = {"own": own}
        if own.ends is not None:
            rows["curve"] = own._replace(ends=None)
        if self.settings.document_tokens != "window" and window > self.training_window:
            slide = max(1, self.training_window // EIGHTHS)
            rows["training"] = Windowing(self.training_window, slide, own.cut)
        for length in self.lengths(window):
            ends, begin = length // EIGHTHS, length - length // 2 - length // EIGHTHS
            rows["more", length] = Windowing(length, length, own.cut, ends)
            rows["less", length] = Windowing(length - begin, length, own.cut, ends, begin)
        if window == self.training_window and window >= SHORT[-1]:
            less, more = SHORT
            rows["short", more] = Windowing(more, more, own.cut, more // EIGHTHS)
            rows["short", less] = Windowing(less, more, own.cut, more // EIGHTHS, more - less)
        return rows

    def groups(self, window: int) -> list[Rows]:
        """Return what its cell reads by what is read together: its own windows, and everything else by itself.

        So a cell is the same bits whichever others there are: kernels are chosen by the shape of what is read, and a
        pass over a longer window would give all of a shorter one but the last digits.
        """
        read = self.read_for(window)
        own = tuple(dict.fromkeys(read[name] for name in ("own", "curve", ("more", window)) if name in read))
        return [own, *((row,) for row in dict.fromkeys(read.values()) if row not in own)]

    def documents(self, window: int) -> dict[str, list[np.ndarray]]:
        """Return what is scored in this window, by source."""
        cut = self.row(window).cut
        end = None if cut is None else cut + 1
        return {source: [d[:end] for d in documents] for source, documents in self.texts.documents.items()}

    def predictions(self, window: int) -> dict[str, str]:
        """Return a digest of the tokens that are scored in this window, by source and of all together."""
        scored = {source: [d[1:] for d in documents] for source, documents in self.documents(window).items()}
        return {
            ALL: digest(scored)[:DIGITS],
            **{source: digest({source: texts})[:DIGITS] for source, texts in scored.items()},
        }

    def n_bytes(self, window: int) -> dict[str, int]:
        """Return the size in UTF-8 of what is scored in this window, by source [bytes]; windows with one cut share
        it."""
        cut = self.row(window).cut
        if cut not in self.sizes:
            texts = self.documents(window).items()
            self.sizes[cut] = {source: sum(self.texts.n_bytes(d[1:]) for d in documents) for source, documents in texts}
        return self.sizes[cut]


class Evaluator(CellSuite[Settings, Material, dict[str, Sums], ByText]):
    """Perplexity of long documents by context window."""

    VERSION = 7
    SHARES = True
    AXIS = ("holds_within", "uses_gain")

    def prepare(self, subject: Subject, setup: Setup) -> Material:
        least = 2 if self.settings.window_counts == "tokens" else 1
        windows = sorted(point for point in setup.points if isinstance(point, int) and point >= least)
        if not windows:
            raise UserError(
                "E-EVAL-33 eval.window_counts=tokens: a window of 1 token predicts nothing. Fix: grid.lengths=[512]"
            )
        library, last, trained = Library(subject, setup), self.settings.last, subject.training_window
        full = int(last is not None)  # a window that must be full has the token after it predicted
        if self.settings.min_document_tokens is None:
            windows = [n - full for n in library.filled([n + full for n in windows])] or windows[:1]
            texts = library.choose(windows[-1] + full)
        else:
            texts = library.choose(self.settings.min_document_tokens + len(subject.begin), "eval.min_document_tokens")
            windows = [n for n in windows if not full or n < library.longest] or windows[:1]
        begin = subject.begin[0] if self.settings.begin_windows and subject.begin else None
        counted = count_frequencies(subject) if trained in windows and last is None else None
        stride = self.settings.stride or trained
        return Material(
            self.settings, texts, tuple(windows), trained, stride, setup.seed, library.longest, begin, counted
        )

    def work(self, subject: Subject, points: Sequence[Point], material: Material) -> list[float]:
        """Estimate the tokens that are read for each window, without what an earlier one has read."""
        costs = []
        for point in points:
            treated = {rows: _treatment(subject, rows) for rows in material.groups(int(point))}
            new = [rows for rows, how in treated.items() if not _is_among(rows, how, material.expected)]
            costs.append(float(sum(_tokens_read(material, rows) for rows in new)))
            material.expected.extend((rows, treated[rows]) for rows in new)
        return costs

    def fingerprint(self, material: Material, point: Point) -> str:
        return f"{digest(material.documents(int(point)))} stride {material.row(int(point)).stride}"

    def impossible(self, subject: Subject, point: Point, material: Material) -> str:
        window = int(point)
        if window > material.windows[-1]:
            few = f"fewer than {LEAST} documents have" if window <= material.longest else "no document has"
            return f"{few} {window:,} tokens"
        if window not in material.windows:
            return "a window of 1 token predicts nothing"
        problem = missing_positions(subject.model, window)
        return f"{problem}, and these windows need more" if problem else ""

    def measure(self, subject: Subject, point: Point, material: Material, setup: Setup) -> dict[str, dict[str, Sums]]:
        """Return this rank's sums by what is read for the cell, see Material.read_for."""
        material.fresh.clear()  # of the cell before: if some rank ran out of memory in it, nothing of it may be shared
        treated, known, done = {rows: _treatment(subject, rows) for rows in material.groups(int(point))}, {}, 0
        for rows, how, sums in material.shared:
            if rows in treated and equal(how, treated[rows]):
                known |= dict(zip(rows, sums, strict=True))
        new = {rows: how for rows, how in treated.items() if rows[0] not in known}
        total = sum(_tokens_read(material, rows) for rows in new)

        def read(n_tokens: int) -> None:
            nonlocal done
            done += n_tokens
            setup.progress(done / total)

        for rows, how in new.items():
            sums: list[Sums] = [{} for _ in rows]
            for source, documents in material.texts.documents.items():
                edges, size = (material.training_window,), setup.micro_batch_tokens
                scored = score_share(subject.model, documents, rows, size, read, edges, material.begin)
                for of_row, scores in zip(sums, scored, strict=True):
                    of_row[source] = [part.tolist() for part in scores]
            known |= dict(zip(rows, sums, strict=True))
            material.fresh.append((rows, how, sums))
        return {f"{dist.rank()}": {str(name): known[row] for name, row in material.read_for(int(point)).items()}}

    def combine(self, point: Point, material: Material, parts: Mapping[str, Mapping[str, Sums]]) -> ByText:
        material.shared.extend(material.fresh)  # no rank ran out of memory, so all have their share
        window, draws = int(point), (material.seed, self.settings.bootstrap_resamples)
        size = dict(material.n_bytes(window))
        read = {name: _whole([part[str(name)] for part in parts.values()], size) for name in material.read_for(window)}
        if ALL in read["own"]:
            size[ALL] = sum(size.values())
        of_all = self.settings.last is None  # what is scored is all of the text
        sources, predictions = dict[str, OneText](), material.predictions(window)
        for source, scores in read["own"].items():
            summary = summarise(scores.documents, size[source] if of_all else None, *draws)
            if self.settings.weighting == "windows":
                summary = weigh_windows(summary, scores.windows, *draws)
            curve = read.get("curve", read["own"])[source]
            low, high = intervals(curve.bins, *draws)
            text: OneText = {
                **summary,
                "ends": bin_ends(material.row(window).window).tolist(),
                "loss_by_position": means(curve.positions).tolist(),
                "loss_low": low,
                "loss_high": high,
                "by_document": scores.documents.tolist(),
                "predictions": predictions[source],
                "uses": {
                    str(length): _excess(*(read[name, length][source].documents for name in ("less", "more")))
                    for length in material.lengths(window)
                },
            }
            if self.settings.weighting == "windows":
                text["windows_by_document"] = scores.windows.tolist()
            if (counted := material.token_frequencies) is not None and window == material.training_window:
                documents = material.documents(window)
                texts = [each for own in documents.values() for each in own] if source == ALL else documents[source]
                text["token_frequencies"] = [[*counted.nll(each), len(each) - 1] for each in texts]
            if ("short", SHORT[0]) in read:
                text["short"] = _excess(*(read["short", length][source].documents for length in SHORT))
            if "training" in read:
                here, there = (each[source].bands[:, 1] for each in (read["own"], read["training"]))
                text["holds"] = _excess(here, there)
            sources[source] = text
        return {"stride": material.row(window).stride, "sources": sources}

    def page(self, evaluation: Evaluation[ByText]) -> Document:
        return perplexity_page.page(evaluation)

    def reach_parts(self, evaluation: Evaluation[ByText]) -> PartsByRow:
        return perplexity_page.reach_parts(evaluation)


def _treatment(subject: Subject, rows: Rows) -> Treatment:
    """Return how the model treats what is read together, which is of one length."""
    return tables_at(subject.model, rows[0].length)


def _is_among(rows: Rows, how: Treatment, measured: Iterable[tuple[Rows, Treatment]]) -> bool:
    return any(rows == other and equal(how, treated) for other, treated in measured)


def _tokens_read(material: Material, rows: Sequence[Windowing]) -> int:
    return sum(
        each.length
        for documents in material.texts.documents.values()
        for each in plan_passes([len(document) - 1 for document in documents], rows)
    )


def _excess(one_D2: np.ndarray, other_D2: np.ndarray) -> list[list[float]]:
    """Return the NLL [nats] of one less that of the other, and predictions, of each document that has some."""
    sums_D2 = np.stack((one_D2[:, 0] - other_D2[:, 0], one_D2[:, 1]), 1)
    return sums_D2[sums_D2[:, 1] > 0].tolist()


def _whole(parts: Sequence[Sums], sources: Iterable[str]) -> dict[str, Scores]:
    """Return all ranks' shares of one window, by source; and of several all together."""
    whole = {
        source: Scores(*(np.sum([np.asarray(part[source][i]) for part in parts], axis=0) for i in range(3)))
        for source in sources
    }
    if len(whole) > 1:
        whole[ALL] = Scores(*map(np.concatenate, zip(*whole.values(), strict=True)))
    return whole
