"""Held-out windows: always the same, evenly spread, the same sum for every world size."""

from pathlib import Path

import numpy as np
import pytest

from coca_train.data.dataset import IndexedDataset
from coca_train.data.loader import validation_batches
from coca_train.runtime.errors import DataError

T = 8


@pytest.fixture
def prefix(tmp_path: Path, write_dataset) -> str:
    return write_dataset(tmp_path / "x", [np.arange(n) + n for n in (100, 5, 60, 70, 0, 80, 300)])


def test_windows_are_spread_evenly_and_counted(prefix: str) -> None:
    batches = list(validation_batches(prefix, T, max_tokens=90, micro_batch_size=4))
    assert [batch.tokens_BT.shape for batch in batches] == [(4, T)] * 3
    assert sum(batch.n_targets for batch in batches) == 88  # 11 windows; the twelfth row is padding
    stream = IndexedDataset(prefix).tokens(0, 615)
    rows = [row.tolist() for batch in batches for row in batch.tokens_BT][:11]
    assert rows == [stream[i * 76 // 11 * T :][:T].tolist() for i in range(11)]
    everything = list(validation_batches(prefix, T, max_tokens=10**9, micro_batch_size=1))
    assert len(everything) == 76
    assert len(list(validation_batches(prefix, T, max_tokens=1, micro_batch_size=1))) == 1


@pytest.mark.parametrize("document_mask", [False, True])
def test_ranks_share_the_same_windows(prefix: str, document_mask: bool) -> None:
    def scored(world: int, micro: int) -> list[list[int]]:
        rows, counts = [], set()
        for rank in range(world):
            batches = list(validation_batches(prefix, T, 200, micro, document_mask, None, rank, world))
            counts.add(len(batches))
            for batch in batches:
                rows += [t.tolist() for t in batch.targets_BT if (t != -100).any()]
        assert len(counts) == 1
        return sorted(rows)

    reference = scored(1, 25)
    assert len(reference) == 25
    assert all(scored(*cut) == reference for cut in [(1, 1), (1, 4), (2, 3), (3, 5), (7, 2)])


def test_too_little_held_out_text(prefix: str) -> None:
    with pytest.raises(DataError, match="E-TOK-12"):
        list(validation_batches(prefix, 1000, 10, 1))


def test_ids_are_checked(prefix: str) -> None:
    with pytest.raises(DataError, match="E-TOK-09"):
        list(validation_batches(prefix, T, 10**9, 4, vocab_size=400))
