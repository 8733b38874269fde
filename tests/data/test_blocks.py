"""Block sums: a damaged block is found when something in it is read, and no later."""

from pathlib import Path

import numpy as np
import pytest

from coca_train.data import dataset
from coca_train.data.dataset import IndexedDataset, IndexedWriter
from coca_train.data.mixture import Mixture
from coca_train.runtime.errors import DataError
from data_prep import concatenate
from data_prep.parts import DOCS


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """100 tokens of 2 bytes in blocks of 16 bytes: 8 tokens a block, 4 in the last one."""
    monkeypatch.setattr(dataset, "BLOCK_BYTES", 16)
    with IndexedWriter(tmp_path / "x", np.uint16) as writer:
        writer.add_document(range(100))
    data = (tmp_path / "x.bin").read_bytes()
    sums = b"".join(dataset.block_sum(data[at : at + 16]) for at in range(0, len(data), 16))
    (tmp_path / "x.sums").write_bytes(sums)
    return tmp_path / "x"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_what_was_written_is_read(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []
    original = dataset.block_sum
    monkeypatch.setattr(dataset, "block_sum", lambda block: hashed.append(len(block)) or original(block))
    data = IndexedDataset(prefix, verify_blocks=True)
    assert data.tokens(10, 20).tolist() == list(range(10, 20))
    assert hashed == [16, 16]  # blocks 1 and 2
    assert data.tokens(0, 100).tolist() == list(range(100))
    assert hashed == [16] * 12 + [8]  # each once
    data.tokens(0, 100)
    assert len(hashed) == 13


@pytest.mark.parametrize(("byte", "block", "span"), [(0, 0, "0 to 15"), (47, 2, "32 to 47"), (199, 12, "192 to 199")])
def test_a_damaged_block_is_named_when_it_is_read(prefix: Path, byte: int, block: int, span: str) -> None:
    flip(prefix.with_suffix(".bin"), byte)
    data = IndexedDataset(prefix, verify_blocks=True)
    if block:
        data.tokens(0, 8 * block)
    if block < 12:
        data.tokens(8 * (block + 1), 100)
    for _ in range(2):  # it does not count as checked
        with pytest.raises(DataError, match=rf"E-TOK-08 .*x.bin block {block}, bytes {span}: .*x.sums.*Fix: copy"):
            data.tokens(8 * block, 8 * block + 1)
    assert IndexedDataset(prefix).tokens(0, 100).size == 100  # where nobody asks


@pytest.mark.parametrize("size", [0, 96, 103, 112])
def test_sums_of_another_file(prefix: Path, size: int) -> None:
    prefix.with_suffix(".sums").write_bytes(bytes(size))
    with pytest.raises(DataError, match=rf"E-TOK-08 .*x.sums: {size} bytes, .*x.bin has 13 blocks"):
        IndexedDataset(prefix, verify_blocks=True)


def test_without_sums_nothing_is_checked(prefix: Path) -> None:
    prefix.with_suffix(".sums").unlink()
    flip(prefix.with_suffix(".bin"), 3)
    assert IndexedDataset(prefix, verify_blocks=True).tokens(0, 100).size == 100


def test_the_sums_of_data_prep_are_these(tmp_path: Path) -> None:
    assert concatenate.BLOCK_BYTES == dataset.BLOCK_BYTES
    n_tokens = dataset.BLOCK_BYTES // 2 + 1000
    ids = np.arange(n_tokens) % 60_000
    rows = np.zeros(1, DOCS)
    rows["tokens"] = n_tokens
    with concatenate.DatasetWriter(tmp_path, "x", np.uint16, 1) as writer:
        writer.write_tokens(ids.astype("<u2").tobytes())
        writer.add(0, rows)
    data = IndexedDataset(tmp_path / "x", verify_blocks=True)
    assert np.array_equal(data.tokens(0, n_tokens), ids)
    flip(tmp_path / "x.bin", dataset.BLOCK_BYTES + 7)
    with pytest.raises(DataError, match=f"E-TOK-08 .* block 1, bytes {dataset.BLOCK_BYTES} to {2 * n_tokens - 1}"):
        IndexedDataset(tmp_path / "x", verify_blocks=True).tokens(n_tokens - 1, n_tokens)


@pytest.mark.parametrize("verify_blocks", [True, False])
def test_training_checks_what_it_reads(data_config, tmp_path: Path, verify_blocks: bool) -> None:
    data = (tmp_path / "text.bin").read_bytes()
    (tmp_path / "text.sums").write_bytes(dataset.block_sum(data))
    flip(tmp_path / "text.bin", 4)
    mixture = Mixture(data_config({"text": 1.0}, verify_blocks=verify_blocks), 16)
    if verify_blocks:
        with pytest.raises(DataError, match=r"E-TOK-08 .*text.bin block 0, bytes 0 to 9999"):
            mixture.samples(0, 4)
    else:
        mixture.samples(0, 4)


def test_a_dataset_rewritten_keeps_no_sums_of_the_old_one(prefix: Path) -> None:
    with IndexedWriter(prefix, np.uint16) as writer:
        writer.add_document(range(7, 107))
    assert IndexedDataset(prefix, verify_blocks=True).tokens(0, 100).tolist() == list(range(7, 107))
