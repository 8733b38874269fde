"""Which documents a grid of lengths reads."""

import pytest

from coca_train.evaluation.suites import anomaly
from coca_train.evaluation.suites._documents import read_longest
from coca_train.runtime.errors import DataError
from tests.evaluation.grids import ROPE, settings, setup, subject

prepare = anomaly.Evaluator(settings("anomaly")).prepare
TEXTS = {"a": ["x" * n for n in (33, 40, 32, 50, 34, 60, 35, 38, 36)], "b": ["y" * 20]}


def test_documents_longer_than_the_longest_length_that_any_has():
    material = prepare(subject("rope", ROPE), setup((16, 32, 64), TEXTS))
    assert material.longest == 32
    assert [len(text) for text in material.texts] == [33, 50, 60, 38]  # 4 of the 8 with 33 and more, evenly
    assert material.problem(subject("rope", ROPE), 64).split()[-2] == "65"
    assert material.problem(subject("rope", ROPE), 32) == ""


def test_a_document_of_exactly_the_length_has_one_prediction_too_few():
    assert read_longest(subject("rope", ROPE), setup((), TEXTS), [16, 60]).longest == 16
    assert read_longest(subject("rope", ROPE), setup((), TEXTS), [16, 59]).longest == 59
    with pytest.raises(DataError, match="E-EVAL-05"):
        read_longest(subject("rope", ROPE), setup((), TEXTS), [60, 70])


def test_the_digest_is_of_what_a_length_reads_and_predicts():
    one = prepare(subject("rope", ROPE), setup((16,), {"a": ["x" * 17 + "y" * 9]}))
    other = prepare(subject("rope", ROPE), setup((16,), {"a": ["x" * 17 + "z" * 9]}))
    assert one.digest(16) == other.digest(16)
    assert one.digest(17) != other.digest(17)


def test_batches_hold_as_many_texts_as_fit_and_at_least_one():
    material = prepare(subject("rope", ROPE), setup((16, 32), TEXTS))
    assert material.batches(32, 100) == [[0, 1, 2], [3]]
    assert material.batches(32, 10) == [[0], [1], [2], [3]]
