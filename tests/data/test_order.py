"""The order of the windows is a bijection, and the mixture is exact."""

import itertools
import random
import time
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.data.order import Permutation, mix, permute
from coca_train.data.proportions import Proportions


def test_mix_is_splitmix64() -> None:
    """First outputs of splitmix64 seeded with 0 (Vigna's reference code): the finaliser of k * golden gamma."""
    gamma, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [mix(k * gamma & mask) for k in (1, 2, 3)] == expected


@pytest.mark.parametrize("n", [*range(1, 70), 97, 100, 101, 255, 256, 257, 997, 1024, 4093, 5000])
def test_every_place_exactly_once(n: int) -> None:
    permutation = Permutation(n, f"key {n}")
    assert sorted(permutation(i) for i in range(n)) == list(range(n))


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 2**45), key=st.text(max_size=20), data=st.data())
def test_large_permutations_stay_inside_and_never_collide(n: int, key: str, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=30, unique=True))
    permutation = Permutation(n, key)
    images = [permutation(i) for i in places]
    assert len(set(images)) == len(places)
    assert all(0 <= image < n for image in images)
    assert images == [permute(i, n, key) for i in places]


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_every_place_goes_everywhere(n: int) -> None:
    """Over 4 000 keys each (place, image) pair is as frequent as the others, within 6 standard deviations."""
    keys = 4000
    seen = Counter((i, permute(i, n, f"k{key}")) for key in range(keys) for i in range(n))
    sigma = (keys / n * (1 - 1 / n)) ** 0.5
    assert all(abs(seen[i, j] - keys / n) < 6 * sigma for i in range(n) for j in range(n))


def test_neighbours_do_not_stay_neighbours() -> None:
    permutation = Permutation(10_000, "x")
    images = [permutation(i) for i in range(10_000)]
    near = sum(abs(a - b) < 100 for a, b in itertools.pairwise(images))
    assert 100 < near < 320  # expected 199


WEIGHTS = st.lists(st.one_of(st.integers(1, 1000), st.floats(1e-3, 1e3)), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(weights=WEIGHTS, start=st.integers(0, 10**18))
def test_samples_and_counts_agree(weights: list[float], start: int) -> None:
    """Each sample hits one source, the k of a source counts up by one, and counts() is their sum."""
    proportions = Proportions(weights)
    counts = proportions.counts(start)
    assert sum(counts) == start
    for i in range(start, start + 50):
        j, k = proportions.locate(i)
        assert k == counts[j]
        counts[j] += 1
    assert counts == proportions.counts(start + 50)


@settings(max_examples=100, deadline=None)
@given(weights=WEIGHTS, n=st.integers(0, 10**12))
def test_no_source_is_more_than_a_few_samples_off(weights: list[float], n: int) -> None:
    proportions = Proportions(weights)
    exact = [Fraction(str(w)) for w in weights]
    for count, weight in zip(proportions.counts(n), exact, strict=True):
        assert abs(count - n * weight / sum(exact)) <= 3


def test_thirty_sources_stay_within_a_tenth_of_a_percent() -> None:
    weights = [random.Random(j).uniform(0.1, 10) for j in range(30)]
    proportions = Proportions(weights)
    for begin in (0, 777_777):
        n = 1000 * 1024  # 1 000 steps of 1 024 sequences
        before, after = proportions.counts(begin), proportions.counts(begin + n)
        for a, b, weight in zip(before, after, weights, strict=True):
            share = weight / sum(weights)
            assert abs((b - a) / n - share) < 0.001 * share


def test_weights_count_as_they_are_written() -> None:
    assert Proportions([0.1, 0.9]).weights == [1, 9]
    assert Proportions([0.75, 0.25]).weights == [3, 1]
    assert Proportions([1e-9, 1]).weights == [1, 10**9]
    assert Proportions([6, 4, 2]).weights == [3, 2, 1]


@settings(max_examples=100, deadline=None)
@given(weights=WEIGHTS, available=st.integers(1, 1000), data=st.data())
def test_longest(weights: list[float], available: int, data: st.DataObject) -> None:
    proportions = Proportions(weights)
    j = data.draw(st.integers(0, len(weights) - 1))
    n = proportions.longest(j, available)
    assert proportions.counts(n)[j] == available
    assert proportions.counts(n + 1)[j] == available + 1
    assert proportions.locate(n) == (j, available)


def test_fast_enough_for_fifty_billion_tokens() -> None:
    proportions = Proportions([1 + j / 7 for j in range(30)])
    permutation = Permutation(50_000_000_000 // 2048, "x")
    begin = time.process_time()
    for i in range(10**7, 10**7 + 500):
        proportions.locate(i)
        permutation(i)
    assert (time.process_time() - begin) / 500 < 0.001
