"""The global batch of a step is the same whoever reads it, however it is cut, wherever it begins."""

import hashlib
import itertools
import os
import time

import numpy as np
import pytest

from coca_train.data.loader import Batch, Loader, Mixture
from coca_train.runtime.errors import DataError

GLOBAL = 24


def digest(batches: list[Batch]) -> str:
    """SHA-256 of the rows of a global batch, in their order."""
    sha = hashlib.sha256()
    for batch in batches:
        for tensor in (batch.tokens_BT, batch.targets_BT, batch.pos_BT, batch.doc_BT):
            if tensor is not None:
                assert tensor.is_contiguous()
    for name in ("tokens_BT", "targets_BT", "pos_BT", "doc_BT"):
        parts = [getattr(batch, name).numpy() for batch in batches if getattr(batch, name) is not None]
        sha.update(np.concatenate(parts).tobytes() if parts else b"")
    return sha.hexdigest()


def global_batches(mixture: Mixture, world: int, micro: int, start: int, steps: int, prefetch: int = 0) -> list[str]:
    loaders = [Loader(mixture, GLOBAL, micro, rank, world, start, prefetch) for rank in range(world)]
    out = []
    for _ in range(steps):
        shares = [next(loader) for loader in loaders]
        assert all(len(share) == GLOBAL // world // micro for share in shares)
        assert all(batch.tokens_BT.shape == (micro, 16) for share in shares for batch in share)
        out.append(digest([batch for share in shares for batch in share]))
    for loader in loaders:
        loader.close()
    return out


@pytest.mark.parametrize("document_mask", [False, True])
def test_same_global_batch_for_every_world_accumulation_and_resume(data_config, document_mask: bool) -> None:
    mixture = Mixture(data_config(document_mask=document_mask), 16)
    reference = global_batches(mixture, world=1, micro=24, start=0, steps=8)
    assert len(set(reference)) == 8
    for world, micro in [(1, 1), (1, 6), (2, 12), (2, 3), (3, 4), (4, 2), (8, 1), (24, 1)]:
        assert global_batches(mixture, world, micro, 0, 8) == reference
    for start in range(1, 8):
        assert global_batches(mixture, 2, 4, start, 8 - start, prefetch=3) == reference[start:]
    assert global_batches(Mixture(data_config(document_mask=document_mask), 16), 1, 24, 0, 8) == reference


def n_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_reading_ahead_changes_nothing_and_leaves_no_thread(mixture: Mixture) -> None:
    before = n_threads()
    plain = Loader(mixture, GLOBAL, 6, 0, 2, 5, prefetch_steps=0)
    assert n_threads() == before
    with Loader(mixture, GLOBAL, 6, 0, 2, 5, prefetch_steps=4) as ahead:
        assert n_threads() == before + 1
        for a, b, _ in zip(plain, ahead, range(20), strict=False):
            assert digest(a) == digest(b)
    ahead.close()
    deadline = time.monotonic() + 30
    while n_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)  # the machine ends it a moment after its last line
    assert n_threads() == before


def test_reading_ahead_is_bounded(mixture: Mixture, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    original = mixture.batch
    monkeypatch.setattr(mixture, "batch", lambda indices: read.append(indices) or original(indices))
    with Loader(mixture, GLOBAL, GLOBAL, 0, 1, 0, prefetch_steps=3) as loader:
        time.sleep(0.3)
        assert len(read) == 4  # three waiting, one in the hand
        next(loader)
        time.sleep(0.2)
        assert len(read) == 5


@pytest.mark.parametrize("prefetch_steps", [0, 2])
def test_it_ends_when_a_source_is_to_stop(data_config, prefetch_steps: int) -> None:
    mixture = Mixture(data_config(on_exhausted="stop"), 16)
    with Loader(mixture, GLOBAL, 12, 0, 1, 0, prefetch_steps) as loader:
        assert loader.max_steps == 416 // GLOBAL
        assert len(list(loader)) == loader.max_steps
        with pytest.raises(StopIteration):
            next(loader)
    with Loader(mixture, GLOBAL, 12, 0, 1, 1000, prefetch_steps) as loader:
        assert list(loader) == []


@pytest.mark.parametrize("prefetch_steps", [0, 2])
def test_errors_reach_the_reader(data_config, prefetch_steps: int) -> None:
    mixture = Mixture(data_config(), 16, vocab_size=12_000)
    with (
        Loader(mixture, GLOBAL, 12, 0, 1, 0, prefetch_steps) as loader,
        pytest.raises(DataError, match="E-TOK-09"),
    ):
        for _ in itertools.islice(loader, 100):
            pass


def test_a_step_is_what_provenance_says(mixture: Mixture) -> None:
    (batch,) = Loader(mixture, GLOBAL, 12, 1, 2, 0, 0).step(7)
    for row in range(12):
        p = mixture.provenance(7 * GLOBAL + 12 + row)
        assert batch.tokens_BT[row, 0] == p.parts[0].token_start + (10_000 if p.source == "code" else 0)
