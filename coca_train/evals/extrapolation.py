"""The extrapolation report: how perplexity holds up in windows far beyond the training window.

Every document is cut to `longest` + 1 tokens, longest being the largest window (a document of exactly
`longest` tokens is taken too: it has one prediction fewer), and scored with each window by the sliding
windows of perplexity.py, stride = training window. So every window length scores the very same tokens
of the very same documents, and what differs is only how much a prediction may look back at:
W - s + 1 ... W tokens, and 1 ... W tokens within each document's first window. The first tokens of a
document therefore have the same short context at every window length, and at the largest window, one
window a document, every context from 1 to W occurs. (CoCA paper 4.2, table 1 and figure 1.)

Frequencies are exchanged on the same weights. Dynamic ones see l = W.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from coca_train import dist
from coca_train.evals.perplexity import Perplexity, score_documents, sliding_windows, summarise

ALL = "all"  # the sources together


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement: the text, the frequencies, the window [tokens], the result."""

    source: str
    frequencies: str
    window: int
    result: Perplexity


@dataclass(frozen=True, kw_only=True)
class Extrapolation:
    """Every cell of the report and what it was made from."""

    run: str
    scheme: str
    training_window: int
    stride: int
    windows: tuple[int, ...]
    frequencies: tuple[str, ...]
    sources: tuple[str, ...]
    document_tokens: int  # length the documents were cut to, the first token included
    seed: int
    cells: tuple[Cell, ...]

    def cell(self, source: str, frequencies: str, window: int) -> Perplexity:
        for cell in self.cells:
            if (cell.source, cell.frequencies, cell.window) == (source, frequencies, window):
                return cell.result
        raise KeyError((source, frequencies, window))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Extrapolation":
        cells = tuple(Cell(**{**cell, "result": Perplexity(**cell["result"])}) for cell in data["cells"])
        lists = {key: tuple(data[key]) for key in ("windows", "frequencies", "sources")}
        return cls(**{**data, **lists, "cells": cells})


def usable_windows(documents: Mapping[str, Sequence[np.ndarray]], windows: Sequence[int]) -> tuple[int, ...]:
    """The windows some held-out document is long enough for, ascending."""
    longest = max((len(d) for source in documents.values() for d in source), default=0)
    return tuple(sorted(w for w in set(windows) if w <= longest))


def extrapolate(
    model: Any,
    documents: Mapping[str, Sequence[np.ndarray]],
    positions: Mapping[str, Any],
    *,
    run: str,
    windows: Sequence[int],
    training_window: int,
    micro_batch_tokens: int,
    seed: int = 0,
    n_bytes: Callable[[np.ndarray], int] | None = None,
) -> Extrapolation:
    """Measure every window under every choice of frequencies. COLLECTIVE.

    model: Transformer. documents: 1-D token arrays by source, held out. positions: position settings by
    name; each is put on the model in turn and the model's own comes back at the end. n_bytes: size in
    UTF-8 of some tokens' text, for bits per byte. Raises ValueError when no document is long enough for
    the smallest window, or a window is shorter than the training window; windows no document is long enough
    for are left out.
    """
    windows = usable_windows(documents, windows)
    if not windows:
        raise ValueError("no held-out document is as long as the smallest window of the extrapolation report")
    longest = windows[-1]
    texts = {s: [d[: longest + 1] for d in ds if len(d) >= longest] for s, ds in documents.items()}
    texts = {source: ds for source, ds in texts.items() if ds}
    own = model.position.settings
    sizes = {s: sum(n_bytes(d[1:]) for d in ds) if n_bytes else None for s, ds in texts.items()}
    work = sum(_tokens_read(d, w, training_window) for ds in texts.values() for d in ds for w in windows)
    total = _Progress(work * len(positions))
    cells = []
    try:
        for name, settings in positions.items():
            model.set_position(settings)
            for window in windows:
                sums = {
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
                for source, part in sums.items():
                    result = summarise(part, sizes[source], seed)
                    cells.append(Cell(source=source, frequencies=name, window=window, result=result))
                if len(sums) > 1:
                    known = [size for size in sizes.values() if size is not None]
                    result = summarise(np.concatenate(list(sums.values())), sum(known) or None, seed)
                    cells.append(Cell(source=ALL, frequencies=name, window=window, result=result))
    finally:
        model.set_position(own)
        total.close()
    return Extrapolation(
        run=run,
        scheme=own.scheme,
        training_window=training_window,
        stride=training_window,
        windows=windows,
        frequencies=tuple(positions),
        sources=(*texts, *((ALL,) if len(texts) > 1 else ())),
        document_tokens=max(len(d) for ds in texts.values() for d in ds),
        seed=seed,
        cells=tuple(cells),
    )


def _tokens_read(document: np.ndarray, window: int, stride: int) -> int:
    return sum(w.stop - w.start for w in sliding_windows(len(document) - 1, window, stride))


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
