"""Differences of figures: paired where they are of the same units, judged together, and told seldom falsely."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import binomtest

from coca_train.statistics.pairs import Difference, Sample, differences
from tests.cases import slow_unless


@dataclass
class Figure:
    number: float | None
    interval: tuple[float, float] | None = None
    sample: Sample | None = None
    text: str = ""
    n: int | None = None


def figure(losses_SD, units="books", seeds=("",), rounding=0.0):
    """Of losses of seeds and documents, 1,000 predictions each; its level's interval is wide."""
    losses_SD = np.atleast_2d(losses_SD)
    sums_SU2 = np.stack((losses_SD * 1000, np.full_like(losses_SD, 1000)), -1)
    mean = float(losses_SD.mean())
    return Figure(mean, (mean - 1, mean + 1), Sample(sums_SU2=sums_SU2, units=units, seeds=seeds, rounding=rounding))


def one(*figures) -> dict[tuple[int, int], Difference]:
    (found,) = differences([figures])
    return found


HARD_D = np.random.default_rng(0).normal(4, 1, 24)  # how hard documents are: far more than any difference


def test_what_every_document_says_is_told_though_the_levels_overlap():
    better = HARD_D - 0.1 - 0.01 * np.random.default_rng(1).normal(size=24)
    found = one(figure(HARD_D), figure(better))[0, 1]
    assert found.significant and found.paired and found.n_above == 24 and found.n_below == 0
    assert 0 < found.bounds.low < 0.1 < found.bounds.high < 0.15
    turned = found.negated()
    assert turned.bounds.estimate == -found.bounds.estimate and (turned.n_below, turned.n_above) == (24, 0)


def test_other_documents_are_no_pair_and_levels_decide():
    better = HARD_D - 0.1
    found = one(figure(HARD_D), figure(better, units="code"))[0, 1]
    assert not found.significant and not found.paired
    assert found.bounds.low == pytest.approx(0.1 - math.sqrt(2)) and found.bounds.high == pytest.approx(
        0.1 + math.sqrt(2)
    )
    far = one(figure(HARD_D), figure(HARD_D - 3, units="code"))[0, 1]
    assert far.significant


def test_what_rounding_may_make_is_no_difference():
    assert one(figure(HARD_D), figure(HARD_D - 5e-5))[0, 1].significant
    assert not one(figure(HARD_D, rounding=1e-4), figure(HARD_D - 5e-5, rounding=1e-4))[0, 1].significant
    assert not one(figure(HARD_D), figure(HARD_D))[0, 1].significant


def test_shares_by_mcnemars_exact_test():
    rng = np.random.default_rng(3)
    ours = rng.random(60) < 0.9
    theirs = ours & (rng.random(60) < 0.75)
    samples = [Figure(float(hits.mean()), None, Sample.of_shares(hits.tolist(), "p")) for hits in (ours, theirs)]
    found = one(*samples)[0, 1]
    gained = int((ours & ~theirs).sum())
    assert found.significant == (binomtest(gained, gained).pvalue < 0.05) and found.n_above == gained
    assert found.bounds.estimate == pytest.approx(gained / 60)


def test_what_has_no_finite_number_is_in_no_pair():
    assert list(one(figure(HARD_D), Figure(None), figure(HARD_D), Figure(math.inf))) == [(0, 2)]


def test_only_seeds_in_common_are_paired():
    rng = np.random.default_rng(0)
    ours = figure(HARD_D + rng.normal(size=(3, 1)), seeds=("1", "2", "3"))
    theirs = figure(HARD_D + 0.5 + rng.normal(size=(2, 1)), seeds=("2", "3"))
    assert len(one(ours, theirs)[0, 1].seeds) == 2
    apart = figure(HARD_D, seeds=("9",))
    assert not one(ours, apart)[0, 1].paired


def test_one_training_is_paired_with_another_whatever_their_seeds():
    """A run has a seed that is known, a folder of Hugging Face none."""
    found = one(figure(HARD_D, seeds=("1234",)), figure(HARD_D - 0.1))[0, 1]
    assert found.paired and found.significant and found.n_above == 24


def test_a_difference_of_seeds_is_told_with_three_and_not_with_two():
    luck_S1 = np.array([[-0.1], [0.1], [0.0]])

    def told(n_seeds):
        names = tuple(map(str, range(n_seeds)))
        better = HARD_D - 0.8 + luck_S1[:n_seeds]
        found = one(figure(HARD_D + 0 * luck_S1[:n_seeds], seeds=names), figure(better, seeds=names))[0, 1]
        assert found.documents
        return found.significant

    assert told(3) and not told(2)


@pytest.mark.parametrize("n_seeds", slow_unless([2], [1, 2, 3]))
def test_of_models_that_are_one_any_pair_is_told_in_at_most_one_of_twenty(n_seeds):
    """Four schemes at three lengths, 18 pairs of one table."""
    rng, n, told = np.random.default_rng(11), 200, 0
    names = tuple(map(str, range(n_seeds)))
    for _ in range(n):
        hard_D = rng.gamma(2.0, size=24)
        columns = []
        for _ in range(3):
            noise = [
                0.1 * rng.normal(size=(n_seeds, 1)) * (n_seeds > 1) + 0.1 * rng.normal(size=(n_seeds, 24))
                for _ in range(4)
            ]
            columns.append([figure(hard_D + each, seeds=names) for each in noise])
        told += any(found.significant for column in differences(columns) for found in column.values())
    assert told <= 0.05 * n


def test_pairs_that_are_told_make_it_easier_for_the_others():
    """Holm: of two comparisons, one of them clear, the other is judged as one."""
    rng = np.random.default_rng(8)
    close = HARD_D - 0.02 + 0.05 * rng.normal(size=24)
    far = figure(HARD_D - 2)
    alone = one(figure(HARD_D), figure(close))[0, 1]
    among = differences([[figure(HARD_D), figure(close)], [figure(HARD_D), far]])
    assert among[1][0, 1].significant and among[0][0, 1].bounds == alone.bounds
