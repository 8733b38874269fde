"""Differences over seeds and documents: intervals that cover, and how seldom anything is told falsely."""

import math

import numpy as np
import pytest
from scipy.stats import t as students

from coca_train.evaluation.measures.reach import LEAST, mean_bounds
from coca_train.evaluation.measures.seeds import crossed_bounds, student, together

N_DOCUMENTS, N_TOKENS = 24, 2048
SKEW = 0.6  # of documents: a skewness of 2.3
LOGNORMAL = math.sqrt(math.expm1(SKEW**2)) * math.exp(SKEW**2 / 2)  # its standard deviation


def drawn(rng, n_seeds, seeds, documents, both, truth=0.0):
    """Differences of a seed and a document with these standard deviations: (S, D, 2) sums. Documents are skewed."""
    skewed = (rng.lognormal(0, SKEW, (1, N_DOCUMENTS)) - math.exp(SKEW**2 / 2)) / LOGNORMAL
    effects = (rng.normal(size=(n_seeds, 1)), skewed, rng.normal(size=(n_seeds, N_DOCUMENTS)))
    mean_SD = truth + sum(size * effect for size, effect in zip((seeds, documents, both), effects, strict=True))
    return np.stack((mean_SD * N_TOKENS, np.full_like(mean_SD, N_TOKENS)), -1)


@pytest.mark.parametrize("n_free", [1, 2, 3, 4, 9, 10, 23, 199])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.9999])
def test_students_t(n_free, confidence):
    assert student(confidence, n_free) == pytest.approx(students.ppf((1 + confidence) / 2, n_free), rel=1e-9)


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
@pytest.mark.parametrize(
    ("seeds", "documents", "both"),
    [(1, 0.1, 0.1), (1, 5, 1), (0.2, 5, 1), (0.05, 1, 5), (0, 1, 0.1)],
    ids=["seeds", "as much", "more of documents", "of neither alone", "documents"],
)
def test_intervals_cover_whatever_the_noise_is_of(n_seeds, seeds, documents, both):
    rng, n = np.random.default_rng(7), 400
    intervals = [crossed_bounds(drawn(rng, n_seeds, seeds, documents, both, truth=3.0)) for _ in range(n)]
    covered = sum(each.low <= 3 <= each.high for each in intervals)
    assert covered >= 0.92 * n  # 95 %, less what 400 draws and skewed documents may take
    assert all(each.low <= each.documents.low and each.documents.high <= each.high for each in intervals)


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
def test_noise_of_seeds_is_told_as_a_difference_at_most_once_in_twenty(n_seeds):
    """Three schemes that are one, each pair at two lengths: nothing must be told in 95 of 100 draws."""
    rng, n, told, over_documents = np.random.default_rng(3), 200, 0, 0
    for _ in range(n):
        schemes = [[drawn(rng, n_seeds, 1, 1, 0.3) for _ in range(2)] for _ in range(3)]
        pairs = [(schemes[a][k], schemes[b][k]) for a, b in ((0, 1), (0, 2), (1, 2)) for k in range(2)]
        found = together([np.stack((one[..., 0] - other[..., 0], one[..., 1]), -1) for one, other in pairs])
        told += any(each.told for each in found)
        over_documents += any(not each.documents.low <= 0 <= each.documents.high for each in found)
    assert told <= 0.05 * n
    assert over_documents > 0.5 * n  # what documents alone would have told


def test_a_difference_larger_than_both_is_told_with_three_seeds_and_not_with_two():
    rng = np.random.default_rng(5)
    three = crossed_bounds(drawn(rng, 3, 0.1, 0.2, 0.1, truth=1.0))
    assert three.told and 0 < three.low < 1 < three.high
    two = crossed_bounds(drawn(rng, 2, 0.1, 0.2, 0.1, truth=0.3))
    assert not two.told and two.documents.low > 0


def test_one_seed_says_nothing_of_seeds():
    (one,) = together([drawn(np.random.default_rng(0), 1, 0, 0.1, 0, truth=1.0)])
    assert (one.low, one.high) == (-math.inf, math.inf)
    assert one.told and one.interval == one.documents[1:3]


def test_the_interval_by_hand():
    """Of documents that all say the same only seeds differ: Student's interval of the seeds."""
    per_seed = np.array([1.0, 2.0, 4.0])
    sums = np.stack((np.repeat(per_seed[:, None] * 10, LEAST, 1), np.full((3, LEAST), 10.0)), -1)
    found = crossed_bounds(sums)
    half = students.ppf(0.975, 2) * per_seed.std(ddof=1) / math.sqrt(3)
    assert found.seeds == pytest.approx(per_seed)
    assert (found.low, found.high) == pytest.approx((7 / 3 - half, 7 / 3 + half))
    # And of seeds that all say the same: the interval over documents, or Student's where that is wider.
    sums = np.repeat(drawn(np.random.default_rng(1), 1, 0, 1, 0), 3, 0)
    found, alone = crossed_bounds(sums), mean_bounds(sums[0])
    assert found.low <= alone.low and found.high >= alone.high
    assert (found.low, found.high) == pytest.approx(found.documents[1:3])


def test_what_is_told_frees_the_others():
    """Holm: the second of two is judged at 5 % once the first is told, and its interval is the one it was judged by."""
    rng = np.random.default_rng(9)
    clear, weak = (drawn(rng, 3, 0.1, 0.1, 0.05, truth=truth) for truth in (50.0, 0.0))
    first, second = together([clear, weak])
    assert first.told
    assert (second.low, second.high) == crossed_bounds(weak)[1:3]
    assert (first.low, first.high) == crossed_bounds(clear, 0.975)[1:3]
    # Nothing told: both at half of 5 %.
    assert together([weak, weak])[0] == crossed_bounds(weak, 0.975)
