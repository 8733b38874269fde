"""A hook gives the same scores, and the same gradients, in every kernel. Here with hooks made for the purpose, which
use all that a hook may; the schemes that have one are in tests/positions."""

from functools import cache, partial

import pytest
import torch
from torch.nn import functional as F

from coca_train.attention import flex, kernels, scores
from coca_train.attention.pattern import seen
from coca_train.attention.scores import Part
from coca_train.positions.base import Hook, ScoreMod, Terms
from coca_train.runtime.compilation import compile_alone
from tests.cases import slow_unless
from tests.models.parts import GROUPS, HEADS, RandomParts, documents, gaps, same
from tests.models.watching import Largest

WIDTH, SCALE = 6, 0.4
ONE_VIEW = ["causal", "sliding_window", "segments"]
SEVERAL_VIEWS = ["lambda_mask", "rerope"]


def by_pair(pairs, carry):
    """Where both stand, and what is known of each."""
    (slope_H,), (a_BtHD,), (b_BsHD,) = pairs.parameters, pairs.queries, pairs.keys
    far_Bts = pairs.distance_Bts / (1 + pairs.pos_Bt[:, :, None])
    known = torch.einsum("bthd,bshd->bhts", a_BtHD, b_BsHD).tanh()
    return pairs.scores_BHts * (1 + known) - slope_H[:, None, None] * far_Bts[:, None], carry


def by_head(pairs, carry):
    (mix_HH,) = pairs.parameters
    return F.leaky_relu(torch.einsum("bhts,hg->bgts", pairs.scores_BHts, mix_HH)) + pairs.scores_BHts, carry


def by_carry(pairs, carry_BHt2):
    """Two sums over the keys from a key to its query: of gates that the scores open, and of what keys bring along."""
    (bend_1,), (size_BsH,) = pairs.parameters, pairs.keys
    both = pairs.scores_BHts.sigmoid(), size_BsH.transpose(1, 2)[:, :, None].expand_as(pairs.scores_BHts)
    if pairs.seen_B1ts is not None:
        both = (torch.where(pairs.seen_B1ts, x, 0.0) for x in both)
    sums_BHts2 = torch.stack([x.flip(-1).cumsum(-1).flip(-1) for x in both], -1) + carry_BHt2[..., None, :]
    return pairs.scores_BHts + (bend_1 * sums_BHts2.prod(-1)).sin(), sums_BHts2[..., 0, :]


HOOKS = {"by_pair": Hook(by_pair), "by_head": Hook(by_head, mixes_heads=True), "by_carry": Hook(by_carry, carried=2)}


class Case(RandomParts):
    scale = SCALE

    def __init__(self, name, n_queries, n_keys, attention_pattern="causal", *, doc=None, pos=None, dtype=torch.float64):
        super().__init__(n_queries, n_keys, attention_pattern, WIDTH, dtype, doc, pos)
        wide = partial(self.leaf, dtype=torch.promote_types(dtype, torch.float32))  # what hooks take, whatever q is
        for layout in self.layouts:
            score_mod = {
                "by_pair": lambda: ((wide(HEADS),), (wide(2, n_queries, HEADS, 3),), (wide(2, n_keys, HEADS, 3),)),
                "by_head": lambda: ((wide(HEADS, HEADS),), (), ()),
                "by_carry": lambda: ((wide(1),), (), (wide(2, n_keys, HEADS),)),
            }[name]()
            terms = Terms(distance_HR=self.leaf(HEADS, 7))
            qk = self.leaf(2, n_queries, HEADS, WIDTH), self.leaf(2, n_keys, GROUPS, WIDTH)
            self.parts.append(Part(*qk, terms, layout, ScoreMod(HOOKS[name], *score_mod)))


@pytest.mark.parametrize("name", HOOKS)
def test_definition_is_the_hook_over_all_pairs_at_once(name):
    """Hooks see scores, positions and their tensors whole; what they leave out is hidden afterwards."""
    case = Case(name, 5, 8)
    (part,) = case.parts
    whole = slice(0, 5), slice(0, 8)
    k_BSHD, v_BSHD = (x.repeat_interleave(2, 2) for x in (part.k_BSGE, case.v))
    added = part.terms.distance_HR[:, (torch.arange(3, 8)[:, None] - torch.arange(8)).clamp(0, 6)]
    given = torch.einsum("bthd,bshd->bhts", part.q_BTHE, k_BSHD) * SCALE + added
    shown = seen(part.layout, *whole)[:, None]
    pairs = scores.Pairs(given, shown, part.layout.pos_BT, part.layout.pos_BS, *part.score_mod[1:])
    scores_BHTS, _ = part.hook.scores(pairs, given.new_zeros(2, HEADS, 5, part.hook.carried))
    expected = scores_BHTS.masked_fill(~shown, -torch.inf).softmax(-1) @ v_BSHD.transpose(1, 2)
    torch.testing.assert_close(case.run("eager")[0], expected.transpose(1, 2))


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (7, 7), (16, 16), (1, 9), (3, 11), (5, 14)])
@pytest.mark.parametrize("name", HOOKS)
def test_fast_equals_definition_with_gradients(name, n_queries, n_keys):
    for kernel in ("blocked", "auto", "sdpa", "flex"):
        same(Case(name, n_queries, n_keys), kernel)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("n_keys", [8, 17])
@pytest.mark.parametrize(
    ("name", "attention_pattern"),
    [(n, v) for n in HOOKS for v in (ONE_VIEW if n == "by_carry" else ONE_VIEW + SEVERAL_VIEWS)],
)
def test_every_attention_pattern(name, attention_pattern, n_keys):
    same(Case(name, n_keys, n_keys, attention_pattern))


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("n_keys", [8, 17])
@pytest.mark.parametrize("attention_pattern", ONE_VIEW)
@pytest.mark.parametrize("name", HOOKS)
def test_documents_and_gaps(name, attention_pattern, n_keys):
    same(Case(name, n_keys, n_keys, attention_pattern, **documents(n_keys)))
    same(Case(name, n_keys, n_keys, attention_pattern, pos=gaps(n_keys)))


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("name", HOOKS)
def test_what_is_frozen_gets_no_gradient_and_changes_none(name):
    """A layer may be trained while others are not: every subset of leaves must do."""
    for kept in range(8):
        case = Case(name, 14, 14)
        expected = case.run("eager")[1]
        for at, leaf in enumerate(case.leaves):
            leaf.requires_grad_(at % 8 == kept)
        trained = [(leaf, g) for leaf, g in zip(case.leaves, expected, strict=True) if leaf.requires_grad]
        if trained:
            case.leaves = [leaf for leaf, _ in trained]
            for a, (_, b) in zip(case.run("blocked")[1], trained, strict=True):
                torch.testing.assert_close(a, b)


def test_real_tile_sizes():
    """More than RECOMPUTE_ABOVE keys, ends that fit no tile, in float32: the carry crosses three tiles."""
    case = Case("by_carry", 1100, 1100, dtype=torch.float32)
    with torch.no_grad():
        case.parts[0].score_mod.parameters[0].fill_(1e-4)  # sums reach a thousand, and a sine of them would be noise
    (expected, expected_grads), (out, grads) = case.run("eager"), case.run("blocked")
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-4)
    for a, b in zip(grads, expected_grads, strict=True):
        assert (a - b).abs().max() <= 1e-3 * b.abs().max()


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("name", slow_unless(["by_carry"], HOOKS))
def test_compiled_tiles_equal_plain_ones(name, monkeypatch):
    """On CUDA a tile's hook is compiled. Here traced, and its gradient too, but run by torch's own kernels. All tiles
    are of one size: each other one is traced anew."""
    torch._dynamo.reset()
    compiled = compile_alone(HOOKS[name].scores, "aot_eager")
    case = Case(name, 12, 12)
    expected, expected_grads = case.run("blocked")
    monkeypatch.setitem(HOOKS, name, HOOKS[name]._replace(scores=compiled))
    out, grads = Case(name, 12, 12).run("blocked")
    torch.testing.assert_close(out, expected)
    for a, b in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.usefixtures("_small_tiles")
def test_tiles_beyond_torchs_limit_of_graphs_are_said_once_and_computed(monkeypatch, capsys):
    """As with the many lengths of an evaluation: the first shapes stay compiled, further ones run as they are."""
    torch._dynamo.reset()
    monkeypatch.setattr(scores, "fuses", lambda device: True)
    monkeypatch.setattr(scores, "_compiled", cache(partial(scores._compiled.__wrapped__, backend="aot_eager")))
    with torch._dynamo.config.patch(recompile_limit=2):
        for n_keys in (12, 13, 14, 11):
            case, plain = Case("by_head", n_keys, n_keys), Case("by_head", n_keys, n_keys)
            out, grads = case.run("blocked")
            expected, expected_grads = plain.run("eager")
            torch.testing.assert_close(out, expected)
            for a, b in zip(grads, expected_grads, strict=True):
                torch.testing.assert_close(a, b)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("WARNING")]
    assert len(said) == 1 and f"{__name__}.by_head" in said[0]


@pytest.mark.parametrize("name", slow_unless(["by_carry"], HOOKS))
def test_long_sequences_hold_no_square(name):
    """No tensor is anywhere near T x T, forward or backward. At T = 4 096, four times where tiles begin, all scores
    would be 64 times the bound; the largest tensor is half of it, a tile, and no larger at 6 144."""
    n = 4096
    case = Case(name, n, n, "sliding_window", dtype=torch.bfloat16)
    with Largest() as largest:
        case.run("auto")
    assert largest.numel < 2 * HEADS * n * 64


def test_a_hook_without_a_pointwise_form_is_not_for_flex():
    case = Case("by_head", 9, 9)
    assert not flex.is_supported(case.parts)
    assert not kernels.is_plain([case.parts[0]._replace(terms=Terms())])
    torch.testing.assert_close(case.run("flex")[0], case.run("eager")[0])
