"""Suite `perplexity`: how well long documents are predicted, by context window (definition: measures/windows.py).

document_tokens says which predictions a window is measured on:
* longest: every document is cut to the longest window of the grid, so all windows score the very same predictions
  (CoCA paper 4.2, tables 1 and 4: documents cut to 32 768, stride 512);
* window: every document is cut to the window itself, one window a document (YaRN, tables 1 and 2: "truncated at");
* whole: nothing is cut, and a document counts when it is at least min_document_tokens long (YaRN, table 4).
A document cut to n has n + 1 tokens where it has that many, so that it has n predictions. Where nothing depends on
the window's length, the longest window's cell measures the others on the way, and theirs take no time.

At each point: perplexity and its 95 % interval (bootstrap over documents), bits per token and per byte, predictions,
and the loss by position of each document's first window (measures/position_bins.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from dataclasses import dataclass as plain_dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.perplexity import Scores, score_share, summarise
from coca_train.evaluation.measures.position_bins import bin_ends, means
from coca_train.evaluation.measures.windows import Windowing, missing_positions, passes, same_at
from coca_train.evaluation.pages.perplexity import page as page
from coca_train.evaluation.results import ALL
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites import at_lengths
from coca_train.evaluation.texts import Library, Texts, digest

VERSION = 1
CACHED = True
AXIS = ()
points = at_lengths


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


Sums = dict[str, list[Any]]  # by source: `Scores` as plain lists


@plain_dataclass(frozen=True)
class Material:
    """What one model reads: documents of at least the longest window, windows and stride [tokens].

    shared: by variant and window, this rank's sums of windows that passes of a longer one measured too. fresh: those of
    the present cell; they are shared only when all ranks have succeeded (`combine`). A rank without them would measure
    the window anew, and shares of different passes do not add up to the whole. sizes: by cut, see n_bytes.
    """

    settings: Settings
    texts: Texts
    windows: tuple[int, ...]
    stride: int
    seed: int
    shared: dict[tuple[Any, int], Sums] = field(default_factory=dict)
    fresh: dict[tuple[Any, int], Sums] = field(default_factory=dict)
    sizes: dict[int | None, dict[str, int]] = field(default_factory=dict)

    def row(self, window: int) -> Windowing:
        """How documents are read in this window."""
        cut = {"longest": self.windows[-1], "window": window, "whole": None}[self.settings.document_tokens]
        return Windowing(window, min(self.stride, window), cut)

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
    return Material(settings, texts, tuple(windows), settings.stride or subject.training_window, setup.seed)


def work(settings: Settings, subject: Subject, points: Sequence[int], material: Material) -> list[float]:
    """[tokens] that are read for each window and, on the way, for shorter ones."""
    costs, measured = [], set[int]()
    for point in points:
        rows = _rows(subject, point, material)
        costs.append(0.0 if point in measured else float(_tokens_read(material, rows.values())))
        measured |= rows.keys()
    return costs


def fingerprint(material: Material, point: int) -> str:
    return f"{digest(material.documents(point))} stride {material.row(point).stride}"


def impossible(settings: Settings, subject: Subject, point: int, material: Material) -> str:
    if point > material.windows[-1]:
        return f"no document has {point:,} tokens"
    problem = missing_positions(subject.model, point)
    return f"{problem}, and these windows need more" if problem else ""


def measure(settings: Settings, subject: Subject, point: int, material: Material, setup: Setup) -> Sums:
    model = subject.model
    variant = (model.position.settings, model.visibility.settings)
    material.fresh.clear()
    if (variant, point) in material.shared:
        return material.shared[variant, point]
    rows, done = _rows(subject, point, material), 0
    total = _tokens_read(material, rows.values())

    def read(n_tokens: int) -> None:
        nonlocal done
        done += n_tokens
        setup.progress(done / total)

    sums: dict[int, Sums] = {window: {} for window in rows}
    for source, documents in material.texts.documents.items():
        scored = score_share(model, documents, list(rows.values()), setup.micro_batch_tokens, read)
        for window, scores in zip(rows, scored, strict=True):
            sums[window][source] = [part.tolist() for part in scores]
    material.fresh.update({(variant, window): each for window, each in sums.items()})
    return sums[point]


def _rows(subject: Subject, point: int, material: Material) -> dict[int, Windowing]:
    """By window, what the passes for this one measure: it and shorter ones."""
    windows = [window for window in material.windows if window <= point and same_at(subject.model, point, window)]
    return {window: material.row(window) for window in windows}


def _tokens_read(material: Material, rows: Iterable[Windowing]) -> int:
    every = list(rows)
    return sum(
        each.length
        for documents in material.texts.documents.values()
        for each in passes([len(document) - 1 for document in documents], every)
    )


def combine(settings: Settings, point: int, material: Material, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By source, and all together: the fields of `Perplexity`, and the loss by position; and the stride."""
    material.shared.update(material.fresh)  # no rank ran out of memory, so all have their share
    size, sources = dict(material.n_bytes(point)), {}
    whole = {source: Scores(*(np.sum([p[source][i] for p in parts], axis=0) for i in (0, 1))) for source in size}
    if len(whole) > 1:
        documents, positions = zip(*whole.values(), strict=True)
        whole[ALL], size[ALL] = Scores(np.concatenate(documents), np.sum(positions, axis=0)), sum(size.values())
    for source, scores in whole.items():
        summary = summarise(scores.documents, size[source], material.seed, settings.bootstrap_resamples)
        curve = {"ends": bin_ends(point).tolist(), "loss_by_position": means(scores.positions).tolist()}
        sources[source] = asdict(summary) | curve
    return {"stride": material.row(point).stride, "sources": sources}
