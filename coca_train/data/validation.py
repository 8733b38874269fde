"""Held-out text: the same windows every time they are asked for.

Windows are plain ones (packing `windows`) whatever data.packing is, so that losses of different runs can be compared.
"""

from collections.abc import Iterator

from coca_train.data.batch import Batch, collate
from coca_train.data.dataset import IndexedDataset
from coca_train.data.packings.base import row_of
from coca_train.data.packings.windows import Windows


def validation_batches(
    prefix: str,
    seq_len: int,
    max_tokens: int,
    micro_batch_size: int,
    document_mask: bool = False,
    vocab_size: int | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[Batch]:
    """Windows spread evenly over a held-out dataset, at most max_tokens [targets] of them, at least one.

    Every rank gets the same number of batches of the same shape (ZeRO-3 needs that); rows beyond the last
    window are padding: all their targets are -100. The scored windows do not depend on the world size.
    """
    source = Windows(IndexedDataset(prefix), "held-out", seq_len, document_mask)
    n_windows = max(1, min(source.n_windows, max_tokens // seq_len))
    stride = micro_batch_size * world_size
    for begin in range(0, n_windows, stride):
        mine = range(begin + rank * micro_batch_size, begin + (rank + 1) * micro_batch_size)
        rows = []
        for i in mine:
            row = row_of(source, i * source.n_windows // n_windows if i < n_windows else 0, vocab_size)
            rows.append(row if i < n_windows else row._replace(scored=0))
        yield collate(rows)
