"""Yes, no or open: what is answered, how many more would settle it, and how often one text contradicts another."""

import math

import numpy as np
import pytest

from coca_train.statistics.answers import ANSWERS, FAR, LEAST, SURE, WRONG, above, below, share_above
from coca_train.statistics.intervals import Bounds, OverDocuments
from coca_train.statistics.shares import share_bounds
from tests.cases import slow_unless


@pytest.mark.parametrize(
    ("low", "high", "is_above", "is_below"),
    [(0.02, 0.04, "yes", "no"), (-0.02, 0.004, "no", "yes"), (0.0, 0.02, "open", "open"), (0.01, 0.02, "open", "open"),
     (-0.01, 0.01, "no", "yes")],
)  # fmt: skip
def test_an_answer_by_where_the_interval_lies(low, high, is_above, is_below):
    bounds = Bounds((low + high) / 2, low, high, 50)
    assert (above(bounds, 0.01).outcome, below(bounds, 0.01).outcome) == (is_above, is_below)


def test_of_few_nothing_is_answered():
    for n in (0, 3, LEAST - 1):
        assert above(Bounds(1.0, 0.9, 1.1, n), 0.5) == ("open", Bounds(1.0, 0.9, 1.1, n), LEAST - n)
    assert share_above(19, 19, 0.5).more == 1


def test_a_loss_that_flew_off_is_worse_than_any_bound():
    assert below(Bounds(math.inf, math.nan, math.nan, 30), 0.01).outcome == "no"
    assert above(Bounds(math.nan, math.nan, math.nan, 30), 0.01).outcome == "no"


def test_how_many_more_is_what_the_root_law_says():
    """The lower end is 0.01 too low, the estimate 0.02 above the bound: (0.03 / 0.02)^2 times as many in all."""
    assert above(Bounds(0.03, 0.0, 0.06, 100), 0.01).more == 130  # 225 in all: 125 more, to two digits
    assert above(Bounds(0.01, 0.0, 0.02, 100), 0.01).more is None
    assert above(Bounds(0.0100001, 0.0, 0.02, 100), 0.01).more is None  # more than anybody reads


def test_that_many_more_do_settle_it():
    rng, settled = np.random.default_rng(0), 0
    for _ in range(24):
        sums = np.stack((rng.normal(0.02, 0.05, 30), np.ones(30)), 1)
        answer = above(OverDocuments(sums).interval(SURE), 0.0)
        if answer.outcome != "open" or answer.more is None:
            settled += 1
            continue
        # As many more like those seen: the very same documents again.
        n = 30 + answer.more
        again = np.tile(sums, (-(-n // 30), 1))[: 30 * (-(-n // 30))]
        settled += above(OverDocuments(again).interval(SURE), 0.0).outcome != "open"
    assert settled >= 22


@pytest.mark.parametrize(("found", "n"), [(20, 20), (90, 100), (50, 70), (0, 20)])
def test_of_shares_too(found, n):
    answer = share_above(found, n, 0.8)
    if answer.outcome == "open":
        assert answer.more is not None and 0 < answer.more < FAR
        whole = n + answer.more
        low, high = share_bounds(round(found * whole / n), whole, SURE)[1:3]
        assert low > 0.8 or high <= 0.8
    else:
        assert answer.more == 0
    assert share_above(160, 200, 0.8).more is None


def test_one_confidence_for_every_page():
    """Up to ANSWERS answers, each wrong with the chance of one tail."""
    assert pytest.approx(WRONG) == ANSWERS * (1 - SURE) / 2


SHAPES = {
    "normal": lambda rng, n: rng.normal(size=n),
    "skewed": lambda rng, n: rng.gamma(2.0, size=n) / math.sqrt(2) - math.sqrt(2),
    "heavy": lambda rng, n: rng.standard_t(4, n) / math.sqrt(2),
}


@pytest.mark.parametrize("shape", slow_unless(["heavy"], SHAPES))
def test_subsamples_of_one_model_hardly_ever_contradict_each_other(shape):
    """Seven lengths whose true gains lie about the bound, 10 to 200 documents each time: at any length one subsample
    says yes and another no in under 5 % of draws."""
    rng, gains, n_pairs, contradicted = np.random.default_rng(5), (0.04, 0.02, 0.01, 0.006, 0.005, 0.004, 0.0), 120, 0
    population = 0.02 * SHAPES[shape](rng, 600)[:, None] * np.ones(7) + 0.01 * rng.normal(size=(600, 7))
    population += np.array(gains) - population.mean(0)
    count_D = rng.integers(300, 3000, 600).astype(float)

    def answers(n):
        documents = rng.choice(600, n, replace=False)
        sums_DL2 = np.stack((population * count_D[:, None], np.repeat(count_D[:, None], 7, 1)), -1)[documents]
        return [above(OverDocuments(sums_DL2[:, k]).interval(SURE), 0.005).outcome for k in range(7)]

    for _ in range(n_pairs):
        one, other = (answers(int(n)) for n in rng.choice([10, 20, 40, 100, 200], 2))
        contradicted += any({a, b} == {"yes", "no"} for a, b in zip(one, other, strict=True))
    assert contradicted / n_pairs < 0.05
