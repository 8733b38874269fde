"""Levels, ranks and differences over tasks and seeds, against least squares and by simulation."""

import math

import numpy as np
import pytest

from coca_train.statistics.ranks import (
    TaskDifference,
    fit_priors,
    levels,
    mean_over_seeds,
    over_seeds,
    rank,
    significant,
)

M, S, K = 8, 5, 13


def draw(rng, effects, missing=0.2, interaction=0.12, noise=0.1, of_seed=0.03):
    """Return y_MSK: methods that are better by `effects` on average over tasks, and not alike on each."""
    n = len(effects)
    y_MSK = np.array(effects)[:, None, None] + rng.normal(0.4, 0.2, K) + rng.normal(0, interaction, (n, 1, K))
    y_MSK = y_MSK + rng.normal(0, noise, (n, S, K)) + rng.normal(0, of_seed, (n, S, 1))
    return np.where(rng.random((n, 1, K)) < missing, np.nan, y_MSK)


def ranked(y_MSK):
    return rank(y_MSK, fit_priors(y_MSK))


def test_levels_are_least_squares():
    rng = np.random.default_rng(0)
    y_MK = draw(rng, np.linspace(0, 0.3, M)).mean(1)
    m, k = np.nonzero(np.isfinite(y_MK))
    design = np.zeros((len(m), M + K))
    design[np.arange(len(m)), m] = design[np.arange(len(m)), M + k] = 1
    fitted = np.linalg.lstsq(design, y_MK[m, k], rcond=None)[0]
    np.testing.assert_allclose(levels(y_MK), fitted[:M] + fitted[M:].mean(), atol=1e-12)


def test_only_the_easy_tasks_make_no_method_better():
    y_MK = np.array([[0.9, 0.5, 0.1], [0.9, 0.5, np.nan], [0.8, 0.4, 0.0]])
    np.testing.assert_allclose(levels(y_MK), [0.5, 0.5, 0.4], atol=1e-12)


def test_a_few_tasks_make_no_level():
    """One task that nobody else has learned says nothing of the others."""
    y_MK = np.array([[0.95, np.nan, np.nan, np.nan], [np.nan, 0.5, 0.4, 0.3], [np.nan, 0.4, 0.3, 0.2]])
    np.testing.assert_allclose(levels(y_MK), [np.nan, 0.4, 0.3], atol=1e-12)


def test_what_has_no_score_has_no_level_and_comes_last():
    y_MSK = np.full((3, 2, 4), 0.5)
    y_MSK[1] = np.nan
    y_MSK[2] += 0.1
    found = ranked(y_MSK)
    assert [each.rank for each in found] == [2, 3, 1]
    assert math.isnan(found[1].level)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_equal_methods_are_called_equal(missing):
    rng = np.random.default_rng(1)
    hits = [not TaskDifference(*draw(rng, [0.1, 0.1], missing)).interval().excludes(0) for _ in range(400)]
    assert 0.94 <= np.mean(hits) <= 1


def test_a_planted_better_method_is_found():
    rng, found, firsts = np.random.default_rng(2), [], []
    for _ in range(60):
        y_MSK = draw(rng, [0.3, *[0.0] * (M - 1)])
        bounds = TaskDifference(y_MSK[0], y_MSK[1]).interval()
        found.append(bounds.low > 0)
        firsts.append(ranked(y_MSK)[0].rank == 1)
        assert bounds.estimate == pytest.approx(0.3, abs=0.25)
    assert np.mean(found) > 0.9
    assert np.mean(firsts) > 0.95


def test_of_many_equal_methods_none_is_called_different():
    """To one of them, in at least 95 % of draws; and each may be the first."""
    rng, wrong, first = np.random.default_rng(5), [], []
    for _ in range(50):
        y_MSK = draw(rng, [0.0] * 20)
        priors = fit_priors(y_MSK)
        wrong.append(any(significant([TaskDifference(y_MSK[0], other, priors).interval for other in y_MSK[1:]])))
        first.append(ranked(y_MSK)[0].over_tasks.best == 1)
    assert np.mean(wrong) <= 0.05
    assert np.mean(first) >= 0.95


def test_ranks_of_a_simulation_lie_in_their_ranges():
    rng, hits, narrow = np.random.default_rng(4), [], []
    for _ in range(30):
        found = ranked(draw(rng, np.linspace(1.0, 0, M)))
        hits += [each.over_tasks.best <= i <= each.over_tasks.worst for i, each in enumerate(found, 1)]
        narrow += [each.over_tasks.worst - each.over_tasks.best < M - 1 for each in found]
    assert np.mean(hits) >= 0.95
    assert np.mean(narrow) > 0.9


def test_ranks_on_these_tasks_are_of_what_other_seeds_would_give():
    """The tasks are drawn once; what the methods are worth on them is the truth, and only seeds are drawn again."""
    rng, hits, width = np.random.default_rng(6), [], []
    truth_MSK = draw(rng, np.linspace(0.3, 0, M), missing=0, noise=0, of_seed=0)
    order = np.argsort(np.argsort(-truth_MSK.mean((1, 2)))) + 1
    for _ in range(60):
        seeds_MSK = rng.normal(0, 0.1, (M, S, K)) + rng.normal(0, 0.03, (M, S, 1))
        for true, each in zip(order, ranked(truth_MSK + seeds_MSK), strict=True):
            hits.append(each.on_these.best <= true <= each.on_these.worst)
            width.append((each.on_these.worst - each.on_these.best, each.over_tasks.worst - each.over_tasks.best))
    assert np.mean(hits) >= 0.95
    narrow, wide = np.mean(width, axis=0)
    assert narrow < wide - 0.5


def test_of_equal_methods_none_is_called_better_on_these_tasks():
    rng, equal = np.random.default_rng(7), []
    for _ in range(200):
        y_MSK = rng.normal(0.5, 0.1, (20, S, K)) + rng.normal(0, 0.03, (20, S, 1))
        priors = fit_priors(y_MSK)
        differences = [TaskDifference(y_MSK[0], other, priors) for other in y_MSK[1:]]
        equal.append(not any(significant([each.on_these_tasks for each in differences])))
    assert np.mean(equal) >= 0.93  # of 95 %, by 200 draws


def test_a_row_of_fewer_seeds_is_judged_by_what_all_rows_spread_by():
    """Alone, two seeds have one degree of freedom, and an interval that says nothing."""
    rng = np.random.default_rng(8)
    y_MSK = rng.normal(0.5, 0.05, (20, S, K))
    y_MSK[0] += 0.3
    y_MSK[0, 2:] = np.nan
    alone = TaskDifference(y_MSK[0], y_MSK[1]).on_these_tasks(1 - 0.05 / 19)
    helped = TaskDifference(y_MSK[0], y_MSK[1], fit_priors(y_MSK)).on_these_tasks(1 - 0.05 / 19)
    assert helped.estimate == alone.estimate
    assert helped.low > 0 > alone.low


def test_a_difference_without_one_task():
    y_MSK = np.random.default_rng(10).normal(0.5, 0.05, (2, S, 4))
    y_MSK[1, 0, 2] = np.nan  # a task that not every seed has learned
    found = TaskDifference(*y_MSK).without_one_task()
    d_K = (y_MSK[0] - y_MSK[1]).mean(0)
    assert found == pytest.approx({0: d_K[[1, 3]].mean(), 1: d_K[[0, 3]].mean(), 3: d_K[[0, 1]].mean()})
    assert TaskDifference(*y_MSK[:, :, :1]).without_one_task() == {}


def test_what_differences_of_differences_spread_by_is_twice_that_of_differences():
    y_MSK = np.random.default_rng(9).normal(0.5, 0.05, (20, S, K))
    priors = fit_priors(y_MSK)
    assert priors.times(2).on_these == (2 * priors.on_these.variance, priors.on_these.n_free)
    assert priors.on_these.variance == pytest.approx(1.5 * 2 * 0.05**2 / K, rel=0.3)
    assert priors.tasks.variance == pytest.approx(1.5 * 2 * 0.05**2 / S, rel=0.3)


def test_intervals_hold_a_difference_of_seeds_alone():
    """Where seeds are off all tasks alike, many tasks say nothing of it."""
    rng = np.random.default_rng(3)
    hits = [
        not TaskDifference(*draw(rng, [0, 0], 0.0, 0.0, 0.01, of_seed=0.1)).interval().excludes(0) for _ in range(400)
    ]
    assert 0.93 <= np.mean(hits) <= 1


def test_a_task_counts_where_half_of_the_seeds_that_both_have_know_it():
    one, other = np.full((4, 3), 0.5), np.full((4, 3), 0.25)
    one[:3, 0] = other[:2, 1] = np.nan
    assert TaskDifference(one, other).interval() == (0.25, 0.25, 0.25, 2)
    more = np.full((12, 3), 0.5)
    fewer = np.full((12, 3), np.nan)
    fewer[:5] = 0.25
    assert TaskDifference(more, fewer).interval() == (0.25, 0.25, 0.25, 3)


@pytest.mark.filterwarnings("error")
def test_too_few():
    one, other = np.full((4, 1), 0.5), np.full((4, 1), 0.25)
    assert TaskDifference(one, other).interval() == (0.25, -math.inf, math.inf, 1)
    assert math.isnan(TaskDifference(one * np.nan, other).interval().estimate)
    assert np.isnan(mean_over_seeds(one[None] * np.nan)).all()
    assert over_seeds([math.nan]).n == 0
    assert over_seeds([0.5, math.nan]) == (0.5, -math.inf, math.inf, 1)
    low, high = over_seeds([1.0, 2.0, 3.0])[1:3]
    assert (low, high) == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)))


def test_a_rank_is_in_its_range_where_methods_have_other_tasks():
    """A is far above C on two tasks that B lacks, and just below B on what both have."""
    rng = np.random.default_rng(12)
    easy, hard = np.full(4, 0.5), np.array([0.9, 0.9])
    means = [np.r_[easy, hard], np.r_[easy + 0.05, [np.nan] * 2], np.r_[easy, hard - 0.8]]
    y_MSK = np.array(means)[:, None] + rng.normal(0, 1e-4, (3, S, 6))
    for each in ranked(y_MSK):
        assert each.on_these.best <= each.rank <= each.on_these.worst
        assert each.over_tasks.best <= each.rank <= each.over_tasks.worst


def test_one_seed_has_no_interval():
    one_SK, other_SK = np.random.default_rng(13).normal(0.5, 0.1, (2, 1, K))
    difference = TaskDifference(one_SK, other_SK)
    assert difference.interval()[1:3] == difference.on_these_tasks()[1:3] == (-math.inf, math.inf)
    assert difference.without_one_task() == {}


def test_no_range_says_of_a_pair_what_another_does_not():
    """As many are significantly above the last as have it below them, and so on."""
    rng = np.random.default_rng(9)
    found = ranked(draw(rng, np.linspace(0.4, 0, 2 * M), noise=0.2))
    n_above = [len(each.above) for each in found]
    n_below = [sum(m in each.above for each in found) for m in range(len(found))]
    for each, above, below in zip(found, n_above, n_below, strict=True):
        assert each.on_these.best == min(each.rank, 1 + above)
        assert each.on_these.worst == max(each.rank, len(found) - below)
    assert 0 < sum(n_above) < M * (2 * M - 1)
