"""Every kernel equals the definition, gradients included; and the definition equals a plain loop."""

import math

import pytest
import torch

from coca_train.attention import flex, tiled_attention
from coca_train.attention.kernels import KERNELS
from coca_train.attention.pattern import seen
from coca_train.attention.scores import Part
from coca_train.positions.base import Terms
from tests.cases import slow_unless
from tests.models.parts import ATTENTION_PATTERNS, GROUPS, HEADS, RandomParts, documents, gaps, same
from tests.models.watching import Largest, Passes

FAST = ["sdpa", "blocked", "auto"]
WIDTH, VALUE_WIDTH, SCALE = 12, 8, 0.3
KINDS = ["none", "distance", "query", "key", "value", "all"]


class Case(RandomParts):
    scale = SCALE

    def __init__(
        self, n_queries, n_keys, attention_pattern, kind, *, doc=None, pos=None, dtype=torch.float64, n_rows=5
    ):
        super().__init__(n_queries, n_keys, attention_pattern, VALUE_WIDTH, dtype, doc, pos)
        leaf = self.leaf
        value_RD = leaf(n_rows, VALUE_WIDTH) if kind in ("value", "all") else None
        for layout in self.layouts:
            q, k = leaf(2, n_queries, HEADS, WIDTH), leaf(2, n_keys, GROUPS, WIDTH)
            terms = Terms(
                leaf(HEADS, n_rows + 2) if kind in ("distance", "all") else None,
                (leaf(2, n_queries, HEADS, 3), leaf(n_rows, 1, 3)) if kind in ("query", "all") else None,
                (leaf(2, n_keys, GROUPS, 3), leaf(n_rows + 1, HEADS, 3)) if kind in ("key", "all") else None,
                value_RD,
            )
            self.parts.append(Part(q, k, terms, layout))

    def detached(self):
        """(parts, v) without gradients."""
        parts = []
        for q, k, terms, layout, *_ in self.parts:
            pairs = [None if t is None else tuple(x.detach() for x in t) for t in (terms.query, terms.key)]
            tables = [None if t is None else t.detach() for t in (terms.distance_HR, terms.value_RD)]
            parts.append(Part(q.detach(), k.detach(), Terms(tables[0], *pairs, tables[1]), layout))
        return parts, self.v.detach()


def by_hand(case, b, h, i):
    """One output row by scalar arithmetic."""
    n_queries, n_keys = case.parts[0].q_BTHE.shape[1], case.v.shape[1]
    everything = slice(0, n_queries), slice(0, n_keys)
    scores, values = [], []
    for q, k, terms, layout, *_ in case.parts:
        shown = seen(layout, *everything)
        row = min(b, shown.shape[0] - 1)
        at = min(b, layout.pos_BT.shape[0] - 1)
        for n in range(n_keys):
            if not shown[row, i, n]:
                continue
            r = max(0, int(layout.pos_BT[at, i] - layout.pos_BS[at, n]))
            score = q[b, i, h] @ k[b, n, h // 2]
            if terms.query is not None:
                x, e = terms.query
                score = score + x[b, i, h] @ e[min(r, len(e) - 1), 0]
            if terms.key is not None:
                x, e = terms.key
                score = score + x[b, n, h // 2] @ e[min(r, len(e) - 1), h]
            score = score * SCALE
            value = case.v[b, n, h // 2]
            if terms.distance_HR is not None:
                score = score + terms.distance_HR[h, min(r, terms.distance_HR.shape[1] - 1)]
            if terms.value_RD is not None:
                value = value + terms.value_RD[min(r, len(terms.value_RD) - 1)]
            scores.append(math.exp(score.item()))
            values.append(value)
    return sum(w * x for w, x in zip(scores, values, strict=True)) / sum(scores)


@pytest.mark.parametrize("attention_pattern", ATTENTION_PATTERNS)
@pytest.mark.parametrize("n_queries", [8, 3])
def test_definition_is_softmax_over_visible_keys(attention_pattern, n_queries):
    case = Case(n_queries, 8, attention_pattern, "all")
    out, _ = case.run("eager")
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(HEADS), torch.arange(n_queries)).tolist():
        torch.testing.assert_close(out[b, i, h], by_hand(case, b, h, i))


def test_definition_with_documents():
    doc = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0] * 7])
    pos = torch.tensor([[0, 1, 0, 1, 2, 0, 1], list(range(7))])
    case = Case(5, 7, "sliding_window", "all", doc=doc, pos=pos)
    out, _ = case.run("eager")
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(HEADS), torch.arange(5)).tolist():
        torch.testing.assert_close(out[b, i, h], by_hand(case, b, h, i))


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("kernel", FAST)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (7, 7), (16, 16), (1, 9), (3, 11)])
@pytest.mark.parametrize("attention_pattern", ["causal", "sliding_window"])
@pytest.mark.parametrize("kind", KINDS)
def test_fast_equals_definition_with_gradients(kernel, n_queries, n_keys, attention_pattern, kind):
    same(Case(n_queries, n_keys, attention_pattern, kind), kernel)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("n_keys", [8, 17])
@pytest.mark.parametrize("attention_pattern", ATTENTION_PATTERNS)
@pytest.mark.parametrize("kind", ["none", "all"])
def test_every_attention_pattern_on_the_blocked_path(n_keys, attention_pattern, kind):
    same(Case(n_keys, n_keys, attention_pattern, kind), "blocked")


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("n_keys", [8, 17])
@pytest.mark.parametrize("attention_pattern", ATTENTION_PATTERNS)
def test_documents_on_the_blocked_path(n_keys, attention_pattern):
    same(Case(n_keys, n_keys, attention_pattern, "all", **documents(n_keys)))


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("n_keys", [8, 17])
@pytest.mark.parametrize("attention_pattern", ["causal", "sinks", "rerope"])
def test_positions_with_gaps_on_the_blocked_path(n_keys, attention_pattern):
    """Nothing may be shifted, and a window counts positions."""
    case = Case(n_keys, n_keys, attention_pattern, "all", pos=gaps(n_keys), n_rows=2 * n_keys)
    assert not case.layouts[0].contiguous
    same(case, "blocked")


@pytest.mark.usefixtures("_small_tiles")
def test_tiles_in_which_every_score_is_minus_infinity():
    """The nearest keys, whose tiles are visited first, have no finite score."""
    case = Case(8, 24, "causal", "distance", n_rows=20)
    with torch.no_grad():
        case.parts[0].terms.distance_HR[:, :10] = -torch.inf
    same(case)


FLEX = [(v, "distance", n) for v in ATTENTION_PATTERNS for n in (9, 4)]
FLEX += [(*case, n) for case in [*(("causal", k) for k in KINDS[:4]), ("sinks", "query")] for n in (9, 4)]
FLEX += [("rerope", "key", 9), ("rerope", "key", 4)]
FLEX_QUICK = [("causal", "none", 9), ("causal", "query", 4), ("causal", "key", 9), ("rerope", "key", 4)]
FLEX_QUICK += [("sliding_window", "distance", 4), ("lambda_mask", "distance", 9), ("segments", "distance", 9)]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(("attention_pattern", "kind", "n_queries"), slow_unless(FLEX_QUICK, FLEX))
def test_flex_equals_definition(attention_pattern, kind, n_queries):
    """Uncompiled and forward only, which is all that torch offers on a CPU; see tests/gpu for the rest."""
    case = Case(n_queries, 9, attention_pattern, kind, dtype=torch.float32)
    expected, _ = case.run("eager")
    out = KERNELS["flex"](*case.detached(), SCALE)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("options", [{"pos": gaps(9), "n_rows": 18}, documents(13)], ids=["gaps", "documents"])
def test_flex_equals_definition_where_positions_are_not_indices(options):
    n_keys = options["pos"].shape[1]
    case = Case(n_keys, n_keys, "sinks", "distance", **options, dtype=torch.float32)
    expected, _ = case.run("eager")
    out = KERNELS["flex"](*case.detached(), SCALE)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_what_flex_cannot_look_up_goes_to_blocked():
    for kind, n_rows, able in (
        ("value", 5, False),
        ("query", 600, False),
        ("query", 500, True),
        ("distance", 600, True),
    ):
        assert flex.is_supported(Case(9, 9, "causal", kind, n_rows=n_rows).parts) is able
    case = Case(9, 9, "causal", "all")
    torch.testing.assert_close(case.run("flex")[0], case.run("eager")[0])


def test_real_tile_sizes():
    """More than RECOMPUTE_ABOVE keys, ends that fit no tile, in float32."""
    case = Case(1100, 1100, "sinks", "all", dtype=torch.float32, n_rows=40)
    (expected, expected_grads), (out, grads) = case.run("eager"), case.run("blocked")
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for a, b in zip(grads, expected_grads, strict=True):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


@pytest.mark.parametrize("kernel", FAST)
@pytest.mark.parametrize("kind", ["none", "all"])
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_lower_precision_stays_close(kernel, kind, small, dtype, rtol, request):
    if small:
        request.getfixturevalue("_small_tiles")
    expected, _ = Case(33, 33, "causal", kind).run("eager")
    out, _ = Case(33, 33, "causal", kind, dtype=dtype).run(kernel)
    assert (out.double() - expected).abs().max() <= rtol * expected.abs().max()


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("widened", [False, True])
def test_halves_multiplied_as_they_are_or_in_float32(widened, kind, monkeypatch):
    """Whichever this CPU would do: results and gradients in bfloat16, near those of the definition."""
    monkeypatch.setattr(tiled_attention, "WIDENED", {torch.bfloat16: widened})
    expected, expected_grads = Case(33, 33, "causal", kind).run("eager")
    out, grads = Case(33, 33, "causal", kind, dtype=torch.bfloat16).run("blocked")
    for a, b in zip((out, *grads), (expected, *expected_grads), strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.double() - b).abs().max() <= 3e-2 * b.abs().max()


@pytest.mark.parametrize("kind", ["none", "all"])
def test_long_sequences_hold_no_square(kind):
    """T = 6 144 with a window: no tensor is anywhere near T x T, forward or backward."""
    n = 6144
    case = Case(n, n, "sliding_window", kind, dtype=torch.bfloat16, n_rows=64)
    with Largest() as largest:
        out, _ = case.run("auto")
    assert out.shape == (2, n, HEADS, VALUE_WIDTH)
    assert largest.numel < 2 * HEADS * n * 64


def test_a_window_visits_few_tiles(monkeypatch):
    """O(T·window): twice the length, about twice the tiles."""
    visited = []
    monkeypatch.setattr(
        tiled_attention, "slice_tile", lambda *args, real=tiled_attention.slice_tile: visited.append(1) or real(*args)
    )
    counts = []
    for n in (2048, 4096):
        visited.clear()
        case = Case(n, n, "sinks", "none", dtype=torch.float32)
        with torch.no_grad():
            KERNELS["blocked"](case.parts, case.v, SCALE)
        counts.append(len(visited))
    assert counts[1] <= 2.1 * counts[0]
    assert counts[1] < 3 * 4096 / tiled_attention.QUERY_TILE


def test_what_a_tile_costs():
    """A bias takes two products forward and five backward, as fused kernels do, and few passes over the pairs beside
    them: counted by what a longer text has more of; hiding what comes later apart, which few tiles have to."""
    forward, backward = [], []
    for n_blocks in (3, 5):
        n = n_blocks * tiled_attention.KEY_TILE
        case = Case(n, n, "causal", "distance", dtype=torch.float32, n_rows=n)
        for passes in (forward, backward):
            passes.append(Passes(2 * HEADS * tiled_attention.QUERY_TILE * tiled_attention.KEY_TILE))
        with forward[-1]:
            out = KERNELS["blocked"](case.parts, case.v, SCALE)
        with backward[-1]:
            out.sum().backward()
    n_tiles = (tiled_attention.KEY_TILE // tiled_attention.QUERY_TILE) * (15 - 6)
    for (few, many), products, others in ((forward, 2, 4), (backward, 5, 6)):
        more = many.seen - few.seen
        assert more.pop("bmm") == products * n_tiles
        assert more.pop("masked_fill") < n_tiles
        assert more.total() <= others * n_tiles, more
