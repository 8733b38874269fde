"""Levels, ranks and differences over tasks and seeds, against least squares and by simulation."""

import math

import numpy as np
import pytest

from coca_train.statistics.ranks import TaskDifference, levels, over_seeds, rank

M, S, K = 8, 5, 13


def draw(rng, effects, missing=0.2, interaction=0.12, noise=0.1, of_seed=0.03):
    """Return y_MSK: methods that are better by `effects` on average over tasks, and not alike on each."""
    n = len(effects)
    y_MSK = np.array(effects)[:, None, None] + rng.normal(0.4, 0.2, K) + rng.normal(0, interaction, (n, 1, K))
    y_MSK = y_MSK + rng.normal(0, noise, (n, S, K)) + rng.normal(0, of_seed, (n, S, 1))
    return np.where(rng.random((n, 1, K)) < missing, np.nan, y_MSK)


def test_levels_are_least_squares():
    rng = np.random.default_rng(0)
    y_MK = draw(rng, np.linspace(0, 0.3, M), missing=0.3).mean(1)
    m, k = np.nonzero(np.isfinite(y_MK))
    design = np.zeros((len(m), M + K))
    design[np.arange(len(m)), m] = design[np.arange(len(m)), M + k] = 1
    fitted = np.linalg.lstsq(design, y_MK[m, k], rcond=None)[0]
    np.testing.assert_allclose(levels(y_MK), fitted[:M] + fitted[M:].mean(), atol=1e-7)


def test_only_the_easy_tasks_make_no_method_better():
    y_MK = np.array([[0.9, 0.5, 0.1], [0.9, np.nan, np.nan], [0.8, 0.4, 0.0]])
    np.testing.assert_allclose(levels(y_MK), [0.5, 0.5, 0.4], atol=1e-6)


def test_what_has_no_score_has_no_level_and_comes_last():
    y_MSK = np.full((3, 2, 4), 0.5)
    y_MSK[1] = np.nan
    y_MSK[2] += 0.1
    found = rank(y_MSK)
    assert [each.rank for each in found] == [2, 3, 1]
    assert math.isnan(found[1].level.estimate)
    assert [each.level.n for each in found] == [4, 0, 4]


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_equal_methods_are_called_equal(missing):
    rng = np.random.default_rng(1)
    hits = [TaskDifference(*draw(rng, [0.1, 0.1], missing)).interval().excludes(0) is False for _ in range(400)]
    assert 0.94 <= np.mean(hits) <= 1


def test_a_planted_better_method_is_found():
    rng, found, firsts = np.random.default_rng(2), [], []
    for _ in range(60):
        y_MSK = draw(rng, [0.3, *[0.0] * (M - 1)])
        bounds = TaskDifference(y_MSK[0], y_MSK[1]).interval()
        found.append(bounds.low > 0)
        firsts.append(rank(y_MSK)[0].rank == 1)
        assert bounds.estimate == pytest.approx(0.3, abs=0.25)
    assert np.mean(found) > 0.9
    assert np.mean(firsts) > 0.95


def test_intervals_hold_a_difference_of_seeds_alone():
    """Where seeds are off all tasks alike, many tasks say nothing of it."""
    rng = np.random.default_rng(3)
    hits = [
        not TaskDifference(*draw(rng, [0, 0], 0.0, 0.0, 0.01, of_seed=0.1)).interval().excludes(0) for _ in range(400)
    ]
    assert 0.93 <= np.mean(hits) <= 1


def test_ranks_of_a_simulation_lie_in_their_intervals():
    rng, hits = np.random.default_rng(4), []
    for _ in range(30):
        found = rank(draw(rng, np.linspace(0.35, 0, M)))
        hits += [each.best_rank <= i <= each.worst_rank for i, each in enumerate(found, 1)]
    assert np.mean(hits) > 0.95


def test_a_task_counts_where_half_of_the_seeds_have_it():
    one, other = np.full((4, 3), 0.5), np.full((4, 3), 0.25)
    one[:3, 0] = other[:2, 1] = np.nan
    assert TaskDifference(one, other).interval() == (0.25, 0.25, 0.25, 2)


def test_too_few():
    one, other = np.full((4, 1), 0.5), np.full((4, 1), 0.25)
    assert TaskDifference(one, other).interval() == (0.25, -math.inf, math.inf, 1)
    assert math.isnan(TaskDifference(one * np.nan, other).interval().estimate)
    assert over_seeds([math.nan]).n == 0
    assert over_seeds([0.5, math.nan]) == (0.5, -math.inf, math.inf, 1)
    low, high = over_seeds([1.0, 2.0, 3.0])[1:3]
    assert (low, high) == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)))
