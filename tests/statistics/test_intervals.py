"""Intervals over documents, and over seeds and documents: they cover, and agree with what can be had by hand."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import bootstrap
from scipy.stats import t as students

from coca_train.statistics.intervals import Bounds, Crossed, OverDocuments, student

N_DRAWS = 1000
TRUTH = 0.02  # [nats per token], of the simulated differences
KINDS = {  # of the differences between documents: mean 0, deviation 1
    "normal": lambda rng, n: rng.normal(size=n),
    "skewed": lambda rng, n: rng.gamma(2.0, size=n) / math.sqrt(2) - math.sqrt(2),
    "long tails": lambda rng, n: rng.standard_t(6, n) / math.sqrt(1.5),
}


def drawn(kind, n, seed):
    """Sums of n documents of 300 to 3,000 predictions, whose mean difference is TRUTH."""
    rng = np.random.default_rng(seed)
    count_D = rng.integers(300, 3000, n).astype(float)
    return np.stack((count_D * (TRUTH + 0.05 * KINDS[kind](rng, n)), count_D), 1)


@pytest.mark.parametrize(("kind", "n"), [*product(KINDS, (20,)), ("skewed", 60)])
def test_intervals_of_paired_differences_cover_the_truth(kind, n):
    each = [OverDocuments(drawn(kind, n, seed)) for seed in range(N_DRAWS)]
    intervals = [one.interval() for one in each]
    assert 0.93 <= np.mean([found.low <= TRUTH <= found.high for found in intervals]) <= 0.975
    assert np.mean([found.low > TRUTH for found in intervals]) <= 0.05
    assert np.mean([found.high < TRUTH for found in intervals]) <= 0.05
    wider = [one.interval(0.999) for one in each]
    assert np.mean([not found.low <= TRUTH <= found.high for found in wider]) <= 0.006
    assert all(w.low <= f.low and f.high <= w.high for w, f in zip(wider, intervals, strict=True))


def test_the_bootstrap_is_the_one_of_scipy():
    """Bootstrap-t by hand is what a mean's is; scipy has BCa, which agrees to second order."""
    rng = np.random.default_rng(1)
    each_D = rng.gamma(3.0, size=80)
    found = OverDocuments(np.stack((each_D, np.ones(80)), 1)).interval()
    known = bootstrap((each_D,), np.mean, n_resamples=20_000, rng=np.random.default_rng(2)).confidence_interval
    assert found[1:3] == pytest.approx((known.low, known.high), rel=0.03)


def test_an_interval_is_never_narrower_than_students():
    for seed in range(50):
        sums = drawn("long tails", 20, seed)
        one = OverDocuments(sums)
        for confidence in (0.95, 0.999):
            bounds = one.interval(confidence)
            least = students.ppf((1 + confidence) / 2, 19) * one.error * (1 - 1e-9)
            assert bounds.estimate - bounds.low >= least and bounds.high - bounds.estimate >= least


def test_a_ratio_of_sums_not_a_mean_of_ratios():
    """One long document weighs as many short ones."""
    bounds = OverDocuments([[9.0, 900.0], *[[1.0, 10.0]] * 9]).interval()
    assert bounds.estimate == pytest.approx(18 / 990) and bounds.n == 10
    assert bounds.low < bounds.estimate < bounds.high


def test_documents_that_all_say_the_same_leave_no_doubt():
    assert OverDocuments([[0.0, 7.0]] * 30).interval() == Bounds(0.0, 0.0, 0.0, 30)
    assert OverDocuments([[1.0, 2.0]]).interval() == Bounds(0.5, -math.inf, math.inf, 1)
    assert math.isnan(OverDocuments([]).interval().estimate)


N_DOCUMENTS, N_TOKENS = 24, 2048
SKEW = 0.6  # of documents: a skewness of 2.3
LOGNORMAL = math.sqrt(math.expm1(SKEW**2)) * math.exp(SKEW**2 / 2)  # its standard deviation


def crossed(rng, n_seeds, seeds, documents, both, truth=0.0):
    """Differences of a seed and a document with these standard deviations: (S, D, 2) sums. Documents are skewed."""
    skewed = (rng.lognormal(0, SKEW, (1, N_DOCUMENTS)) - math.exp(SKEW**2 / 2)) / LOGNORMAL
    effects = (rng.normal(size=(n_seeds, 1)), skewed, rng.normal(size=(n_seeds, N_DOCUMENTS)))
    mean_SD = truth + sum(size * effect for size, effect in zip((seeds, documents, both), effects, strict=True))
    return np.stack((mean_SD * N_TOKENS, np.full_like(mean_SD, N_TOKENS)), -1)


@pytest.mark.parametrize(("n_free", "t"), [(1, 12.706), (2, 4.303), (10, 2.228), (120, 1.980)])
def test_students_t_as_printed_in_tables(n_free, t):
    assert student(0.95, n_free) == pytest.approx(t, abs=5e-4)


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
@pytest.mark.parametrize(
    ("seeds", "documents", "both"),
    [(1, 0.1, 0.1), (1, 5, 1), (0.2, 5, 1), (0.05, 1, 5), (0, 1, 0.1)],
    ids=["seeds", "as much", "more of documents", "of neither alone", "documents"],
)
def test_intervals_cover_whatever_the_noise_is_of(n_seeds, seeds, documents, both):
    rng, n = np.random.default_rng(7), 400
    each = [Crossed(crossed(rng, n_seeds, seeds, documents, both, truth=3.0)) for _ in range(n)]
    covered = sum(one.interval().low <= 3 <= one.interval().high for one in each)
    assert covered >= 0.92 * n  # 95 %, less what 400 draws and skewed documents may take
    for one in each:
        whole, alone = one.interval(), one.documents.interval()
        assert whole.low <= alone.low and alone.high <= whole.high


def test_one_seed_says_nothing_of_seeds():
    one = Crossed(crossed(np.random.default_rng(0), 1, 0, 0.1, 0, truth=1.0))
    assert one.interval() == one.documents.interval()


def test_the_interval_by_hand():
    """Of documents that all say the same only seeds differ: Student's interval of the seeds."""
    per_seed = np.array([1.0, 2.0, 4.0])
    sums = np.stack((np.repeat(per_seed[:, None] * 10, 20, 1), np.full((3, 20), 10.0)), -1)
    found = Crossed(sums)
    half = students.ppf(0.975, 2) * per_seed.std(ddof=1) / math.sqrt(3)
    assert found.seeds_S == pytest.approx(per_seed)
    assert found.interval()[1:3] == pytest.approx((7 / 3 - half, 7 / 3 + half))
