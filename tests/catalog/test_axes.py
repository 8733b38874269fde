"""Facts about frequencies and attention patterns against numbers worked out by hand."""

import math

import pytest

from coca_train.catalog.entries import entries
from coca_train.catalog.facts import load_reference, measure_attention_pattern, measure_frequencies

WINDOW, TIMES = 64, 16


@pytest.fixture(scope="module")
def rope_scaling():
    given = load_reference("neox_tiny", WINDOW)
    return {name: measure_frequencies(entry, given) for name, entry in entries("position/rope_scaling").items()}


def test_kinds(rope_scaling):
    kinds = {name: facts.kind for name, facts in rope_scaling.items()}
    assert {name for name, kind in kinds.items() if kind == "learned"} == {"clex", "learned"}
    dynamic = {name for name, kind in kinds.items() if kind == "dynamic"}
    assert dynamic == {n for n in kinds if n.startswith("dynamic")} | {"longrope"}
    assert set(kinds.values()) == {"fixed", "dynamic", "learned"}


def test_wavelengths(rope_scaling):
    """At four training windows and with factor 4, of the 16 pairs of a 32-wide head: 0, 4 and 15."""
    stretch = {name: facts.stretch for name, facts in rope_scaling.items()}
    assert stretch["plain"] == stretch["code_llama"] == (1, 1, 1)
    assert stretch["partial"] == (1, 1, math.inf)  # what does not turn never comes round
    for name in ("linear", "dynamic_linear", "longrope"):
        assert stretch[name] == pytest.approx((4, 4, 4))
    for name in ("ntk", "dynamic_ntk"):
        assert stretch[name] == pytest.approx((1, 4 ** (8 / 30), 4))
    assert stretch["clex"] == pytest.approx((1, 7 ** (8 / 30), 7))  # starts as NTK with s = 2·4 - 1
    turns = 64 * 10000 ** (-8 / 32) / (2 * math.pi)  # of pair 4 over the window; pair 0 makes 10.2 of them
    by_parts = [1 / ((1 - kept) / 4 + kept) for kept in ((64 / (2 * math.pi) - 1) / 31, (turns - 1) / 31, 0)]
    by_parts[1] = by_parts[1] if turns > 1 else 4
    for name in ("ntk_by_parts", "dynamic_ntk_by_parts", "yarn", "dynamic_yarn", "dynamic_yarn_tuned"):
        assert stretch[name] == pytest.approx(by_parts)


def test_temperatures(rope_scaling):
    warm = {name: facts.temperature for name, facts in rope_scaling.items() if facts.temperature != 1}
    yarn, longrope = 0.1 * math.log(4) + 1, math.sqrt(1 + math.log(4) / math.log(64))
    assert warm == pytest.approx({"yarn": yarn, "dynamic_yarn": yarn, "dynamic_yarn_tuned": yarn, "longrope": longrope})


def test_thetas(rope_scaling):
    others = {name: facts.theta for name, facts in rope_scaling.items() if facts.theta != 10_000}
    assert others == {"code_llama": 1e6, "llama3": 5e5}


BOTH = "training, evaluation"


@pytest.mark.parametrize(
    ("name", "n_seen", "farthest", "cached", "used_in"),
    [
        ("causal", TIMES * WINDOW, TIMES * WINDOW - 1, None, BOTH),
        ("sliding_window", WINDOW, WINDOW - 1, WINDOW, BOTH),
        ("sinks", 4 + WINDOW, 4 + WINDOW - 1, 4 + WINDOW, BOTH),
        ("lambda_mask", 10 + WINDOW, WINDOW, 10 + WINDOW, BOTH),
        ("rerope", TIMES * WINDOW, WINDOW, None, BOTH),
        ("segments", WINDOW, WINDOW - 1, WINDOW, "evaluation"),
        ("s2", TIMES * WINDOW, TIMES * WINDOW - 1, None, "training"),
    ],
)
def test_what_the_last_query_sees(name, n_seen, farthest, cached, used_in):
    facts = measure_attention_pattern(entries("attention_pattern")[name], load_reference("neox_tiny", WINDOW))
    assert (facts.n_seen, facts.farthest, facts.cached, facts.used_in) == (n_seen, farthest, cached, used_in)
