"""Who is slow, and who only measured in a bad moment; clocks by barriers."""

import math
import random

import pytest

from coca_train.doctor.network import bus_bandwidth, reduce_sizes, repeats, ring
from coca_train.doctor.rates import at_most, ends_of, offsets, slow_links, slow_ranks

EVEN = [100.0] * 9


@pytest.mark.parametrize(
    ("n", "kth_largest"),
    # Order statistics that hold the median with 95 % or more, as tables of the sign test give them: 1 to 6 of 6, 2 to 8
    # of 9, 2 to 9 of 10, 6 to 15 of 20.
    [(6, 1), (9, 2), (10, 2), (20, 6)],
)
def test_the_interval_is_that_of_the_sign_test(n, kth_largest):
    assert at_most([float(i) for i in range(n)]) == n - kth_largest


def test_five_values_have_no_such_interval():
    assert at_most([1.0] * 5) == math.inf


def test_a_slow_rank_is_named_with_its_share():
    slow = slow_ranks([EVEN, EVEN, [40.0] * 8 + [90.0], EVEN], 1.3)
    assert list(slow) == [2] and slow[2].ratio == pytest.approx(0.4) and slow[2].at_most == pytest.approx(0.4)


@pytest.mark.parametrize(
    "rates",
    [
        pytest.param([EVEN] * 4, id="all alike"),
        pytest.param([[80.0] * 9, EVEN, EVEN, EVEN], id="within the factor"),
        pytest.param([[20.0] * 7 + [100.0] * 2, EVEN, EVEN], id="beyond it in most moments only"),
        pytest.param([[10.0 * (i + 1) for i in range(9)]] * 3, id="the machine is busy for all of them"),
        pytest.param([[1.0] * 5, *[[100.0] * 5] * 3], id="too few moments"),
        pytest.param([[1.0] * 9], id="no peers"),
        pytest.param([[0.0] * 9] * 3, id="nobody ends anything"),
        pytest.param([], id="no ranks"),
    ],
)
def test_nobody_is_slow(rates):
    assert slow_ranks(rates, 1.3) == {}


def test_two_of_four_are_both_named():
    assert list(slow_ranks([[30.0] * 9, EVEN, [30.0] * 9, EVEN], 1.3)) == [0, 2]


def test_noise_names_nobody_twice():
    """Rates that differ by a factor of two from moment to moment, on 8 equal ranks."""
    noise, named = random.Random(1), 0
    for _ in range(300):
        rounds = [slow_ranks([[noise.lognormvariate(0, 0.7) for _ in range(9)] for _ in range(8)], 1.3) for _ in "12"]
        named += len(rounds[0].keys() & rounds[1].keys())
    assert named <= 3  # of 2,400


def test_links_are_held_against_their_kind():
    """Links between hosts are slower than those inside, and that is no fault of theirs."""
    rates = {(0, 1): [100.0] * 9, (1, 2): [10.0] * 9, (2, 3): [100.0] * 9, (3, 0): [3.0] * 9}
    same_host = {(0, 1): True, (1, 2): False, (2, 3): True, (3, 0): False}
    assert list(slow_links(rates, same_host, 2.0)) == [(3, 0)]


def test_a_rank_is_blamed_where_all_its_links_are_slow():
    links = [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert ends_of([(1, 2), (2, 3)], links) == [2]
    assert ends_of([(1, 2)], links) == []
    assert ends_of([(0, 1)], [(0, 1)]) == []


@pytest.mark.parametrize("ahead_s", [[0.0, 0.5, -3.0], [0.0, 0.0, 0.0]])
def test_clocks_lie_within_their_uncertainty(ahead_s):
    noise, now, stamps = random.Random(2), 1000.0, [[] for _ in ahead_s]
    for _ in range(20):
        entered = [now + noise.uniform(0, 0.05) for _ in ahead_s]
        left = [max(entered) + noise.uniform(0.0001, 0.01) for _ in ahead_s]
        for rank, ahead in enumerate(ahead_s):
            stamps[rank].append((entered[rank] + ahead, left[rank] + ahead))
        now = max(left)
    clocks = offsets(stamps)
    for clock, ahead in zip(clocks, ahead_s, strict=True):
        assert abs(clock.ahead_s - ahead) <= clock.uncertainty_s < 0.02
    assert clocks[0].ahead_s == pytest.approx(0)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_a_ring_has_each_link_once_and_each_rank_once_a_phase(n):
    phases = ring(n)
    links = [link for phase in phases for link in phase]
    assert len({frozenset(link) for link in links}) == len(links) == {1: 0, 2: 1}.get(n, n)
    assert all(len({rank for link in phase for rank in link}) == 2 * len(phase) for phase in phases)


def test_bus_bandwidth_is_that_of_nccl_tests():
    """Their PERFORMANCE.md: busbw = algbw * 2 (n - 1) / n; of 8 ranks 1.75 times size / time."""
    assert bus_bandwidth(1000, 0.1, 8) == pytest.approx(1.75 * 1000 / 0.1)


def test_sizes_and_repeats():
    assert reduce_sizes(64) == [4096, 1 << 20, 16 << 20, 64 << 20]
    assert reduce_sizes(1) == [4096, 1 << 20]
    assert [repeats(seconds) for seconds in (10.0, 0.1, 0.0)] == [3, 5, 200]
