"""Held-out windows: always the same, evenly spread, the same sum for every world size, checked when they are read."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coca_train.config.schema import DataConfig
from coca_train.data import dataset
from coca_train.data.batch import Batch
from coca_train.data.dataset import IndexedDataset
from coca_train.data.held_out import HeldOut, Validation
from coca_train.runtime.errors import DataError
from tests.data.test_blocks import flip

T = 8


@pytest.fixture
def config(tmp_path: Path, write_dataset, data_config) -> DataConfig:
    """One source that has held-out text, with sums, and one that has none."""
    prefix = write_dataset(tmp_path / "x", [np.arange(n) + n for n in (100, 5, 60, 70, 0, 80, 300)])
    (tmp_path / "x.sums").write_bytes(dataset.block_sum((tmp_path / "x.bin").read_bytes()))
    config = data_config()
    return replace(config, sources=config.sources | {"text": replace(config.sources["text"], valid_path=prefix)})


@pytest.fixture
def batches(config) -> Callable[..., list[Batch]]:
    def build(*arguments, document_mask: bool = False, **options) -> list[Batch]:
        of = Validation(HeldOut(replace(config, document_mask=document_mask)), *arguments, **options).batches()
        assert list(of) == ["text"]
        return list(of["text"])

    return build


def test_windows_are_spread_evenly_and_counted(tmp_path: Path, batches) -> None:
    some = batches(T, max_tokens=90, micro_batch_size=4)
    assert [batch.tokens_BT.shape for batch in some] == [(4, T)] * 3
    assert sum(batch.n_targets for batch in some) == 88  # 11 windows; the twelfth row is padding
    stream = IndexedDataset(tmp_path / "x").tokens(0, 615)
    rows = [row.tolist() for batch in some for row in batch.tokens_BT][:11]
    assert rows == [stream[i * 76 // 11 * T :][:T].tolist() for i in range(11)]
    assert len(batches(T, max_tokens=10**9, micro_batch_size=1)) == 76
    assert len(batches(T, max_tokens=1, micro_batch_size=1)) == 1


@pytest.mark.parametrize("document_mask", [False, True])
def test_ranks_share_the_same_windows(batches, document_mask: bool) -> None:
    def scored(world: int, micro: int) -> list[list[int]]:
        rows, counts = [], set()
        for rank in range(world):
            mine = batches(T, 200, micro, None, rank, world, document_mask=document_mask)
            counts.add(len(mine))
            for batch in mine:
                rows += [t.tolist() for t in batch.targets_BT if (t != -100).any()]
        assert len(counts) == 1
        return sorted(rows)

    reference = scored(1, 25)
    assert len(reference) == 25
    assert all(scored(*cut) == reference for cut in [(1, 1), (1, 4), (2, 3), (3, 5), (7, 2)])


def test_too_little_held_out_text(batches) -> None:
    with pytest.raises(DataError, match=r"E-TOK-12 .*x.bin \(text, held out\)"):
        batches(1000, 10, 1)


def test_ids_are_checked(batches) -> None:
    with pytest.raises(DataError, match="E-TOK-09"):
        batches(T, 10**9, 4, vocab_size=400)


def test_a_damaged_block_is_named_when_the_windows_are_read(config, tmp_path: Path) -> None:
    flip(tmp_path / "x.bin", 5)
    with pytest.raises(DataError, match=r"E-TOK-08 .*x.bin block 0, bytes 0 to 1229"):
        Validation(HeldOut(config), T, 1, 1)
    Validation(HeldOut(replace(config, verify_blocks=False)), T, 1, 1)


def test_a_cut_file_is_refused(config, tmp_path: Path) -> None:
    data = (tmp_path / "x.bin").read_bytes()
    (tmp_path / "x.bin").write_bytes(data[:-2])
    with pytest.raises(DataError, match=r"E-TOK-04 .*x.bin: 1228 bytes, but .*x.idx describes 615 tokens"):
        HeldOut(config)


def test_what_happens_to_a_file_later_changes_no_validation(config, tmp_path: Path) -> None:
    validation = Validation(HeldOut(config), T, 200, 4)

    def read() -> list[list[int]]:
        return [row.tolist() for batch in validation.batches()["text"] for row in batch.tokens_BT]

    before = read()
    flip(tmp_path / "x.bin", 5)
    assert read() == before


def test_held_out_text_of_another_tokenizer(config, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"kind": "corpus", "tokenizer": {"sha256": "0" * 64}}))
    with pytest.raises(DataError, match=r"E-TOK-11 data.sources.text.valid_path: .*x .*tokenizer 0000"):
        HeldOut(config)


def test_the_fingerprint_is_of_the_bytes(config, tmp_path: Path) -> None:
    before = HeldOut(config).fingerprint()
    assert list(before) == ["text"]
    flip(tmp_path / "x.bin", 5)
    after = HeldOut(config).fingerprint()
    assert before["text"]["bin"] != after["text"]["bin"]
    assert before["text"]["idx"] == after["text"]["idx"]
