"""Evidence of reach: bounds against exact and simulated truth, and what a part concludes from them."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import beta

from coca_train.evaluation.measures import reach
from coca_train.evaluation.measures.reach import (
    LEAST,
    Bounds,
    Evidence,
    Part,
    finds,
    holds,
    mean_bounds,
    share_bounds,
    uses,
)

DRAWS = 1000
TRUTH = 0.02  # [nats per token], of the simulated differences
KINDS = {  # of the differences between documents: mean 0, deviation 1
    "normal": lambda rng, n: rng.normal(size=n),
    "skewed": lambda rng, n: rng.gamma(2.0, size=n) / math.sqrt(2) - math.sqrt(2),
    "long tails": lambda rng, n: rng.standard_t(6, n) / math.sqrt(1.5),
}


def drawn(kind: str, n: int, seed: int) -> np.ndarray:
    """Sums of n documents of 300 to 3,000 predictions, whose mean difference is TRUTH."""
    rng = np.random.default_rng(seed)
    count_D = rng.integers(300, 3000, n).astype(float)
    return np.stack((count_D * (TRUTH + 0.05 * KINDS[kind](rng, n)), count_D), 1)


@pytest.mark.parametrize(("kind", "n"), [*product(KINDS, (20,)), ("skewed", 60)])
def test_intervals_of_paired_differences_cover_the_truth(kind: str, n: int) -> None:
    intervals = [mean_bounds(drawn(kind, n, seed).tolist()) for seed in range(DRAWS)]
    assert 0.93 <= np.mean([each.low <= TRUTH <= each.high for each in intervals]) <= 0.97
    assert np.mean([each.low > TRUTH for each in intervals]) <= 0.05
    assert np.mean([each.high < TRUTH for each in intervals]) <= 0.05


def test_bounds_of_a_share_are_clopper_and_pearsons() -> None:
    for n, k in [(20, 20), (20, 19), (40, 0), (7, 3), (500, 251)]:
        bounds = share_bounds(k, n)
        low = beta.ppf(0.025, k, n - k + 1) if k else 0.0
        high = beta.ppf(0.975, k + 1, n - k) if k < n else 1.0
        assert (bounds.low, bounds.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    """One long document weighs as many short ones."""
    bounds = mean_bounds([[9.0, 900.0], *[[1.0, 10.0]] * 9])
    assert bounds.estimate == pytest.approx(18 / 990) and bounds.n == 10
    assert bounds.low < bounds.estimate < bounds.high


def test_documents_that_all_say_the_same_leave_no_doubt() -> None:
    assert mean_bounds([[0.0, 7.0]] * 30) == Bounds(0.0, 0.0, 0.0, 30)
    assert mean_bounds([[1.0, 2.0]]) == Bounds(0.5, -math.inf, math.inf, 1)


def test_what_passes() -> None:
    flat, gain = [[0.0, 100.0]] * 20, [[2.0 + i / 10, 100.0] for i in range(20)]
    assert holds(256, flat).passed and not uses(256, flat).passed
    assert uses(256, gain).passed and not holds(256, gain).passed
    assert holds(256, gain, within=0.05).passed
    assert finds(256, 20, 20).passed and not finds(256, 19, 20).passed
    assert not uses(256, [[0.00005 * 100, 100.0]] * 20).passed  # as much as rounding may make


def seen(length: int, passed: bool, n: int = LEAST) -> Evidence:
    return Evidence(length, Bounds(0.0, 0.0, 0.0, n), passed)


def test_a_part_ends_at_its_first_failure() -> None:
    part = Part("uses", "documents", (seen(64, True), seen(128, True), seen(256, False), seen(512, True)))
    assert part.reach == 128 and not part.open
    assert Part("uses", "documents", (seen(64, False), seen(128, True))).reach == 0
    assert Part("holds", "documents", (seen(256, False),), granted=128).reach == 128
    assert Part("holds", "documents", (), granted=128).reach == 128
    part = Part("finds", "prompts", (seen(64, True), seen(128, True)))
    assert part.reach == 128 and part.open


def test_too_few_documents_are_no_evidence() -> None:
    part = Part("uses", "documents", (seen(64, True, n=15), seen(128, True)))
    assert part.reach is None and part.missing == 5
    assert Part("holds", "documents", (seen(256, True, n=15),), granted=128).reach is None
    # Behind a failure nothing is needed any more.
    part = Part("uses", "documents", (seen(64, False), seen(128, True, n=15)))
    assert part.reach == 0 and part.missing == 0


def test_lengths_with_enough_documents_are_judged_where_longer_ones_have_too_few() -> None:
    part = Part("uses", "documents", (seen(64, True), seen(128, True), seen(256, True, n=12), seen(512, True, n=19)))
    assert (part.reach, part.open, part.missing) == (128, True, 8)
    # A length that was not judged is no stepping stone to one that could be.
    part = Part("uses", "documents", (seen(64, True), seen(128, True, n=12), seen(256, True)))
    assert (part.reach, part.missing) == (64, 8)
    part = Part("uses", "documents", (seen(64, True), seen(128, False), seen(256, True, n=12)))
    assert (part.reach, part.open, part.missing) == (64, False, 0)


@pytest.mark.parametrize("numbers", [(24, 24, 24, 24), (40, 24, 20, 15)], ids=["the same documents", "fewer each time"])
@pytest.mark.parametrize("true_reach", [0, 2])
def test_reach_is_extended_falsely_in_at_most_one_of_twenty(true_reach: int, numbers: tuple[int, ...]) -> None:
    """Four lengths; beyond the true reach the mean gain is what rounding may make, and no more."""
    falsely, rng = 0, np.random.default_rng(7)
    for _ in range(DRAWS):
        evidence = []
        for length, n in zip((1, 2, 3, 4), numbers, strict=True):
            gain = 0.05 if length <= true_reach else reach.GAINS
            count_D = rng.integers(300, 3000, n).astype(float)
            sums_D2 = np.stack((count_D * (gain + 0.01 * rng.normal(size=n)), count_D), 1)
            evidence.append(uses(length, sums_D2.tolist()))
        falsely += (Part("uses", "documents", tuple(evidence)).reach or 0) > true_reach
    assert falsely / DRAWS <= 0.05
