"""Intervals of shares against printed ones."""

import pytest

from coca_train.evaluation.measures.shares import wilson


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [  # Newcombe 1998, table I (81 of 263, 15 of 148, 0 of 20, 1 of 29), method 3, to four digits
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 1 - 0.1611, 1.0),
    ],
)
def test_wilson(k, n, low, high):
    assert wilson(k, n) == pytest.approx((low, high), abs=6e-5)


def test_wilson_of_nothing():
    with pytest.raises(ValueError, match="at least one case"):
        wilson(0, 0)
