"""FoX: forget gates, against a loop, an independent implementation and the dense reference."""

import math

import pytest
import torch

from coca_train.attention import kernels
from coca_train.attention.pattern import AttentionPattern, Keep
from coca_train.attention.scores import part_of
from coca_train.models.cache import KVCache
from coca_train.positions import initials
from coca_train.positions.base import Pairs
from coca_train.positions.schemes.fox import FORGET
from coca_train.positions.token_positions import Positions
from coca_train.runtime.device import pretend_device
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.golden.methods import case, same, tensor
from tests.models.conftest import LLAMA
from tests.models.conftest import build as build_model
from tests.positions import pairwise

FOX = {"scheme": "fox"}


class TestContract(SchemeContract):
    scheme = "fox"
    cases = [FOX, FOX | {"gate_bias": 5.0}]
    own = {"gate.weight": (4, 24), "gate.bias": (4,)}

    def score(self, problem):
        """Σ log σ(w·x_l + b) over the tokens after the key up to the query, of those that the query sees."""
        w_HC, b_H = problem.parameters["gate.weight"], problem.parameters["gate.bias"]
        b_H = b_H + problem.settings.get("gate_bias", 0.0)
        log_f_BLH = -torch.log1p(torch.exp(-(torch.einsum("blc,hc->blh", problem.x_BSC, w_HC) + b_H)))
        s_S1, l_1L = pairwise.key_pairs(problem)
        between_BTSL = (problem.seen_BTS[:, :, None, :] & (l_1L > s_S1)).double()
        between_BTSL = between_BTSL.expand(len(log_f_BLH), -1, -1, -1)
        return problem.content_BHTS + torch.einsum("btsl,blh->bhts", between_BTSL, log_f_BLH)


def scores_of(layer, scheme, q, k, x):
    """By way of the hook, T x T."""
    pos = parts.start(q.shape[1])
    mapped = layer(scheme, q, k, None, parts.projections(scheme), layer.tokens(x))
    return parts.scores_of(mapped, scheme, pos, pos)


def problem(n_tokens):
    scheme = parts.build(FOX)
    q, k, _ = parts.random_qkv(scheme, n_tokens)
    x = torch.randn(2, n_tokens, 24, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return scheme, parts.layer_of(scheme), q, k, x


def test_by_hand():
    """What is left of a key is the product of the gates after it."""
    scheme, layer, q, k, x = problem(6)
    scores = scores_of(layer, scheme, q, k, x)
    w, b = layer.gate.weight, layer.gate.bias
    for batch, h, m in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(6)).tolist():
        for n in range(m + 1):
            left = 1.0
            for token in range(n + 1, m + 1):
                left *= 1 / (1 + math.exp(-(w[h] @ x[batch, token] + b[h]).item()))
            content = (q[batch, m, h] @ k[batch, n, h // 2]).item() / 4
            assert scores[batch, h, m, n].item() == pytest.approx(content + math.log(left), abs=1e-12)


def test_equals_x_transformers():
    from x_transformers.x_transformers import DataDependentAlibi

    scheme, layer, q, k, x = problem(9)
    theirs = DataDependentAlibi(24, 4).double()
    linear = theirs.to_forget_gates[0]
    linear.weight.data, linear.bias.data = layer.gate.weight.data, layer.gate.bias.data
    content = torch.einsum("bthd,bshd->bhts", q, k.repeat_interleave(2, 2)) / 4
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    ours = (scores_of(layer, scheme, q, k, x) - content).masked_fill(~causal, 0.0)
    torch.testing.assert_close(ours, theirs(x).masked_fill(~causal, 0.0))


@pytest.mark.parametrize(("name", "sign"), [("data_dependent_alibi", 1), ("cable", -1)])
def test_others_by_numbers_from_outside(name, sign):
    """Data-dependent ALiBi is the same sum; CABLE, -Σ log(1 + exp(w·x + b)), is that of the negated gate."""
    inputs, expected = case(name)
    x, w, b = (tensor(inputs[each]) for each in ("x_TC", "w_HC", "b_H"))
    layer = parts.layer_of(parts.build(FOX, len(w), len(w), 8, x.shape[1]))
    layer.gate.weight.data, layer.gate.bias.data = sign * w, sign * b
    keys, pos = torch.zeros(1, len(x), len(w), 8).double(), parts.start(len(x))
    scheme = parts.build(FOX, len(w), len(w), 8, x.shape[1])
    mapped = layer(scheme, keys, keys, None, parts.projections(scheme), layer.tokens(x[None]))
    assert same(parts.scores_of(mapped, scheme, pos, pos)[0], expected["bias_HTT"])


def test_starts_at_one_half():
    """b = 0 and small w, as every linear layer: no INITIAL of its own."""
    assert initials(parts.build(FOX).settings) == {}
    gate = build_model(LLAMA, FOX).first_attention.position.gate
    assert not gate.bias.any() and gate.weight.std().item() == pytest.approx(LLAMA.init_std, rel=0.2)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("n_queries", [21, 6])
@pytest.mark.parametrize("documents", [False, True])
def test_flex_equals_the_definition(n_queries, documents):
    """Forward, uncompiled: what torch offers on a CPU. By sums from the first token on, so float32 alone."""
    scheme = parts.build(FOX, head_dim=16).float()
    layer = parts.layer_of(scheme).float()
    q, k, v = (x.detach() for x in parts.random_qkv(scheme, 21, dtype=torch.float32))
    pos = parts.start(21)
    doc = torch.stack([torch.arange(21) // 8, torch.arange(21) // 13]) if documents else None
    (layout,) = AttentionPattern(None).layouts(pos[:, -n_queries:], pos, doc)
    mapped = layer(scheme, q[:, -n_queries:], k, None, parts.projections(scheme), parts.tokens(layer, k))
    views = [part_of(mapped._replace(score_mod=detached(mapped.score_mod)), layout)]
    with pretend_device("cuda"):
        assert kernels.choose(views, 21) == "flex"
    exact = kernels.eager(views, v, 0.25)
    torch.testing.assert_close(kernels.KERNELS["flex"](views, v, 0.25), exact, rtol=1e-4, atol=1e-5)


def detached(score_mod):
    return score_mod._replace(keys=tuple(x.detach() for x in score_mod.keys))


def test_far_sums_keep_their_digits():
    """16 000 tokens, each of which forgets: a sum of 16 000, but the near keys, which alone count, are exact."""
    n_tokens = 16384
    keys = torch.rand(1, n_tokens, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).log()
    seen = torch.ones(1, 1, 1, n_tokens, dtype=torch.bool)
    tails = []
    for dtype in (torch.float32, torch.float64):
        zeros = torch.zeros(1, 2, 1, n_tokens, dtype=dtype)
        pairs = Pairs(zeros, seen, torch.tensor([[0]]), torch.zeros(1, n_tokens), (), (), (keys.to(dtype),))
        tails.append(FORGET.scores(pairs, zeros[..., :1])[0][..., -64:].double())
    torch.testing.assert_close(*tails, rtol=1e-6, atol=1e-6)


def test_gates_stand_in_the_cache():
    """Beside keys and values: forked, joined and dropped with them."""
    cache = KVCache([keep := Keep(first=1, last=2)], 8)
    gates = torch.arange(5.0).reshape(1, 5, 1)
    for at in range(3):
        pos_BS = cache.advance(Positions.counted(at, at + 1))[keep].positions.pos_BT
        k, v, g = cache.extend(0, gates[:, at : at + 1], -gates[:, at : at + 1], 10 * gates[:, at : at + 1])
        assert torch.equal(k[..., 0].long(), pos_BS) and torch.equal(v, -k) and torch.equal(g, 10 * k)
    forks = [cache.fork(rows, 8) for rows in (1, 2)]
    for fork, last in zip(forks, (3, 4), strict=True):
        fork.advance(Positions.counted(3, 4))
        fork.extend(0, *(torch.full((len(fork._layers[0][0]), 1, 1), float(last * sign)) for sign in (1, -1, 10)))
    assert sum(fork.n_bytes for fork in forks) == 3 * 3 * 3 * 4
    joined = KVCache.join(forks)
    assert joined.n_bytes == 3 * 3 * 3 * 4
    k, v, g = (x[..., 0].tolist() for x in joined._layers[0])
    assert k == [[0, 2, 3], [0, 2, 4], [0, 2, 4]]
    assert g == [[10 * each for each in row] for row in k]


def test_a_model_forgets():
    """Gates shut: every token sees itself alone, so that what stood before changes nothing."""
    model = build_model(LLAMA, FOX)
    tokens = torch.randint(0, 101, (1, 12), generator=torch.Generator().manual_seed(5))
    other = tokens.clone()
    other[:, :11] += torch.where(other[:, :11] < 50, 1, -1)
    assert not torch.allclose(model(tokens)[:, -1], model(other)[:, -1])
    for block in model.blocks:
        block.attention.position.gate.bias.data.fill_(-1e4)
    torch.testing.assert_close(model(tokens)[:, -1], model(other)[:, -1])
