"""SQuAD's comparison of answers, by hand."""

import pytest

from coca_train.evaluation.measures.harness_sources import compute_exact, compute_f1, normalize_answer


def test_normalized():
    assert normalize_answer(" The  Cat, a dog; AND an owl. ") == "cat dog and owl"


@pytest.mark.parametrize(("expected", "answer", "exact", "f1"), [
    ("the cat", "Cat!", 1, 1.0), ("two black cats", "black cats", 0, 0.8), ("a cat", "a dog", 0, 0.0),
    ("the", "a", 1, 1.0), ("the", "cat", 0, 0.0), ("no no yes", "no", 0, 0.5),
])  # fmt: skip
def test_answers(expected, answer, exact, f1):
    assert (compute_exact(expected, answer), compute_f1(expected, answer)) == (exact, pytest.approx(f1))
