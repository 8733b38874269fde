"""Which documents are left out: the slow definition in dictionaries, and memory that does not grow."""

import hashlib
import itertools
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import duplicates
from data_prep.duplicates import DUPLICATE, DUPLICATE_ID, KEPT, Clash, Stretch, judge
from data_prep.parts import DOCS
from tests.cases import slow_unless


@dataclass(frozen=True)
class Given:
    """A document as the rules see it."""

    source: int
    text: int
    id: int
    held_out: bool


def by_definition(corpus: list[Given], named: frozenset[int]) -> tuple[list[int], Clash | None]:
    """Both rules with dictionaries."""
    verdicts = [KEPT] * len(corpus)
    owners: dict[tuple[int, int], int] = {}
    clash = None
    for i, doc in enumerate(corpus):
        if doc.source in named and doc.id:
            owner = owners.setdefault((doc.source, doc.id), i)
            if corpus[owner].text != doc.text:
                verdicts[i] = DUPLICATE_ID
                clash = clash or Clash(i, owner)
    seen: set[int] = set()
    for held_out in (True, False):
        for i, doc in enumerate(corpus):
            if verdicts[i] == KEPT and doc.held_out == held_out:
                verdicts[i] = DUPLICATE if doc.text in seen else KEPT
                seen.add(doc.text)
    return verdicts, clash


def rows(corpus: list[Given]) -> np.ndarray:
    table = np.zeros(len(corpus), DOCS)
    for row, doc in zip(table, corpus, strict=True):
        row["digest"] = hashlib.blake2b(b"%d" % doc.text, digest_size=16).digest()
        row["split"] = doc.held_out
        if doc.id:
            row["id"] = hashlib.blake2b(b"id %d" % doc.id, digest_size=16).digest()
    return table


documents = st.builds(
    Given,
    source=st.integers(0, 2),
    text=st.integers(0, 8),
    id=st.integers(0, 5),
    held_out=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(
    corpus=st.lists(documents, max_size=40),
    cuts=st.sets(st.integers(1, 39), max_size=6),
    named=st.frozensets(st.integers(0, 2)),
    small=st.booleans(),
)
def test_the_rules_are_their_definition(
    corpus: list[Given], cuts: set[int], named: frozenset[int], small: bool
) -> None:
    """small: so few records at a time that they are sorted and read in several parts."""
    corpus = sorted(corpus, key=lambda doc: doc.source)

    def stretches() -> Iterator[Stretch]:
        borders = sorted({0, len(corpus), *(c for c in cuts if c < len(corpus))})
        borders = sorted({*borders, *(i for i in range(1, len(corpus)) if corpus[i].source != corpus[i - 1].source)})
        for begin, end in itertools.pairwise(borders):
            part = corpus[begin:end]
            yield Stretch(part[0].source, begin, rows(part))

    with pytest.MonkeyPatch.context() as patch:
        if small:
            for name, value in {"CHUNK": 3, "KEYS_AT_A_TIME": 4}.items():
                patch.setattr(duplicates, name, value)
        verdicts, clash = judge(stretches, len(corpus), named)
    assert (verdicts.tolist(), clash) == by_definition(corpus, named)


def test_keys_that_share_a_half_are_different() -> None:
    digests = [bytes(16), bytes(8) + b"\1" * 8, b"\1" * 8 + bytes(8), bytes(16), bytes(15) + b"\1"]
    documents = np.zeros(5, DOCS)
    documents["digest"] = [np.void(digest) for digest in digests]

    def stretches() -> Iterator[Stretch]:
        yield Stretch(0, 0, documents)

    verdicts, _ = judge(stretches, 5, frozenset())
    assert verdicts.tolist() == [KEPT, KEPT, KEPT, DUPLICATE, KEPT]


def test_of_many_clashes_the_first_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "KEYS_AT_A_TIME", 4)
    documents = rows([Given(0, text=i, id=i % 20 + 1, held_out=False) for i in range(40)])

    def stretches() -> Iterator[Stretch]:
        yield Stretch(0, 0, documents)

    verdicts, clash = judge(stretches, 40, frozenset({0}))
    assert clash == Clash(20, 0)
    assert verdicts.tolist() == [KEPT] * 20 + [DUPLICATE_ID] * 20


def peak(n: int, n_texts: int) -> int:
    """Most memory judge held at once for n documents of n_texts texts [bytes]."""

    texts = np.random.default_rng(0).integers(0, n_texts, n)
    digests = [hashlib.blake2b(b"%d" % text, digest_size=16).digest() for text in texts]
    documents = np.zeros(n, DOCS)
    documents["digest"] = documents["id"] = np.frombuffer(b"".join(digests), "V16")

    def stretches() -> Iterator[Stretch]:
        for first in range(0, n, 500):
            yield Stretch(0, first, documents[first : first + 500].copy())

    tracemalloc.start()
    judge(stretches, n, frozenset({0}))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


SHARES = {"few repeats": 1.0, "one text a thousand times": 0.0}


@pytest.mark.parametrize("case", slow_unless(["one text a thousand times"], SHARES))
def test_memory_grows_by_a_byte_a_document(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Sixteen times the documents, the same peak but for that."""
    for name, value in {"CHUNK": 300, "KEYS_AT_A_TIME": 1500}.items():
        monkeypatch.setattr(duplicates, name, value)
    small, large = (peak(n, max(3, int(n * SHARES[case]))) for n in (1_500, 24_000))
    print(f"\npeak {small / 1e3:.0f} KB for 1 500 documents, {large / 1e3:.0f} KB for 24 000")
    assert large < 1.25 * small + 20_000 + 24_000
