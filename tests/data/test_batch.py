"""What a document mask means: positions restart, documents are numbered, nobody predicts across a border."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.data.batch import collate, combine_digests, digest_of
from coca_train.data.dataset import IndexedDataset, IndexedWriter
from coca_train.data.packing import Row
from coca_train.runtime import IGNORE


def stretch(data: IndexedDataset, start: int, seq_len: int, with_starts: bool = True) -> Row:
    """Tokens start .. start + seq_len of a dataset as a row."""
    pieces = data.pieces(start, start + seq_len + 1)
    starts = [first - start for _, first, _ in pieces[1:]] if with_starts else None
    return Row(data.tokens(start, start + seq_len + 1), seq_len, starts)


def test_by_hand(tmp_path: Path, write_dataset) -> None:
    """Documents 10 11 12 | 20 21 | (empty) | 30 | 40 41 42; the window begins inside the first and ends on a border."""
    data = IndexedDataset(write_dataset(tmp_path / "x", [[10, 11, 12], [20, 21], [], [30], [40, 41, 42], [50]]))
    batch = collate([stretch(data, 1, 7), stretch(data, 2, 7)])
    assert batch.tokens_BT.tolist() == [[11, 12, 20, 21, 30, 40, 41], [12, 20, 21, 30, 40, 41, 42]]
    assert batch.targets_BT.tolist() == [
        [12, IGNORE, 21, IGNORE, IGNORE, 41, 42],
        [IGNORE, 21, IGNORE, IGNORE, 41, 42, IGNORE],  # 50 begins a document: a target no token may see
    ]
    assert batch.pos_BT.tolist() == [[0, 1, 0, 1, 0, 0, 1], [0, 0, 1, 0, 0, 1, 2]]
    assert batch.doc_BT is not None
    assert batch.doc_BT.tolist() == [[0, 0, 1, 1, 2, 3, 3], [0, 1, 1, 2, 3, 3, 3]]
    assert batch.n_targets == 7

    plain = collate([stretch(data, 1, 7, with_starts=False)])
    assert plain.targets_BT.tolist() == [[12, 20, 21, 30, 40, 41, 42]]
    assert plain.pos_BT.tolist() == [list(range(7))]
    assert plain.doc_BT is None
    assert {t.dtype for t in (plain.tokens_BT, plain.targets_BT, plain.pos_BT, batch.doc_BT)} == {torch.int64}


def test_padding_is_not_scored(tmp_path: Path, write_dataset) -> None:
    data = IndexedDataset(write_dataset(tmp_path / "x", [[1] * 20]))
    row = stretch(data, 0, 8, with_starts=False)
    assert collate([row._replace(scored=0)]).n_targets == 0
    assert collate([row._replace(scored=5)]).targets_BT.tolist() == [[1] * 5 + [IGNORE] * 3]


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30), start=st.integers(0, 20), data=st.data())
def test_against_a_token_by_token_definition(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], start: int, data: st.DataObject
) -> None:
    total = sum(lengths)
    if start + 2 > total:
        return
    seq_len = data.draw(st.integers(1, total - start - 1))
    prefix = tmp_path_factory.mktemp("mask") / "x"
    document_of = np.repeat(np.arange(len(lengths)), lengths)
    with IndexedWriter(prefix, np.uint16) as writer:
        at = 0
        for length in lengths:
            writer.add_document(np.arange(at, at + length))
            at += length
    batch = collate([stretch(IndexedDataset(prefix), start, seq_len)])
    assert batch.doc_BT is not None
    position = number = 0
    for t in range(seq_len):
        token = start + t
        if t and document_of[token] != document_of[token - 1]:
            position, number = 0, number + 1
        same = document_of[token + 1] == document_of[token]
        assert batch.tokens_BT[0, t] == token
        assert batch.targets_BT[0, t] == (token + 1 if same else IGNORE)
        assert batch.pos_BT[0, t] == position
        assert batch.doc_BT[0, t] == number
        position += 1


def test_the_digest_of_a_batch_is_the_sum_over_its_rows() -> None:
    """As runs have it in their metrics.jsonl since the first release: however the batch is cut, and in any order."""
    rows = [Row(np.arange(k, k + 9), 8, None) for k in range(8)]
    expected = sum(
        int.from_bytes(hashlib.sha256(np.arange(k, k + 8).astype("<i8").tobytes()).digest()[:8], "little")
        for k in range(8)
    )
    assert expected >= 2**64 and expected % 2**64 >= 2**63
    for cut in ([rows], [rows[:3], rows[3:]], [rows[::-1]]):
        assert combine_digests(digest_of(collate(part)) for part in cut) == f"{expected % 2**64:016x}"
