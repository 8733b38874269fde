"""What the model is fed: rows of T + 1 tokens become inputs, targets, positions and documents.

Shapes: B sequences, T tokens (seq_len).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from coca_train.data.packing import Row
from coca_train.runtime import IGNORE


@dataclass(frozen=True)
class Batch:
    """int64 CPU tensors. targets are the next tokens, or the hidden ones at their own places (data.masking); -100 = not
    scored. doc_BT None = one document.

    continues_B: bool, whether a row goes on where the same row of the step before ended; None: no row does.
    memory: None, as the data knows nothing of the model's past (engine/recurrence.py adds it). length: what dynamic
    frequencies adapt to, where that is not the row's length: positions are placed beyond it, or documents are shorter
    [tokens].
    """

    tokens_BT: torch.Tensor
    targets_BT: torch.Tensor
    pos_BT: torch.Tensor
    doc_BT: torch.Tensor | None
    continues_B: torch.Tensor | None = None
    memory: None = None
    length: int | None = None

    @property
    def n_targets(self) -> int:
        """Scored targets."""
        return int((self.targets_BT != IGNORE).sum())


def collate(rows: Sequence[Row]) -> Batch:
    """Make a Batch of rows; either all rows say where documents begin, or none does.

    Where they do not: positions 0 .. T-1. Where they do: positions restart at 0 and the document number (within the
    row, from 0) rises at each start, and the target that would be the first token of the next document is not scored.
    """
    document_mask = rows[0].starts is not None
    ids_BT1 = np.stack([row.ids for row in rows])
    targets_BT = ids_BT1[:, 1:].copy()
    seq_len = targets_BT.shape[1]
    pos_BT = np.broadcast_to(np.arange(seq_len), targets_BT.shape).copy()
    doc_BT = np.zeros_like(pos_BT)
    for b, row in enumerate(rows):
        assert (row.starts is not None) == document_mask
        targets_BT[b, row.scored :] = IGNORE
        if row.starts:
            starts = np.array(row.starts)
            targets_BT[b, starts - 1] = IGNORE
            # begins: at each start its own index, carried on by the running maximum to the tokens after it; what is
            # left when that is taken away counts from 0 in every document.
            begins = np.zeros(seq_len + 1, np.int64)
            begins[starts] = starts
            pos_BT[b] -= np.maximum.accumulate(begins[:-1])
            doc_BT[b] = np.cumsum(begins[:-1] > 0)
    return Batch(
        tokens_BT=torch.from_numpy(ids_BT1[:, :-1].copy()),
        targets_BT=torch.from_numpy(targets_BT),
        pos_BT=torch.from_numpy(pos_BT),
        doc_BT=torch.from_numpy(doc_BT) if document_mask else None,
    )


def digest_of(batch: Batch) -> int:
    """Return a fingerprint of the inputs; those of the parts of a global batch add up to that of the whole."""
    rows = (hashlib.sha256(row.numpy().tobytes()).digest()[:8] for row in batch.tokens_BT.cpu())
    return sum(int.from_bytes(row, "little") for row in rows)


def combine_digests(digests: Iterable[int]) -> str:
    """Return the fingerprint of a global batch from those of its parts, as metrics.jsonl records it."""
    return f"{sum(digests) % 2**64:016x}"
