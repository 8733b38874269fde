"""Intervals of shares against printed ones."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from coca_train.statistics.shares import clustered_share, paired_shares, share_bounds, wilson


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
    with pytest.raises(ValueError, match="one case"):
        wilson(0, 0)


@pytest.mark.parametrize("confidence", [0.95, 0.999])
@pytest.mark.parametrize(("n", "k"), [(20, 20), (20, 19), (40, 0), (7, 3), (500, 251), (100_000, 80_100)])
def test_bounds_of_a_share_are_clopper_and_pearsons(n, k, confidence):
    """At either end what was seen, or more of it, has the chance of one tail."""
    (_, low, high, _), tail = share_bounds(k, n, confidence), pytest.approx((1 - confidence) / 2, rel=1e-6)
    assert binom.sf(k - 1, n, low) == tail if k else low == 0
    assert binom.cdf(k, n, high) == tail if k < n else high == 1


@pytest.mark.parametrize(("gained", "lost"), [(0, 6), (9, 1), (12, 12), (30, 11), (0, 0), (5, 0)])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_a_difference_of_shares_leaves_0_out_where_mcnemars_exact_test_rejects(gained, lost, confidence):
    bounds = paired_shares(gained, lost, 100, confidence)
    rejected = gained + lost > 0 and binomtest(gained, gained + lost).pvalue < 1 - confidence
    assert bounds.excludes(0) == rejected
    assert bounds.estimate == pytest.approx((gained - lost) / 100)


@pytest.mark.parametrize(("share", "within"), [(0.2, 0.0), (0.5, 0.5), (0.9, 0.5), (0.97, 0.0)])
def test_questions_of_one_unit_are_not_independent(share, within):
    """Of units whose questions go together, the interval holds the truth as often as it says, to a few in a hundred."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(300):
        spread = (1 - within) / within if within else 1e9
        own_U = rng.beta(share * spread, (1 - share) * spread, 100)
        asked_U = rng.integers(1, 9, 100)
        bounds = clustered_share(rng.binomial(asked_U, own_U), asked_U)
        hits += bounds.low <= share <= bounds.high
    assert 0.9 <= hits / 300 <= 0.99


def test_one_question_a_unit_is_wilsons_interval():
    found = np.arange(50) < 12
    low, high = wilson(12, 50)
    assert clustered_share(found, np.ones(50)) == pytest.approx((0.24, low, high, 50), rel=0.02)
    assert clustered_share([1], [2]) == pytest.approx((0.5, *wilson(0.5, 1), 1))
    assert clustered_share(np.zeros(9), np.full(9, 4)) == pytest.approx((0, *wilson(0, 9), 9))
