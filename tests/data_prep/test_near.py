"""Signatures are datatrove's, matches count documents rightly, and groups are what their definition says."""

import resource
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.runtime.errors import UserError
from data_prep import minhash
from data_prep.minhash import HELD_OUT, STAYS, TRAINED_ON, Clusters
from tests.data_prep.near_text import CONFIG, text

pytest.importorskip("datatrove")


def test_files_are_those_of_datatroves_own_first_step(tmp_path: Path) -> None:
    from datatrove.data import Document

    texts = [text(n, n) for n in (300, 4, 5, 40, 1000)] + [text(40, 40)]
    signer = minhash.Signer(CONFIG, tmp_path / "theirs")
    signer._step.run((Document(text=t, id=str(i)) for i, t in enumerate(texts)), rank=3)
    signed = [(i, s) for i, s in enumerate(map(signer.signature, texts)) if s is not None]
    numbers = np.array([i for i, _ in signed])
    assert numbers.tolist() == [0, 2, 3, 4, 5]  # four words have no 5-gram
    minhash.write_block(tmp_path / "ours", 3, numbers, np.stack([s for _, s in signed]), CONFIG)
    theirs = sorted((tmp_path / "theirs").rglob("*.sig"))
    assert len(theirs) == 14
    for path in theirs:
        assert (tmp_path / "ours" / path.relative_to(tmp_path / "theirs")).read_bytes() == path.read_bytes()


def test_a_long_text_is_signed_in_slices_with_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signer, long = minhash.Signer(CONFIG, tmp_path), text(500, 1)
    whole = signer.signature(long)
    monkeypatch.setattr(minhash, "SLICE", 7)
    sliced = signer.signature(long)
    assert whole is not None and sliced is not None
    assert sliced.tolist() == whole.tolist()
    assert (whole.shape, whole.dtype) == ((112,), np.uint64)


@pytest.mark.parametrize("ngram", [1, 5, 8])
def test_a_text_shorter_than_an_ngram_has_no_signature(tmp_path: Path, ngram: int) -> None:
    signer = minhash.Signer(replace(CONFIG, ngram=ngram), tmp_path)
    assert signer.signature(text(ngram - 1, 3)) is None
    assert signer.signature(text(ngram, 3)) is not None


def test_case_punctuation_and_white_space_make_no_difference(tmp_path: Path) -> None:
    signer, original = minhash.Signer(CONFIG, tmp_path), text(60, 1)
    other = original.upper().replace(",", " ;").replace("\n", "\n\n\t")
    first, second, third = map(signer.signature, (original, other, text(60, 2)))
    assert first is not None and second is not None and third is not None
    assert first.tolist() == second.tolist() != third.tolist()


def test_matches_count_documents_through_all_blocks(tmp_path: Path) -> None:
    signer, texts = minhash.Signer(CONFIG, tmp_path), [text(50, i % 4) for i in range(10)]
    signatures = np.stack([s for s in map(signer.signature, texts) if s is not None])
    for block, (begin, end) in enumerate([(0, 3), (3, 4), (4, 10)]):
        minhash.write_block(tmp_path, block, np.arange(end - begin), signatures[begin:end], CONFIG)
    groups = Clusters(tmp_path / "groups", np.full(10, TRAINED_ON, np.uint8))
    groups.join(minhash.matches(minhash.match(tmp_path, 5, CONFIG, 3), np.array([0, 3, 4])))
    assert [pair for pairs in groups.left_out() for pair in pairs.tolist()] == [[i, i % 4] for i in range(4, 10)]


def test_too_few_open_files_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 200))
    with pytest.raises(UserError, match=r"^E-RUN-12 .*may open 200 files; 1064 .*ulimit -n 1064"):
        minhash.match(tmp_path, 0, CONFIG, 1000)


def naive(n: int, pairs: Iterable[tuple[int, int]], ranks: list[int]) -> list[list[int]]:
    """Who goes, by the definition: everyone of a group but its first by (rank, number), evaluation sets excepted."""
    groups = [{i} for i in range(n)]
    for a, b in pairs:
        if groups[a] is not groups[b]:
            groups[a] |= groups[b]
            for member in groups[b]:
                groups[member] = groups[a]
    first = [min(group, key=lambda i: (ranks[i], i)) for group in groups]
    return [[i, first[i]] for i in range(n) if first[i] != i and ranks[i] != STAYS]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 30), chunk=st.sampled_from([1, 4, 1 << 18]))
def test_groups_are_what_the_definition_says(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, n: int, chunk: int
) -> None:
    ranks = data.draw(st.lists(st.sampled_from([STAYS, HELD_OUT, TRAINED_ON]), min_size=n, max_size=n))
    number = st.integers(0, n - 1)
    pairs = data.draw(st.lists(st.tuples(number, number), max_size=40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_prep.minhash.CHUNK", chunk)
        groups = Clusters(tmp_path_factory.mktemp("groups") / "groups", np.array(ranks, np.uint8))
        half = len(pairs) // 2
        groups.join(np.array(part, np.int64).reshape(-1, 2) for part in (pairs[:half], pairs[half:]))
        assert [pair for rows in groups.left_out() for pair in rows.tolist()] == naive(n, pairs, ranks)
