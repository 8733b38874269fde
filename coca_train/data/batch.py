"""What the model is fed: windows of T + 1 tokens become inputs, targets, positions and documents.

Shapes: B sequences, T tokens (seq_len).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from coca_train.config.errors import DataError
from coca_train.data.indexed import IndexedDataset

IGNORE = -100


@dataclass(frozen=True)
class Batch:
    """int64 CPU tensors. targets are the next tokens, -100 = not scored; doc_BT None = one document.

    continues_B: bool, whether a row goes on where the same row of the step before ended; None: no row does.
    memory: None, as the data knows nothing of the model's past (recurrence.py adds it).
    """

    tokens_BT: torch.Tensor
    targets_BT: torch.Tensor
    pos_BT: torch.Tensor
    doc_BT: torch.Tensor | None
    continues_B: torch.Tensor | None = None
    memory: None = None

    @property
    def n_targets(self) -> int:
        """Scored targets."""
        return int((self.targets_BT != IGNORE).sum())


@dataclass(frozen=True)
class Window:
    """Tokens start .. start + T of a dataset (T + 1 of them); scored False = padding, no target counts."""

    dataset: IndexedDataset
    start: int
    scored: bool = True


def check_ids(window: Window, ids: np.ndarray, vocab_size: int) -> None:
    """DataError E-TOK-09 for a token id the model has no row for."""
    bad = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if bad.size:
        data, at = window.dataset, window.start + int(bad[0])
        raise DataError(
            f"E-TOK-09 {data.bin_path} document {data.document_at(at)}, token {at}: id {ids[bad[0]]}, but the model "
            f"has {vocab_size} ids (0 .. {vocab_size - 1}). Fix: set data.tokenizer to the tokenizer this data was "
            "made with, or model.vocab_size to at least its size"
        )


def collate(windows: Sequence[Window], seq_len: int, document_mask: bool, vocab_size: int | None) -> Batch:
    """Windows to a Batch.

    Without document_mask: positions 0 .. T-1, every target scored. With it: positions restart at 0 and the
    document number (within the row, from 0) rises at each document start, and the target that would be the
    first token of the next document is not scored.
    """
    shape = (len(windows), seq_len)
    ids_BT1 = np.empty((len(windows), seq_len + 1), np.int64)
    pos_BT = np.broadcast_to(np.arange(seq_len), shape).copy()
    doc_BT = np.zeros(shape, np.int64)
    targets_BT = np.empty(shape, np.int64)
    for row, window in enumerate(windows):
        ids = window.dataset.tokens(window.start, window.start + seq_len + 1)
        if vocab_size is not None:
            check_ids(window, ids, vocab_size)
        ids_BT1[row] = ids
        targets_BT[row] = ids[1:] if window.scored else IGNORE
        if document_mask:
            for start in window.dataset.starts_within(window.start, window.start + seq_len + 1):
                at = start - window.start
                targets_BT[row, at - 1] = IGNORE
                pos_BT[row, at:] = np.arange(seq_len - at)
                doc_BT[row, at:] += 1
    return Batch(
        tokens_BT=torch.from_numpy(ids_BT1[:, :-1].copy()),
        targets_BT=torch.from_numpy(targets_BT),
        pos_BT=torch.from_numpy(pos_BT),
        doc_BT=torch.from_numpy(doc_BT) if document_mask else None,
    )
