"""Moderated intervals against R's limma, and by simulation of rows that are not alike."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from coca_train.statistics.intervals import student
from coca_train.statistics.moderated import MARGIN, NO_PRIOR, Prior, _inverse_trigamma, fit_prior, half_width

VARIANCES = (0.0009, 0.0014, 0.0003, 0.0022, 0.0007, 0.0011, 0.005, 0.0002, 0.00005, 0.0019)


def sample(variance: float, n: int) -> np.ndarray:
    """Return n numbers of just this variance."""
    x_N = np.arange(n) - (n - 1) / 2
    return x_N / x_N.std(ddof=1) * math.sqrt(variance)


@pytest.mark.parametrize(
    ("n_free", "variance", "prior"),
    [
        ((4,) * 10, 0.0006599368890454815, 2.7486209077068171),
        ((4, 4, 4, 4, 4, 1, 1, 2, 2, 3), 0.001108223470568215, 6.609059095869075),
    ],
)
def test_what_variances_have_in_common_is_that_of_limma(n_free, variance, prior) -> None:
    """squeezeVar(c(v, v), c(d, d))$var.prior and $df.prior of limma 3.54.1."""
    found = fit_prior([sample(each, n + 1) for each, n in zip(VARIANCES * 2, n_free * 2, strict=True)])
    assert found.variance == pytest.approx(MARGIN * variance, rel=1e-11)
    assert found.n_free == pytest.approx(prior, rel=1e-11)


def test_variances_no_less_alike_than_draws_of_one_are_pooled() -> None:
    """fitFDist(rep(c(1.0, 1.1, 0.9, 1.05), 5), 4) of limma 3.54.1."""
    found = fit_prior([sample(each, 5) for each in (1.0, 1.1, 0.9, 1.05) * 5])
    assert found == (pytest.approx(MARGIN * 1.0125), math.inf)


def test_own_seeds_weigh_no_less_than_all_others() -> None:
    own = np.array([0.1, 0.2, 0.4, 0.3, 0.0])
    alone = half_width(own, 0.95)
    assert alone == pytest.approx(2.7764451 * own.std(ddof=1) / math.sqrt(5))
    for n_free in (4.0, 400.0, math.inf):
        expected = student(0.95, 8) * math.sqrt((0.01 + own.var(ddof=1)) / 2 / 5)
        assert half_width(own, 0.95, Prior(0.01, n_free)) == pytest.approx(expected)
    assert half_width(own, 0.95, NO_PRIOR) == alone


def test_too_few() -> None:
    assert fit_prior([]) == NO_PRIOR
    assert fit_prior([sample(i, 5) for i in range(1, 15)]) == NO_PRIOR
    assert fit_prior([np.array([1.0])] * 20) == NO_PRIOR
    assert fit_prior([np.full(5, 0.5)] * 20) == NO_PRIOR
    assert fit_prior([np.full(5, 0.5), *(sample(i, 5) for i in range(1, 15))]).variance > 0


def test_variances_hardly_less_alike_than_draws_of_one() -> None:
    """Far out psi'(x) is 1/x to the last digit."""
    assert _inverse_trigamma(1e-12) == 1e12
    assert _inverse_trigamma(1e-6) == pytest.approx(1e6, rel=1e-5)


def noise(rng: np.random.Generator, kind: str, m: int, s: int) -> np.ndarray:
    """Return what seeds are off, by row."""
    off_MS = rng.normal(0, 0.03, (m, s))
    match kind:
        case "the first noisy":
            off_MS[0] *= 3
        case "a third noisy":
            off_MS[::3] *= 3
        case "families":  # rows tried on the same weights are off alike
            off_MS[: 2 * (m // 2)] = 0.5 * off_MS[: 2 * (m // 2)] + np.repeat(rng.normal(0, 0.03, (m // 2, s)), 2, 0)
        case "outliers":  # now and then a seed that learned less
            off_MS = off_MS / 2 + 0.1 * (rng.random((m, s)) < 0.2)
    return off_MS


@pytest.mark.parametrize("kind", ["alike", "the first noisy", "a third noisy", "families", "outliers"])
@pytest.mark.parametrize(("m", "s"), [(6, 5), (6, 2), (12, 5), (12, 3), (40, 5)])
def test_of_equal_rows_none_is_called_different_from_the_first(kind: str, m: int, s: int) -> None:
    """In 95 % of draws, and by an interval that is much narrower than without what they have in common."""
    rng, n, right, width = np.random.default_rng(11), 300 if m < 20 else 100, 0, []
    pairs = np.triu_indices(m, 1)
    confidence = 1 - 0.05 / (m - 1)
    for _ in range(n):
        off_MS = noise(rng, kind, m, s)
        common = fit_prior(off_MS[pairs[0]] - off_MS[pairs[1]])
        differences = off_MS[1:] - off_MS[0]
        right += all(abs(each.mean()) <= half_width(each, confidence, common) for each in differences)
        width.append([half_width(differences[-1], confidence, each) for each in (common, NO_PRIOR)])
    assert right / n > 0.95 + norm.ppf(0.001) * math.sqrt(0.95 * 0.05 / n)
    if m > 6:
        narrow, wide = np.mean(width, axis=0)
        assert narrow < 0.8 * wide
