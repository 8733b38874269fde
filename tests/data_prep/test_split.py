"""Held out or not: by the text alone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coca_train.statistics import answers
from data_prep import fitting
from data_prep.selection import digest_of, split_of
from tests.data_prep.reading import SOURCE

HASHED = replace(SOURCE, hold_out="hash")


def test_the_split_is_written_down():
    """These must never change: corpora that exist were split like this."""
    assert digest_of("a").hex() == "27c35e6e9373877f29e562464e46497e"
    assert digest_of("é").hex() == "d4b1b0202b21bb84e60a3d272ecab0db"
    place = 0x27C35E6E9373877F / 2**64
    assert split_of(digest_of("a"), HASHED, place - 1e-15) == 0
    assert split_of(digest_of("a"), HASHED, place + 1e-15) == 1


@pytest.mark.parametrize(("hold_out", "split"), [("none", 0), ("all", 1)])
def test_sources_that_are_not_split(hold_out, split):
    source = replace(SOURCE, hold_out=hold_out)
    assert {split_of(digest_of(str(i)), source, 0.5) for i in range(50)} == {split}


def test_the_share_is_kept():
    held_out = sum(split_of(digest_of(f"document {i}"), HASHED, 0.05) for i in range(20_000))
    assert abs(held_out - 1000) < 4 * (20_000 * 0.05 * 0.95) ** 0.5


@given(st.text(), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_a_larger_share_holds_out_more_never_others(text, one, other):
    digest = digest_of(text.encode(errors="replace").decode())
    small, large = sorted((one, other))
    assert split_of(digest, HASHED, small) <= split_of(digest, HASHED, large)
    assert split_of(digest, HASHED, 0.0) == 0


def test_at_least_as_many_documents_are_held_out_as_an_answer_needs() -> None:
    assert fitting.LEAST == answers.LEAST
