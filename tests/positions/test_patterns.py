"""Which keys a query sees, and where both are taken to stand: the definition of every attention pattern, pair by pair.

Their masks against readers that take one token after another: test_golden_patterns.py.
"""

import random

import pytest
import torch

from coca_train.attention import ATTENTION_PATTERNS, patterns
from coca_train.attention.pattern import may_see, seen
from coca_train.positions.base import AttentionShape, Position
from coca_train.positions.token_positions import Positions
from coca_train.settings import load
from coca_train.testing import parts
from coca_train.testing.pattern import PatternContract
from coca_train.testing.problem import placed
from tests.golden.methods import case, tensor


class TestCausal(PatternContract):
    attention_pattern = "causal"
    cases = ({},)

    def place(self, p, m, n):
        return m, n


class TestSlidingWindow(PatternContract):
    attention_pattern = "sliding_window"
    cases = ({"window": 5}, {"window": 1})

    def place(self, p, m, n):
        return (m, n) if m - n < p["window"] else None


class TestSinks(PatternContract):
    attention_pattern = "sinks"
    cases = ({"n_sink": 2, "window": 5}, {"n_sink": 6, "window": 1})

    def place(self, p, m, n):
        if n >= p["n_sink"] and m - n >= p["window"]:
            return None
        lost = max(0, m + 1 - (p["n_sink"] + p["window"]))  # tokens evicted so far; those after the sinks move up
        return m - lost, n if n < p["n_sink"] else n - lost


class TestLambdaMask(PatternContract):
    attention_pattern = "lambda_mask"
    cases = [{"n_global": 3, "window": window, "max_distance": far} for window, far in ((5, 5), (4, 9), (9, 4))]

    def place(self, p, m, n):
        if n >= p["n_global"] and m - n >= p["window"]:
            return None
        return (m, n) if m - n < p["max_distance"] else (p["max_distance"], 0)


class TestRerope(PatternContract):
    attention_pattern = "rerope"
    cases = ({"window": 5}, {"window": 1})

    def place(self, p, m, n):
        return (m, n) if m - n < p["window"] else (p["window"], 0)


class TestSegments(PatternContract):
    attention_pattern = "segments"
    cases = ({"length": 5}, {"length": 1})

    def place(self, p, m, n):
        length = p["length"]
        return (m % length, n % length) if m // length == n // length else None


class TestSelfExtend(PatternContract):
    attention_pattern = "self_extend"
    cases = ({"window": 16, "group": 3, "neighbours": 5}, {"window": 16, "group": 4}, {"window": 8, "group": 2})

    def place(self, p, m, n):
        near, group = p.get("neighbours") or p["window"] // 4, p["group"]
        return (m, n) if m - n < near else (m // group + near - near // group, n // group)


class TestDualChunk(PatternContract):
    attention_pattern = "dual_chunk"
    cases = ({"window": 16}, {"window": 9, "chunk_size": 7, "local_window": 2, "cap": "paper"})

    def place(self, p, m, n):
        chunk_size = p.get("chunk_size") or 3 * p["window"] // 4
        c = chunk_size - (p.get("local_window") or p["window"] // 8)
        cap = chunk_size - 1 if p.get("cap") == "paper" else chunk_size
        apart = m // c - n // c
        return (m % c, min(m % c + c, cap), min(2 * c - 1, cap))[min(apart, 2)], n % c


class TestDilatedWindow(PatternContract):
    attention_pattern = "dilated"
    cases = (
        {"window": 3, "dilation": 2, "n_global": 0},
        {"window": 4, "dilation": 3, "n_global": 2},
        {"window": 5, "dilation": 1, "n_global": 6},
    )

    def place(self, p, m, n):
        near = (m - n) % p["dilation"] == 0 and (m - n) // p["dilation"] < p["window"]
        return (m, n) if near or n < p["n_global"] else None


class TestString(PatternContract):
    attention_pattern = "string"
    cases = ({"window": 24, "shift": 8, "local": 3}, {"window": 24})

    def place(self, p, m, n):
        shift, local = p.get("shift") or p["window"] // 3, p.get("local") or 1
        return (m, n) if m - n < shift else (max(0, m - shift + local), n)


class TestBidirectional(PatternContract):
    attention_pattern = "bidirectional"
    cases = ({}, {"window": 4}, {"window": 1})

    def place(self, p, m, n):
        return (m, n) if p.get("window") is None or abs(m - n) < p["window"] else None


class TestS2(PatternContract):
    """Outside of training it is causal attention; what it is there: tests/models/test_s2.py."""

    attention_pattern = "s2"
    cases = ({"window": 16},)

    def place(self, p, m, n):
        return m, n

    def test_its_share_counts_the_pairs(self, settings):
        """In training, of both halves of the heads."""
        for length in (1, 5, 16, 40):
            size, pairs = settings["window"] // 4, [(m, n) for m in range(length) for n in range(m + 1)]
            seen = sum((m + ahead) // size == (n + ahead) // size for m, n in pairs for ahead in (0, size // 2)) / 2
            assert abs(self._rules(settings).share(length) - seen / len(pairs)) < 1e-12


ALL = [TestCausal, TestSlidingWindow, TestSinks, TestLambdaMask, TestRerope, TestSegments, TestSelfExtend]
ALL += [TestDualChunk, TestDilatedWindow, TestString, TestS2, TestBidirectional]


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("self_extend", lambda i: {"window": 64, "group": i["group"], "neighbours": i["window"]}, "distance_TT"),
        ("string", lambda i: {"window": 64, "shift": i["shift"], "local": i["local"]}, "distance_TT"),
        ("rerope", lambda i: {"window": i["window"]}, "distance_TT"),
        ("dual_chunk", lambda i: chunks(i, "code"), "distance_TT_released"),
        ("dual_chunk", lambda i: chunks(i, "paper"), "distance_TT"),
    ],
)
def test_distances_by_numbers_from_outside(name, settings, expected):
    """For some of them the authors' own code gave the same."""
    inputs, numbers = case(name)
    pos = parts.start(24)
    visible, m, n = placed(rules({"name": name, **settings(inputs)}).layouts(pos, pos))
    exact = tensor(numbers[expected])
    assert torch.equal(~exact.isnan(), visible[0])
    assert torch.equal(exact[visible[0]], (m - n)[0][visible[0]].double())


def chunks(inputs, cap):
    sizes = {"chunk_size": inputs["chunk_size"], "local_window": inputs["local_window"]}
    return {"window": 16, **sizes, "cap": cap}


def rules(settings):
    return patterns.build(patterns.settings(settings))


def layouts_of_all_kinds():
    """Rows as in training, with positions later in the text, evicted caches, documents that come back."""
    generator = random.Random(0)
    for settings in (each for contract in ALL for each in contract.settings().values()):
        for _ in range(6):
            lengths = [generator.randint(1, 30) for _ in range(4)]
            pos, doc = parts.packed(lengths, lengths[::-1], first=generator.choice([0, 0, 3]))
            n_keys = pos.shape[1]
            held = torch.tensor(sorted(generator.sample(range(n_keys), generator.randint(1, n_keys))))
            again = doc[:, torch.randperm(n_keys, generator=torch.Generator().manual_seed(n_keys))]
            one = torch.arange(n_keys)[None]
            for keys, documents in ((one, None), (one[:, held], None), (pos, doc), (pos, again)):
                n_queries = generator.randint(1, keys.shape[1])
                yield from rules(settings).layouts(keys[:, -n_queries:], keys, documents)


def test_tiles_that_are_skipped_hold_nothing():
    generator, skipped = random.Random(1), 0
    for layout in layouts_of_all_kinds():
        n_queries, n_keys = layout.text_BT.shape[1], layout.text_BS.shape[1]
        for _ in range(8):
            starts = generator.randrange(n_queries), generator.randrange(n_keys)
            queries = slice(starts[0], generator.randint(starts[0] + 1, n_queries))
            keys = slice(starts[1], generator.randint(starts[1] + 1, n_keys))
            if not may_see(layout, queries, keys):
                assert not seen(layout, queries, keys).any()
                skipped += 1
    assert skipped > 500


def test_indices_tell_distances_only_where_positions_rise():
    pos, doc = parts.packed([4, 3], [2, 5])
    assert Positions.of(pos, doc).contiguous
    assert Positions.of(torch.arange(5, 12)[None]).contiguous
    assert not Positions.of(torch.tensor([[0, 1, 5, 6]])).contiguous  # an evicted cache
    assert not Positions.of(
        torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 1, 1, 0]])
    ).contiguous  # a document comes back
    assert not Positions.of(torch.tensor([[0, 1, 0, 2]]), torch.tensor([[0, 0, 1, 1]])).contiguous


def refused(**flags):
    """Attention patterns that a scheme which says this of itself cannot go with."""
    scheme = type("Scheme", (Position,), {"bidirectional": True, **flags})(None, AttentionShape(2, 2, 4, 8, 64))
    scheme.settings = type("Settings", (), {"scheme": "mine"})
    return {
        contract.attention_pattern
        for contract in ALL
        for each in contract.settings().values()
        if rules(each).problems(scheme)
    }


def test_what_a_scheme_says_of_itself_decides():
    """Slack coca, tupe and fire see more than distances; embeddings cannot be moved; sums run along one view; where
    there are no positions there are no distances to limit."""
    moved = {"self_extend", "dual_chunk", "string"}
    far = {"sinks", "lambda_mask", "rerope", *moved}
    assert refused() == set() and refused(bidirectional=False) == {"bidirectional"}
    assert refused(relative=False) == {"sinks", *moved}
    assert refused(by_pairs=False) == far and refused(carries=True) == {*far, "dilated"}
    assert refused(has_effect=False, sees_positions=False) == {"rerope", *moved}


def test_tupe_takes_distances_its_table_has():
    config = load(["position=tupe"]).config
    assert not patterns.problems(patterns.settings({"name": "rerope", "window": 127}), config.position, config.model)


def test_segments_alone_are_not_for_training():
    for name in ATTENTION_PATTERNS.names():
        assert ATTENTION_PATTERNS.module(name).Rules.trains == (name != "segments")
