"""The order of the windows is a bijection, and the mixture is exact."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.data import sampling
from coca_train.data.proportions import CHAIN_OFF, Proportions, chain
from coca_train.data.sampling import Permutation, permute

MASK = (1 << 64) - 1
HUFFMAN_OFF = 1.68  # samples that a source may be off, where the chain is not taken


def mix(x: int) -> int:
    """splitmix64's finaliser, one number at a time."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def image(permutation: Permutation, i: int, mix: Callable[[int], int] = mix) -> int:
    """The definition of a permutation, one place at a time."""
    while True:
        right, left = divmod(i, permutation.a)
        for r, key in enumerate(permutation.round_keys):
            if r % 2:
                right = (right + mix(left ^ key)) % permutation.b
            else:
                left = (left + mix(right ^ key)) % permutation.a
        i = right * permutation.a + left
        if i < permutation.n:
            return i


def permuted(permutation: Permutation, places: Sequence[int]) -> list[int]:
    return permute([permutation], np.zeros(len(places), np.int64), np.array(places)).tolist()


def locate(proportions: Proportions, i: int) -> tuple[int, int]:
    """The definition of a place in the tree, one sample at a time: (source, its number there)."""
    at = len(proportions.nodes) - 1 if proportions.nodes else ~0
    while at >= 0:
        node = proportions.nodes[at]
        count = node.count(i)
        at, i = (node.left, count) if node.count(i + 1) > count else (node.right, i - count)
    return ~at, i


def test_mix_is_splitmix64() -> None:
    """First outputs of splitmix64 seeded with 0 (Vigna's reference code): the finaliser of k * golden gamma."""
    seeds = [k * 0x9E3779B97F4A7C15 & MASK for k in (1, 2, 3)]
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert list(map(mix, seeds)) == expected == sampling.mix(np.array(seeds, np.uint64)).tolist()


def test_the_order_of_runs_that_exist_stays() -> None:
    """Numbers of the first release; a change here silently changes what resumed runs read."""
    permutation = Permutation(1000, "1/text/0")
    assert permuted(permutation, range(12)) == [43, 176, 876, 22, 228, 707, 251, 117, 963, 451, 472, 204]
    permutation = Permutation(2**40 + 7, "k")
    assert permuted(permutation, (0, 1, 2**39)) == [715639502080, 576204279960, 175431897017]
    for weights, sources, counts in (
        ([0.69, 0.02, 0.04, 0.25], "0300300030020030030030001003003003000200", [690002, 20000, 40000, 250001]),
        ([0.75, 0.25], "0010001000100010001000100010001000100010", [750002, 250001]),
        ([3, 1, 2, 5, 4], "3204334023410343204334023410343204334023", [200001, 66667, 133334, 333334, 266667]),
    ):
        proportions = Proportions(weights)
        assert "".join(map(str, proportions.locate(10**9, 40)[0])) == sources
        assert proportions.counts(1_000_003) == counts
    many_equal = Proportions([5, 5, *[1] * 30]).locate(10**9, 40)[0]
    assert "".join(np.base_repr(source, 36) for source in many_equal) == "6E0M21IAQ0UG8O14K0SC7F1N30JBR1VH9P05L1TD"


@settings(max_examples=100, deadline=None)
@given(data=st.data(), sizes=st.lists(st.integers(1, 2**61), min_size=1, max_size=5))
def test_many_places_at_once_are_what_they_are_one_by_one(data: st.DataObject, sizes: list[int]) -> None:
    permutations = [Permutation(n, f"key {n}") for n in sizes]
    which = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=30))
    places = [data.draw(st.integers(0, sizes[w] - 1)) for w in which]
    images = permute(permutations, np.array(which, np.int64), np.array(places, np.int64))
    assert images.dtype == np.int64
    assert images.tolist() == [image(permutations[w], place) for w, place in zip(which, places, strict=True)]


def test_nothing_wraps_where_the_scalar_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums just below 2^64 happen once in 2^33 draws; here always."""
    monkeypatch.setattr(sampling, "mix", lambda x: np.uint64(MASK) - x % np.uint64(3))
    one = Permutation(2**61, "x")
    places = [0, 1, 2**60, 2**61 - 1, *range(10**17, 10**17 + 20)]
    assert permuted(one, places) == [image(one, place, lambda x: MASK - x % 3) for place in places]


@pytest.mark.parametrize("n", [*range(1, 70), 97, 100, 101, 255, 256, 257, 997, 1024, 4093, 5000])
def test_every_place_exactly_once(n: int) -> None:
    assert sorted(permuted(Permutation(n, f"key {n}"), range(n))) == list(range(n))


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 2**45), key=st.text(max_size=20), data=st.data())
def test_large_permutations_stay_inside_and_never_collide(n: int, key: str, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=30, unique=True))
    images = permuted(Permutation(n, key), places)
    assert len(set(images)) == len(places)
    assert all(0 <= image < n for image in images)
    assert images == permuted(Permutation(n, key), places)


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_every_place_goes_everywhere(n: int) -> None:
    """Over 4 000 keys each (place, image) pair is as frequent as the others, within 6 standard deviations."""
    keys = 4000
    seen = Counter(pair for key in range(keys) for pair in enumerate(permuted(Permutation(n, f"k{key}"), range(n))))
    sigma = (keys / n * (1 - 1 / n)) ** 0.5
    assert all(abs(seen[i, j] - keys / n) < 6 * sigma for i in range(n) for j in range(n))


def test_neighbours_do_not_stay_neighbours() -> None:
    images = permuted(Permutation(10_000, "x"), range(10_000))
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
    for j, k in zip(*proportions.locate(start, 50), strict=True):
        assert k == counts[j]
        counts[j] += 1
    assert counts == proportions.counts(start + 50)


@settings(max_examples=100, deadline=None)
@given(weights=WEIGHTS, first=st.integers(0, 10**18), n=st.integers(1, 80))
def test_many_samples_at_once_are_what_they_are_one_by_one(weights: list[float], first: int, n: int) -> None:
    proportions = Proportions(weights)
    at_once = list(zip(*proportions.locate(first, n), strict=True))
    assert at_once == [locate(proportions, i) for i in range(first, first + n)]


@settings(max_examples=100, deadline=None)
@given(
    weights=st.lists(st.one_of(st.integers(1, 10**6), st.floats(1e-6, 1e6)), max_size=40, min_size=1), data=st.data()
)
def test_no_source_is_ever_further_off_than_known_beforehand(weights: list[float], data: st.DataObject) -> None:
    proportions = Proportions(weights)
    off = chain(proportions.weights)[1] if proportions.is_chain else HUFFMAN_OFF
    assert off <= CHAIN_OFF and (proportions.is_chain or len(weights) > 5)
    exact = [Fraction(str(w)) for w in weights]
    shares = [weight / sum(exact) for weight in exact]
    for n in data.draw(st.lists(st.one_of(st.integers(0, 200), st.integers(0, 10**12)), min_size=1, max_size=20)):
        for count, share in zip(proportions.counts(n), shares, strict=True):
            assert abs(count - n * share) <= off + 1e-9


def test_the_chain_alone_would_not_do() -> None:
    """29 equal small sources all turn at the same sample; the large one then lacks many at once."""
    assert chain([1] * 29 + [1000])[1] > 14
    assert not Proportions([1] * 29 + [1000]).is_chain


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
    assert locate(proportions, n) == (j, available)
