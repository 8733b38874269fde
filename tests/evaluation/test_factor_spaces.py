"""What the two searches for factors may choose: LongRoPE's factors, LongRoPE2's critical pair and factors."""

import math
import random

import pytest

from coca_train.evaluation.factor_spaces import SPACES, Candidate, LongRope, LongRope2
from coca_train.positions import ROPE_SCALINGS
from tests.golden import methods

# Windows of 64 tokens to 256: pairs 1 (3.2 turns) to 3 (the first below one) of 8 may be critical.
BOTH = [LongRope(8, 10000.0, 64, 4.0), LongRope2(8, 10000.0, 64, 4.0)]


def permitted(space):
    """The candidates of a space by their definition: every factor a hundredth within bounds, none below another."""
    low, high = (100, 500) if isinstance(space, LongRope) else (400, 800)
    criticals = {0} if isinstance(space, LongRope) else {1, 2, 3}

    def holds(candidate):
        critical, factors = candidate
        return (
            critical in criticals
            and len(factors) == 8 - critical
            and list(factors) == sorted(factors)
            and all(type(each) is int and low <= each <= high for each in factors)
        )

    return holds


def test_the_first_candidates_of_longrope_are_pi_ntk_and_yarn():
    """By hand: PI is s for every pair, NTK s^(2j/(D-2)), YaRN keeps the fast pairs and divides the slow ones by s."""
    seeds = {name: each.factors for name, each in BOTH[0].seeds().items()}
    assert seeds["PI"] == (400,) * 8
    assert seeds["NTK"] == tuple(round(100 * 4 ** (2 * j / 14)) for j in range(8))
    assert seeds["YaRN"][0] == 100 and seeds["YaRN"][-1] == 400


def test_critical_pairs_are_those_of_the_paper():
    """Phi-3 mini and LLaMA 3 8B: 31 and 35 in theory; what the paper finds, 25 and 30, can be found."""
    inputs, expected = methods.case("longrope2_start")
    for model, found in (("phi3", 25), ("llama3", 30)):
        ((width, theta, length),) = (each for name, each in inputs.items() if name.startswith(model))
        criticals = LongRope2(width // 2, theta, length, float(inputs["s"])).criticals
        assert list(criticals) == list(range(expected[f"ten_periods_{model}"], expected[f"critical_{model}"] + 1))
        assert found in criticals


def test_it_starts_with_the_factors_of_the_paper():
    inputs, expected = methods.case("longrope2_start")
    width, theta, length = inputs["phi3_mini"]
    start = LongRope2(width // 2, theta, length, float(inputs["s"])).seeds()["s from pair 31"]
    assert start.stretches() == pytest.approx(expected["factors_phi3_at_critical_31_s_64"], rel=1e-14)


@pytest.mark.parametrize("turns", [10, 1])
def test_a_critical_pair_is_the_first_that_turns_less_often(turns):
    """Counted pair by pair."""
    for n_pairs, theta, length in [(48, 1e4, 2048), (64, 5e5, 8192), (16, 1e4, 128), (64, 1e4, 4096)]:
        slower = [j for j in range(n_pairs) if length * theta ** (-j / n_pairs) / (2 * math.pi) <= turns]
        criticals = LongRope2(n_pairs, theta, length, 4.0).criticals
        assert criticals[0 if turns == 10 else -1] == slower[0]


@pytest.mark.parametrize("length", [2, 8, 60, 10**6])
def test_windows_that_are_short_or_long_for_their_frequencies_have_a_critical_pair(length):
    criticals = LongRope2(8, 100.0, length, 4.0).criticals
    assert 1 <= criticals[0] <= criticals[-1] <= 7


def test_factors_before_the_critical_pair_follow_from_its_own():
    """By hand, of d = 2 and λ_d = 4; they rise from 1, and none is above those that are searched."""
    assert Candidate(2, (400, 450, 800)).stretches() == [1, 2, 4, 4.5, 8]
    assert Candidate(0, (130, 450)).stretches() == [1.3, 4.5]


@pytest.mark.parametrize("space", BOTH, ids=SPACES)
@pytest.mark.parametrize("seed", range(30))
def test_children_are_candidates_and_new(space, seed):
    draw, holds = random.Random(seed), permitted(space)
    parents = space.start(9, draw)
    assert len(set(parents)) == len(parents) == 9 and all(map(holds, parents))
    known = set(parents)
    found = space.children(parents, 40, known, draw)
    assert all(map(holds, found))
    assert len(set(found)) == len(found) == 40 and not set(found) & set(parents) and known >= set(found)
    for child in (*parents, *found):
        stretches = child.stretches()
        assert len(stretches) == 8 and stretches == sorted(stretches) and stretches[0] >= 1


@pytest.mark.parametrize("space", BOTH, ids=SPACES)
@pytest.mark.parametrize("seed", range(30))
def test_a_crossover_has_what_its_parents_have(space, seed):
    draw = random.Random(seed)
    for one, other in zip(space.start(12, draw), space.start(12, draw), strict=True):
        child = space.crossed(one, other, draw)
        assert permitted(space)(child)
        assert child.critical in (one.critical, other.critical)
        assert set(child.factors) <= {*one.factors, *other.factors}


def test_every_critical_pair_is_reached_by_mutations_and_from_the_start():
    space, draw = BOTH[1], random.Random(0)
    assert {each.critical for each in space.start(9, draw)[3:]} == {1, 2, 3}
    parent = Candidate(2, (400, 500, 500, 600, 700, 800))
    children = [space.mutated(parent, draw) for _ in range(200)]
    assert {each.critical for each in children} == {1, 2, 3}
    assert sum(each.critical != 2 for each in children) == pytest.approx(200 * 0.3 * 2 / 3, abs=25)


def test_bounds_are_rounded_inwards():
    space = LongRope2(8, 10000.0, 3000, 4000 / 3000)
    assert (space.low, space.high) == (134, 266)
    assert LongRope2(8, 10000.0, 1000, 1.1).low == 110


@pytest.mark.parametrize("space", BOTH, ids=SPACES)
def test_the_scaling_has_the_factors_beyond_the_window_alone(space):
    candidate = space.start(5, random.Random(1))[-1]
    settings = ROPE_SCALINGS.settings({"name": "longrope", "theta": 10000.0, **space.options(candidate)})
    plain_J = [10000.0 ** (-j / 8) for j in range(8)]
    assert settings.spectrum(16, 64).inv_freq_J.tolist() == pytest.approx(plain_J, rel=1e-6)
    slowed_J = [theta / factor for theta, factor in zip(plain_J, candidate.stretches(), strict=True)]
    assert settings.spectrum(16, 65).inv_freq_J.tolist() == pytest.approx(slowed_J, rel=1e-6)
