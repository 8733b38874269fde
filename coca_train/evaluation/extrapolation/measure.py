"""The extrapolation report: how perplexity holds up in windows far beyond the training window.

Every document is cut to `longest` + 1 tokens, longest being the largest window (a document of exactly
`longest` tokens is taken too: it has one prediction fewer), and scored with each window by the sliding
windows of perplexity.py, stride = training window. So every window length scores the very same tokens
of the very same documents, and what differs is only how much a prediction may look back at:
W - s + 1 ... W tokens, and 1 ... W tokens within each document's first window. The first tokens of a
document therefore have the same short context at every window length, and at the largest window, one
window a document, every context from 1 to W occurs. (CoCA paper 4.2, table 1 and figure 1.)

Frequencies and visibilities are exchanged on the same weights: each is a variant. Dynamic frequencies see
l = W. A variant that cannot be put on the weights, and a window with more positions than a learned table
has rows, are not scored; the report says so instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from coca_train.evaluation.measures.perplexity import Perplexity, Scores, score_documents, summarise
from coca_train.evaluation.measures.positions import PositionLoss, position_loss
from coca_train.evaluation.measures.windows import tokens_read
from coca_train.runtime import dist
from coca_train.vary import Variant

ALL = "all"  # the sources together


class NothingToScore(ValueError):
    """No text, or no variant, for any window."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement: the text, the variant, the window [tokens], the result."""

    source: str
    variant: str
    window: int
    result: Perplexity


@dataclass(frozen=True, kw_only=True)
class Absent:
    """What was not scored, and why. window: None = the whole variant."""

    variant: str
    window: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Extrapolation:
    """Every cell of the report and what it was made from."""

    run: str
    scheme: str
    training_window: int
    stride: int
    windows: tuple[int, ...]
    variants: tuple[str, ...]  # what the weights were trained with, then all that have a cell
    sources: tuple[str, ...]
    document_tokens: int  # length the documents were cut to, the first token included
    seed: int
    cells: tuple[Cell, ...]
    positions: tuple[PositionLoss, ...]  # pooled text, at the training window and the longest one scored
    absent: tuple[Absent, ...]

    @property
    def pooled(self) -> str:
        """The text a comparison is about: all sources together, or the only one."""
        return ALL if ALL in self.sources else self.sources[0]

    def find(self, source: str, variant: str, window: int) -> Perplexity | None:
        """One result; None when it is absent."""
        for cell in self.cells:
            if (cell.source, cell.variant, cell.window) == (source, variant, window):
                return cell.result
        return None

    def scored(self, variant: str) -> bool:
        """Whether the variant has any result."""
        return any(cell.variant == variant for cell in self.cells)

    def sample(self, source: str) -> Perplexity:
        """Some result on this text, for what all of them share: documents and predictions."""
        return next(cell.result for cell in self.cells if cell.source == source)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Extrapolation":
        """Raises KeyError, TypeError or ValueError when `data` did not come from `to_json`."""
        lists: dict[str, Any] = {key: tuple(data[key]) for key in ("windows", "variants", "sources")}
        lists["cells"] = tuple(Cell(**{**cell, "result": Perplexity(**cell["result"])}) for cell in data["cells"])
        lists["positions"] = tuple(
            PositionLoss(**{**part, **{key: tuple(part[key]) for key in ("ends", "loss", "n_tokens")}})
            for part in data["positions"]
        )
        lists["absent"] = tuple(Absent(**part) for part in data["absent"])
        return cls(**{**data, **lists})


def usable_windows(documents: Mapping[str, Sequence[np.ndarray]], windows: Sequence[int]) -> tuple[int, ...]:
    """The windows some held-out document is long enough for, ascending."""
    longest = max((len(d) for source in documents.values() for d in source), default=0)
    return tuple(sorted(w for w in set(windows) if w <= longest))


def extrapolate(
    model: Any,
    documents: Mapping[str, Sequence[np.ndarray]],
    variants: Mapping[str, Variant],
    *,
    run: str,
    windows: Sequence[int],
    training_window: int,
    micro_batch_tokens: int,
    seed: int = 0,
    n_bytes: Callable[[np.ndarray], int] | None = None,
) -> Extrapolation:
    """Measure every window under every variant. COLLECTIVE.

    model: Transformer. documents: 1-D token arrays by source, held out. variants: by name, the first is the
    model's own; each is put on the model in turn and the own one comes back at the end. n_bytes: size in
    UTF-8 of some tokens' text, for bits per byte. Raises NothingToScore when no document is long enough for
    the smallest window or no variant can be scored at any, ValueError when a window is shorter than the
    training window; windows no document is long enough for are left out.
    """
    windows = usable_windows(documents, windows)
    if not windows:
        raise NothingToScore("no held-out document is as long as the smallest window")
    longest = windows[-1]
    texts = {s: [d[: longest + 1] for d in ds if len(d) >= longest] for s, ds in documents.items()}
    texts = {source: ds for source, ds in texts.items() if ds}
    sizes = {s: sum(n_bytes(d[1:]) for d in ds) if n_bytes else None for s, ds in texts.items()}
    planned, absent = plan(model, variants, windows)
    work = sum(tokens_read(len(d) - 1, w, training_window) for _, w in planned for ds in texts.values() for d in ds)
    total = _Progress(work)
    cells: list[Cell] = []
    positions: list[PositionLoss] = []
    try:
        for name, window in planned:
            put(model, variants[name])
            scores = {
                source: score_documents(
                    model,
                    ds,
                    window=window,
                    stride=training_window,
                    micro_batch_tokens=micro_batch_tokens,
                    progress=total.add,
                )
                for source, ds in texts.items()
            }
            known = dict(sizes)
            if len(scores) > 1:
                scores[ALL] = _together(scores.values())
                known[ALL] = sum(size for size in sizes.values() if size is not None) or None
            for source, part in scores.items():
                result = summarise(part.documents, known[source], seed)
                cells.append(Cell(source=source, variant=name, window=window, result=result))
            if window in (training_window, max(w for n, w in planned if n == name)):
                source = list(scores)[-1]
                positions.append(position_loss(scores[source].positions, source, name, window))
    finally:
        put(model, next(iter(variants.values())))
        total.close()
    return Extrapolation(
        run=run,
        scheme=model.position.settings.scheme,
        training_window=training_window,
        stride=training_window,
        windows=windows,
        variants=tuple(dict.fromkeys([next(iter(variants)), *(name for name, _ in planned)])),
        sources=tuple(dict.fromkeys(cell.source for cell in cells)),
        document_tokens=max(len(d) for ds in texts.values() for d in ds),
        seed=seed,
        cells=tuple(cells),
        positions=tuple(positions),
        absent=tuple(absent),
    )


def plan(
    model: Any, variants: Mapping[str, Variant], windows: Sequence[int]
) -> tuple[list[tuple[str, int]], list[Absent]]:
    """(variant, window) of what is to be scored, and what cannot be. NothingToScore when that is everything."""
    planned: list[tuple[str, int]] = []
    absent: list[Absent] = []
    try:
        for name, variant in variants.items():
            if variant.problem:
                absent.append(Absent(variant=name, window=None, reason=variant.problem))
                continue
            put(model, variant)
            limit = model.position.max_positions
            for window in windows:
                needed = positions_needed(model, window) if limit is not None else 0
                if limit is not None and needed > limit:
                    reason = f"{variant.position.scheme} has {limit:,} positions, and these windows need more"
                    absent.append(Absent(variant=name, window=window, reason=reason))
                else:
                    planned.append((name, window))
    finally:
        put(model, next(iter(variants.values())))
    if not planned:
        raise NothingToScore(f"no window can be scored: {absent[0].reason}")
    return planned, absent


def put(model: Any, variant: Variant) -> None:
    """Exchange frequencies and visibility on the same weights."""
    model.set_position(variant.position)
    model.set_visibility(variant.visibility)


def positions_needed(model: Any, window: int) -> int:
    """How many positions the scheme is asked for in a window of this length, as the visibility places them."""
    pos_1T = torch.arange(window)[None]
    layouts = model.visibility.layouts(pos_1T, pos_1T)
    return 1 + max(int(pos.max()) for layout in layouts for pos in (layout.pos_BT, layout.pos_BS))


def _together(parts: Any) -> Scores:
    """The scores of several texts as one."""
    documents, positions = zip(*parts, strict=True)
    return Scores(np.concatenate(documents), np.sum(positions, axis=0))


class _Progress:
    """A tqdm bar on rank 0 that shows up only when the work takes more than 5 seconds."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._bar: Any = None

    def add(self, n_tokens: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            off = True if not dist.is_main() else None  # None: off when stderr is no terminal
            self._bar = tqdm(
                total=self._total, desc="extrapolation", unit="tok", unit_scale=True, delay=5, leave=False, disable=off
            )
        self._bar.update(n_tokens)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
